"""Where a record comes from: commit, data, libraries and hardware."""

import datetime
import hashlib
import inspect
import platform
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from benchmark.configuration.identity import identity
from benchmark.configuration.instantiate import locate
from benchmark.federation.loop import FederatedLoop
from datamodules.federated import FederatedDataModule

ROOT = Path(__file__).resolve().parents[2]


PACKAGES = ("benchmark", "datamodules", "eval", "methods")


LIBRARIES = ("lightning", "numpy", "omegaconf", "scikit-learn", "torch", "torchmetrics", "torchvision", "wandb")


def provenance(config: DictConfig, data: FederatedDataModule, loop: FederatedLoop) -> dict[str, Any]:
    """Commit, config, data, libraries and hardware: what is needed to get the number again."""
    played = loop.environments
    place = played[-1]["hardware"] if played else hardware(loop.fabric.device)  # scored it may be elsewhere
    return {
        **origin([one["commit"] for one in played if one["commit"] is not None], place),
        "config": identity(config),
        "dataset": data.source.sha256,
        "partition": partition_hash(data.parts),
        **({"public": images_hash(data.public_images, data.public)} if data.public is not None else {}),
        "libraries": {name: metadata.version(name) for name in LIBRARIES},
        "python": platform.python_version(),
    }


def numerical_deviations(played: Sequence[Mapping[str, Any]]) -> list[str]:
    """How the circumstances of a run's rounds differ from the reference's, and from each other."""
    lines = list(dict.fromkeys(line for one in played for line in one["otherwise"]))
    for key, what in {"commit": "commits", "hardware": "kinds of device", "ranks": "numbers of ranks"}.items():
        several = dict.fromkeys(str(one[key]) for one in played if one[key] is not None)
        if len(several) > 1:
            lines.append(f"rounds were played by several {what}: {', '.join(several)}")
    return lines


def origin(commits: list[str], place: str) -> dict[str, Any]:
    """By which code, where and when something was computed.

    commits: in order, as `commit` names them. place: as `hardware` names it.
    """
    return {
        "git": commits[-1].removesuffix("+") if commits else None,
        "dirty": not commits or any(commit.endswith("+") for commit in commits),
        "hardware": place,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def partition_hash(parts: Sequence[np.ndarray]) -> str:
    """sha256 over sizes and indices, client by client."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(part, dtype=np.int64).tobytes())
    return digest.hexdigest()


def images_hash(images: np.ndarray, held: np.ndarray) -> str:
    """sha256 over the shape of an image and the bytes of some, a few at a time."""
    digest = hashlib.sha256(repr(images.shape[1:]).encode())
    for few in np.array_split(held, max(1, len(held) // 256)):
        digest.update(np.ascontiguousarray(images[few]).tobytes())
    return digest.hexdigest()


def commit() -> str | None:
    """The checkout's commit, with a `+` where code was changed or added since; None outside a checkout.

    To be asked when the code is loaded: the checkout may have moved on by the time a run ends.
    """

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("rev-parse", "--show-toplevel") != str(ROOT):
        return None  # an installed copy, perhaps inside somebody else's repository
    head, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", *PACKAGES)
    return head and head + ("" if changes == "" else "+")


def foreign(config: DictConfig) -> list[str]:
    """A line for each class of a config that neither the commit nor a library's version tells: its file's hash."""
    named = [("method.addons", addon) for addon in config.method.get("addons", [])]
    named += [(name, config[name]) for name in ("objective", "method", "encoder", "optimizer", "server_optimizer")]
    named += [(f"federation.encoders.{kind}", section) for kind, section in config.federation.encoders.items()]
    lines = []
    for where, section in named:
        if not section:
            continue
        file = Path(inspect.getfile(locate(section, where))).resolve()
        told = any(file.is_relative_to(ROOT / package) for package in PACKAGES)
        if not told and not {"site-packages", "dist-packages"} & set(file.parts):
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            lines.append(f"{section['class']} is code from outside the packages: sha256 {digest}")
    return lines


def hardware(device: torch.device) -> str:
    """The accelerator, or the processor and the threads of each rank."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{processor()}, {torch.get_num_threads()} threads"


@cache
def processor() -> str:
    """The processor's name, as the system has it; asked for after every round, and the same all along."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
