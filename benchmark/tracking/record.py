"""The run record: what `result.json` says of a run, and where the run came from."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from benchmark.configuration.identity import settings
from benchmark.configuration.instantiate import defaults
from benchmark.evaluation.protocols import Scores, combine
from benchmark.federation.loop import FederatedLoop
from benchmark.tracking.provenance import provenance
from datamodules.federated import FederatedDataModule
from leaderboards.schema import SCHEMA, Record

ANONYMITY = ("anonymity", "anonymity_claimed")  # notes of methods that hide an image among others
WATCHED = ("monitor", "effective_rank", "alignment", "uniformity", "uniformity_within", "uniformity_between")


def record(
    config: DictConfig,
    loop: FederatedLoop,
    data: FederatedDataModule,
    encoders: dict[str, Scores],
    evaluation_seconds: float,
    deviations: list[str],
    evaluated: dict[str, dict[str, Any]],
) -> Record:
    """The record of a finished run, as `leaderboards.schema` describes it.

    evaluated: protocol id -> the `origin` of its scores.
    """
    history = loop.history
    watched = [row for row in history if "monitor" in row]
    best = max(watched, key=lambda row: row["monitor"]) if watched else None
    return {
        "schema": SCHEMA,
        "scenario": config.scenario,
        "row": config.row,
        "method": config.method["name"],
        "objective": config.objective["name"],
        "seed": config.seed,
        "rounds": {"done": loop.round, "planned": loop.rounds, **ended(loop)},
        "images": sum(row["images"] for row in history),
        "scores": combine(encoders),
        "encoders": encoders,
        "best": {"round": best["round"], "metric": "monitor", "value": best["monitor"]} if best else None,
        "curve": curve(history),
        "server": at_server(history),
        "bytes": {
            "up": loop.ledger.total("up"),
            "down": loop.ledger.total("down"),
            "visits": sum(loop.ledger.visits.values()),
        },
        "epsilon": max(spent.values()) if (spent := epsilons(loop)) else None,
        "privacy": privacy(loop, spent),
        "seconds": {
            "wall": float(sum(row["seconds"] for row in history)),
            "clients": float(sum(row["client_seconds"] for row in history)),
            "evaluation": evaluation_seconds,
        },
        "world_size": loop.fabric.world_size,
        "federation": {
            "clients": len(loop.clients),
            "participation": float(config.federation.participation),
            "batch_norm": config.federation.batch_norm,
        },
        "settings": {
            key: spelled(value) for key, value in {**defaults(config), **settings(config)}.items() if key != "seed"
        },
        "provenance": provenance(config, data, loop),
        "evaluated": evaluated,
        "deviations": deviations,
    }


def ended(loop: FederatedLoop) -> dict[str, str]:
    """Why a run was over before its last round, if it was."""
    why = loop.stop_reason()
    return {"ended": why} if why is not None else {}


def epsilons(loop: FederatedLoop) -> dict[int, float]:
    """What each client that released anything with noise has spent, by id."""
    return {client: loop.account.epsilon(client) for client in sorted(loop.account.releases)}


def privacy(loop: FederatedLoop, spent: Mapping[int, float]) -> dict[str, Any]:
    """Epsilon by client, at which delta and of which entries; and the least anonymity that any visit has noted."""
    found: dict[str, Any] = {}
    if spent:
        account = loop.account
        found = {"delta": account.delta, "covers": sorted(account.covers)}
        found["clients"] = {str(client): value for client, value in spent.items()}
    for name in ANONYMITY:
        if noted := [row["notes"][name]["least"] for row in loop.history if name in row.get("notes", {})]:
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


def headline(result: Record) -> str:
    """The accuracies of a record in one line, and its label-free score where it has one."""
    found = [
        f"{protocol} {metrics['accuracy']:.1f} %" if "accuracy" in metrics else f"{protocol} {metrics['score']:.4f}"
        for protocol, metrics in result["scores"].items()
        if "accuracy" in metrics or "score" in metrics
    ]
    seconds = result["seconds"]
    return f"{', '.join(found)}  ({seconds['wall']:.0f} s training, {seconds['evaluation']:.0f} s evaluation)"
