"""The scores of pools of runs as a table of a paper: LaTeX, Markdown, or CSV for a program."""

import csv
import io
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmark.tracking.comparison import Pool, names
from benchmark.tracking.comparison_scores import SPREAD, ScoreLine, decimals_of, fewer
from leaderboards.markdown import MISSING, escape, seeds_phrase, with_spread
from leaderboards.pages.columns import SCORE_COLUMNS

_LATEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "[": "{[}"}  # a bracket after a line's end is its argument
    | {MISSING: "--", "\n": " ", "\r": " "}
)


class Entry(NamedTuple):
    """A number of a table: its text, a remark behind it, and whether it is the best of its column."""

    number: str
    remark: str
    best: bool


def _entries(pools: Sequence[Pool], line: ScoreLine) -> list[Entry]:
    """A column. Decimals are the boards' where they show the score; equal means as they are shown are all the best."""
    size = max(max(abs(cell.mean), cell.spread or 0) for cell in line.cells if cell is not None)
    usual = 1 if line.protocol.unit(line.metric) == "%" else decimals_of(size)
    _, decimals = SCORE_COLUMNS.get(line.key, ("", usual))
    best, notes = line.best(decimals), line.notes or [""] * len(pools)
    remarks = [
        fewer(cell, len(pool.runs)) + (f" ({note})" if note else "")
        for pool, cell, note in zip(pools, line.cells, notes, strict=True)
    ]
    numbers = [with_spread(cell, decimals) for cell in line.cells]
    return [Entry(number, remarks[pool], pool in best) for pool, number in enumerate(numbers)]


def _heading(line: ScoreLine) -> str:
    """A score's name: the boards' where they show it."""
    unit = line.protocol.unit(line.metric)
    name = f"{line.protocol.id} {line.name}{'' if unit == '1' else f' ({unit})'}"
    return SCORE_COLUMNS.get(line.key, (name, 0))[0]


def _caption(pools: Sequence[Pool]) -> str:
    """What the numbers are."""
    seeds = [len(pool.runs) for pool in pools]
    spread = f"{SPREAD} over {seeds_phrase(seeds)}; " if max(seeds) > 1 else ""
    return f"{spread}the best of a column in bold"


def _rows(
    pools: Sequence[Pool], lines: Sequence[ScoreLine], text: Callable[[str], str], shown: Callable[[Entry], str]
) -> list[list[str]]:
    """The heading and a row for each pool; the number of seeds is a column where it is not the same in all."""
    counts = [str(len(pool.runs)) for pool in pools]
    rows = [[""], *([text(name)] for name in names(pools, counted=False))]
    columns = [["seeds", *counts]] if len(set(counts)) > 1 else []
    columns += [[text(_heading(line)), *map(shown, _entries(pools, line))] for line in lines]
    return [row + list(cells) for row, cells in zip(rows, zip(*columns, strict=True), strict=True)]


def latex(pools: Sequence[Pool], lines: Sequence[ScoreLine]) -> str:
    """A `tabular` with the rules of booktabs."""

    def text(words: str) -> str:
        return words.translate(_LATEX)

    def shown(entry: Entry) -> str:
        if entry.number == MISSING:
            return text(entry.number)
        plain = entry.number.replace("±", r"\pm")
        number = rf"\mathbf{{{plain}}}" if entry.best else plain
        return f"${number}${text(entry.remark)}"

    rows = _rows(pools, lines, text, shown)
    heading, *others = (" & ".join(row) + r" \\" for row in rows)
    top = [rf"% \usepackage{{booktabs}}; {_caption(pools)}", rf"\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}"]
    return "\n".join([*top, r"\toprule", heading, r"\midrule", *others, r"\bottomrule", r"\end{tabular}"])


def markdown(pools: Sequence[Pool], lines: Sequence[ScoreLine]) -> str:
    """A table, with a line below that says what the numbers are."""

    def shown(entry: Entry) -> str:
        number = f"**{entry.number}**" if entry.best else entry.number
        return f"{number} {escape(entry.remark)}".rstrip()

    rows = _rows(pools, lines, escape, shown)
    heading, *others = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([heading, f"|---|{'---:|' * (len(rows[0]) - 1)}", *others, "", f"{_caption(pools).capitalize()}."])


def as_csv(pools: Sequence[Pool], lines: Sequence[ScoreLine]) -> str:
    """A line for each pool; of each metric the mean, the sample standard deviation and the number of seeds."""
    heads = ["name", "scenario", "row", "seeds"]
    for line in lines:
        heads += [f"{line.key} {part}" for part in ("mean", "spread", "n", *(["client"] if line.notes else []))]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(heads)
    for index, (pool, name) in enumerate(zip(pools, names(pools, counted=False), strict=True)):
        row: list[object] = [name, pool.config.scenario, pool.config.row, " ".join(map(str, pool.seeds))]
        for line in lines:
            row += line.cells[index] or (None, None, 0)
            row += [line.notes[index]] if line.notes else []
        writer.writerow(row)
    return file.getvalue()


FORMS: dict[str, Callable[[Sequence[Pool], Sequence[ScoreLine]], str]] = {
    "latex": latex,
    "csv": as_csv,
    "markdown": markdown,
}
"""Name -> the table in that form."""


def table(form: str, pools: Sequence[Pool], lines: Sequence[ScoreLine], every: bool = False) -> str:
    """The scores in a form, a row for each pool. every: with metrics that do not stand for a protocol; CSV has all."""
    return FORMS[form](pools, [line for line in lines if line.main or every or form == "csv"])
