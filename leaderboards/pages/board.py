"""The board: a Markdown page with its figures, and a table for the terminal, all from run records alone."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from leaderboards.averages import Average, average, full_names
from leaderboards.comparisons import COMPARISONS, LESS, MORE, Difference, bases, differences
from leaderboards.machines import by_several_commits, confounded, rows_by_kind
from leaderboards.markdown import render, seeds_phrase
from leaderboards.pages import plots, trade_offs, twins
from leaderboards.pages.columns import (
    BELOW_WORDS,
    board_lines,
    narrow,
    of_encoders,
    of_submissions,
    terminal_columns,
)
from leaderboards.pages.privacy import Sheet
from leaderboards.pages.studies import studied
from leaderboards.papers.verdicts import Verdict
from leaderboards.rank import HEADLINE, Row, board, finished, fitted, gaps
from leaderboards.schema import Record, RecordError
from leaderboards.significance import FEWEST_SEEDS
from leaderboards.sources import row_name, sentence
from leaderboards.twins import natural_twins

SETTING = {
    "data.name": "data",
    "partition.clients": "clients",
    "partition.name": "partition",
    "partition.alpha": "alpha",
    "encoder.class": "encoder",
    "federation.rounds": "rounds",
    "federation.participation": "participation",
    "training.steps": "steps a visit",
    "training.epochs": "epochs a visit",
}
"""Settings that describe a scenario, and their names on the page."""


def markdown(
    records: Sequence[Record], sheet: Sheet | None = None, verdicts: Sequence[Verdict] = (), linked: bool = True
) -> str:
    """The whole page: how to read it, a section for each scenario, figures, and where papers' numbers are.

    sheet, verdicts: whether there are any, for links to their pages. linked: whether the pages in `docs` are beside it;
    then a board whose rows one of them shows is left to that page and the site.
    """

    def page(path: str) -> str:
        name = path.rpartition("/")[2].replace("-", " ")
        return f"[{name}](../docs/{path}.md)" if linked else f"`docs/{path}.md` of the suite"

    found = boards(records)
    over = averaged(found)
    names, elsewhere = full_names(found), shown_elsewhere(found, records, verdicts) if linked else {}
    shown = {row.row: row_name(row) for rows in found.values() for row in rows}
    return render(
        "README.md.j2",
        named=lambda row: shown.get(row, row),
        reconstructed=sentence() if sheet or any(name != row for row, name in shown.items()) else "",
        boards=[
            _section(records, name, rows, renamed(names.get(name, {})))
            for name, rows in found.items()
            if name not in elsewhere
        ],
        elsewhere=elsewhere,
        below=BELOW_WORDS,
        averaged=over,
        curves=plots.curve_figures(records),
        published=bool(verdicts),
        sheet=sheet,
        page=page,
    )


def shown_elsewhere(
    boards: Mapping[str, Sequence[Row]], records: Sequence[Record], verdicts: Sequence[Verdict]
) -> dict[str, str]:
    """Scenario -> the page of `docs` that shows what its board has: a study, or a paper's numbers beside a lone row."""
    published = {each.cell.ours.scenario for each in verdicts if each.cell.ours}
    found = {scenario: "reproduction" for scenario, rows in boards.items() if len(rows) == 1 and scenario in published}
    found |= COMPARISONS["elsewhere"] | {scenario: f"studies/{page}" for scenario, page in studied(boards).items()}
    found |= {twin: f"studies/{Path(twins.PAGE).stem}" for each in natural_twins(records).values() for twin in each}
    return {scenario: found[scenario] for scenario in boards if scenario in found}


