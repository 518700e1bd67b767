"""The official protocols: fixed, versioned ways to turn a frozen encoder's features into scores.

A protocol's numbers never change: other numbers are another version, so that a column of a table means one thing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field

import torch

from eval.features import EvalError, Features
from eval.geometry import geometry, label_free_score
from eval.knn import knn
from eval.linear import STRENGTHS, Probe, lbfgs_probe, linear_probe

__all__ = ["PROTOCOLS", "EvalError", "Features", "Protocol", "Score", "evaluate"]


@dataclass(frozen=True)
class Score:
    """One number: the protocol's id, the metric's name, its value and unit ("%", "nats", ...; "1" for a ratio)."""

    protocol: str
    metric: str
    value: float
    unit: str


@dataclass(frozen=True)
class Protocol:
    """A versioned protocol.

    Args:
        id: "name/version".
        run: features and a generator in, metrics by name out.
        summary: one line for tables and docs, departures from the paper included.
        headline: the metric that stands for the protocol in a table.
        settings: all its numbers.
        units: by metric; "1" for those not named.
    """

    id: str
    run: Callable[[Features, torch.Generator], dict[str, float]]
    summary: str
    headline: str = "accuracy"
    settings: Mapping[str, object] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=lambda: {"accuracy": "%"})


def evaluate(features: Features, ids: Iterable[str], stream: Callable[[str], torch.Generator]) -> list[Score]:
    """Scores of each protocol in turn, every metric of it.

    Args:
        stream: a protocol's id -> its own generator, so that protocols do not move one another.

    Raises:
        EvalError: an unknown id, before anything is run; or features a protocol cannot work with.
    """
    ids = list(ids)
    for name in ids:
        if name not in PROTOCOLS:
            raise EvalError(f"unknown protocol '{name}': give any of {', '.join(PROTOCOLS)}")
    scores = []
    for name in ids:
        protocol = PROTOCOLS[name]
        for metric, value in protocol.run(features, stream(name)).items():
            scores.append(Score(name, metric, value, protocol.units.get(metric, "1")))
    return scores


def _linear(name: str, probe: Probe, summary: str) -> Protocol:
    return Protocol(
        name, lambda features, generator: linear_probe(features, probe, generator), summary, settings=asdict(probe)
    )


def _lbfgs(name: str, strengths: tuple[float, ...], fraction: float, summary: str) -> Protocol:
    return Protocol(
        name,
        lambda features, generator: lbfgs_probe(features, generator, strengths, fraction),
        summary,
        settings={"strengths": strengths, "fraction": fraction},
    )


def _knn(name: str, k: int, temperature: float, summary: str) -> Protocol:
    return Protocol(
        name,
        lambda features, generator: knn(features, k, temperature),
        summary,
        settings={"k": k, "temperature": temperature},
        units={"accuracy": "%", "k": "neighbours"},
    )


def _geometry(name: str, max_points: int, summary: str) -> Protocol:
    ranks = ("effective_rank", "effective_rank_normalised", "effective_rank_centred")
    uniformities = ("uniformity", "uniformity_within", "uniformity_between")
    return Protocol(
        name,
        lambda features, generator: geometry(features, generator, max_points),
        summary,
        headline="effective_rank",
        settings={"max_points": max_points},
        units=dict.fromkeys(ranks, "dimensions") | dict.fromkeys(uniformities, "nats") | {"alignment": "distance^2"},
    )


def _label_free(name: str, temperature: float, include_self: bool, weight: float, summary: str) -> Protocol:
    def run(features: Features, generator: torch.Generator) -> dict[str, float]:
        a, b, clients = features.view_a, features.view_b, features.view_clients
        if a is None or b is None or clients is None:
            raise EvalError(f"{name} compares two views client by client: give view_a, view_b and view_clients")
        return label_free_score(a, b, clients, temperature, include_self, weight)

    settings = {"temperature": temperature, "include_self": include_self, "weight": weight}
    return Protocol(name, run, summary, headline="score", settings=settings, units={})


_NO_AUGMENTATION = "its optimiser on cached features WITHOUT its augmentation (random resized crop and flip)"

PROTOCOLS: dict[str, Protocol] = {
    protocol.id: protocol
    for protocol in (
        _linear(
            "linear/v1",
            Probe("adam", lr=3e-3, epochs=200, batch_size=512),
            "Linear probe of the suite: Adam 3e-3, 200 epochs, batch 512, cached features, last epoch.",
        ),
        _lbfgs(
            "linear-lbfgs/v1",
            STRENGTHS,
            0.1,
            "L2-regularised logistic regression, solved by L-BFGS; its strength chosen on a tenth of train.",
        ),
        _linear(
            "linear-fedx/v1",
            Probe("adam", lr=1e-3, epochs=100, batch_size=64, weight_decay=1e-6),
            "Linear probe of FedX's code: Adam 1e-3, weight decay 1e-6, 100 epochs, batch 64; last epoch, not best.",
        ),
        _linear(
            "linear-ssd/v1",
            Probe("adam", lr=3e-3, epochs=200, batch_size=512),
            "Linear probe of SSD's, FedU2's and FedSC's code: Adam 3e-3, 200 epochs, batch 512; the suite's today.",
        ),
        _linear(
            "linear-orchestra-cached/v1",
            Probe("sgd", lr=30, epochs=50, batch_size=256, momentum=0.9, schedule="cosine"),
            f"Linear probe of Orchestra: {_NO_AUGMENTATION}, shuffled, none dropped; SGD 30 to 0 cosine, 50 epochs.",
        ),
        _linear(
            "linear-flesd-cached/v1",
            Probe("sgd", lr=3e-2, epochs=60, batch_size=256, momentum=0.9, schedule="step", milestones=(30, 50)),
            f"Linear probe of FLESD: {_NO_AUGMENTATION}; SGD 3e-2, x0.1 at 30 and 50 of 60 epochs, last epoch.",
        ),
        _linear(
            "linear-fedu/v1",
            Probe("adam", lr=3e-3, epochs=200, batch_size=2048, shuffle=False),
            "Linear probe of FedU's and FedEMA's code: Adam 3e-3, 200 epochs, batch 2048, not shuffled; whole test.",
        ),
        _linear(
            "linear-ldawa/v1",
            Probe("sgd", lr=1e-2, epochs=100, batch_size=128, momentum=0.9),
            "Linear probe of L-DAWA's code, on pooled features (its: before pooling); SGD 1e-2, 100 epochs, batch 128.",
        ),
        _knn("knn/v1", 200, 0.1, "Weighted kNN: 200 nearest by cosine, votes exp(cosine / 0.1); bank: all of train."),
        _geometry(
            "geometry/v1",
            10_000,
            "Effective rank of test, alignment of two views, uniformity of at most 10,000 training rows.",
        ),
        _label_free(
            "label-free/v1",
            0.2,
            False,
            0.2,
            "Orchestra's eq. 5 without self pairs: alignment + 0.2 uniformity per client, averaged over clients.",
        ),
    )
}
