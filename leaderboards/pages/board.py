"""A board for people: the Markdown page, the terminal table and the picture, all from run records alone."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from leaderboards import comparisons
from leaderboards.markdown import MISSING, escape, in_bytes, line, rank_of, three_digits, with_spread
from leaderboards.pages import further, plots, reproduction
from leaderboards.pages.curves import COMPARED, curves
from leaderboards.pages.privacy import SHEET, Sheet, read, section
from leaderboards.papers.verdicts import Verdict
from leaderboards.rank import (
    HEADLINE,
    Average,
    Row,
    average_ranks,
    board,
    finished,
    gaps,
    pooled_spread,
)
from leaderboards.schema import Record, RecordError

COLUMNS = (
    "rank",
    "row",
    "linear (%)",
    "kNN (%)",
    "effective rank",
    "alignment",
    "uniformity: total / within / between",
    "bytes up",
    "bytes down",
    "client seconds",
    "seeds",
)
EPSILON = "epsilon"
"""One more column, of the boards where a row has spent any."""
TERMINAL = ("rank", "row", "linear (%)", "kNN (%)", "bytes up", "bytes down", "client seconds", "seeds")  # 80 columns
INTRODUCTION = """\
# Leaderboards

<!-- Written by the board command from the run records: correct those, not this page. -->

How to read the tables:

- **mean ± spread**: the mean over seeds and their sample standard deviation; a single seed has no spread.
- **The last round is the headline**: rows are ordered by `linear/v1` accuracy after the last round, never by the best.
- **Ties**: with *s* the standard deviation pooled over all rows of two seeds or more, two rows differ only if their
  means are more than 2 *s* √(1/n₁ + 1/n₂) apart. `2=` is a rank shared by rows that do not differ from the first of
  them; without a row of two seeds nobody is ranked.
