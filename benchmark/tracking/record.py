"""The run record that is written to `result.json`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from benchmark.configuration.identity import settings
from benchmark.configuration.instantiate import defaults
from benchmark.evaluation.monitor import RoundProbe
from benchmark.evaluation.protocols import Scores, combine
from benchmark.federation.loop import FederatedLoop
from benchmark.tracking.curve import curve
from benchmark.tracking.provenance import provenance
from datamodules.federated import FederatedDataModule
from eval.official import OWN
from leaderboards.encoders import MEAN, WORST, count, mean_of, shown
from leaderboards.schema import SCHEMA, Record

ANONYMITY = ("anonymity", "anonymity_claimed")
"""Visit notes of methods that hide an image among others."""
BEST = "accuracy_best_on_test"
"""Metric of `evaluation.best_on_test`: the best round's accuracy."""

HEADLINES = {"accuracy": "{:.1f} %", f"accuracy{WORST}": "worst {:.1f} %", "score": "{:.4f}"}
"""Metric, as it is shown -> how the line of a finished run has it."""

POOLED_STATISTICS = "BatchNorm statistics of the evaluated encoder were measured on the pooled training images"
"""A deviation of records."""


def record(
    config: DictConfig,
    loop: FederatedLoop,
    data: FederatedDataModule,
    encoders: dict[str, Scores],
    evaluation_seconds: float,
    deviations: list[str],
    evaluated: dict[str, dict[str, Any]],
    costs: Mapping[str, Any] | None = None,
) -> Record:
    """The record of the rounds so far, as `leaderboards.schema` describes it.

    evaluated: protocol id -> the `origin` of its scores. costs: what a client pays, where it was counted.
    """
    history, reason = loop.history, loop.stop_reason()  # why it ended before its last round
    spent = {client: loop.accountant.epsilon(client) for client in sorted(loop.accountant.releases)}
    on_server = [row for row in history if "server_seconds" in row]
    if not all("server_images" in row for row in on_server):  # rounds of older versions
        on_server = []
    best = max((row for row in history if "monitor" in row), key=lambda row: row["monitor"], default=None)
    return {
        "schema": SCHEMA,
        **known_at_start(config),
        "rounds": {"done": loop.round, "planned": loop.rounds} | ({"ended": reason} if reason is not None else {}),
        "images": sum(row["images"] for row in history),
        # of several encoders an accuracy here is the worst one's; a board shows their mean, see `leaderboards.encoders`
        "scores": with_best_round(combine(encoders), config.evaluation.best_on_test, history),
        "encoders": encoders,
        "best": {"round": best["round"], "metric": "monitor", "value": best["monitor"]} if best else None,
        "curve": curve(history) or curve(history, "loss"),
        "server": {key: sum(row[f"server_{key}"] for row in on_server) for key in ("images", "seconds") if on_server},
        "bytes": {way: loop.ledger.total(way) for way in ("up", "down")} | {"visits": sum(loop.ledger.visits.values())},
        "epsilon": max(spent.values(), default=None),
        "privacy": privacy(loop, spent),
        **({"activity": found} if (found := activity(loop)) else {}),
        **({"costs": dict(costs)} if costs else {}),
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
            **({"names": list(data.parts.names)} if data.parts.names else {}),
        },
        "provenance": provenance(config, data, loop),
        "evaluated": evaluated,
        "deviations": deviations,
    }


def known_at_start(config: DictConfig) -> dict[str, Any]:
    """The fields of a run's record that follow from its config alone."""
    return {
        "scenario": config.scenario,
        "row": config.row,
        "method": config.method["name"],
        "objective": config.objective["name"],
        "seed": config.seed,
        "settings": {
            key: json_value(value) for key, value in {**defaults(config), **settings(config)}.items() if key != "seed"
        },
    }


