"""The site's data: what its pages show, as one file of JavaScript that a browser opens without a server.

The pages themselves, `site/index.html` and what it names, are written by hand.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from leaderboards.pages import board, further, methods, privacy, reproduction
from leaderboards.papers.verdicts import Verdict
from leaderboards.rank import HEADLINE, Cell, Row, finished, gaps, pooled_spread
from leaderboards.schema import Record
from leaderboards.store import name

ASSETS = Path(__file__).parents[1] / "site"
DATA = "data.js"
BEGIN = "const DATA = "
COLUMNS = {  # "protocol metric": heading, decimals
    HEADLINE: ("linear (%)", 1),
    "knn/v1 accuracy": ("kNN (%)", 1),
    "geometry/v1 effective_rank": ("effective rank", 1),
    "geometry/v1 alignment": ("alignment", 3),
    "geometry/v1 uniformity": ("uniformity", 2),
    "geometry/v1 uniformity_within": ("within clients", 2),
    "geometry/v1 uniformity_between": ("between clients", 2),
    **further.COLUMNS,
}
"""Scores that the board of the site has a column for, in its order; the first of them are shown at once."""


def write(records: Sequence[Record], found: Sequence[Verdict], folder: Path) -> None:
    """Writes `site/` into a folder of leaderboards, with the pages where they are not there already."""
    site = folder / "site"
    site.mkdir(parents=True, exist_ok=True)
    for asset in sorted(ASSETS.iterdir()):
        if asset.name != DATA and asset.resolve() != (site / asset.name).resolve():
            shutil.copyfile(asset, site / asset.name)
    there = folder / privacy.SHEET
    sent = asdict(privacy.read(there)) if there.exists() else None
    (site / DATA).write_text(script(content(records, found, sent)), encoding="utf-8")


def content(records: Sequence[Record], found: Sequence[Verdict], sent: Mapping[str, Any] | None) -> dict[str, Any]:
    """All that the site shows; sent: the privacy sheet."""
    return {
        "columns": [{"key": key, "title": title, "digits": digits} for key, (title, digits) in COLUMNS.items()],
        "scenarios": {
            scenario: {
                "rows": [_row(row) for row in rows],
                "missing": gaps(rows),
                "left": board.left_out(records, scenario),
                "spread": _short(pooled_spread(rows)),
            }
            for scenario, rows in methods.boards(records).items()
        },
        "averages": [{"row": one.row, "mean": one.mean, "ranks": one.ranks} for one in board.averages(records)],
        "runs": {name(record): _run(record) for record in records if finished(record)},
        "published": [_table(group) for group in reproduction.tables(found)],
        "privacy": sent,
    }


def script(data: Mapping[str, Any]) -> str:
    """The data as JavaScript, an item of each part a line, so that a change of one number changes one line."""
    parts = []
    for part, held in data.items():
        if isinstance(held, Mapping) and part != "privacy":
            lines = ",\n".join(f"{_json(key)}: {_json(value)}" for key, value in held.items())
            parts.append(f"{_json(part)}: {{\n{lines}\n}}")
        elif isinstance(held, list):
            parts.append(f"{_json(part)}: [\n" + ",\n".join(map(_json, held)) + "\n]")
        else:
            parts.append(f"{_json(part)}: {_json(held)}")
    return BEGIN + "{\n" + ",\n".join(parts) + "\n};\n"


def read(text: str) -> Any:
    """What a file of data holds, JavaScript or JSON."""
    return json.loads(text.removeprefix(BEGIN).rstrip().removesuffix(";"))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace("</", "<\\/")


def _row(row: Row) -> dict[str, Any]:
    return {
        **{key: getattr(row, key) for key in PLAIN},
        "settings": row.settings,
        "cells": {key: _cell(cell) for key, cell in row.cells.items() if key in COLUMNS},
        "headline": row.headline,
        "bytes_up": _short(row.bytes_up),
        "bytes_down": _short(row.bytes_down),
        "client_seconds": _short(row.client_seconds),
        "epsilon": _short(row.epsilon),
    }


PLAIN = ("row", "method", "objective", "rank", "tied", "seeds", "rounds", "covers", "commits", "hardware", "dates")
"""Of a Row, what is shown as it is."""


def _run(record: Record) -> dict[str, Any]:
    """What the page of a run shows of its record."""
    kept = ("rounds", "images", "best", "bytes", "seconds", "world_size", "federation", "deviations")
    return {
        **{key: _numbers(record[key]) for key in kept},
        "scores": _numbers(record["scores"]),
        "curve": _numbers(record.get("curve", [])),
        "epsilon": _short(record["epsilon"]),
        "provenance": record["provenance"],
        "evaluated": {
            protocol: {key: origin[key] for key in ("git", "dirty", "date")}
            for protocol, origin in record["evaluated"].items()
        },
        "record": hashlib.sha256(_json(record).encode()).hexdigest()[:16],  # no number of it moves unseen
    }


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


def _verdict(one: Verdict | None) -> dict[str, Any] | None:
    if one is None:
        return None
    shown: dict[str, Any] = {"value": reproduction.printed(one.cell), "unit": one.cell.unit, "kind": one.kind}
    if one.ours is not None:
        shown["ours"] = _cell(one.ours)
    if one.delta is not None:
        shown |= {"delta": _short(one.delta), "within": _short(one.within)}
    if one.cell.ours is not None:
        shown["place"] = " ".join(one.cell.ours)
    return shown | ({"why": one.why} if one.why else {})


def _cell(cell: Cell) -> list[float | None]:
    return [_short(cell.mean), _short(cell.spread), cell.n]


def _numbers(value: Any) -> Any:
    """Nested data, its numbers to six digits: more is noise on a screen."""
    if isinstance(value, Mapping):
        return {key: _numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    return _short(value) if isinstance(value, float) else value


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
