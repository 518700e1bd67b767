"""The run record (`result.json`): its fields and their validation."""

import math
import re
from reprlib import repr as shortened
from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator, Field, FiniteFloat, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # pydantic refuses that of `typing` before Python 3.12

SCHEMA = 1
Record = dict[str, Any]


class RecordError(ValueError):
    """A file of the leaderboards that cannot be used: unreadable, incomplete, in the wrong place or contradictory."""

    exit_code = 2


LARGEST = 1e100
"""Largest size of a number; sums and spreads of such numbers are finite."""
LONGEST = 10_000
"""Most characters of a text."""
DEEPEST = 16
"""Most levels of objects and lists within each other."""


def _check_name(name: str) -> str:
    """As `benchmark` requires of a scenario and a row, which are folders."""
    if not re.fullmatch(r"\w[\w.+=-]*(/\w[\w.+=-]*)*", name):
        raise PydanticCustomError("name", "not a name")
    return name


def _check_point(point: dict[str, float]) -> dict[str, float]:
    for axis in ("round", "bytes", "seconds"):
        if axis not in point:
            raise PydanticCustomError("within", "{axis} is missing", {"axis": axis})
    return point


def _check_percentages(metrics: dict[str, float]) -> dict[str, float]:
    for metric, value in metrics.items():
        if metric.startswith("accuracy") and not 0 <= value <= 100:
            context = {"metric": metric, "value": value}
            raise PydanticCustomError("within", "{metric} is {value}, expected 0 to 100 percent", context)
    return metrics


def _object(**fields: Any) -> Any:
    """The type of a JSON object with these fields; it may hold more."""
    return TypedDict("_object", fields)  # type: ignore[operator]


Count = Annotated[int, Field(ge=0)]
Number = FiniteFloat
Name = Annotated[str, AfterValidator(_check_name)]
Point = Annotated[dict[str, Number], AfterValidator(_check_point)]
Privacy = _object(
    delta=NotRequired[Number],
    covers=NotRequired[list[str]],
    clients=NotRequired[dict[str, Number]],
    anonymity=NotRequired[Number],
    anonymity_claimed=NotRequired[Number],
)
Metrics = Annotated[dict[str, Number], AfterValidator(_check_percentages)]
Scores = dict[str, Metrics]  # protocol id -> metric -> value; accuracies in percent
ORIGIN = {"git": str | None, "dirty": bool, "hardware": str, "date": str}
FIELDS: dict[str, Any] = {  # NotRequired: records from before the field existed do not have it
    "schema": Count,
    "scenario": Name,
    "row": Name,
    "method": str,
    "objective": str,
    "seed": Count,
    "rounds": _object(done=Count, planned=Count, ended=NotRequired[str]),  # ended: why before the last planned round
    "images": Count,  # seen in training, all clients and rounds together
    "scores": Scores,
    "encoders": dict[str, Scores],
    "best": _object(round=Count, metric=str, value=Number) | None,
    "curve": NotRequired[list[Point]],  # the monitor's scores by round; bytes and seconds up to that round
    "server": NotRequired[dict[str, Number]],  # images the server trained on, with repetition, and the seconds it took
    "bytes": _object(up=dict[str, Count], down=dict[str, Count], visits=Count),  # by entry; clients, summed over rounds
    "epsilon": Number | None,  # the largest that a client has spent
    "privacy": NotRequired[Privacy],  # entries covered, delta, epsilon by client, smallest anonymity of a visit
    "seconds": _object(wall=Number, clients=Number, evaluation=Number),  # clients: CPU or GPU time, summed over visits
    "world_size": Count,
    # names: of the clients, where the data name them
    "federation": _object(clients=Count, participation=Number, batch_norm=str, names=NotRequired[list[str]]),
    "settings": dict[str, Any],  # dotted key -> value, of everything that defines the run except the seed
    "provenance": _object(
        **ORIGIN,
        config=str,
        dataset=str,
        partition=str,
        libraries=dict[str, str],
        python=str,
        weights=NotRequired[dict[str, str]],  # key of the config -> sha256 of the file that an encoder started from
    ),
    "evaluated": dict[str, _object(**ORIGIN)],  # type: ignore[misc]  # protocol id -> code, machine and date
    "deviations": list[str],
}
INCIDENTAL = ("seconds", "provenance", "evaluated", "world_size")
"""Fields that may differ between two records of one run: when, where and how fast."""

EXPECTED = {
    "int_type": "a whole number, 0 or more",
    "greater_than_equal": "a whole number, 0 or more",
    "float_type": "a finite number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "an object",
    "list_type": "a list",
    "name": "letters and digits, with . _ + = - and / after the first",
}
"""Type of a pydantic error -> what the value should be."""

_RECORD = TypeAdapter(_object(**FIELDS))


def validate(record: Record, where: str) -> None:
    """Check a record, as read from JSON. where: its file, named in every error.

    Raises:
        RecordError: for another schema version, a missing field, an unknown top-level one, a value of the wrong type
            or anything that `flaw` refuses; one line, with the file and the field. Nested objects may hold more.
    """
    if isinstance(record, dict) and record.get("schema", SCHEMA) != SCHEMA:
        raise RecordError(
            f"{where}: schema is {shortened(record['schema'])}, this version reads {SCHEMA}: "
            "run again, or use the version that wrote it"
        )
    if (reason := flaw(record)) is not None:
        raise RecordError(f"{where}: {reason}")
    try:
        _RECORD.validate_python(record, strict=True)
    except ValidationError as error:
        raise RecordError(f"{where}: {first_error(error)}") from None
    for key in record:
        if key not in FIELDS:
            raise RecordError(f"{where}: {key} is unknown, the fields are {', '.join(FIELDS)}")
    if record["rounds"]["done"] > record["rounds"]["planned"]:
        raise RecordError(f"{where}: rounds.done is {record['rounds']['done']}, expected at most rounds.planned")


def flaw(value: object, field: str = "", depth: int = 0) -> str | None:
    """The first value of nested data that no page can show, in one line: the field, the value, what it should be.

    Refused are control characters and other unprintable ones, texts too long, numbers not finite or too large, and
    nesting too deep. None: there is no such value.
    """
    expected = None
    match value:
        case str() if not value.isprintable() or len(value) > LONGEST:
            expected = f"printable text of at most {LONGEST} characters"
        case float() if not math.isfinite(value):
            expected = EXPECTED["finite_number"]
        case int() | float() if abs(value) > LARGEST:
            expected = f"a number from {-LARGEST:g} to {LARGEST:g}"
        case dict() | list() if depth > DEEPEST:
            expected = f"at most {DEEPEST} levels"
    if expected is not None:
        return f"{field.removeprefix('.') or 'the record'} is {shortened(value)}, expected {expected}"
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        path = f"{field}.{key}" if isinstance(value, dict) else f"{field}[{key}]"
        if (reason := flaw(key, f"{field}, a name there,") or flaw(child, path, depth + 1)) is not None:
            return reason
    return None


def first_error(error: ValidationError) -> str:
    """The first error of a validation in one line: the field, its value and what the value should be."""
    first = error.errors(include_url=False)[0]
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"])
    field = path.removeprefix(".") or "the record"
    match first["type"]:
        case "missing":
            return f"{field} is missing"
        case "within":
            return f"{field}.{first['msg']}"
        case kind if kind in EXPECTED:
            return f"{field} is {shortened(first['input'])}, expected {EXPECTED[kind]}"
    return f"{field}: {first['msg']}"


def is_number(value: object) -> bool:
    """Whether a value is a finite number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