def with_best_round(scores: Scores, protocol: str | None, history: Sequence[dict[str, Any]]) -> Scores:
    """The scores, and "accuracy_best_on_test" of a protocol that was run after every round; unless rounds lack it.

    Of several encoders, as of other accuracies, the best round's worst, and beside it the best round's mean.
    """
    if protocol is None or protocol not in scores:
        return scores
    best = {}
    for end in ("", MEAN):
        key = RoundProbe.key(protocol, end)
        if history and all(key in row for row in history):
            best[f"{BEST}{end}"] = max(row[key] for row in history)
    return scores | {protocol: scores[protocol] | best}


def lacks_best_round(config: DictConfig, result: Record) -> bool:
    """Whether a config asks for the best round of a protocol, and the record has none."""
    protocol = config.evaluation.best_on_test
    return protocol is not None and BEST not in result["scores"].get(protocol, {})


def privacy(loop: FederatedLoop, spent: Mapping[int, float]) -> dict[str, Any]:
    """Epsilon by client with its delta and entries, and the smallest anonymity of any visit."""
    fields, accountant = dict[str, Any](), loop.accountant
    if spent:
        clients = {str(client): value for client, value in spent.items()}
        fields = {"delta": accountant.delta, "covers": sorted(accountant.covers), "clients": clients}
    if (updates := loop.uplink.updates) is not None:
        fields |= {"noise_multiplier": updates.noise_multiplier, "clip": updates.clipping.norm}
    if loop.uplink.secure_aggregation is not None:
        fields["secure_aggregation"] = True
    for name in ANONYMITY:
        notes = [row["notes"][name] for row in loop.history if name in row.get("notes", {})]
        if notes:
            fields[name] = min(each["min"] if "min" in each else each["least"] for each in notes)  # least: earlier
    return fields


def activity(loop: FederatedLoop) -> dict[str, dict[str, Any]]:
    """The mean over rounds of each number that says how much the method's own idea moved, where a round has it."""
    found = {}
    for name, declared in loop.method.own_activity.items():
        means = [row["notes"][name]["mean"] for row in loop.history if name in row.get("notes", {})]
        if means:
            found[name] = {"mean": sum(means) / len(means), "bound": declared.bound, "measures": declared.measures}
    return found


def json_value(value: Any) -> Any:
    """A setting as a JSON value: an infinite number becomes its name, in lists and mappings too."""
    if isinstance(value, Mapping):
        return {key: json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def headline(result: Record) -> str:
    """A record's accuracies, label-free score, own protocols, largest epsilon, times and an early end in one line."""
    scores = list[str]()
    for protocol, metrics in shown(result).items():
        numbers = [form.format(metrics[metric]) for metric, form in HEADLINES.items() if metric in metrics]
        if not numbers and OWN.fullmatch(protocol):
            numbers = [f"{metric} {value:.4g}" for metric, value in metrics.items()][:1]
        if numbers:
            scores.append(f"{protocol} {', '.join(numbers)}")
    if scores and (several := mean_of(count(result))):
        scores[0] = f"{several}: {scores[0]}"
    if result["epsilon"] is not None:
        covered = ", ".join(result["privacy"]["covers"])
        beyond = "" if covers_encoder(result) else "; not the evaluated encoder's BatchNorm statistics"
        scores.append(f"epsilon {result['epsilon']:.3g} ({covered}{beyond})")
    seconds, rounds = result["seconds"], result["rounds"]
    early = f"after {rounds['done']} of {rounds['planned']} rounds: " if "ended" in rounds else ""
    times = f"({seconds['wall']:.0f} s training, {seconds['evaluation']:.0f} s evaluation)"
    return f"{early}{', '.join(scores)}  {times}"


def covers_encoder(result: Record) -> bool:
    """Whether noise on updates, where a record has any, also covers all of the encoder that was evaluated."""
    return "noise_multiplier" not in result.get("privacy", {}) or POOLED_STATISTICS not in result["deviations"]
