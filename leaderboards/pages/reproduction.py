"""Published numbers beside ours: a line a table on the board, and table by table in docs/reproduction.md."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import yaml

from leaderboards.markdown import MISSING, between, escape, fill, line, with_spread
from leaderboards.papers.tables import Published
from leaderboards.papers.verdicts import OFF, OPEN, REPRODUCED, Verdict
from leaderboards.schema import Record

START = "<!-- published: written by the board command from leaderboards/published and the run records -->"
END = "<!-- end of published -->"

WHY: dict[str, str] = yaml.safe_load((Path(__file__).parents[1] / "explanations.yaml").read_text(encoding="utf-8"))

Table = Sequence[Verdict]


def tables(found: Sequence[Verdict]) -> list[Table]:
    """Verdicts by table of a paper, in the order they come."""
    grouped: dict[tuple[str, str], list[Verdict]] = {}
    for one in found:
        grouped.setdefault((one.cell.paper, one.cell.table), []).append(one)
    return list(grouped.values())


def summary(found: Sequence[Verdict]) -> list[str]:
    """Lines of Markdown: how many numbers of each table are reproduced, off and open."""
    if not found:
        return []
    head = ["paper", "table", "what", "numbers", REPRODUCED, OFF, OPEN]
    lines = ["## Published numbers", "", *EXPLAINED, "", line(head), "|---|---|---|---:|---:|---:|---:|"]
    for group in tables(found):
        cell, kinds = group[0].cell, Counter(one.kind for one in group)
        counts = [str(kinds[kind]) for kind in (REPRODUCED, OFF, OPEN)]
        lines.append(line([cell.name, cell.where, cell.title, str(len(group)), *counts]))
    return [*lines, ""]


def filled(page: str, found: Sequence[Verdict], records: Sequence[Record] = ()) -> str:
    """docs/reproduction.md with what stands between its marks written anew."""
    return between(page, START, END, _chapters(found, records))


def write(found: Sequence[Verdict], page: Path, records: Sequence[Record] = ()) -> None:
    """Fills the page. records: of the runs that stand beside the cells, however far they are."""
    fill(page, partial(filled, found=found, records=records))


def _chapters(found: Sequence[Verdict], records: Sequence[Record]) -> list[str]:
    lines: list[str] = []
    paper = None
    for group in tables(found):
        cell = group[0].cell
        if cell.paper != paper:
            paper = cell.paper
            lines += [f"## {escape(cell.name)}", "", escape(cell.cite) + ".", ""]
        shared, columns, rows = laid_out(group)
        said = "; ".join(f"{key.replace('_', ' ')} {escape(str(value))}" for key, value in shared.items())
        lines += [
            f"### {escape(cell.where[0].upper() + cell.where[1:])}",
            "",
            f"{escape(cell.title)}. {said}".strip(),
            "",
        ]
        lines += [*_rows(columns, rows), *_runs(group, records)]
        lines += [f"- {escape(remark)}" for remark in remarks(group)]
        lines += [f"- **Ours**: {escape(why)}"] if (why := explained(cell)) else []
        lines.append("")
    return lines


def laid_out(group: Table) -> tuple[dict[str, object], list[str], dict[str, dict[str, Verdict]]]:
    """What all cells of a table say of their setting, its headings, and its rows: heading -> verdict."""
    first = group[0].cell.setting
    shared = {key: value for key, value in first.items() if all(one.cell.setting.get(key) == value for one in group)}
    columns = [name for _, name in sorted({(one.cell.column_index, one.cell.column) for one in group})]
    rows: dict[str, dict[str, Verdict]] = {}
    for one in group:
        rows.setdefault(one.cell.row, {})[one.cell.column] = one
    return shared, columns, rows


def remarks(group: Table) -> list[str]:
    """What is said of a table's cells, once each; of single ones with their place."""
    every = dict.fromkeys(remark for one in group for remark in one.cell.remarks)
    shared = [remark for remark in every if all(remark in one.cell.remarks for one in group)]
    own: dict[str, list[str]] = {}
    for one in group:
        for remark in one.cell.remarks:
            if remark not in shared:
                own.setdefault(remark, []).append(f"{one.cell.row}, {one.cell.column}")
    return shared + [
        f"{'; '.join(places) if len(places) < 3 else f'{len(places)} of them'}: {remark}"
        for remark, places in own.items()
    ]


def explained(cell: Published) -> str:
    """Why we think a table and ours differ; empty where nothing is said."""
    return str(WHY.get(f"{cell.paper}, {cell.where}", ""))


def _rows(columns: Sequence[str], rows: Mapping[str, Mapping[str, Verdict]]) -> list[str]:
    """The table as printed; a cell of which we have a number has it behind, with the difference and the verdict."""
    lines = [line(["", *columns]), "|---|" + "---:|" * len(columns)]
    for name, cells in rows.items():
        lines.append(line([name, *(_shown(cells.get(column)) for column in columns)]))
    return [*lines, ""]


def _runs(group: Table, records: Iterable[Record]) -> list[str]:
    """Our runs of a table's rows: how far each is, how long it took and where; none where there is none."""
    beside = {one.cell.ours[:2] for one in group if one.cell.ours is not None}
    own = [record for record in records if (record["scenario"], record["row"]) in beside]
    if not own:
        return []
    lines = [line(["ours", "seed", "rounds", "hours", "on", "deviations"]), "|---|---:|---:|---:|---|---|"]
    for record in own:
        rounds, seconds = record["rounds"], record["seconds"]
        hours = f"{(seconds['wall'] + seconds['evaluation']) / 3600:.2f}"
        what = [
            f"{record['scenario']} {record['row']}",
            str(record["seed"]),
            f"{rounds['done']} of {rounds['planned']}",
        ]
        lines.append(line([*what, hours, record["provenance"]["hardware"], "; ".join(record["deviations"])]))
    return [*lines, ""]


def _shown(one: Verdict | None) -> str:
    if one is None:
        return MISSING
    value = printed(one.cell)
    if one.ours is None or one.delta is None:
        return value
    return f"{value}; ours {with_spread(one.ours, 2)} ({one.delta:+z.2f}, {one.kind})"


def printed(cell: Published) -> str:
    """A published value, with its spread where the paper gives one."""
    return str(cell.value) if cell.spread is None else f"{cell.value} ± {cell.spread}"


EXPLAINED = [
    "A number is *reproduced* where ours, at the paper's setting, is within a point or two standard deviations of it,",
    "*off* where it is not, *open* where we have none. Table by table: [reproduction](../docs/reproduction.md).",
]
