"""Names of scenarios, rows, runs and their folders; a changed run is not named like the official one."""

import hashlib
from collections.abc import Iterable
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
    if key == "partition.path":  # outside the identity, where its content is
        return True
    unnamed = ("scenario", "row", "seed", "evaluation", *RUNTIME)
    return key not in (*unnamed, "objective", "objective.name") and section not in unnamed


def variant(name: str, changed: Iterable[str], config: DictConfig, *, rows: bool) -> str:
    """The name with the changes of the command line in the sections of a row, or in those of a scenario."""
    keys = [key for key in changed if (key.partition(".")[0] in ROW) == rows]
    words = [f"{key.removeprefix('method.')}={_short(_by_content(config, key))}" for key in keys]
    full = "+".join((name, *words))
    if len(full) <= LONGEST:
        return full
    return f"{full[:LONGEST]}-{hashlib.sha256(full.encode()).hexdigest()[:8]}"  # file systems limit a folder's name


def _by_content(config: DictConfig, key: str) -> Any:
    """A key's value, in which the beginning of its hash stands for the path of a file of weights, and the file's name
    for that of a file of clients."""

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            plain = {name: replaced(inner) for name, inner in value.items()}
            if "weights_sha256" in plain:
                plain["weights"] = plain["weights_sha256"][:12]
            return plain
        return value

    if key == "partition.path":
        return Path(str(config.partition.get("path"))).stem
    return OmegaConf.select(OmegaConf.create(replaced(OmegaConf.to_container(config, resolve=True))), key)


def _short(value: Any) -> str:
    plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    text = "null" if plain is None else str(plain).replace(" ", "")
    return "".join(letter if letter.isalnum() or letter in ".-_" else "_" for letter in text)


def folder(config: DictConfig) -> Path:
    """A run's folder: <output>/<scenario>/<row>/seed<k>."""
    return Path(config.output).expanduser() / config.scenario / config.row / f"seed{config.seed}"


def title(config: DictConfig) -> str:
    """A run's name in messages."""
    return f"{config.scenario} {config.row} seed {config.seed}"