- **What a row adds** to the one it builds on is over the seeds both have, and counts only beyond that difference.
- **untrained** is the floor, the same network before any training: never ranked, always last.
- **bytes** and **client seconds** (CPU time, or a GPU's by the clock) are per client and round; a single client has no
  bytes.
"""
SPENT = (
    "epsilon is the largest that any client has spent on the entries in brackets, which leave it with noise; what else "
    "it sends is not covered ([privacy](../docs/privacy.md))"
)
AVERAGED = (
    "Of the rows that all these scenarios rank: in each they are ranked anew among themselves, those that share a rank "
    "take the mean of its places, and the mean is over scenarios."
)
NO_SPREAD = "No row has its headline from two seeds: without a spread the order is not a ranking."


def markdown(records: Sequence[Record], sheet: Sheet | None = None, found: Sequence[Verdict] = ()) -> str:
    """The whole page: how to read it, one section a scenario, linking `figures/<scenario>.svg`, the privacy sheet.

    found: verdicts on the papers' numbers, of which a line a table is shown.
    """
    sections = [_section(records, scenario) for scenario in scenarios(records)]
    over_rounds = [f"![{escape(name)}](figures/{quote(name)}.svg)\n" for name in curves(records)]
    over_rounds = ["## Over rounds\n", *over_rounds] if over_rounds else []
    sent = [section(sheet)] if sheet is not None else []
    whole = [*(sections or ["No run has been recorded yet.\n"]), *_averages(records), *over_rounds]
    return "\n".join([INTRODUCTION, *whole, *reproduction.summary(found), *sent])


def table(rows: Iterable[Row], title: str) -> Table:
    """The board for the terminal: those columns of the page that fit into one, and epsilon where any is spent."""
    rows = list(rows)
    columns = (*TERMINAL, EPSILON) if any(row.epsilon is not None for row in rows) else TERMINAL
    result = Table(title=Text(title), box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    for column in columns:
        heading = column.replace(" ", "\n")
        if column == "row":
            result.add_column(heading, overflow="fold")
        else:  # a number is never folded: a narrow terminal folds the names
            result.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        shown = entries(row)
        result.add_row(*(Text(shown[column]) for column in columns))
    return result


def write(records: Sequence[Record], folder: str | Path, found: Sequence[Verdict] = ()) -> None:
    """Write `README.md` and its figures under `folder`: one a scenario, and those over rounds."""
    figures = Path(folder) / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    sheet = read(Path(folder) / SHEET) if (Path(folder) / SHEET).exists() else None
    (Path(folder) / "README.md").write_text(markdown(records, sheet, found), encoding="utf-8")
    for scenario in scenarios(records):
        plots.headline(records, scenario, figures / f"{_stem(scenario)}.svg")
    for name, draw in curves(records).items():
        plots.save(draw, figures / f"{name}.svg")


def scenarios(records: Iterable[Record]) -> list[str]:
    """The scenarios' names, sorted. Raises RecordError when two of them would share a figure's file."""
    names = sorted({record["scenario"] for record in records})
    files = {_stem(name): name for name in names}
    for name in names:
        if files[_stem(name)] != name:
            raise RecordError(f"scenarios {name} and {files[_stem(name)]} share {_stem(name)}.svg: rename one of them")
    return names


def _at_server(records: Sequence[Record]) -> str:
    """The images each row's server trained on, beside the clients'."""
    told = {record["row"]: record for record in records if record.get("server", {}).get("images") and finished(record)}
    return "; ".join(
        f"{escape(row)} on {one['server']['images']:,} images, beside the clients' {one['images']:,}"
        for row, one in told.items()
    )


def _stem(scenario: str) -> str:
    return scenario.replace("/", "-")


def lines(rows: Sequence[Row]) -> list[str]:
    """The board as a table of Markdown."""
    columns = (*COLUMNS, EPSILON) if any(row.epsilon is not None for row in rows) else COLUMNS
    head = ["| " + " | ".join(columns) + " |", "|" + "|".join(_rule(column) for column in columns) + "|"]
    return [*head, *(line(entries(row)[column] for column in columns) for row in rows)]


def _section(records: Sequence[Record], scenario: str) -> str:
    rows = board(records, scenario)
    text = [f"## {escape(scenario)}", "", *lines(rows)]
    deltas = {row.delta for row in rows if row.epsilon is not None}
    if deltas:
        text += ["", f"{SPENT}, at delta {', '.join(f'{delta:g}' for delta in sorted(filter(None, deltas)))}."]
    if pooled_spread(rows) is None:
        text += ["", NO_SPREAD]
    here = sorted(
        (record for record in records if record["scenario"] == scenario), key=lambda one: (one["row"], one["seed"])
    )
    if trained := _at_server(here):
        text += ["", f"Some servers train too, in all: {trained}."]
    machines = sorted({record["provenance"]["hardware"] for record in here if finished(record)})
    if machines:
        unlike = ": client seconds of unlike machines do not compare" if len(machines) > 1 else ""
        text += ["", f"Run on {escape('; on '.join(machines))}{unlike}."]
    for record in here:
        done, planned = record["rounds"]["done"], record["rounds"]["planned"]
        if (why := record["rounds"].get("ended")) is not None:
            ended = f"{record['row']}, seed {record['seed']}, after {done} of {planned} rounds: {why}"
            text += ["", f"Ended early: {escape(ended)}."]
    text += [line for one in left_out(here, scenario) for line in ("", f"Left out: {escape(one)}.")]
    if missing := gaps(rows):
        text += ["", f"Missing: {escape('; '.join(missing))}."]
    text += ["", f"![{escape(scenario)}: {HEADLINE}, a dot per seed](figures/{quote(_stem(scenario))}.svg)", ""]
    others = further.table(rows)
    return "\n".join([*text, *others, *([""] if others else []), *comparisons.table(rows, COMPARED["bases"])])


def left_out(records: Iterable[Record], scenario: str) -> list[str]:
    """The runs of a scenario that are not over, in words: row, seed and how many of its rounds each has played."""
    early = [one for one in records if one["scenario"] == scenario and not finished(one)]
    named = sorted((one["row"], one["seed"], one["rounds"]["done"], one["rounds"]["planned"]) for one in early)
    return [f"{row}, seed {seed}, {done} of {planned} rounds" for row, seed, done, planned in named]


def averages(records: Sequence[Record]) -> list[Average]:
    """Ranks over the scenarios that `comparisons.yaml` names."""
    return average_ranks({name: board(records, name) for name in COMPARED["averaged"]})


def _averages(records: Sequence[Record]) -> list[str]:
    """Their section, where two of these scenarios rank the same rows."""
    found = averages(records)
    names = list(found[0].ranks) if found else []
    if len(names) < 2:
        return []
    text = [
        "## Over scenarios",
        "",
        AVERAGED,
        "",
        line(["row", "mean rank", *names]),
        "|---|" + "---:|" * (1 + len(names)),
    ]
    text += [line([one.row, f"{one.mean:g}", *(f"{one.ranks[name]:g}" for name in names)]) for one in found]
    return [*text, ""]


def _rule(column: str) -> str:
    return "---" if column == "row" else "---:"


def entries(row: Row) -> dict[str, str]:
    """A row as text, by column."""
    uniformity = [row.cells.get(f"geometry/v1 uniformity{part}") for part in ("", "_within", "_between")]
    texts = (
        rank_of(row),
        row.row,
        with_spread(row.cells.get(HEADLINE), 1),
        with_spread(row.cells.get("knn/v1 accuracy"), 1),
        with_spread(row.cells.get("geometry/v1 effective_rank"), 1),
        with_spread(row.cells.get("geometry/v1 alignment"), 3),
        " / ".join(MISSING if cell is None else f"{cell.mean:z.2f}" for cell in uniformity),
        in_bytes(row.bytes_up),
        in_bytes(row.bytes_down),
        MISSING if row.client_seconds is None else three_digits(row.client_seconds),
        str(len(row.seeds)),
        MISSING if row.epsilon is None else f"{three_digits(row.epsilon)} ({', '.join(row.covers)})",
    )
    return dict(zip((*COLUMNS, EPSILON), texts, strict=True))
