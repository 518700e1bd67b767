"""Published numbers and ours: a line for each table on the board, and table by table in docs/reproduction.md."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from leaderboards.markdown import MISSING, render, replace_between
from leaderboards.pages.parity import Parity
from leaderboards.papers.computed import KINDS
from leaderboards.papers.tables import CLAIM, Published
from leaderboards.papers.training import in_words
from leaderboards.papers.verdicts import OFF, OPEN, REPRODUCED, Verdict
from leaderboards.schema import Record
from leaderboards.sources import sentence
from leaderboards.store import load_yaml

EXPLANATIONS: dict[str, str] = load_yaml("explanations.yaml")
"""Table, as "paper, table" -> the likely reason why our numbers differ."""
TRAINED = "runs of the paper's setting"
"""What the verdicts of cells that nothing computes are from."""


def tables(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    """Verdicts by table of a paper, in their order."""
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.cell.paper, verdict.cell.table), []).append(verdict)
    return list(groups.values())


def filled(page: str, verdicts: Sequence[Verdict], records: Sequence[Record] = (), parity: Parity | None = None) -> str:
    """docs/reproduction.md with new tables between its marks. records: of our runs, also of unfinished ones."""

    def runs(group: Sequence[Verdict]) -> list[Record]:
        compared = {verdict.cell.ours[:2] for verdict in group if verdict.cell.ours is not None}
        return [record for record in records if (record["scenario"], record["row"]) in compared]

    def parity_of(record: Record) -> str:
        run = record["scenario"].partition("/")[0], record["method"], record["objective"]
        results = parity.results if parity else ()
        found = [each for each in results if (each.scenario.partition("/")[0], each.method, each.objective) == run]
        return ", ".join(f"{each.file}{'' if each.met else ' (not met)'}" for each in found) or "none"

    functions = (laid_out, printed, runs, remarks, explained, parity_of, heading, against, decimals)
    shown: dict[str, Any] = {function.__name__: function for function in functions}
    shown |= {"counted": counted(verdicts), "trained": trained(verdicts), "reconstructed": sentence()}
    return replace_between(page, "published", render("reproduction.md.j2", groups=tables(verdicts), **shown))


def counted(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """How many numbers there are, how many by verdict, by what the verdicts are from, and open ones by their reason."""
    kinds = Counter(verdict.kind for verdict in verdicts)
    reasons = Counter(verdict.why for verdict in verdicts if verdict.kind == OPEN)
    sources = Counter((source(verdict.cell), verdict.kind) for verdict in verdicts if verdict.kind != OPEN)
    known = (*KINDS.values(), TRAINED)
    by_source = [(name, sources[name, REPRODUCED], sources[name, OFF]) for name in known]
    counts = {"all": len(verdicts), "reproduced": kinds[REPRODUCED], "off": kinds[OFF]}
    return {**counts, "sources": [line for line in by_source if any(line[1:])], "reasons": reasons.most_common()}


def source(cell: Published) -> str:
    """What a verdict on this cell is from, in words."""
    return KINDS.get(cell.computed.partition("/")[0], TRAINED)


def trained(verdicts: Sequence[Verdict]) -> dict[str, list[tuple[str, str, str, list[str]]]]:
    """Paper -> lines (setting, value, whose, of which rows of ours: patterns or words) on how it trained."""
    found: dict[str, dict[tuple[str, str, str], dict[str, None]]] = {}
    for cell in (verdict.cell for verdict in verdicts):
        for key, (value, source, pattern) in cell.training.items():
            line = f"`{key}`" if "." in key else key.replace("_", " "), in_words(value), source
            found.setdefault(cell.paper, {}).setdefault(line, {})[pattern] = None

    def rows(patterns: Iterable[str], alone: bool) -> list[str]:
        others = "all" if alone else "all others"
        return [others if pattern == "*" else pattern for pattern in patterns]

    lines = {}
    for paper, of_paper in found.items():
        counts = Counter(key for key, _, _ in of_paper)
        applying = (line for line in of_paper if line[1] != MISSING)
        lines[paper] = sorted((*line, rows(of_paper[line], counts[line[0]] == 1)) for line in applying)
    return lines


def heading(cell: Published) -> str:
    """The heading of a table, which no other on the page has."""
    return f"{cell.name}, {cell.where}"


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


def against(verdict: Verdict) -> str:
    """Of a claim that has a verdict, how many comparisons contradict it; else empty."""
    if verdict.cell.unit != CLAIM or verdict.ours is None:
        return ""
    return f"{verdict.delta:.0f} of {verdict.ours.n} against it"


def decimals(cell: Published) -> int:
    """Digits of our number after the point: two, and four beside a number below a tenth."""
    return 4 if not isinstance(cell.value, str) and 0 < abs(cell.value) < 0.1 else 2


def printed(cell: Published) -> str:
    """A published value, with its spread where the paper gives one."""
    return str(cell.value) if cell.spread is None else f"{cell.value} ± {cell.spread}"
