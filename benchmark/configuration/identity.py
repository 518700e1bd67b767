"""Identity of a run: the settings that define it, and their hash."""

import hashlib
import json
from dataclasses import MISSING
from typing import Any

from omegaconf import DictConfig, OmegaConf

from benchmark.configuration.keys import EVALUATION, EXECUTION, IMAGES, NAME
from benchmark.configuration.layers import resolve
from benchmark.configuration.schema import KEYS

RUNTIME = tuple(name for name, key in KEYS.items() if key.part == EXECUTION)
"""Keys of where and how a run is executed: they are not part of its identity."""
OUTSIDE = frozenset(name for name, key in KEYS.items() if key.part in (EXECUTION, EVALUATION, IMAGES, NAME))
"""Keys that are not part of it: these, how a run is scored, its names, and what its images' hash shows."""


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

    keys = sorted(old.keys() | new.keys())
    return [f"{key}: {value(old, key)} -> {value(new, key)}" for key in keys if old.get(key) != new.get(key)]


def settings(config: DictConfig | dict[str, Any]) -> dict[str, Any]:
    """Dotted key -> value of the settings that define a run, the seed included. config: or its content."""
    content = resolve(config) if isinstance(config, dict) else OmegaConf.to_container(config, resolve=True)
    flat = _flatten(content)

    def counts(key: str, value: Any) -> bool:
        known = KEYS.get(key)
        if key in OUTSIDE or key.startswith("authors.") or f"{key}_sha256" in flat:  # a file is its content
            return False
        return known is None or known.older is MISSING or value not in (known.older, known.default)

    return {key: value for key, value in flat.items() if counts(key, value)}


def _flatten(content: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of a nested mapping."""
    if not isinstance(content, dict):
        return {prefix.removesuffix("."): content}
    return {name: leaf for key, value in content.items() for name, leaf in _flatten(value, f"{prefix}{key}.").items()}
