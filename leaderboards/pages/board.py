"""The board: a Markdown page with its figures, and a table for the terminal, all from run records alone."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from leaderboards import comparisons
from leaderboards.comparisons import COMPARISONS
from leaderboards.markdown import MISSING, escape, in_bytes, rank_of, table_lines, three_digits, with_spread
from leaderboards.pages import plots, reproduction
from leaderboards.pages.privacy import SHEET, Sheet, read, section
from leaderboards.papers.verdicts import Verdict
from leaderboards.rank import HEADLINE, Average, Row, average_ranks, board, finished, gaps, pooled_spread
from leaderboards.schema import Record, RecordError
from leaderboards.store import load_yaml

SCORES: dict[str, dict[str, tuple[str, int]]] = load_yaml("scores.yaml")


def _score(key: str, decimals: int) -> Callable[[Row], str]:
    return lambda row: with_spread(row.cells.get(key), decimals)


def _uniformity(row: Row) -> str:
    cells = map(row.cells.get, SCORES["uniformity"])
    return " / ".join(MISSING if cell is None else f"{cell.mean:z.2f}" for cell in cells)


EPSILON = "epsilon"
COLUMNS: dict[str, Callable[[Row], str]] = {
    "rank": rank_of,
    "row": lambda row: row.row,
    **{heading: _score(key, decimals) for key, (heading, decimals) in SCORES["board"].items()},
    "uniformity: total / within / between": _uniformity,
    "bytes up": lambda row: in_bytes(row.bytes_up),
    "bytes down": lambda row: in_bytes(row.bytes_down),
    "client seconds": lambda row: MISSING if row.client_seconds is None else three_digits(row.client_seconds),
    "seeds": lambda row: str(len(row.seeds)),
    EPSILON: lambda row: MISSING if row.epsilon is None else f"{three_digits(row.epsilon)} ({', '.join(row.covers)})",
}
"""Heading -> a row's text; epsilon only on boards where a row has spent any."""
TERMINAL = ("rank", "row", "linear (%)", "kNN (%)", "bytes up", "bytes down", "client seconds", "seeds", EPSILON)
"""The columns that fit into 80 characters."""
INTRODUCTION = """\
# Leaderboards

<!-- Written by the board command from the run records: correct those, not this page. -->

How to read the tables:

- **mean ± spread**: the mean over seeds and their sample standard deviation; a single seed has no spread.
- **The last round is the headline**: rows are ordered by `linear/v1` accuracy after the last round, never by the best.
- **Ties**: with *s* the standard deviation pooled over all rows of two seeds or more, two rows differ only if their
  means are more than 2 *s* √(1/n₁ + 1/n₂) apart. `2=` is a rank shared by rows that do not differ from the first of
  them; if no row has two seeds, no row is ranked.
- **What a row adds** to the one it builds on is over the seeds both have, and counts only beyond that difference.
- **untrained** is the floor, the same network before any training: never ranked, always last.
- **bytes** and **client seconds** (CPU time, or a GPU's by the clock) are per client and round; a single client has no
  bytes.
"""
SPENT = (
    "epsilon is the largest that any client has spent on the entries in brackets, which leave it with noise; its other "
    "entries are not covered ([privacy](../docs/privacy.md))"
)
AVERAGED = (
    "Of the rows that all these scenarios rank: in each of these they are ranked again among themselves, tied rows "
    "get the mean of the group's positions, and the mean is over scenarios."
)
NO_SPREAD = "No row has its headline from two seeds: without a spread the order is not a ranking."


def markdown(records: Sequence[Record], sheet: Sheet | None = None, verdicts: Sequence[Verdict] = ()) -> str:
    """The whole page: how to read it, a section for each scenario, figures, papers' tables and the privacy sheet.

    verdicts: on the papers' numbers, of which a line for each table is shown.
    """
    sections = [_section(records, scenario) for scenario in scenarios(records)]
    curves = [f"![{escape(name)}](figures/{quote(name)}.svg)\n" for name in plots.curve_figures(records)]
    parts = [INTRODUCTION, *(sections or ["No run has been recorded yet.\n"]), *_averages(records)]
    parts += ["## Over rounds\n", *curves] if curves else []
    return "\n".join([*parts, *reproduction.summary(verdicts), *([section(sheet)] if sheet is not None else [])])


