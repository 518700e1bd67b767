"""The scores of pools of runs, a line for each metric; accuracies by client are folded."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from benchmark.tracking.clients import has_all
from benchmark.tracking.comparison import Pool, RunContent, cell_of
from eval.errors import EvalError
from eval.official import OF, PROTOCOLS, Protocol, find
from leaderboards.encoders import WORST
from leaderboards.markdown import seeds_phrase, with_spread
from leaderboards.rank import Cell

FOLDS: dict[str, Callable[[list[float]], float]] = {"worst": min, "median": median, "best": max}
"""What is shown of the accuracies by client -> its value in a run."""
SPREAD = "mean ± sample standard deviation"
"""What a cell of several seeds is."""
DIGITS, MOST_DECIMALS = 4, 8
"""Significant digits of a number, and most decimals of one with a spread."""


@dataclass(frozen=True)
class ScoreLine:
    """A metric in every pool.

    metric: its name in records; of folded clients `accuracy_worst_client` and so on. name: as it is shown.
    main: whether it stands for its protocol. cells: of each pool. notes: a word on each cell, or nothing.
    """

    protocol: Protocol
    metric: str
    name: str
    main: bool
    cells: Sequence[Cell | None]
    notes: Sequence[str] = ()

    @property
    def key(self) -> str:
        """The score, as in `leaderboards.rank.HEADLINE`."""
        return f"{self.protocol.id} {self.metric}"

    def best(self, decimals: int = 15) -> set[int]:
        """The pools of the best mean, rounded to `decimals`; none of a single one, or where neither way is better."""
        means = {pool: round(cell.mean, decimals) for pool, cell in enumerate(self.cells) if cell is not None}
        better = self.protocol.better(self.metric)
        if not better or len(means) < 2:
            return set()
        first = {"higher": max, "lower": min}[better](means.values())
        return {pool for pool, mean in means.items() if mean == first}


def score_lines(pools: Sequence[Pool], clients: bool = False) -> list[ScoreLine]:
    """Every metric that a run has, the headline of each protocol first; of a protocol that no longer exists, none.

    clients: with a line for each client, instead of the worst, the median and the best client of each run.
    """
    runs = [run for pool in pools for run in pool.runs]
    measured = {protocol for run in runs for protocol in run.scores}
    several, lines = any(run.encoders > 1 for run in runs), list[ScoreLine]()
    for id in [*(known for known in PROTOCOLS if known in measured), *sorted(measured - PROTOCOLS.keys())]:
        protocol = _protocol(id)
        metrics = list(dict.fromkeys(metric for run in runs for metric in run.scores.get(id, {})))
        first = protocol.leading(metrics)
        metrics.sort(key=lambda metric: (metric != first, metric))
        folded = [] if clients else [metric for metric in metrics if metric.startswith(OF)]
        for metric in metrics:
            if metric in folded:
                lines += _folded(protocol, pools) if metric == folded[0] else []
                continue
            base = metric.removesuffix(WORST)
            of_encoders = f", {'mean' if metric == base else 'worst'} of encoders"
            name = f"{base}{of_encoders}" if several and base + WORST in metrics else metric
            main = base == metrics[0].removesuffix(WORST) or metric.startswith(OF)
            lines.append(ScoreLine(protocol, metric, name, main, [pool.cell(id, metric) for pool in pools]))
    return lines


def _protocol(id: str) -> Protocol:
    """A protocol; one without a headline where it no longer exists."""
    try:
        return find(id)
    except EvalError:
        return Protocol(id, dict, "", headline="")


def _folded(protocol: Protocol, pools: Sequence[Pool]) -> Iterator[ScoreLine]:
    """The worst, the median and the best client of each run, the worst one with its name.

    Where each client has the accuracies of several encoders, these are of their means. The worst alone where a run's
    record has not all of its clients.
    """

    def clients(run: RunContent) -> dict[str, float]:
        metrics = run.scores.get(protocol.id, {})
        beside_mean = {f"{key}{WORST}" for key in metrics}
        return {key: value for key, value in metrics.items() if key.startswith(OF) and key not in beside_mean}

    each = [[clients(run) for run in pool.runs] for pool in pools]
    every = all(has_all(run.scores.get(protocol.id, {})) for pool in pools for run in pool.runs if clients(run))
    for fold, of in FOLDS.items() if every else [("worst", min)]:
        cells = [cell_of([of(list(run.values())) for run in runs if run]) for runs in each]
        notes = [_worst_client([run for run in runs if run]) for runs in each] if fold == "worst" else ()
        yield ScoreLine(protocol, f"accuracy_{fold}_client", f"{fold} client", fold == "worst", cells, notes)


def _worst_client(runs: Sequence[dict[str, float]]) -> str:
    """The client of the lowest accuracy; the most frequent one where seeds differ."""
    if not runs:
        return ""
    (metric, often), *_ = Counter(min(run, key=run.__getitem__) for run in runs).most_common()
    return metric.removeprefix(OF) + (f" in {often} of {len(runs)}" if often < len(runs) else "")


def decimals_of(size: float) -> int:
    """Decimals of a number of four significant digits. size: a number's, its sign does not matter.

    >>> decimals_of(94.8112)
    2
    """
    if not size or not math.isfinite(size):
        return 2
    return min(max(0, DIGITS - 1 - math.floor(math.log10(abs(size)))), MOST_DECIMALS)


def number(cell: Cell | None, seeds: int) -> str:
    """A cell's text, `94.81 ± 0.33`, plain where no seeds differ; with their number where it is less than `seeds`."""
    if cell is None:
        return ""
    plain = f"{cell.mean:,.{DIGITS}g}"
    text = with_spread(cell, decimals_of(max(abs(cell.mean), cell.spread))) if cell.spread else plain
    return text + fewer(cell, seeds)


def fewer(cell: Cell | None, seeds: int) -> str:
    """The number of seeds that a cell is of, where these are fewer than `seeds`, for the end of its text."""
    return f" ({seeds_phrase([cell.n])})" if cell is not None and cell.n < seeds else ""
