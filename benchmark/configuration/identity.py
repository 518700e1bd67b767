"""Identity of a run: the settings that define it, their hash, and its names.

A changed run is not named like the official one.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from benchmark.configuration.keys import EVALUATION, EXECUTION, IMAGES, NAME, ROW, SCENARIO
from benchmark.configuration.layers import resolve
from benchmark.configuration.partitions import expanded
from benchmark.configuration.schema import KEYS, PARTS, RENAMED

RUNTIME = tuple(name for name, key in KEYS.items() if key.part == EXECUTION)
"""Keys of where and how a run is executed: they are not part of its identity."""
EARLIER_NAMES = {key.name: name for name, key in RENAMED.items()}
"""Key -> the name that it has in the hash, so that records and run folders keep theirs."""
OUTSIDE = (EXECUTION, EVALUATION, IMAGES, NAME)
"""What is not part of it: where a run is executed, how it is scored, its names, and what its images' hash shows."""


def identity(config: DictConfig | dict[str, Any]) -> str:
    """Hash of the settings that define a run; where it runs and how it is evaluated do not count.

    config: or its content.
    """
    return hashlib.sha256(json.dumps(settings(config), sort_keys=True).encode()).hexdigest()[:16]


def differences(before: DictConfig, after: DictConfig) -> list[str]:
    """`key: a -> b` for every key of the run's identity that differs; a value that is not set is `unset`."""
    old, new = settings(before), settings(after)

    def value(of: dict[str, Any], key: str) -> Any:
        return "unset" if of.get(key) is None else of[key]

    changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    names = {key: RENAMED[key].name if key in RENAMED else key for key in changed}
    return [f"{names[key]}: {value(old, key)} -> {value(new, key)}" for key in changed]


def settings(config: DictConfig | dict[str, Any]) -> dict[str, Any]:
    """Dotted key -> value of the settings that define a run, the seed included. config: or its content."""
    content = resolve(config) if isinstance(config, dict) else OmegaConf.to_container(config, resolve=True)
    flat = _flatten(content)

    def counts(key: str, value: Any) -> bool:
        known = KEYS.get(key)
        if part_of(key) in OUTSIDE or f"{key}_sha256" in flat:  # a file is its content
            return False
        return known is None or known.hashed_at_default or value not in (known.older, known.default)

    return {EARLIER_NAMES.get(key, key): value for key, value in flat.items() if counts(key, value)}


def _flatten(content: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of a nested mapping."""
    if not isinstance(content, dict):
        return {prefix.removesuffix("."): content}
    return {name: leaf for key, value in content.items() for name, leaf in _flatten(value, f"{prefix}{key}.").items()}


LONGEST = 120
"""Longest name made of changes, in characters; a hash replaces the rest."""


def changes_name(key: str) -> bool:
    """Whether a change of the key makes another scenario or row; `objective` is in the row's name already."""
    return key not in ("objective", "objective.name") and part_of(key) in (SCENARIO, ROW, IMAGES)


def part_of(key: str) -> str:
    """What a key is a part of, see `keys`; a key within another, what that one is."""
    while key not in KEYS and "." in key:
        key = key.rpartition(".")[0]
    return KEYS[key].part if key in KEYS else PARTS[key]


def variant(name: str, changed: Iterable[str], command_line: Mapping[str, Any], config: DictConfig, rows: bool) -> str:
    """The name with the changes of the command line in the sections of a row, or in those of a scenario.

    command_line: what was given. config: has its values in the types of their keys.
    """
    keys = [key for key in changed if (part_of(key) == ROW) == rows]
    content: Any = OmegaConf.to_container(config, resolve=True) if keys else {}
    words = [f"{key.removeprefix('method.')}={_short(_value(command_line, content, key))}" for key in keys]
    return joined_name(name, words)


def joined_name(name: str, changes: Iterable[str]) -> str:
    """A name with its changes, cut off where it is too long: file systems limit a folder's name."""
    full = "+".join((name, *changes))
    return full if len(full) <= LONGEST else f"{full[:LONGEST]}-{hashlib.sha256(full.encode()).hexdigest()[:8]}"


def _value(command_line: Mapping[str, Any], content: dict[str, Any], key: str) -> Any:
    """A key's value; of a mapping, the keys that the command line has.

    The beginning of its hash stands for the path of a file of weights, its name for that of a file of clients.
    """

    def by_content(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        plain = {name: by_content(inner) for name, inner in value.items()}
        return plain | ({"weights": plain["weights_sha256"][:12]} if "weights_sha256" in plain else {})

    if key == "partition.path" and "path_sha256" in content["partition"]:
        return Path(str(content["partition"]["path"])).stem
    asked: Any = command_line
    value = by_content(content)
    for name in key.split("."):
        asked, value = (each.get(name) if isinstance(each, Mapping) else None for each in (asked, value))
    return _restricted(value, asked)


def _restricted(value: Any, asked: Any) -> Any:
    """Of a mapping the keys that another one has, however deep; any other value is unchanged."""
    if not isinstance(value, Mapping) or not isinstance(asked, Mapping):
        return value
    return {key: _restricted(value[key], inner) for key, inner in asked.items() if key in value}


def _short(value: Any) -> str:
    """A value in the letters of a name; of a mapping the name of its class, and its keys with their values."""
    if isinstance(value, Mapping) and value and not OmegaConf.is_config(value):
        return "-".join(
            str(item).rpartition(".")[2]
            if key == "class"
            else f"{key}{'-' if isinstance(item, Mapping) else '='}{_short(item).strip('_')}"
            for key, item in value.items()
        )
    plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    text = "null" if plain is None else str(plain).replace(" ", "")
    return "".join(letter if letter.isalnum() or letter in ".-_" else "_" for letter in text)


def folder(config: DictConfig) -> Path:
    """A run's folder: <output>/<scenario>/<row>/seed<k>."""
    return expanded(config.output, "output") / config.scenario / config.row / f"seed{config.seed}"


def title(config: DictConfig) -> str:
    """A run's name in messages."""
    return f"{config.scenario} {config.row} seed {config.seed}"
