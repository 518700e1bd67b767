"""The site's data: what its pages show, as one JavaScript file that a browser opens without a server.

The pages themselves, `site/index.html` and the files it loads, are written by hand.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from math import isinf
from pathlib import Path
from typing import Any

from leaderboards import palette
from leaderboards.averages import full_names
from leaderboards.comparisons import Difference, bases, differences
from leaderboards.encoders import count, mean_of, shown
from leaderboards.pages import board, reproduction
from leaderboards.pages.columns import all_columns, of_encoders, of_submissions
from leaderboards.pages.privacy import Sheet
from leaderboards.papers.verdicts import Verdict
from leaderboards.rank import Row, finished, fitted, gaps
from leaderboards.schema import Record
from leaderboards.sources import labelled, reconstructed, row_name
from leaderboards.store import digest, name

ASSETS = Path(__file__).parents[1] / "site"
DATA = "data.js"
BEGIN, END = "const DATA = ", ";\n"


def write(records: Sequence[Record], verdicts: Sequence[Verdict], folder: Path, sheet: Sheet | None = None) -> None:
    """Writes `site/` into a folder of leaderboards, and the handwritten pages where the folder is another one."""
    site = folder / "site"
    site.mkdir(parents=True, exist_ok=True)
    for asset in sorted(ASSETS.iterdir()):
        if asset.name != DATA and asset.resolve() != (site / asset.name).resolve():
            shutil.copyfile(asset, site / asset.name)
    data = json.dumps(content(records, verdicts, sheet), separators=(",", ":")).replace("</", "<\\/")  # no </script>
    (site / DATA).write_text(f"{BEGIN}{data}{END}", encoding="utf-8")


def content(records: Sequence[Record], verdicts: Sequence[Verdict], sheet: Sheet | None) -> dict[str, Any]:
    """Everything that the site shows. sheet: the privacy sheet."""
    boards = board.boards(records)
    over = board.averaged(boards)
    names, every = full_names(boards), sorted({row.row for rows in boards.values() for row in rows})
    columns = all_columns([row for rows in boards.values() for row in rows])
    return {
        "columns": [{"key": key, "title": title, "digits": decimals} for key, (title, decimals) in columns.items()],
        "scenarios": {
            scenario: {
                "setting": board.setting(rows),
                "renamed": board.renamed(names.get(scenario, {})),
                "rows": [_row(row) for row in rows],
                "missing": gaps(rows),
                "encoders": of_encoders(rows),
                "submissions": of_submissions(rows),
                "machines": board.machines(rows),
                "left": board.left_out(records, scenario),
                "compared": _compared(rows),
                "gains": [_gain(gain) for gain in differences(rows, bases())],
            }
            for scenario, rows in boards.items()
        },
        "averages": {
            "rows": [{"row": row, "mean": over.mean_place[row], "ranks": ranks} for row, ranks in over.ranks.items()],
            "tests": over.tests,
        },
        "runs": {name(record): _run(record) for record in records if finished(record)},
        "published": [_table(group) for group in reproduction.tables(verdicts)],
        "training": _training(verdicts),
        "palette": {"light": palette.LIGHT, "dark": palette.DARK, "rows": {row: palette.hue(row) for row in every}},
        "privacy": sheet and asdict(sheet),
        "labels": {method: labelled(method, method) for method in reconstructed()},
    }


def _gain(gain: Difference) -> list[Any]:
    """A line of what rows add: row, base, points, interval, p, verdict, what is excluded, other settings."""
    numbers = _rounded([gain.points, gain.p, gain.within])
    return [gain.row, gain.base, numbers[0], gain.between, numbers[1], gain.verdict, numbers[2], "; ".join(gain.unlike)]


def _compared(rows: Sequence[Row]) -> dict[str, Any] | None:
    """What tells the ranked rows apart: their estimated means, and the difference that each pair needs, row by row."""
    of_board = fitted(rows)
    if of_board is None:
        return None
    margins = [[None if isinf(margin) else margin for margin in line.values()] for line in of_board.margins.values()]
    numbers = {"effects": list(of_board.effects.values()), "margins": margins, "typical": of_board.margin_range[1]}
    return {"rows": list(of_board.effects), **_rounded(numbers)}


def _row(row: Row) -> dict[str, Any]:
    return {**_rounded(asdict(row)), "settings": row.settings, "shown": row_name(row)}


def _run(record: Record) -> dict[str, Any]:
    """A record without its settings, which its row has; of its encoders, their number and their scores as shown."""
    fields = {key: value for key, value in record.items() if key not in ("settings", "encoders", "scores")}
    scores = {"scores": shown(record), "encoders": mean_of(count(record))}
    return {"curve": [], **_rounded({**fields, **scores}), "record": digest(record)}


def _training(verdicts: Sequence[Verdict]) -> dict[str, list[list[str]]]:
    """Name of a paper -> lines on how it trained: setting, value, whose, of which rows of ours."""
    lines = reproduction.trained(verdicts)
    names = {verdict.cell.paper: verdict.cell.name for verdict in verdicts}
    return {names[paper]: [[*line[:3], ", ".join(line[3])] for line in of_paper] for paper, of_paper in lines.items()}


def _table(group: Sequence[Verdict]) -> dict[str, Any]:
    """A paper's table, its cells by row and column."""
    cell = group[0].cell
    shared, columns, rows = reproduction.laid_out(group)
    return {
        "paper": cell.name,
        "cite": cell.cite,
        "table": cell.where,
        "title": cell.title,
        "setting": shared,
        "columns": columns,
        "rows": [[row, [_verdict(cells.get(column)) for column in columns]] for row, cells in rows.items()],
        "remarks": [*reproduction.remarks(group), *filter(None, [reproduction.explained(cell)])],
    }


def _verdict(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    cell = verdict.cell
    fields = {
        "value": reproduction.printed(cell),
        "unit": cell.unit,
        "kind": verdict.kind,
        "ours": _rounded(verdict.ours),
        "delta": _rounded(verdict.delta),
        "within": _rounded(verdict.within),
        "against": reproduction.against(verdict) or None,
        "place": None if cell.ours is None else " ".join(cell.ours),
        "why": verdict.why or None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _rounded(value: Any) -> Any:
    """Nested data, its numbers to six digits: more is noise on a screen."""
    return json.loads(json.dumps(value), parse_float=lambda digits: float(f"{float(digits):.6g}"))
