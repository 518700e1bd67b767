"""The parity table: how far the suite is from what the authors' codes compute, read from JSON and written into docs.

`benchmark.parity` measures it.
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from leaderboards import store
from leaderboards.markdown import render, replace_between, with_spread
from leaderboards.rank import Cell, board
from leaderboards.schema import Record

FILE = "parity.json"
"""The table's file in the leaderboards' folder."""
MAIN, CHANGED = "cifar10-micro", "cifar10-micro-settings"
"""The scenario of the suite's rows, and that of rows `ROW+KEY=VALUE`: such a row with one setting of the authors."""


@dataclass(frozen=True)
class Precision:
    """The largest relative differences of a file's run in one precision.

    first: of the first step's losses; None: no step. losses, weights: of all; None: there are none.
    """

    first: float | None
    losses: float | None
    weights: float | None


@dataclass(frozen=True)
class Effect:
    """What a setting of the authors does to a file's run, beside the suite's default value.

    first: relative difference of the first step's loss; largest: of any step that both runs have; weights: of any
    tensor's fingerprint. None: there is none.
    """

    key: str
    authors: str
    default: str
    first: float | None
    largest: float | None
    weights: float | None


@dataclass(frozen=True)
class Result:
    """One parity file beside the suite.

    file: its name. method, objective: the suite's that it is of. scenario: with whose settings it was run.
    driven: what ran of the authors' code. author_bugs: that are reproduced. met: within what is allowed.
    effects: of settings.
    """

    file: str
    method: str
    objective: str
    scenario: str
    paper: str
    repository: str
    commit: str
    driven: str
    clients: int
    rounds: int
    steps: int
    author_bugs: str
    precisions: dict[str, Precision]
    met: bool
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Parity:
    """All files."""

    results: tuple[Result, ...]


def read(path: str | Path) -> Parity:
    """The table in a file. Raises RecordError where the file is missing or holds no table."""
    return store.read_table(path, Parity, "parity table", "parity")


def filled(page: str, parity: Parity, records: Sequence[Record] = ()) -> str:
    """docs/reference/parity.md with its tables between the marks; records: of runs whose accuracies are compared."""
    codes: dict[tuple[str, ...], list[str]] = {}  # what ran of the authors' code -> the files of those runs
    for each in parity.results:
        ran = (each.paper, f"{each.repository} @{each.commit}", each.driven, each.scenario, each.author_bugs or "none")
        codes.setdefault(ran, []).append(each.file)
    values = {"results": parity.results, "codes": codes, "accuracies": accuracies(records)}
    functions = {"shown": shown, "two_digits": two_digits, "signed": signed}
    return replace_between(page, "parity", render("parity.md.j2", **values, **functions))


def accuracies(records: Sequence[Record]) -> list[tuple[str, str, Cell, Cell, Cell]]:
    """What settings of the authors did to probe accuracy: `KEY=VALUE`, row, without it, with it, the difference.

    Over the seeds that a row has both ways; the difference is with the setting minus without, of one seed each.
    """
    default, changed = ({row.row: row.headline for row in board(records, scenario)} for scenario in (MAIN, CHANGED))
    compared = []
    for name, scores in changed.items():
        row, _, setting = name.partition("+")
        pairs = [(default[row][seed], scores[seed]) for seed in sorted(scores.keys() & default.get(row, {}).keys())]
        if pairs:
            before, after = map(Cell.of, zip(*pairs, strict=True))
            compared.append((setting, row, before, after, Cell.of([new - old for old, new in pairs])))
    return sorted(compared)


def signed(cell: Cell, decimals: int) -> str:
    """A mean difference with its sign, and its spread: `+0.4 ± 0.9`."""
    return f"{'+' if round(cell.mean, decimals) > 0 else ''}{with_spread(cell, decimals)}"


def shown(result: Result, precision: str, kind: str) -> str:
    """A difference of a file in a precision, `2.8e-07`; a dash where there is none."""
    found = result.precisions.get(precision)
    return two_digits(None if found is None else getattr(found, kind))


def two_digits(value: float | None) -> str:
    """`2.8e-07`; a dash for None."""
    return "–" if value is None else f"{value:.1e}"
