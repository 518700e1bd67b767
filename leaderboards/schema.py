"""The run record (`result.json`): what it holds, how it is checked, read, written and collected."""

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from reprlib import repr as short
from typing import Any, NamedTuple

SCHEMA = 1
PARTIAL = "partial.json"
"""Of a run that is not yet over: the record of its rounds so far, without scores."""

Record = dict[str, Any]


class RecordError(ValueError):
    """A run record that cannot be believed: unreadable, incomplete, misplaced or contradicted by another."""


class Maybe(NamedTuple):
    """`of`, or null."""

    of: Any


class Each(NamedTuple):
    """An object of any keys whose values are all `of`."""

    of: Any


class Later(NamedTuple):
    """`of`; records written before there was such a field are without."""

    of: Any


SCORES = Each(Each(float))  # protocol id -> metric -> value; accuracies in percent
ORIGIN = {"git": Maybe(str), "dirty": bool, "hardware": str, "date": str}
FIELDS: dict[str, Any] = {
    "schema": int,
    "scenario": str,
    "row": str,
    "method": str,
    "objective": str,
    "seed": int,
    "rounds": {"done": int, "planned": int, "ended": Later(str)},  # ended: why before the last planned one, if so
    "images": int,  # seen in training, all clients and rounds together
    "scores": SCORES,
    "encoders": Each(SCORES),
    "best": Maybe({"round": int, "metric": str, "value": float}),
    "curve": Later([Each(float)]),  # what the monitor saw in which round, after how many bytes and seconds
    "server": Later(Each(float)),  # images it trained on itself, with repetition, and the seconds that took
    "bytes": {
        "up": Each(int),
        "down": Each(int),
        "visits": int,
    },  # totals by entry; a visit: a client of a round's cohort
    "epsilon": Maybe(float),  # the largest that a client has spent
    "privacy": Later(dict),  # of what, at which delta, by client; the least anonymity of a visit, where noted
    "seconds": {"wall": float, "clients": float, "evaluation": float},  # clients: CPU, or GPU, over visits
    "world_size": int,
    "federation": {"clients": int, "participation": float, "batch_norm": str},
    "settings": dict,  # dotted key -> value of all that makes the run what it is, but the seed
    "provenance": {
        **ORIGIN,
        "config": str,
        "dataset": str,
        "partition": str,
        "libraries": Each(str),
        "python": str,
    },
    "evaluated": Each(ORIGIN),  # protocol id -> by which code, where and when
    "deviations": [str],
}


INCIDENTAL = ("seconds", "provenance", "evaluated")
"""What may differ between two records of one run: when, where and how fast."""


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def number(value: object) -> bool:
    """Whether a value is a finite number: neither true nor false, nor a text."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


KINDS: dict[type, tuple[Callable[[object], bool], str]] = {
    int: (_count, "a whole number, 0 or more"),
    float: (number, "a finite number"),
    str: (lambda value: isinstance(value, str), "text"),
    bool: (lambda value: isinstance(value, bool), "true or false"),
    dict: (lambda value: isinstance(value, dict), "an object"),
    list: (lambda value: isinstance(value, list), "a list"),
}


def validate(record: Record, where: str) -> None:
    """Check a record against `FIELDS`.

    Args:
        record: the record, as read from JSON.
        where: its file, named in every error.

    Raises:
        RecordError: for another schema version, a missing field, an unknown top-level one, a value of the wrong kind
            or a number that is not finite; one line, with the file and the field. Nested objects may hold more.
    """
    _expect(record, dict, where, "the record")
    if "schema" not in record:
        raise RecordError(f"{where}: schema is missing")
    if record["schema"] != SCHEMA:
        raise RecordError(
            f"{where}: schema is {short(record['schema'])}, this version reads {SCHEMA}: "
            "run again, or use the version that wrote it"
        )
    for key in record:
        if key not in FIELDS:
            raise RecordError(f"{where}: {key} is unknown, the fields are {', '.join(FIELDS)}")
    _check(record, FIELDS, where, "")
    if record["rounds"]["done"] > record["rounds"]["planned"]:
        raise RecordError(f"{where}: rounds.done is {record['rounds']['done']}, expected at most rounds.planned")


def _check(value: Any, shape: Any, where: str, field: str) -> None:
    if isinstance(shape, Maybe):
        if value is not None:
            _check(value, shape.of, where, field)
    elif isinstance(shape, Later):
        _check(value, shape.of, where, field)
    elif isinstance(shape, dict | Each):
        _expect(value, dict, where, field)
        inner = shape if isinstance(shape, dict) else dict.fromkeys(value, shape.of)
        for key, kind in inner.items():
            name = f"{field}.{key}" if field else str(key)
            if key not in value and isinstance(kind, Later):
                continue
            if key not in value:
                raise RecordError(f"{where}: {name} is missing")
            _check(value[key], kind, where, name)
    elif isinstance(shape, list):
        _expect(value, list, where, field)
        for index, item in enumerate(value):
            _check(item, shape[0], where, f"{field}[{index}]")
    else:
        _expect(value, shape, where, field)
        if field.rpartition(".")[2].startswith("accuracy") and not 0 <= value <= 100:
            raise RecordError(f"{where}: {field} is {value}, expected 0 to 100 percent")


def _expect(value: object, kind: type, where: str, field: str) -> None:
    holds, expected = KINDS[kind]
    if not holds(value):
        raise RecordError(f"{where}: {field} is {short(value)}, expected {expected}")


def read(path: str | Path) -> Record:
    """The validated record in `path`. Raises RecordError when it is unreadable, not JSON or not valid."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # a JSON or Unicode error is a ValueError
        raise RecordError(f"{path}: not a readable JSON file ({error})") from error
    validate(record, str(path))
    return record


