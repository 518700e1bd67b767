"""Published numbers and ours: a line for each table on the board, and table by table in docs/reproduction.md."""

from collections import Counter
from collections.abc import Iterable, Sequence

from leaderboards.markdown import MISSING, escape, replace_between, table_lines, with_spread
from leaderboards.papers.tables import Published
from leaderboards.papers.verdicts import OFF, OPEN, REPRODUCED, Verdict
from leaderboards.schema import Record
from leaderboards.store import load_yaml

START = "<!-- published: written by the board command from leaderboards/published and the run records -->"
END = "<!-- end of published -->"
EXPLANATIONS: dict[str, str] = load_yaml("explanations.yaml")
"""Table, as "paper, table" -> the likely reason why our numbers differ."""


def tables(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    """Verdicts by table of a paper, in their order."""
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.cell.paper, verdict.cell.table), []).append(verdict)
    return list(groups.values())


def summary(verdicts: Sequence[Verdict]) -> list[str]:
    """Lines of a Markdown table: how many numbers of each table are reproduced, off and open; empty without any."""
    rows = []
    for group in tables(verdicts):
        cell, kinds = group[0].cell, Counter(verdict.kind for verdict in group)
        counts = [str(kinds[kind]) for kind in (REPRODUCED, OFF, OPEN)]
        rows.append([cell.name, cell.where, cell.title, str(len(group)), *counts])
    headings = ["paper", "table", "what", "numbers", REPRODUCED, OFF, OPEN]
    return table_lines(headings, rows, "lllr") if rows else []


def filled(page: str, verdicts: Sequence[Verdict], records: Sequence[Record] = ()) -> str:
    """docs/reproduction.md with new tables between its marks. records: of our runs, also of unfinished ones."""
    lines: list[str] = []
    paper = None
    for group in tables(verdicts):
        if (cell := group[0].cell).paper != paper:
            paper = cell.paper
            lines += [f"## {escape(cell.name)}", "", escape(cell.cite) + ".", ""]
        lines += _table(group, records)
    return replace_between(page, START, END, lines)


def _table(group: Sequence[Verdict], records: Sequence[Record]) -> list[str]:
    """A paper's table as printed, with our numbers, our runs, and the remarks below it."""
    cell = group[0].cell
    shared, columns, rows = laid_out(group)
    setting = "; ".join(f"{key.replace('_', ' ')} {escape(str(value))}" for key, value in shared.items())
    lines = [f"### {escape(cell.where[0].upper() + cell.where[1:])}", ""]
    lines += [f"{escape(cell.title)}. {setting}".strip(), ""]
    texts = [[name, *(_with_ours(cells.get(column)) for column in columns)] for name, cells in rows.items()]
    lines += [*table_lines(["", *columns], texts, "lr"), "", *_runs(group, records)]
    lines += [f"- {escape(remark)}" for remark in remarks(group)]
    lines += [f"- **Ours**: {escape(explanation)}"] if (explanation := explained(cell)) else []
    return [*lines, ""]


def laid_out(group: Sequence[Verdict]) -> tuple[dict[str, object], list[str], dict[str, dict[str, Verdict]]]:
    """The settings that all cells of a table share, its headings, and its rows: heading -> verdict."""
    first = group[0].cell.setting
    shared = {k: value for k, value in first.items() if all(verdict.cell.setting.get(k) == value for verdict in group)}
    columns = [name for _, name in sorted({(verdict.cell.column_index, verdict.cell.column) for verdict in group})]
    rows: dict[str, dict[str, Verdict]] = {}
    for verdict in group:
        rows.setdefault(verdict.cell.row, {})[verdict.cell.column] = verdict
    return shared, columns, rows


def remarks(group: Sequence[Verdict]) -> list[str]:
    """The remarks on a table's cells, once each; remarks on some of its cells with their places."""
    places: dict[str, list[str]] = {}
    for verdict in group:
        for remark in verdict.cell.remarks:
            places.setdefault(remark, []).append(f"{verdict.cell.row}, {verdict.cell.column}")
    shared = [remark for remark, where in places.items() if len(where) == len(group)]
    return shared + [
        f"{'; '.join(where) if len(where) < 3 else f'{len(where)} of them'}: {remark}"
        for remark, where in places.items()
        if remark not in shared
    ]


def explained(cell: Published) -> str:
    """The likely reason why a table and ours differ; empty where none is known."""
    return EXPLANATIONS.get(f"{cell.paper}, {cell.where}", "")


def _runs(group: Sequence[Verdict], records: Iterable[Record]) -> list[str]:
    """Our runs of a table's rows: how many rounds each has, how long they took and where; empty without a run."""
    compared = {verdict.cell.ours[:2] for verdict in group if verdict.cell.ours is not None}
    rows = []
    for record in records:
        if (record["scenario"], record["row"]) in compared:
            hours = (record["seconds"]["wall"] + record["seconds"]["evaluation"]) / 3600
            progress = (str(record["seed"]), f"{record['rounds']['done']} of {record['rounds']['planned']}")
            origin = (record["provenance"]["hardware"], "; ".join(record["deviations"]))
            rows.append((f"{record['scenario']} {record['row']}", *progress, f"{hours:.2f}", *origin))
    headings = ["ours", "seed", "rounds", "hours", "on", "deviations"]
    return [*table_lines(headings, rows, "lrrrl"), ""] if rows else []


def _with_ours(verdict: Verdict | None) -> str:
    """A cell as printed; where we have its number, with that, the difference and the verdict."""
    if verdict is None:
        return MISSING
    value = printed(verdict.cell)
    if verdict.ours is None or verdict.delta is None:
        return value
    return f"{value}; ours {with_spread(verdict.ours, 2)} ({verdict.delta:+z.2f}, {verdict.kind})"


def printed(cell: Published) -> str:
    """A published value, with its spread where the paper gives one."""
    return str(cell.value) if cell.spread is None else f"{cell.value} ± {cell.spread}"
