"""Checks of a config's content: plain values, and values against types; the words for types in messages."""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from reprlib import repr as shortened
from types import UnionType
from typing import Any, Union, get_args, get_origin

from benchmark.errors import ConfigError

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
    """` (did you mean ...?)`, or nothing where no known name is near."""
    known, name = list(known), OTHER_WORDS.get(name, name)
    if same := [other for other in known if _letters(other) == _letters(name)]:
        return f" (did you mean {same[0]!r}?)"
    close = difflib.get_close_matches(name, known, n=5)

    def likeness(other: str) -> tuple[float, int]:  # of equally similar ones, that of the name's length
        return difflib.SequenceMatcher(None, other, name).ratio(), -abs(len(other) - len(name))

    return f" (did you mean {max(close, key=likeness)!r}?)" if close else ""


def _letters(name: str) -> str:
    """Without case, hyphens and underscores, as papers write `SSD` and `L-DAWA`."""
    return re.sub("[-_]", "", name).lower()


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
    if origin in (list, Sequence) and inner:
        return f"a list, each {describe(inner[0])}"
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
