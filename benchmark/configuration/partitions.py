"""The section `partition`: its rules, their parameters, and the hash of a file of clients."""

from collections.abc import Mapping
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf

from benchmark.configuration.paths import expanded
from benchmark.configuration.typecheck import nearest
from benchmark.configuration.weights import sha256
from benchmark.errors import ConfigError
from datamodules import partition

RULES = ("iid", "dirichlet", "dirichlet_min", "dirichlet_balanced", "classes", "blocks")
"""Functions of `datamodules.partition`."""
NATURAL: dict[str, dict[str, Any]] = {
    "folders": {"min_size": int},
    "file": {"path": str, "partial": bool, "min_size": int, "path_sha256": str},
}
"""Partitions by clients that the data or a file name, and their parameters; `clients` draws some of them."""


def parameters(name: str) -> dict[str, Any]:
    """Parameter -> type of a rule, beside clients, seed and share; ConfigError where there is none of this name."""
    if name in NATURAL:
        return NATURAL[name]
    if name not in RULES:
        known = (*RULES, *NATURAL)
        raise ConfigError(f"partition.name={name!r}{nearest(name, known)}: choose {', '.join(known)}")
    hints = get_type_hints(getattr(partition, name))
    return {key: hint for key, hint in hints.items() if key not in ("labels", "num_clients", "seed", "return")}


def is_natural(section: Mapping[str, Any]) -> bool:
    """Whether the number of clients follows from the data, a file, or a user's function."""
    return bool(section.get("class")) or section.get("name") in NATURAL


def drop_replaced(section: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Remove what belongs to the rule that a layer replaces by another; parameters that both have remain."""
    rule = "class" if layer.get("class") else "name"
    if layer.get(rule) in (None, section.get(rule)):
        return
    kept = {"seed", "share"}
    if rule == "name":
        kept |= {"clients", *parameters(str(layer["name"]))}
        # a natural partition has its own number of clients, and leaves small ones out instead of drawing again
        kept -= {"clients", "min_size"} if is_natural(layer) or is_natural(section) else set()
    for key in section.keys() - kept:
        del section[key]


def with_hash(config: DictConfig) -> DictConfig:
    """The config with `partition.path_sha256` where a file names the clients; ConfigError where there is no such file.

    So its content, not its path, is part of a run's identity.
    """
    if config.partition.get("name") != "file" or not isinstance(path := config.partition.get("path"), str):
        return config
    content: Any = OmegaConf.to_container(config)
    content["partition"]["path_sha256"] = file_hash(path)
    return OmegaConf.create(content)


def file_hash(path: str) -> str:
    """sha256 of a file of clients. Raises ConfigError: there is none."""
    return sha256(expanded(path, "partition.path"), "partition.path")
