"""The run record (`result.json`): what it holds, how it is checked, read, written and collected."""

import math
from collections.abc import Callable
from reprlib import repr as short
from typing import Any, NamedTuple

SCHEMA = 1


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


def is_number(value: object) -> bool:
    """Whether a value is a finite number: neither true nor false, nor a text."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


KINDS: dict[type, tuple[Callable[[object], bool], str]] = {
    int: (_count, "a whole number, 0 or more"),
    float: (is_number, "a finite number"),
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
