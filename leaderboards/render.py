"""A board for people: the Markdown page, the terminal table and the picture, all from run records alone."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from leaderboards import further
from leaderboards.curves import COMPARED, curves
from leaderboards.rank import FLOOR, HEADLINE, Cell, Row, board, differences, finished, pooled_spread, runs, values
from leaderboards.schema import Record, RecordError
from leaderboards.sheet import SHEET, Sheet, read, section
from leaderboards.text import MISSING, escape, in_bytes, line, three_digits, with_spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
NO_SPREAD = "No row has its headline from two seeds: without a spread the order is not a ranking."

BLUE, INK, GREY, BAND = "#3b6ea8", "#222222", "#777777", "#f1f1ee"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "leaderboards",  # element ids, and with them the bytes, depend on the content only
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
}


def markdown(records: Sequence[Record], sheet: Sheet | None = None) -> str:
    """The whole page: how to read it, one section a scenario, linking `figures/<scenario>.svg`, the privacy sheet."""
    sections = [_section(records, scenario) for scenario in scenarios(records)]
    over_rounds = [f"![{escape(name)}](figures/{quote(name)}.svg)\n" for name in curves(records)]
    over_rounds = ["## Over rounds\n", *over_rounds] if over_rounds else []
    sent = [section(sheet)] if sheet is not None else []
    return "\n".join([INTRODUCTION, *(sections or ["No run has been recorded yet.\n"]), *over_rounds, *sent])


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


def figure(records: Sequence[Record], scenario: str, path: str | Path) -> None:
    """Write the headline of a scenario as an SVG dot plot; the same records give the same bytes.

    A dot is a seed, a tick the mean of several, a bar one spread to either side, a band a group of tied rows, the
    dashed line the floor.
    """
    save(lambda: _draw(records, scenario), path)


def write(records: Sequence[Record], folder: str | Path) -> None:
    """Write `README.md` and its figures under `folder`: one a scenario, and those over rounds."""
    figures = Path(folder) / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    page(records, folder)
    for scenario in scenarios(records):
        figure(records, scenario, figures / f"{_stem(scenario)}.svg")
    for name, draw in curves(records).items():
        save(draw, figures / f"{name}.svg")


def page(records: Sequence[Record], folder: str | Path) -> None:
    """Write `README.md` alone, with the privacy sheet where the folder has one."""
    sheet = read(Path(folder) / SHEET) if (Path(folder) / SHEET).exists() else None
    (Path(folder) / "README.md").write_text(markdown(records, sheet), encoding="utf-8")


def save(draw: Callable[[], "Figure"], path: str | Path) -> None:
    """An SVG whose bytes depend on what is drawn alone."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the reader's own settings must not show
        matplotlib.rcParams.update(STYLE)
        draw().savefig(path, format="svg", metadata={"Date": None, "Creator": None})


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


def _section(records: Sequence[Record], scenario: str) -> str:
    rows = board(records, scenario)
    lines = [f"## {escape(scenario)}", ""]
    deltas = {row.delta for row in rows if row.epsilon is not None}
    columns = (*COLUMNS, EPSILON) if deltas else COLUMNS
    lines += ["| " + " | ".join(columns) + " |", "|" + "|".join(_rule(column) for column in columns) + "|"]
    lines += [line(entries(row)[column] for column in columns) for row in rows]
    if deltas:
        lines += ["", f"{SPENT}, at delta {', '.join(f'{delta:g}' for delta in sorted(filter(None, deltas)))}."]
    if pooled_spread(rows) is None:
        lines += ["", NO_SPREAD]
    here = sorted(
        (record for record in records if record["scenario"] == scenario), key=lambda one: (one["row"], one["seed"])
    )
    if trained := _at_server(here):
        lines += ["", f"Some servers train too, in all: {trained}."]
    machines = sorted({record["provenance"]["hardware"] for record in here if finished(record)})
    if machines:
        unlike = ": client seconds of unlike machines do not compare" if len(machines) > 1 else ""
        lines += ["", f"Run on {escape('; on '.join(machines))}{unlike}."]
    for record in here:
        done, planned = record["rounds"]["done"], record["rounds"]["planned"]
        if (why := record["rounds"].get("ended")) is not None:
            ended = f"{record['row']}, seed {record['seed']}, after {done} of {planned} rounds: {why}"
            lines += ["", f"Ended early: {escape(ended)}."]
        if not finished(record):
            lines += ["", f"Left out: {escape(record['row'])}, seed {record['seed']}, {done} of {planned} rounds."]
    lines += ["", f"![{escape(scenario)}: {HEADLINE}, a dot per seed](figures/{quote(_stem(scenario))}.svg)", ""]
    others = further.table(rows)
    return "\n".join([*lines, *others, *([""] if others else []), *_added(rows)])