def table(rows: Iterable[Row], title: str) -> Table:
    """The board for the terminal."""
    rows = list(rows)
    result = Table(title=Text(title), box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    columns = [column for column in columns_of(rows) if column in TERMINAL]
    for column in columns:
        heading = column.replace(" ", "\n")
        if column == "row":
            result.add_column(heading, overflow="fold")
        else:  # numbers are never folded: a narrow terminal folds the names
            result.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        result.add_row(*(Text(COLUMNS[column](row)) for column in columns))
    return result


def write(records: Sequence[Record], folder: str | Path, verdicts: Sequence[Verdict] = ()) -> None:
    """Writes `README.md` and its figures under `folder`."""
    figures = Path(folder) / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    sheet = read(Path(folder) / SHEET) if (Path(folder) / SHEET).exists() else None
    (Path(folder) / "README.md").write_text(markdown(records, sheet, verdicts), encoding="utf-8")
    for scenario in scenarios(records):
        plots.save(partial(plots.draw_headline, records, scenario), figures / f"{_stem(scenario)}.svg")
    for name, draw in plots.curve_figures(records).items():
        plots.save(draw, figures / f"{name}.svg")


def scenarios(records: Iterable[Record]) -> list[str]:
    """The scenarios' names, sorted. Raises RecordError when two of them would share a figure's file."""
    names = sorted({record["scenario"] for record in records})
    files = {_stem(name): name for name in names}
    for name in names:
        if files[_stem(name)] != name:
            raise RecordError(f"scenarios {name} and {files[_stem(name)]} share {_stem(name)}.svg: rename one of them")
    return names


def _stem(scenario: str) -> str:
    return scenario.replace("/", "-")


def columns_of(rows: Iterable[Row]) -> list[str]:
    """The headings of a board; epsilon only where a row has spent any."""
    spent = any(row.epsilon is not None for row in rows)
    return [column for column in COLUMNS if spent or column != EPSILON]


def lines(rows: Sequence[Row]) -> list[str]:
    """The board as a table of Markdown."""
    columns = columns_of(rows)
    return table_lines(columns, [[COLUMNS[column](row) for column in columns] for row in rows], "rlr")


def further_scores(rows: Sequence[Row]) -> list[str]:
    """Lines of a Markdown table of the scores that the board has no column for; empty where no row has any."""
    columns = {key: column for key, column in SCORES["further"].items() if any(key in row.cells for row in rows)}
    rows = [row for row in rows if any(key in row.cells for key in columns)]
    if not rows:
        return []
    counts = sorted({row.cells[key].n for row in rows for key in columns if key in row.cells})
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seed{'s' * (counts[0] > 1)}"
    texts = [[row.row, *(_score(key, decimals)(row) for key, (_, decimals) in columns.items())] for row in rows]
    table = table_lines(["row", *(heading for heading, _ in columns.values())], texts, "lr")
    return ["### Scores of other protocols", "", f"Over {seeds} a row.", "", *table, ""]


def _section(records: Sequence[Record], scenario: str) -> str:
    rows = board(records, scenario)
    name = escape(scenario)
    paragraphs = [f"## {name}", "\n".join(lines(rows)), *_remarks(records, scenario, rows)]
    paragraphs.append(f"![{name}: {HEADLINE}, a dot per seed](figures/{quote(_stem(scenario))}.svg)")
    return "\n".join(["\n\n".join(paragraphs), "", *further_scores(rows), *comparisons.table(rows)])


def _remarks(records: Sequence[Record], scenario: str, rows: Sequence[Row]) -> list[str]:
    """What a reader of the board has to know: privacy, servers' training, machines, runs and seeds that are missing."""
    here = sorted(
        (record for record in records if record["scenario"] == scenario),
        key=lambda record: (record["row"], record["seed"]),
    )
    remarks = []
    if deltas := {row.delta for row in rows if row.epsilon is not None}:
        remarks.append(f"{SPENT}, at delta {', '.join(f'{delta:g}' for delta in sorted(filter(None, deltas)))}.")
    if pooled_spread(rows) is None:
        remarks.append(NO_SPREAD)
    servers = {  # row -> text; of several seeds the last
        record["row"]: f"{escape(record['row'])} on {record['server']['images']:,} images, in addition to the clients' "
        f"{record['images']:,}"
        for record in here
        if record.get("server", {}).get("images") and finished(record)
    }
    if servers:
        remarks.append(f"Some servers train too, in all: {'; '.join(servers.values())}.")
    if machines := sorted({record["provenance"]["hardware"] for record in here if finished(record)}):
        unlike = ": client seconds of unlike machines do not compare" if len(machines) > 1 else ""
        remarks.append(f"Run on {escape('; on '.join(machines))}{unlike}.")
    for record in here:
        if (reason := record["rounds"].get("ended")) is not None:
            remarks.append(f"Ended early: {escape(f'{_run(record)}, after {_rounds(record)}: {reason}')}.")
    remarks += [f"Left out: {escape(run)}." for run in left_out(here, scenario)]
    if missing := gaps(rows):
        remarks.append(f"Missing: {escape('; '.join(missing))}.")
    return remarks


def left_out(records: Iterable[Record], scenario: str) -> list[str]:
    """The unfinished runs of a scenario, in words: row, seed and how many of its rounds each has completed."""
    early = [record for record in records if record["scenario"] == scenario and not finished(record)]
    early.sort(key=lambda record: (record["row"], record["seed"]))
    return [f"{_run(record)}, {_rounds(record)}" for record in early]


def _run(record: Record) -> str:
    return f"{record['row']}, seed {record['seed']}"


def _rounds(record: Record) -> str:
    return f"{record['rounds']['done']} of {record['rounds']['planned']} rounds"


def averages(records: Sequence[Record]) -> list[Average]:
    """Mean ranks over the scenarios that `comparisons.yaml` names."""
    return average_ranks({name: board(records, name) for name in COMPARISONS["averaged"]})


def _averages(records: Sequence[Record]) -> list[str]:
    """The section of mean ranks, where two of these scenarios rank the same rows."""
    rows = averages(records)
    names = list(rows[0].ranks) if rows else []
    if len(names) < 2:
        return []
    texts = [[row.row, f"{row.mean:g}", *(f"{row.ranks[name]:g}" for name in names)] for row in rows]
    return ["## Over scenarios", "", AVERAGED, "", *table_lines(["row", "mean rank", *names], texts, "lr"), ""]
