"""The run record (`result.json`): its fields and their validation."""

import math
import re
from reprlib import repr as shortened
from typing import Annotated, Any, Literal, NotRequired

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


AXES = ("round", "bytes", "seconds")
"""Keys that every point of a curve has."""


def _check_name(name: str) -> str:
    """As `benchmark` requires of a scenario and a row, which are folders."""
    if not re.fullmatch(r"\w[\w.+=-]*(/\w[\w.+=-]*)*", name):
        raise PydanticCustomError("name", "not a name")
    return name


def _check_point(point: dict[str, float]) -> dict[str, float]:
    for axis in AXES:
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


def _field(kind: Any, meaning: str) -> Any:
    """A field's type with its meaning, which is the `description` in `json_schema`."""
    return Annotated[kind, Field(description=meaning)]


Count = Annotated[int, Field(ge=0)]
Number = FiniteFloat
Name = Annotated[str, AfterValidator(_check_name)]
Point = Annotated[dict[str, Number], AfterValidator(_check_point)]
Metrics = Annotated[dict[str, Number], AfterValidator(_check_percentages)]
Scores = dict[str, Metrics]  # protocol id -> metric -> value; accuracies in percent
ORIGIN = {
    "git": _field(str | None, "Commit of the code, or the tag of its version; null of a copy that has neither."),
    "dirty": _field(bool, "Whether files differed from that commit."),
    "hardware": _field(
        str,
        "GPU; or processor and threads, then its model, the instruction set that torch used, and its BLAS, which older "
        "records do not say.",
    ),
    "date": _field(str, "Date and time, UTC."),
}
FIELDS: dict[str, Any] = {  # NotRequired: records from before the field existed do not have it
    "schema": _field(Count, "Version of this list of fields."),
    "scenario": _field(Name, "Data, partition, network and length of training; with the settings that were changed."),
    "row": _field(Name, "Name on the board: the method with its settings. Runs of a row differ by their seed only."),
    "method": _field(str, "Name of the method's config."),
    "objective": _field(str, "Name of the objective's config."),
    "seed": _field(Count, "Seed of all random numbers."),
    "rounds": _field(
        _object(
            done=_field(Count, "Rounds that were completed."),
            planned=_field(Count, "Rounds of the config. A board takes finished runs only."),
            ended=_field(NotRequired[str], "Why a finished run has fewer rounds than planned: its privacy budget."),
        ),
        "Length of training.",
    ),
    "images": _field(
        Count,
        "Images trained on, all clients and rounds together, those of FedX's third view too; passes that only observe "
        "do not count.",
    ),
    "scores": _field(
        Scores,
        "By protocol id and metric; accuracies in percent. Of several encoders `accuracy` is the worst one's and "
        "`accuracy_mean` the mean, which boards and tables show.",
    ),
    "encoders": _field(dict[str, Scores], "The same for each encoder by name; `scores` combines them."),
    "best": _field(
        _object(
            round=_field(Count, "The round."),
            metric=_field(str, "What was measured: `monitor`, kNN accuracy on a held-out part of the training images."),
            value=_field(Number, "Its value, percent."),
        )
        | None,
        "Best measurement of the monitor; null without any. A board shows the last round.",
    ),
    "curve": _field(
        NotRequired[list[Point]],
        "The monitor's scores and the mean local `loss` by round, each with `round`, and `bytes` and `seconds` up to "
        "that round; of a run without a monitor the loss alone. Older records have no loss.",
    ),
    "server": _field(
        NotRequired[dict[str, Number]],
        "`images` that the server trained on, with repetition, and its `seconds`; empty where it only aggregates.",
    ),
    "bytes": _field(
        _object(
            up=_field(dict[str, Count], "From clients, by entry."),
            down=_field(dict[str, Count], "To clients, by entry."),
            visits=_field(Count, "Clients drawn, summed over rounds; some may not have replied."),
        ),
        "Bytes of all messages, without framing: elements times their size; of a compressed update, its packed size.",
    ),
    "epsilon": _field(
        Number | None, "Largest epsilon that a client has spent; null where nothing was sent with noise."
    ),
    "privacy": _field(
        NotRequired[
            _object(
                delta=_field(NotRequired[Number], "Delta of (epsilon, delta)."),
                covers=_field(NotRequired[list[str]], "Entries of messages that epsilon covers."),
                clients=_field(NotRequired[dict[str, Number]], "Epsilon by client."),
                noise_multiplier=_field(
                    NotRequired[Number], "Deviation of the noise on clients' updates over the clip."
                ),
                clip=_field(NotRequired[Number], "Norm to which clients' updates are clipped, after the last round."),
                secure_aggregation=_field(NotRequired[bool], "True where the server saw masked sums of replies."),
                secure_sums=_field(NotRequired[bool], "The earlier name of secure_aggregation."),
                anonymity=_field(NotRequired[Number], "Fewest rows behind a centroid that was sent, of all visits."),
                anonymity_claimed=_field(NotRequired[Number], "The same as Orchestra's paper counts it."),
            )
        ],
        "What is known about the protection of clients; empty without noise and without anonymity.",
    ),
    "activity": _field(
        NotRequired[
            dict[  # type: ignore[misc]
                str,
                _object(
                    mean=_field(Number, "Its mean over the rounds that have it; 0: it moved nothing."),
                    bound=_field(Number, "Below it the idea hardly acts, and a board marks the row."),
                    measures=_field(str, "What it is."),
                ),
            ]
        ],
        "How much the method's own idea moved something, by the name in a round's `notes`; missing for a method that "
        "adds nothing to FedAvg.",
    ),
    "costs": _field(
        NotRequired[
            _object(
                flops=_field(Number, "Operations of a client in a round: all its visits, mean over rounds."),
                flops_max=_field(Number, "The same of the round that has most."),
                memory=_field(Count, "Bytes at a client at most at once: networks, optimiser, a step's tensors."),
                parts=_field(dict[str, Count], "The largest parts of these bytes; gradients and activations overlap."),
                phases=_field(dict[str, dict[str, Number]], "By phase: operations and memory of a visit."),
                kept=_field(Count, "Bytes that stay with the client between rounds."),
                images=_field(Count, "Images of the client that was counted: the mean of all."),
            )
        ],
        "What a client pays, counted before the first round; only with `costs=true`.",
    ),
    "seconds": _field(
        _object(
            wall=_field(Number, "Training, by the clock."),
            clients=_field(Number, "CPU time of the visits, summed; on a GPU by the clock."),
            evaluation=_field(Number, "Evaluation after the last round, by the clock."),
        ),
        "Time. It depends on the machine: compare it within one set of runs.",
    ),
    "world_size": _field(Count, "Processes that shared the run."),
    "federation": _field(
        _object(
            clients=_field(Count, "Number of clients."),
            participation=_field(Number, "Share of the clients in a round."),
            batch_norm=_field(str, "What happens to running statistics: `federation.batch_norm`."),
            names=_field(NotRequired[list[str]], "Names of the clients, where the data have them."),
        ),
        "The federation.",
    ),
    "settings": _field(
        dict[str, Any],
        "Dotted key -> value, of everything that defines the run except the seed. All seeds of a row have the same.",
    ),
    "provenance": _field(
        _object(
            **ORIGIN,
            config=_field(str, "Hash of the config."),
            dataset=_field(str, "Hash of the decoded images and labels, the same in whatever layout they are stored."),
            in_order=_field(NotRequired[str], "Hash of the same in the order that clients are drawn from."),
            partition=_field(str, "Hash of which client has which images."),
            libraries=_field(dict[str, str], "Versions of libraries."),
            python=_field(str, "Version of Python."),
            public=_field(NotRequired[str], "Hash of the public images."),
            weights=_field(
                NotRequired[dict[str, str]], "Key of the config -> SHA-256 of the file that an encoder started from."
            ),
        ),
        "Where training comes from.",
    ),
    "evaluated": _field(
        dict[str, _object(**ORIGIN, dataset=_field(NotRequired[str], "Hash of other images than the run's."))],  # type: ignore[misc]
        "By protocol id: where its scores come from.",
    ),
    "deviations": _field(
        list[str],
        "Special conditions: BatchNorm measured afterwards, rounds of several commits, devices or numbers of ranks, "
        "code from outside the packages with its hash.",
    ),
    "submission": _field(
        NotRequired[
            _object(
                mark=_field(Literal["self-reported", "verified", "replayed"], "What is known of it."),
                chosen=_field(str, "By what its settings were chosen, in the submitter's words."),
                bundle=_field(str, "SHA-256 of the bundle that it came in."),
                recomputed=_field(
                    NotRequired[Scores], "The scores that its encoder gave who verified it: protocol, metric, value."
                ),
            )
        ],
        "Of a record that somebody else made; missing otherwise.",
    ),
}
INCIDENTAL = ("seconds", "provenance", "evaluated", "world_size", "submission", "costs")
"""Fields that may differ between two records of one run: when, where, by whom and how fast, and what is counted."""

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


def json_schema() -> dict[str, Any]:
    """The JSON schema of a record; every field has a `description`."""
    return _RECORD.json_schema()


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