def _added(rows: Sequence[Row]) -> list[str]:
    """A table of what rows add to those they build on."""
    found = differences(rows, COMPARED["bases"])
    if not found:
        return []
    lines = ["### What a row adds", "", "| row | on top of | adds (points) | counts from | seeds | | also differs in |"]
    lines.append("|---|---|---:|---:|---:|---|---|")
    for one in found:
        verdict = ("more" if one.points > 0 else "less") if one.counts else "not told apart"
        numbers = (f"{one.points:+z.1f}", f"{one.least:.1f}", str(one.seeds))
        lines.append(line((one.row, one.base, *numbers, verdict, "; ".join(one.unlike))))
    return [*lines, ""]


def _rule(column: str) -> str:
    return "---" if column == "row" else "---:"


def entries(row: Row) -> dict[str, str]:
    """A row as text, by column."""
    uniformity = [row.cells.get(f"geometry/v1 uniformity{part}") for part in ("", "_within", "_between")]
    texts = (
        _rank(row),
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


def _rank(row: Row) -> str:
    return MISSING if row.rank is None else f"{row.rank}{'=' if row.tied else ''}"


def _draw(records: Sequence[Record], scenario: str) -> "Figure":
    from matplotlib.figure import Figure

    rows = [row for row in board(records, scenario) if HEADLINE in row.cells]
    samples = {name: values(group, HEADLINE) for name, group in runs(records, scenario).items()}
    shown = [row for row in rows if row.row != FLOOR]
    picture = Figure(figsize=(7.2, 1.1 + 0.3 * max(len(shown), 1)), layout="constrained")
    axes = picture.add_subplot()
    _bands(axes, shown)
    for place, row in enumerate(shown):
        _dots(axes, place, row.cells[HEADLINE], samples[row.row])
        axes.text(1.02, place, _rank(row), transform=axes.get_yaxis_transform(), va="center")
    for row in rows[len(shown) :]:
        _floor(axes, row.cells[HEADLINE].mean)
    _frame(axes, [row.row for row in shown], scenario)
    return picture


def _dots(axes: "Axes", place: int, cell: Cell, sample: Sequence[float]) -> None:
    if cell.spread is not None:
        ends = [cell.mean - cell.spread, cell.mean + cell.spread]
        axes.plot(ends, [place, place], color=BLUE, linewidth=5, alpha=0.25, solid_capstyle="butt")
        axes.plot(cell.mean, place, "|", color=INK, markersize=11, markeredgewidth=1.6)
    axes.plot(sample, [place] * len(sample), "o", color=BLUE, markersize=4, markeredgewidth=0, alpha=0.75)
    axes.text(1.095, place, with_spread(cell, 1), transform=axes.get_yaxis_transform(), va="center")


def _floor(axes: "Axes", mean: float) -> None:
    axes.axvline(mean, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=0.5)
    axes.annotate(
        f"{FLOOR} {mean:.1f}",
        xy=(mean, 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        color=GREY,
        fontsize=8,
    )


def _bands(axes: "Axes", rows: Sequence[Row]) -> None:
    """A band behind each group of tied rows."""
    for rank, group in groupby(rows, key=lambda row: row.rank):
        size = len(list(group))
        if rank is not None and size > 1:
            axes.axhspan(rank - 1.44, rank - 1.56 + size, color=BAND, linewidth=0, zorder=0)


def _frame(axes: "Axes", names: Sequence[str], scenario: str) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)  # best on top
    axes.set_xlabel(f"{HEADLINE} after the last round (%)")
    axes.set_title(scenario, loc="left", fontsize=10, fontweight="bold", pad=16)
    axes.grid(axis="x", color="#e4e4e0", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines[["left", "right", "top"]].set_visible(False)
