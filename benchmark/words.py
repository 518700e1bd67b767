"""What is typed after a command: names, and `key=value`."""

import re
from collections.abc import Sequence

from benchmark.config import ConfigError


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names, and `key=value` overrides; a path such as runs/digits+seed=1 is a name, and so is what `method=` names."""
    overrides = [word for word in words if re.match(r"[\w.]+=", word)]
    names = [word for word in words if word not in overrides]
    names += [word.removeprefix("method=") for word in overrides if word.startswith("method=")]
    return names, [word for word in overrides if not word.startswith("method=")]


def named(names: list[str], usage: str, count: int = 2) -> list[str]:
    """Exactly `count` names, or the usage."""
    if len(names) != count:
        raise ConfigError(f"usage: python -m benchmark {usage}; got {' '.join(names) or 'no name'}")
    return names