def write(path: str | Path, record: Record) -> None:
    """Validate `record` and write it to `path`, whole or not at all; folders are made as needed."""
    path = Path(path)
    validate(record, str(path))
    text = json.dumps(record, sort_keys=True, indent=1, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.tmp")
    partial.write_text(text + "\n", encoding="utf-8")
    os.replace(partial, path)


def name(record: Record) -> str:
    """The run a record is of, `<scenario>/<row>/seed<k>`: its file under the results, its folder among the runs."""
    return f"{record['scenario']}/{record['row']}/seed{record['seed']}"


def merged(folder: Path, records: Iterable[Record]) -> list[Record]:
    """What the folder would hold with these records in it; it may not be there yet."""
    standing = {name(record): record for record in (collect(folder) if folder.is_dir() else [])}
    added = {name(record): record for record in records if newer(standing.get(name(record)), record)}
    return list({**standing, **added}.values())


def newer(before: Record | None, record: Record) -> bool:
    """Whether a record has at least the rounds of the one that stands."""
    return before is None or record["rounds"]["done"] >= before["rounds"]["done"]


def place(path: Path, record: Record) -> None:
    """Writes a record where none stands yet, or the same scores and perhaps more protocols', or more rounds.

    Another number for the same run is not put over it, and none is lost; a record of fewer rounds is left out.
    """
    before = read(path) if path.exists() else None
    if not newer(before, record):
        return
    standing = before["scores"] if before is not None else {}
    if any(record["scores"].get(protocol) != metrics for protocol, metrics in standing.items()):
        raise RecordError(f"{path} holds other scores for this run: delete it first if the new ones are to stand")
    write(path, record)


def collect(folder: str | Path) -> list[Record]:
    """Every record under `folder`, ordered by scenario, row and seed.

    A record lies in `<scenario>/<row>/seed<k>.json` or, in a run's folder, `<scenario>/<row>/seed<k>/result.json`,
    and that of a run that is not yet over in `partial.json` there; a scenario's name may span several folders. Two
    files may hold the same run as long as they say the same of it, but for when, where and how fast.

    Raises:
        RecordError: for a missing folder, an invalid record, a record that lies where another belongs, or two records
            of one run (scenario, row, seed) that differ.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RecordError(f"{folder}: no such folder, expected one of <scenario>/<row>/seed<k>.json files")
    found: dict[tuple[str, str, int], tuple[Path, Record]] = {}
    for path, place in _places(folder):
        if path.name == PARTIAL and not path.exists():  # the run has ended since
            path = path.with_name("result.json")
        record = read(path)
        run = (record["scenario"], record["row"], record["seed"])
        if place != name(record):
            raise RecordError(f"{path}: holds {name(record)}, not {place}: move it there")
        first, kept = found.setdefault(run, (path, record))
        unlike = [key for key in FIELDS if key not in INCIDENTAL and kept.get(key) != record.get(key)]
        if unlike:
            raise RecordError(
                f"{first} and {path}: the same run with different {', '.join(unlike)}, remove one of them"
            )
    return [found[run][1] for run in sorted(found)]


def _places(folder: Path) -> Iterator[tuple[Path, str]]:
    """Each record's file and the run that its path names, `<scenario>/<row>/seed<k>`."""
    whole = {*folder.rglob("seed*.json"), *folder.rglob("seed*/result.json")}
    early = {file for file in folder.rglob(f"seed*/{PARTIAL}") if file.with_name("result.json") not in whole}
    for path in sorted(whole | early):
        place = path.parent if path.name in ("result.json", PARTIAL) else path.with_suffix("")
        if re.fullmatch(r"seed\d+", place.name):
            yield path, place.relative_to(folder).as_posix()
