"""Identity of a run: the settings that define it, and their hash."""

import hashlib
import json
from typing import Any

from omegaconf import DictConfig, OmegaConf

from benchmark.configuration.layers import resolve

RUNTIME = (
    "output", "logger", "devices", "nodes", "accelerator", "threads", "executor", "lanes", "minutes", "compile",
    "deterministic", "data.root", "data.cache", "data.download", "data.verify",
)  # fmt: skip
"""Keys of where and how a run is executed: they are not part of its identity."""

NEWER = {
    "training.drop_last": False, "training.views": "joint", "training.most_epochs": None,
    "training.smallest_batch": None, "data.resize": "squash", "data.channels": None, "data.limit": None,
    "data.labels": True, "data.levels": None, "data.probe": None, "schedule.warmup": 0.0,
    "optimizer.decay_norms_and_biases": True, "encoder.weights": None, "federation.availability": 1.0,
    "federation.dropout": 0.0, "federation.deadline": None,
    "compression.name": "none", "compression.share": 0.01, "privacy.mechanism": "none", "privacy.clip": None,
    "privacy.clipping": "flat", "privacy.quantile": 0.5, "privacy.noise_multiplier": None, "privacy.sampling": "fixed",
    "privacy.epsilon": None, "privacy.delta": 1e-5, "privacy.accountant": "rdp", "privacy.secure_sums": False,
    "privacy.range": 64.0,
}  # fmt: skip
"""Key that early run folders and records lack -> the value that runs as they did, which is not part of the identity."""


SHOWN_BY_DATA = ("data.hold_out",)
"""Keys that count by the hash of the images that they give: they mean nothing for most data."""


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
    outside = (*RUNTIME, *SHOWN_BY_DATA, "row", "scenario")
    return {
        key: value
        for key, value in flat.items()
        if key not in outside
        and not key.startswith(("evaluation.", "authors."))
        and (key not in NEWER or NEWER[key] != value)
        and (key, value) != ("data.resize", None)  # where it runs, all images are square: then it is `squash`
        and f"{key}_sha256" not in flat  # a file is its content, wherever it lies
    }


def _flatten(content: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of a nested mapping."""
    if not isinstance(content, dict):
        return {prefix.removesuffix("."): content}
    return {name: leaf for key, value in content.items() for name, leaf in _flatten(value, f"{prefix}{key}.").items()}
