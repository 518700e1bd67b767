"""Checks of config values against types, and the words for them in messages."""

import difflib
import re
from collections.abc import Iterable, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

PLAIN = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean ...?)`, or nothing where no known name is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def fits(value: Any, hint: Any) -> bool:
    """Whether a value from YAML is of an argument's type; True where the type cannot be checked."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, option) for option in inner)
    if origin in (list, tuple, Sequence):
        return isinstance(value, list | tuple) and all(fits(item, inner[0]) for item in value)
    if hint in (int, float):  # True is an int to Python, not to a reader
        return isinstance(value, int | hint) and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) and hint is not Any else True


def describe(hint: Any) -> str:
    """An argument's type in words: `a number or null`, `a list, each a whole number`."""
    if hint in PLAIN:
        return PLAIN[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join("null" if option is type(None) else describe(option) for option in inner)
    if origin in (list, Sequence):
        return f"a list, each {describe(inner[0])}"
    plain = isinstance(hint, type) and not get_args(hint)
    return re.sub(r"\b[a-z_]+[.]", "", hint.__name__ if plain else str(hint))
