"""Keys of a config. A key is declared once, as a field of a dataclass in `schema` with its meaning below it.

From there come its type, its default, the values that are possible, what it is a part of (the identity and the names of
a run), its entry on the page of keys, and the words of messages about it.
"""

import ast
import dataclasses
import inspect
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, is_dataclass
from functools import cache
from reprlib import repr as shortened
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from benchmark.errors import ConfigError
from datamodules import errors

LARGEST = 1e100
"""Largest size of a finite number, as in records; sums and squares of such numbers are finite."""
DEEPEST = 16
"""Most levels of mappings and lists within each other."""
PATHS = ("data.root", "data.cache", "output")
"""Keys that may hold any text."""

OTHER_WORDS = {"gpu": "cuda", "gpus": "devices", "learning_rate": "lr", "model": "encoder", "dataset": "data"}
"""Words of other tools -> ours, for suggestions."""

PLAIN = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def nearest(name: str, known: Iterable[str]) -> str:
    """See `datamodules.errors.nearest`; a word of another tool is near ours."""
    return errors.nearest(OTHER_WORDS.get(name, name), known)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value from YAML is of an argument's type; True where the type cannot be checked."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, option) for option in inner)
    if origin in (list, tuple, Sequence) or hint in (list, tuple):
        listed = isinstance(value, list | tuple)
        if origin is tuple and inner and inner[-1] is not Ellipsis:  # one type a place
            return listed and len(value) == len(inner) and all(map(fits, value, inner))
        return listed and all(fits(item, inner[0] if inner else Any) for item in value)
    if origin is dict:
        return isinstance(value, Mapping)
    if hint in (int, float):  # True is an int to Python, not to a reader
        return isinstance(value, int | hint) and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) and hint is not Any else True