def table(rows: Iterable[Row], title: str) -> Table:
    """The board for the terminal."""
    rows = list(rows)
    unranked = any(HEADLINE in row.cells for row in rows) and not any(row.rank for row in rows)
    why = f"no rank: that takes two rows of {FEWEST_SEEDS} seeds, controls and single clients aside"
    lines = [*([why] if unranked else []), *filter(None, [of_encoders(rows), of_submissions(rows)])]
    caption = Text("\n".join(lines)) if lines else None
    result = Table(title=Text(title), caption=caption, box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    columns = terminal_columns(rows)
    for column in columns:
        heading = column.replace(" ", "\n")
        if column == "row":
            result.add_column(heading, overflow="fold")
        else:  # numbers are never folded: a narrow terminal folds the names
            result.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        result.add_row(*(Text(narrow(text(row))) for text in columns.values()))
    return result


def write(
    records: Sequence[Record],
    folder: str | Path,
    verdicts: Sequence[Verdict] = (),
    sheet: Sheet | None = None,
    linked: bool = True,
) -> None:
    """Writes `README.md` and its figures under `folder`; linked: as in `markdown`."""
    figures = Path(folder) / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    (Path(folder) / "README.md").write_text(markdown(records, sheet, verdicts, linked), encoding="utf-8")
    for scenario, rows in boards(records).items():
        if has_figure(rows):
            plots.save(partial(plots.draw_headline, rows, scenario), figures / f"{_stem(scenario)}.svg")
        for cost, draw in trade_offs.figures(rows, scenario).items():
            plots.save(draw, figures / f"{_stem(scenario)}-against-{cost}.svg")
    for name, draw in plots.curve_figures(records).items():
        plots.save(draw, figures / f"{name}.svg")


def has_figure(rows: Sequence[Row]) -> bool:
    """Whether the headline is drawn: not where all rows were scored without labels."""
    return not rows or any(HEADLINE in row.cells for row in rows)


def scenarios(records: Iterable[Record]) -> list[str]:
    """The scenarios' names, sorted. Raises RecordError when two of them would share a figure's file."""
    names = sorted({record["scenario"] for record in records})
    files = {_stem(name): name for name in names}
    for name in names:
        if files[_stem(name)] != name:
            raise RecordError(f"scenarios {name} and {files[_stem(name)]} share {_stem(name)}.svg: rename one of them")
    return names


def _stem(scenario: str) -> str:
    """The name of its figure; a hash replaces the end of a long one, as file systems limit a name to 255 bytes."""
    stem = scenario.replace("/", "-")
    return stem if len(stem.encode()) <= 240 else f"{stem[:50]}-{hashlib.sha256(stem.encode()).hexdigest()[:16]}"


def setting(rows: Sequence[Row]) -> str:
    """The commonest value of each of `SETTING` among a scenario's rows, in words."""

    def commonest(key: str) -> Any:
        values = [row.settings.get(key) for row in rows]
        return max(values, key=values.count, default=None)

    said = {name: commonest(key) for key, name in SETTING.items()}
    if said["participation"] == 1:
        del said["participation"]
    if said["steps a visit"]:
        del said["epochs a visit"]  # the steps cut them short
    said["encoder"] = said["encoder"] and str(said["encoder"]).rpartition(".")[2]
    return ", ".join(f"{name} {value}" for name, value in said.items() if value is not None)


def boards(records: Sequence[Record]) -> dict[str, list[Row]]:
    """The board of each scenario."""
    return {scenario: board(records, scenario) for scenario in scenarios(records)}


def renamed(names: Mapping[str, str]) -> str:
    """The rows that other boards call by their full names, in words; empty without any."""
    return ", ".join(f"{row} is the row that other boards call {full}" for row, full in names.items())


def _section(records: Sequence[Record], scenario: str, rows: Sequence[Row], renamed: str) -> dict[str, Any]:
    """What the page shows of a scenario."""
    here = [record for record in records if record["scenario"] == scenario]
    here.sort(key=lambda record: (record["row"], record["seed"]))
    complete = [record for record in here if finished(record)]
    return {
        "name": scenario,
        "setting": setting(rows),
        "renamed": renamed,
        "figure": f"{_stem(scenario)}.svg" if has_figure(rows) else None,
        "trade_offs": [f"{_stem(scenario)}-against-{cost}" for cost in trade_offs.figures(rows, scenario)],
        "rows": len(rows),
        "lines": board_lines(rows),
        "unknown": any(row.server_images is None for row in rows),
        "spent": any(row.epsilon is not None for row in rows),
        "deltas": sorted({row.delta for row in rows if row.epsilon is not None and row.delta}),
        "activity": {name: each for row in rows for name, each in row.activity.items()},
        "idle": [row.row for row in rows if row.idle],
        "below": any(row.below for row in rows),
        "encoders": of_encoders(rows),
        "submissions": of_submissions(rows),
        "compared": _compared(rows),
        "complete": complete,
        "left_out": left_out(here, scenario),
        "machines": machines(rows),
        "several": by_several_commits(complete),
        "missing": gaps(rows),
        "gains": added(differences(rows, bases())),
        "other_partition": other_partition(complete),
    }


def added(pairs: Sequence[Difference]) -> str:
    """What the rows of a board add to those they build on, in a sentence; empty for no pair."""
    told = [
        f"{pair.row} {pair.points:+.1f} ({pair.between}) on {pair.base}"
        for pair in pairs
        if pair.verdict in (MORE, LESS)
    ]
    kinds = Counter(pair.verdict for pair in pairs if pair.verdict not in (MORE, LESS))
    others = [f"{count} {kind}" for kind, count in kinds.most_common()]
    return f"What rows add to those they build on ({len(pairs)} pairs): {'; '.join([*told, *others])}." if pairs else ""


def other_partition(records: Sequence[Record]) -> list[str]:
    """The rows whose images are divided otherwise than most rows' under the same seed, but for single clients."""
    several = [record for record in records if record["federation"]["clients"] > 1]
    by_seed: dict[int, list[tuple[str, str]]] = {}
    for record in several:
        by_seed.setdefault(record["seed"], []).append((record["row"], record["provenance"]["partition"]))
    others = set[str]()
    for rows in by_seed.values():
        ((usual, _),) = Counter(partition for _, partition in rows).most_common(1)
        others |= {row for row, partition in rows if partition != usual}
    return sorted(others)


def machines(rows: Sequence[Row]) -> str:
    """Which rows have run on which kinds of machine, in two sentences; empty where there is one kind."""
    by_kind, order = rows_by_kind(rows), [row.row for row in rows]
    parts = [f"{f'{kind} alone' if kind else 'several'}: {spans(names, order)}" for kind, names in by_kind.items()]
    if not parts:
        return ""
    warning = (
        "Kind and row are confounded: rows of unlike kinds may differ by the machine, for which no rank accounts."
        if confounded(by_kind)
        else "Kind and row are not confounded: no two rows are of unlike kinds alone."
    )
    return f"Kinds of machine. {'; '.join(parts)}. {warning}"


def _compared(rows: Sequence[Row]) -> dict[str, Any] | None:
    """What the ranks of a board rest on; None without any comparison."""
    of_board = fitted(rows)
    if of_board is None:
        return None
    return {
        "rows": len(of_board.effects),
        "seeds": seeds_phrase(map(len, of_board.design)),
        "spreads": " to ".join(dict.fromkeys(f"{size(of_board.spreads.values()):.2f}" for size in (min, max))),
        "margins": of_board.margin_range,
    }


def spans(names: Iterable[str], order: Sequence[str], itself: str = "") -> str:
    """Rows in words, neighbours on the board as `a to c (3)`, without the row that they are set beside; else "none"."""
    places = sorted(map(order.index, names))
    runs = [[place for _, place in run] for _, run in groupby(enumerate(places), lambda pair: pair[1] - pair[0])]
    found = [[order[place] for place in run if order[place] != itself] for run in runs]
    words = [f"{run[0]} to {run[-1]} ({len(run)})" if len(run) > 2 else ", ".join(run) for run in found if run]
    return ", ".join(words) or "none"


def left_out(records: Iterable[Record], scenario: str) -> list[str]:
    """The unfinished runs of a scenario, in words: row, seed and how many of its rounds each has completed."""
    early = [record for record in records if record["scenario"] == scenario and not finished(record)]
    return [
        f"{record['row']}, seed {record['seed']}, {record['rounds']['done']} of {record['rounds']['planned']} rounds"
        for record in sorted(early, key=lambda record: (record["row"], record["seed"]))
    ]


def averaged(boards: Mapping[str, Sequence[Row]]) -> Average:
    """The rows of the scenarios that `comparisons.yaml` names, compared over all of them."""
    return average({name: boards[name] for name in COMPARISONS["averaged"] if name in boards})
