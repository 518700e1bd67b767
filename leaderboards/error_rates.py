"""How often the tests of a board make a false statement: `python -m leaderboards.error_rates [BOARD ...]` writes it.

A simulated board has the rows, pairs and seeds of a committed one and no differences. A row's values vary as much as
what the fit leaves of the row, a pair's as its differences do: more unequally than in truth, as so few seeds tell
little. So a pair's vary once more with the moderated variance, the best guess of the true one. A rate is the part of
the boards on which any two rows, or any pair, are told apart.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leaderboards import store
from leaderboards.comparisons import bases, differences
from leaderboards.moderation import FEWEST, Array, moderated
from leaderboards.paired import paired
from leaderboards.rank import Row
from leaderboards.significance import FEWEST_SEEDS, LEVEL, ROUNDING, Design, critical_value, largest, solved

FILE = Path(__file__).with_name("error_rates.json")
BOARDS = 4000
"""Of each; a rate near 5 % has a standard error of 0.35 points."""
Rates = dict[str, float]


def rates(rows: Sequence[Row]) -> Rates:
    """rows, pairs: how many are compared; the rates of `tukey`, the test of one spread for all rows that boards had
    before, of `ranks`, and of `bases`, what a row adds; of these also with `moderated` variances. Without what is not
    compared.
    """
    draw, found = np.random.default_rng(1), Rates()
    ranked = {row.row: row.headline for row in rows if row.rank is not None}
    if ranked:
        design = tuple(tuple(sorted(sample)) for sample in ranked.values())
        values = np.array([sample[seed] for sample in ranked.values() for seed in sorted(sample)])
        solver = solved(design)
        assert solver is not None
        spreads = np.sqrt(solver.of_row @ (solver.residuals @ values) ** 2 / np.maximum(solver.df, ROUNDING))
        simulated = draw.standard_normal((len(values), BOARDS)) * (solver.of_row.T @ spreads)[:, None]
        ratios, priors = largest(design, simulated)
        limits = {prior: critical_value(design, prior) for prior in {*priors.tolist()}}
        now = ratios > np.array([limits[prior] for prior in priors.tolist()])
        found |= {"rows": len(ranked), "tukey": _rate(_tukey(design, simulated)), "ranks": _rate(now)}
    tested = [[*pair.by_seed.values()] for pair in differences(rows, bases()) if len(pair.by_seed) >= FEWEST_SEEDS]
    if tested:
        variances = np.array([np.var(pair, ddof=1) for pair in tested])[:, None]
        found |= {"pairs": len(tested), "bases": _of_pairs(tested, variances, draw)}
        if len(tested) >= FEWEST:
            df = np.array([len(pair) - 1.0 for pair in tested])[:, None]
            found["moderated"] = _of_pairs(tested, moderated(variances, df).variances, draw)
    return found


def _of_pairs(pairs: Sequence[Sequence[float]], variances: Array, draw: np.random.Generator) -> float:
    """The rate of the test of pairs of so many seeds and these variances."""
    spreads = np.sqrt(variances)
    errors = [draw.standard_normal((BOARDS, len(pair))) * spread for pair, spread in zip(pairs, spreads, strict=True)]
    boards = ({("row", str(k)): pair[board] for k, pair in enumerate(errors)} for board in range(BOARDS))
    return _rate(np.array([any(pair.p < LEVEL for pair in paired(board).values()) for board in boards]))


def _tukey(design: Design, values: Array) -> NDArray[np.bool_]:
    """Whether Tukey's test of all pairs, with one spread for all rows, tells any two apart; values: (N, boards)."""
    from scipy.stats import studentized_range

    solver = solved(design)
    assert solver is not None
    df = solver.df.sum()
    spread = np.sqrt(((solver.residuals @ values) ** 2).sum(axis=0) / df)
    pairs, variances = solver.pairs[solver.connected], solver.weights.T[solver.connected].sum(axis=1)
    ratios = (np.abs(pairs @ values) / np.sqrt(variances / 2)[:, None]).max(axis=0) / spread
    return np.asarray(ratios > studentized_range.ppf(1 - LEVEL, len(design), df))


def _rate(told: NDArray[np.bool_]) -> float:
    return round(float(told.mean()), 4)


def read(file: Path = FILE) -> dict[str, Rates]:
    """Scenario -> its rates, as last written."""
    content: dict[str, Rates] = json.loads(file.read_text(encoding="utf-8"))
    return content


def lines(found: Mapping[str, Rates]) -> list[str]:
    """The rates as lines of a table in Markdown."""
    from leaderboards.markdown import MISSING, table_lines

    def shown(of_board: Rates, key: str) -> str:
        return f"{of_board[key]:.1%}".replace("%", " %") if key in of_board else MISSING

    heads = ("board", "rows", "Tukey's test", "ranks", "pairs", "what a row adds", "with moderated variances")
    cells = [
        [
            name,
            str(one.get("rows", 0)),
            shown(one, "tukey"),
            shown(one, "ranks"),
            str(one.get("pairs", 0)),
            shown(one, "bases"),
            shown(one, "moderated"),
        ]
        for name, one in found.items()
    ]
    return table_lines(heads, cells, "lrrrrrr")


if __name__ == "__main__":
    from leaderboards.pages.board import boards

    records = list(store.collect(FILE.parent / "results"))
    before, now = read(), boards(records)
    if unknown := {*sys.argv[1:]} - {*now}:
        sys.exit(f"no board is called {', '.join(sorted(unknown))}: {', '.join(now)}")
    again = sys.argv[1:] or now
    found = {name: rates(rows) if name in again else before.get(name, {}) for name, rows in now.items()}
    FILE.write_text(json.dumps({name: one for name, one in found.items() if one}, indent=1) + "\n", encoding="utf-8")
