"""Keys of a config with type, default and meaning, read from a dataclass whose fields have docstrings."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, is_dataclass
from typing import Any, get_origin, get_type_hints

from benchmark.configuration.hints import FREE
from benchmark.configuration.schema import Config
from benchmark.configuration.typecheck import describe
from benchmark.configuration.validation import CHOICES, LEAST

KNOWN = {**FREE, "partition": ("name", "clients", "alpha", "share", "min_size", "class")}
"""Section without a schema of its own -> the keys that its docstring explains."""


@dataclass(frozen=True)
class Key:
    """A key of a config."""

    name: str
    """Dotted, as on the command line: `federation.rounds`."""
    type: str
    """Its type in words; its choices where it has some; its least value. Empty where its meaning says it."""
    default: Any
    """Its default; `dataclasses.MISSING` where it has none."""
    meaning: str
    """Its docstring in one line."""


def keys(schema: type = Config, prefix: str = "") -> Iterator[Key]:
    """The keys of a dataclass, in its order; those of a section that is a dataclass follow in its place."""
    hints, meanings = get_type_hints(schema), meanings_of(schema)
    for field in dataclasses.fields(schema):
        name, hint = f"{prefix}{field.name}", hints[field.name]
        if isinstance(hint, type) and is_dataclass(hint):
            yield from keys(hint, f"{name}.")
            continue
        default = field.default if field.default_factory is MISSING else field.default_factory()
        meaning, *parts = _parts(meanings.get(field.name, ""), KNOWN.get(name, ()))
        yield Key(name, _type(name, hint), default, meaning)
        given = default if isinstance(default, dict) else {}
        yield from (Key(f"{name}.{key}", "", given.get(key, MISSING), text) for key, text in parts)


def _parts(meaning: str, known: Iterable[str]) -> Iterator[Any]:
    """A section's meaning, then name and meaning of each of its keys that are explained in it, as `key: meaning`."""
    name = "|".join(map(re.escape, known)) or "(?!)"
    first, *rest = re.split(rf"(?:^|(?<=[.;] ))((?:{name})(?:, (?:{name}))*): ", meaning)
    yield first.strip()
    for names, text in zip(rest[::2], rest[1::2], strict=True):
        yield from ((each, _sentence(text)) for each in names.split(", "))


def _sentence(text: str) -> str:
    return text.strip()[:1].upper() + text.strip()[1:]


def meanings_of(schema: type) -> dict[str, str]:
    """Field -> the string below it in the source of its class."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(schema))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return found


def _type(name: str, hint: Any) -> str:
    if name in CHOICES:
        return " | ".join(CHOICES[name])
    if hint is Any:
        return "any"
    words = "a mapping" if get_origin(hint) is dict else describe(hint)
    return f"{words}, at least {LEAST[name]}" if LEAST.get(name) else words
