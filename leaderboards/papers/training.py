"""How a paper trained: optimiser, rate, temperature, views and head behind its numbers, and where each is known from.

A paper's file gives them under `training`: a pattern of our scenario and row, as `fedx/svhn *-byol`, -> settings; a
later pattern replaces what an earlier one gave. A value is the paper's; `{code: value}` is that of its released code,
where the paper has none or the code contradicts it; `{converted: value}` is either, in the units of our loss, where a
comment in the file says how. `{open: why}` is in neither; `{differs: why}` is known, and ours cannot do it; null does
not apply. `{open: why}` in place of the settings leaves all of them open. Constants of a method or an objective have
the names of the fields that hold them in a record, as `method.temperature`.
"""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from math import isclose
from typing import Any, NamedTuple

from leaderboards.schema import RecordError, is_number

NUMBER = (int, float)
FIELDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "optimizer": (str, ("optimizer.class",)),
    "lr": (NUMBER, ("optimizer.lr",)),
    "sgd_momentum": (NUMBER, ("optimizer.momentum",)),
    "weight_decay": (NUMBER, ("optimizer.weight_decay",)),
    "schedule": (str, ("schedule.name",)),
    "loss_temperature": (NUMBER, ("objective.temperature",)),
    "augmentation": (dict, ()),
    "head": (list, ("objective.projector", "heads.projector")),
}
"""Setting -> type of its value, fields of a record that hold it, the first that is there; views: all of `views.`."""
CONSTANT = (*NUMBER, bool, str)
"""Types of a constant's value."""
WANTED: dict[Any, str] = {
    str: "words",
    NUMBER: "a number",
    CONSTANT: "a number, true, false or words",
    list: "a list of widths",
    dict: "a mapping of views",
}
"""Type -> what it is asked for as."""
PAPER, CODE, CONVERTED, OPEN, DIFFERS = "paper", "code", "converted", "open", "differs"
WORDS = (OPEN, DIFFERS)
"""Sources whose value is not a setting but a reason."""


class Given(NamedTuple):
    """A setting of training. source: PAPER, CODE, ...; value: a reason for WORDS. pattern: whose rows it is of."""

    value: Any
    source: str
    pattern: str


Patterns = Mapping[str, Mapping[str, Given]]
"""Pattern of a scenario and row -> setting -> what a paper's file gives."""


def read(where: str, training: Any) -> Patterns:
    """The patterns of a paper's file. Raises RecordError: they are no mapping, or a setting is not valid."""
    if not isinstance(training, Mapping):
        raise RecordError(f"{where}: training is {training!r}, expected a mapping: pattern -> settings")
    return {pattern: _read(f"{where}, training {pattern}", pattern, content) for pattern, content in training.items()}


def of_row(where: str, training: Patterns, scenario: str, row: str) -> dict[str, Given]:
    """What a paper's file gives for a row of ours. Raises RecordError: one of FIELDS is not named."""
    given: dict[str, Given] = {}
    for pattern, settings in training.items():
        if fnmatchcase(f"{scenario} {row}", pattern):
            given |= settings
    if missing := [key for key in FIELDS if key not in given]:
        ways = "give the paper's value, {code: the code's}, {open: why it is not known}, {differs: in what}, or null"
        raise RecordError(f"{where}: training has no {missing[0]} for {scenario} {row}: {ways}")
    return given


def _read(where: str, pattern: str, content: Any) -> dict[str, Given]:
    if not isinstance(content, Mapping):
        raise RecordError(f"{where}: {content!r} is not a mapping")
    if list(content) == [OPEN]:
        return {key: Given(str(content[OPEN]), OPEN, pattern) for key in FIELDS}
    if unknown := sorted(str(key) for key in content if key not in FIELDS and "." not in str(key)):
        known = f"{', '.join(FIELDS)}, and fields as method.alpha"
        raise RecordError(f"{where}: {unknown[0]} is unknown; there are {known}")
    given = {}
    for key, value in content.items():
        marks = (CODE, CONVERTED, *WORDS)
        source = next((word for word in marks if isinstance(value, Mapping) and list(value) == [word]), PAPER)
        value = value if source == PAPER else value[source]
        kind = str if source in WORDS else FIELDS.get(key, (CONSTANT,))[0]
        if not isinstance(value, kind) and (value is not None or source != PAPER):
            ways = f"{WANTED[kind]}, {{code: ...}}, {{open: why}}, {{differs: why}} or null"
            raise RecordError(f"{where}: {key} is {value!r}; give {ways}")
        given[key] = Given(value, source, pattern)
    return given


def unused(training: Iterable[str], used: Iterable[Mapping[str, Given]]) -> list[str]:
    """The patterns that give no row anything."""
    patterns = {given.pattern for of_cell in used for given in of_cell.values()}
    return [pattern for pattern in training if pattern not in patterns]


def differences(training: Mapping[str, Given], settings: Mapping[str, Any]) -> Iterator[str]:
    """The settings in which a record differs from what is known of the paper's training, in words."""
    for key, (value, source, _) in training.items():
        if source not in WORDS and value is not None and not _same(ours := _of_record(key, settings), value):
            yield f"{key} {in_words(ours)}, not {in_words(value)}"


def _of_record(key: str, settings: Mapping[str, Any]) -> Any:
    if key == "augmentation":
        return {field.removeprefix("views."): value for field, value in settings.items() if field.startswith("views.")}
    _, fields = FIELDS.get(key, (CONSTANT, (key,)))
    value = next((settings[field] for field in fields if settings.get(field) is not None), None)
    return str(value).rpartition(".")[2] if key == "optimizer" else value


SWITCHES = {
    "crop_scale": "interpolation",
    "pad": "pad_mode",
    "jitter_p": "jitter",
    "jitter": "jitter_p",
    "blur": "blur_",
}
"""Part of an augmentation -> beginning of the fields that mean nothing without it."""


def _effective(views: Mapping[str, Any]) -> dict[str, Any]:
    """An augmentation without the parts that are off."""
    off = tuple(fields for switch, fields in SWITCHES.items() if not _on(views.get(switch)))
    return {name: value for name, value in views.items() if _on(value) and not name.startswith(off)}


def _on(value: Any) -> bool:
    """Whether a part of an augmentation does anything: a jitter of no strength does not."""
    return any(value) if isinstance(value, list) and value else bool(value)


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, Mapping):
        ours, theirs = _effective(ours), _effective(theirs)
        return ours.keys() == theirs.keys() and all(_same(ours[name], theirs[name]) for name in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return isclose(ours, theirs) if is_number(ours) and is_number(theirs) else bool(ours == theirs)


def in_words(value: Any) -> str:
    """A value on a page."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {in_words(part)}" for name, part in value.items() if part) or "none"
    return "–" if value is None else str(value)
