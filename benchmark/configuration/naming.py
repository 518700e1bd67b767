"""Names of scenarios, rows, runs and their folders; a changed run is not named like the official one."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from benchmark.configuration.identity import RUNTIME

ROW = ("objective", "method", "optimizer", "server_optimizer", "heads", "public", "privacy")
"""Sections whose change makes another row; a change in any other section makes another scenario."""
LONGEST = 120
"""Longest name made of changes, in characters; a hash replaces the rest."""


def changes_name(key: str) -> bool:
    """Whether a change of the key makes another scenario or row; `objective` is in the row's name already."""
    section = key.partition(".")[0]
    unnamed = ("scenario", "row", "seed", "evaluation", *RUNTIME)
    return key not in (*unnamed, "objective", "objective.name") and section not in unnamed


def variant(name: str, changed: Iterable[str], command_line: Mapping[str, Any], config: DictConfig, rows: bool) -> str:
    """The name with the changes of the command line in the sections of a row, or in those of a scenario.

    command_line: what was given. config: has its values in the types of their keys.
    """
    keys = [key for key in changed if (key.partition(".")[0] in ROW) == rows]
    values = {key: _mapping_at(command_line, key) or OmegaConf.select(config, key) for key in keys}
    words = [f"{key.removeprefix('method.')}={_short(value)}" for key, value in values.items()]
    full = "+".join((name, *words))
    if len(full) <= LONGEST:
        return full
    return f"{full[:LONGEST]}-{hashlib.sha256(full.encode()).hexdigest()[:8]}"  # file systems limit a folder's name


def _mapping_at(content: Any, key: str) -> Mapping[str, Any] | None:
    """The mapping at a dotted key; None for any other value."""
    for name in key.split("."):
        content = content.get(name) if isinstance(content, Mapping) else None
    return content if isinstance(content, Mapping) else None


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
    return Path(config.output).expanduser() / config.scenario / config.row / f"seed{config.seed}"


def title(config: DictConfig) -> str:
    """A run's name in messages."""
    return f"{config.scenario} {config.row} seed {config.seed}"
