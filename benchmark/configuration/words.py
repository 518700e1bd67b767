"""The words of a command: names, options and overrides."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.configuration.compose import parse
from benchmark.configuration.files import available
from benchmark.errors import ConfigError


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(names, `key=value` overrides); a path such as runs/digits+seed=1 is a name, and so is the value of `method=`."""
    overrides = [word for word in words if re.match(r"[\w.]+=", word)]
    names = [word for word in words if word not in overrides]
    names += [word.removeprefix("method=") for word in overrides if word.startswith("method=")]
    return names, [word for word in overrides if not word.startswith("method=")]


def take_keys(overrides: Sequence[str], *keys: str) -> tuple[dict[str, Any], list[str]]:
    """(values of some keys, the other overrides), to separate a command's options from a config's."""
    options = [override for override in overrides if override.partition("=")[0] in keys]
    values = dict(parse(options))
    for key, value in values.items():
        if value is None:
            raise ConfigError(f"{key}= has no value: give one, or leave it out")
    return values, [override for override in overrides if override not in options]


def only_keys(words: Sequence[str], takes: str, *keys: str) -> dict[str, Any]:
    """Values of some keys, for a command that takes no other words; takes: start of the error message."""
    names, overrides = split(words)
    values, rest = take_keys(overrides, *keys)
    if names or rest:
        raise ConfigError(f"{takes}, not {' '.join([*names, *rest])}")
    return values


def is_true(options: Mapping[str, Any], key: str) -> bool:
    """The value of an option that is true or false, and false where it is left out."""
    value = options.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{key}={value}: give true or false")
    return value


def exactly(names: list[str], usage: str, count: int = 2) -> list[str]:
    """The names where they are exactly `count`, else an error with the usage."""
    if len(names) != count:
        misspelt = any(re.fullmatch(r"=|[\w.]+:.+", name) for name in names)
        hint = "; an override is one word with an equals sign, as in seed=1" if misspelt else ""
        raise ConfigError(f"usage: python -m benchmark {usage}; got {' '.join(names) or 'no name'}{hint}")
    return names


def scenario_and_method(names: list[str], usage: str) -> tuple[str, str]:
    """The two names of a run, in this order."""
    scenario, method = exactly(names, usage)
    if scenario in available("method") and method in available("scenario"):
        raise ConfigError(
            f"{scenario} is a method and {method} a scenario: give the scenario first, {method} {scenario}"
        )
    return scenario, method


def config_of_run(folder: Path) -> Path:
    """The file of a run folder's config; a ConfigError where there is none."""
    if not (file := folder / "config.yaml").is_file():
        raise ConfigError(
            f"{folder} is not a run folder: it has no config.yaml; runs live in runs/<scenario>/<row>/seed<k>"
        )
    return file