def converted(value: Any, hint: Any) -> Any:
    """A value that fits a type, as that type: a whole number as a float, a number as text; item by item in a list."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if isinstance(value, list):
        inner = next((get_args(option)[0] for option in options if get_origin(option) is list), Any)
        return [converted(item, inner) for item in value]
    if not isinstance(value, int | float) or any(fits(value, option) for option in options if option is not float):
        return value
    return float(value) if float in options else str(value)


def describe(hint: Any) -> str:
    """An argument's type in words: `a number or null`, `a list, each a whole number`."""
    if hint in PLAIN:
        return PLAIN[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join("null" if option is type(None) else describe(option) for option in inner)
    if origin in (list, Sequence) and inner:
        return f"a list, each {describe(inner[0])}"
    if origin is dict:
        return "a mapping"
    plain = isinstance(hint, type) and not get_args(hint)
    return re.sub(r"\b[a-z_]+[.]", "", hint.__name__ if plain else str(hint))


def check_plain(content: Any, key: str = "", depth: int = 0) -> None:
    """Refuse what no config can hold, in files, overrides and folders alike: a ConfigError with the dotted key.

    That is names of keys other than text, NaN, numbers too large, text with control characters, sets, dates, and
    nesting too deep. A threshold may be infinite.
    """
    if depth > DEEPEST:
        raise ConfigError(f"{key}: more than {DEEPEST} levels of mappings and lists")
    if isinstance(content, Mapping):
        for name, value in content.items():
            if not isinstance(name, str) or not name.isprintable():
                raise ConfigError(f"{f'{key}: ' if key else ''}{shortened(name)} is no name of a key")
            check_plain(value, f"{key}.{name}" if key else name, depth + 1)
    elif isinstance(content, list):
        for value in content:
            check_plain(value, key, depth + 1)
    elif isinstance(content, str):
        if not content.isprintable() and key not in PATHS:
            raise ConfigError(f"{key}={shortened(content)}: give text without control characters")
        if content == "???":  # OmegaConf's sign for a value that is missing: the key would keep its default
            raise ConfigError(f"{key}=???: give another text")
    elif isinstance(content, bool | None):
        return
    elif not isinstance(content, int | float):
        raise ConfigError(f"{key}={shortened(content)}: give text, a number, true, false, null, a list or a mapping")
    elif not (abs(content) <= LARGEST or abs(content) == math.inf):  # NaN compares as false
        raise ConfigError(f"{key}={shortened(content)}: give a number of at most {LARGEST:g}")


SCENARIO, ROW = "scenario", "row"
"""What a key is `part` of where it defines the run: a change makes another scenario, or another row."""
SEED, IMAGES = "seed", "images"
"""`part`: it defines the run but is in no name | it is in the name, and defines the run by the hash of its images."""
EXECUTION, EVALUATION, NAME = "execution", "evaluation", "name"
"""`part`: where and how a run is executed | how it is scored | a name. None of these defines the run."""


def key(
    default: Any = MISSING,
    *,
    choices: Sequence[str] = (),
    minimum: float | None = None,
    within: str = "",
    part: str | None = None,
    older: Any = MISSING,
    hashed_at_default: bool = False,
    formerly: str | Mapping[str, str] = "",
) -> Any:
    """A key with its default.

    Args:
        choices: its possible values. minimum: its smallest value.
        within: what to give, in words that hold the bounds: `a share in (0, 1]`, or `above 0`, `at least 1`, which are
            finite. Bounds let null pass.
        part: what it is a part of, where that is not its section's.
        older: what run folders and records ran with that lack it, where that is not the default.
        hashed_at_default: every key that belongs to a run's identity is in its hash at other values than its default
            and `older`; this one at these too, as the first records have it.
        formerly: its earlier name, or its values by their earlier names; they are read, and written into hashes alone.
    """
    facts = {"choices": tuple(choices), "minimum": minimum, "within": within, "part": part, "older": older}
    facts |= {"hashed_at_default": hashed_at_default, "formerly": formerly}
    made: Any = {"default_factory": lambda: default} if isinstance(default, list | dict) else {"default": default}
    return dataclasses.field(**made, metadata=facts)


def section(known: type, default: Mapping[str, Any] | None = None, part: str = SCENARIO, closed: bool = False) -> Any:
    """A section of a config.

    known: a dataclass with its keys. If it is no schema, default has the section's content, and unless it is `closed`
    a class that it names, or another part of the suite, has further keys.
    """
    facts = {"known": known, "part": part, "closed": closed}
    made: Any = known if default is None else lambda: dict(default)
    return dataclasses.field(default_factory=made, metadata=facts)


@dataclass(frozen=True)
class Key:
    """A key of a config, or a section whose keys are not all known."""

    name: str
    """Dotted, as on the command line: `federation.rounds`."""
    hint: Any
    """Its type."""
    default: Any
    """Its default; `dataclasses.MISSING` where it has none."""
    owner: type
    """The dataclass that declares it."""
    older: Any
    """What run folders and records ran with that lack it."""
    part: str
    """What it is a part of."""
    choices: tuple[str, ...] = ()
    """Its possible values; empty where there are other ones."""
    minimum: float | None = None
    """Its smallest value."""
    within: str = ""
    """What to give, with the bounds that its value has to be within."""
    hashed_at_default: bool = False
    """Whether it is in a run's hash at its default too."""
    formerly: str | Mapping[str, str] = ""
    """Its earlier name, without the section's, or its values by their earlier names."""

    @property
    def meaning(self) -> str:
        """Its docstring in one line."""
        return meanings_of(self.owner).get(self.name.rpartition(".")[2], "")

    @property
    def type(self) -> str:
        """Its type in words: its choices where it has some, its smallest value; empty where its meaning says it."""
        if self.choices:
            return " | ".join(self.choices)
        if self.hint is Any or self.default is MISSING:
            return "" if self.default is MISSING else "any"
        words = describe(self.hint)
        return f"{words}, at least {self.minimum}" if self.minimum is not None else words

    def check(self, value: Any) -> None:
        """Refuses a value that is not possible."""
        if self.choices and value not in self.choices and not (value is None and fits(None, self.hint)):
            advice = f"choose {' or '.join(self.choices)}{nearest(str(value), self.choices)}"
            raise ConfigError(f"{self.name}={value!r}: {advice}")
        if value is None:
            return
        if self.minimum is not None and not (fits(value, float) and self.minimum <= value < math.inf):
            raise ConfigError(f"{self.name}={value!r}: give a number of at least {self.minimum:g}")
        if self.within and not within(value, self.within):
            raise ConfigError(f"{self.name}={value}: give {self.within}")


def within(value: float, words: str) -> bool:
    """Whether a number is within the bounds that words have: an interval, or `above 0`, or `at least 1`."""
    if found := re.search(r"([\[(])(\d+), (\d+)([\])])", words):
        low, high = int(found[2]), int(found[3])
        above = value >= low if found[1] == "[" else value > low
        return above and (value <= high if found[4] == "]" else value < high)
    number = re.search(r"(above|at least) (\d+)", words)
    assert number, words
    return (value > int(number[2]) if number[1] == "above" else value >= int(number[2])) and value < math.inf


def keys(schema: type, prefix: str = "", part: str = SCENARIO) -> Iterator[Key]:
    """The keys of a dataclass, in its order; those of a section follow it. part: of those that name none."""
    hints = get_type_hints(schema)
    for field in dataclasses.fields(schema):
        name = f"{prefix}{field.name.rstrip('_')}"  # `class_` is the key `class`
        facts = dict(field.metadata)
        known, own = facts.pop("known", None), facts.pop("part", None) or part
        facts.pop("closed", None)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if not is_dataclass(hints[field.name]):
            if facts.get("older", MISSING) is MISSING:
                facts["older"] = default
            if default is MISSING:  # its section may have one
                facts["hashed_at_default"] = True
            yield Key(name, hints[field.name], default, schema, part=own, **facts)
        if known:
            for each in keys(known, f"{name}.", own):
                given = default.get(each.name.rpartition(".")[2], MISSING) if isinstance(default, dict) else MISSING
                yield each if given is MISSING else dataclasses.replace(each, default=given, older=given)


@cache
def meanings_of(schema: type) -> dict[str, str]:
    """Key -> the string below it in the source of its dataclass."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(schema))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            found[field.target.id.rstrip("_")] = " ".join(str(ast.literal_eval(below.value)).split())
    return found
