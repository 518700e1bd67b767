"""The run record: what `result.json` says of a run, and where the run came from."""

import datetime
import hashlib
import inspect
import math
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

from benchmark.configuration.instantiate import defaults, locate
from benchmark.configuration.schema import identity, settings
from benchmark.evaluation.protocols import Scores, combine
from benchmark.federation.loop import Federation
from datamodules.federated import FederatedDataModule
from leaderboards.schema import SCHEMA, Record

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("benchmark", "datamodules", "eval", "methods")
ANONYMITY = ("anonymity", "anonymity_claimed")  # notes of methods that hide an image among others
WATCHED = ("monitor", "effective_rank", "alignment", "uniformity", "uniformity_within", "uniformity_between")
LIBRARIES = ("lightning", "numpy", "omegaconf", "scikit-learn", "torch", "torchmetrics", "torchvision", "wandb")


def record(
    config: DictConfig,
    federation: Federation,
    data: FederatedDataModule,
    encoders: dict[str, Scores],
    evaluation_seconds: float,
    deviations: list[str],
    evaluated: dict[str, dict[str, Any]],
) -> Record:
    """The record of a finished run, as `leaderboards.schema` describes it.

    evaluated: protocol id -> the `origin` of its scores.
    """
    history = federation.history
    watched = [row for row in history if "monitor" in row]
    best = max(watched, key=lambda row: row["monitor"]) if watched else None
    return {
        "schema": SCHEMA,
        "scenario": config.scenario,
        "row": config.row,
        "method": config.method["name"],
        "objective": config.objective["name"],
        "seed": config.seed,
        "rounds": {"done": federation.round, "planned": federation.rounds, **ended(federation)},
        "images": sum(row["images"] for row in history),
        "scores": combine(encoders),
        "encoders": encoders,
        "best": {"round": best["round"], "metric": "monitor", "value": best["monitor"]} if best else None,
        "curve": curve(history),
        "server": at_server(history),
        "bytes": {
            "up": federation.ledger.total("up"),
            "down": federation.ledger.total("down"),
            "visits": sum(federation.ledger.visits.values()),
        },
        "epsilon": max(spent.values()) if (spent := epsilons(federation)) else None,
        "privacy": privacy(federation, spent),
        "seconds": {
            "wall": float(sum(row["seconds"] for row in history)),
            "clients": float(sum(row["client_seconds"] for row in history)),
            "evaluation": evaluation_seconds,
        },
        "world_size": federation.fabric.world_size,
        "federation": {
            "clients": len(federation.clients),
            "participation": float(config.federation.participation),
            "batch_norm": config.federation.batch_norm,
        },
        "settings": {
            key: spelled(value) for key, value in {**defaults(config), **settings(config)}.items() if key != "seed"
        },
        "provenance": provenance(config, data, federation),
        "evaluated": evaluated,
        "deviations": deviations,
    }


def ended(federation: Federation) -> dict[str, str]:
    """Why a run was over before its last round, if it was."""
    why = federation.refusal()
    return {"ended": why} if why is not None else {}


def epsilons(federation: Federation) -> dict[int, float]:
    """What each client that released anything with noise has spent, by id."""
    return {client: federation.account.epsilon(client) for client in sorted(federation.account.releases)}


def privacy(federation: Federation, spent: Mapping[int, float]) -> dict[str, Any]:
    """Epsilon by client, at which delta and of which entries; and the least anonymity that any visit has noted."""
    found: dict[str, Any] = {}
    if spent:
        account = federation.account
        found = {"delta": account.delta, "covers": sorted(account.covers)}
        found["clients"] = {str(client): value for client, value in spent.items()}
    for name in ANONYMITY:
        if noted := [row["notes"][name]["least"] for row in federation.history if name in row.get("notes", {})]:
            found[name] = min(noted)
    return found


def spelled(value: Any) -> Any:
    """A setting as JSON has words for it: an infinite number by its name, in lists and mappings too."""
    if isinstance(value, Mapping):
        return {key: spelled(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [spelled(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def at_server(history: Sequence[dict[str, Any]]) -> dict[str, float]:
    """What the server trained on itself, for how long; nothing where it did not, or older rounds did not count it."""
    trained = [row for row in history if "server_seconds" in row]
    if not trained or not all("server_images" in row for row in trained):
        return {}
    return {key: sum(row[f"server_{key}"] for row in trained) for key in ("images", "seconds")}


def curve(history: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """What the monitor saw: its rounds' numbers, with the seconds of training and the bytes up to then."""
    seconds, sent, seen = 0.0, 0, []
    for row in history:
        seconds += row["seconds"]
        sent += sum(row["bytes_up"].values()) + sum(row["bytes_down"].values())
        if "monitor" in row:
            watched = {name: row[name] for name in WATCHED if name in row}
            seen.append({"round": row["round"], "bytes": sent, "seconds": seconds, **watched})
    return seen


def provenance(config: DictConfig, data: FederatedDataModule, federation: Federation) -> dict[str, Any]:
    """Commit, config, data, libraries and hardware: what is needed to get the number again."""
    played = federation.played
    place = played[-1]["hardware"] if played else hardware(federation.fabric.device)  # scored it may be elsewhere
    return {
        **origin([one["commit"] for one in played if one["commit"] is not None], place),
        "config": identity(config),
        "dataset": data.source.sha256,
        "partition": partition_hash(data.parts),
        **({"public": images_hash(data.public_images, data.public)} if data.public is not None else {}),
        "libraries": {name: metadata.version(name) for name in LIBRARIES},
        "python": platform.python_version(),
    }


def otherwise(played: Sequence[Mapping[str, Any]]) -> list[str]:
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


def headline(result: Record) -> str:
    """The accuracies of a record in one line, and its label-free score where it has one."""
    found = [
        f"{protocol} {metrics['accuracy']:.1f} %" if "accuracy" in metrics else f"{protocol} {metrics['score']:.4f}"
        for protocol, metrics in result["scores"].items()
        if "accuracy" in metrics or "score" in metrics
    ]
    seconds = result["seconds"]
    return f"{', '.join(found)}  ({seconds['wall']:.0f} s training, {seconds['evaluation']:.0f} s evaluation)"
