"""What is typed after a command: names, and `key=value`."""

import re
from collections.abc import Sequence
from typing import Any

from benchmark.configuration.compose import parse
from benchmark.errors import ConfigError


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names, and `key=value` overrides; a path such as runs/digits+seed=1 is a name, and so is what `method=` names."""
    overrides = [word for word in words if re.match(r"[\w.]+=", word)]
    names = [word for word in words if word not in overrides]
    names += [word.removeprefix("method=") for word in overrides if word.startswith("method=")]
    return names, [word for word in overrides if not word.startswith("method=")]


def take_keys(overrides: Sequence[str], *keys: str) -> tuple[dict[str, Any], list[str]]:
    """What some keys are given, and the other overrides: a command's own words are no config's."""
    own = [override for override in overrides if override.partition("=")[0] in keys]
    return dict(parse(own)), [override for override in overrides if override not in own]


def only_keys(words: Sequence[str], takes: str, *keys: str) -> dict[str, Any]:
    """What some keys are given, of a command that takes no other words; takes: how the refusal begins."""
    names, overrides = split(words)
    own, rest = take_keys(overrides, *keys)
    if names or rest:
        raise ConfigError(f"{takes}, not {' '.join([*names, *rest])}")
    return own


def exactly(names: list[str], usage: str, count: int = 2) -> list[str]:
    """Exactly `count` names, or the usage."""
    if len(names) != count:
        raise ConfigError(f"usage: python -m benchmark {usage}; got {' '.join(names) or 'no name'}")
    return names
