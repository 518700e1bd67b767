"""Names of scenarios and rows: a changed run never stands in for the official one."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from benchmark.configuration.identity import RUNTIME

ROW = ("objective", "method", "optimizer", "server_optimizer", "heads", "public", "privacy")
"""Sections whose change makes another row; a change elsewhere makes another scenario."""
LONGEST = 120
"""Letters of a name made of what was changed; beyond them a hash stands for the rest."""


def names(key: str) -> bool:
    """Whether a change of the key makes another scenario or row; `objective` names its row by itself."""
    section = key.partition(".")[0]
    plain = ("scenario", "row", "seed", "evaluation", *RUNTIME)
    return key not in (*plain, "objective", "objective.name") and section not in plain


def variant(name: str, changed: Iterable[str], config: DictConfig, *, rows: bool) -> str:
    """The name, with what the command line changed in the sections of a row, or in those of a scenario."""
    keys = [key for key in changed if (key.partition(".")[0] in ROW) == rows]
    words = [f"{key.removeprefix('method.')}={_short(OmegaConf.select(config, key))}" for key in keys]
    whole = "+".join((name, *words))
    if len(whole) <= LONGEST:
        return whole
    return f"{whole[:LONGEST]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"  # a folder's name has its limits


def _short(value: Any) -> str:
    plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    text = "null" if plain is None else str(plain).replace(" ", "")
    return "".join(letter if letter.isalnum() or letter in ".-_" else "_" for letter in text)


def folder(config: DictConfig) -> Path:
    """Where a run lives: <output>/<scenario>/<row>/seed<k>."""
    return Path(config.output).expanduser() / config.scenario / config.row / f"seed{config.seed}"


def title(config: DictConfig) -> str:
    """What a run is called on a screen."""
    return f"{config.scenario} {config.row} seed {config.seed}"
