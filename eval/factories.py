"""The kinds of protocol there are: what each computes, given its numbers."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from eval.clustering import clusters
from eval.drift import drift
from eval.features import Features
from eval.finetune import FineTuning, semi
from eval.geometry import geometry, label_free_score, singular_values, spectrum
from eval.inputs import Crop, Subject
from eval.knn import knn, knn_by_k
from eval.linear import Probe, augmented_probe, lbfgs_probe, linear_probe, swept_probe
from eval.transfer import transfer
from eval.tsne import purity, tsne


@dataclass(frozen=True)
class Protocol:
    """A versioned protocol.

    Args:
        id: "name/version".
        run: a subject and a generator in, metrics by name out.
        summary: one line for tables and docs, departures from the paper included.
        headline: the metric that stands for the protocol in a table.
        settings: all its numbers.
        units: by metric; "%" for accuracies and "1" for others that are not named.
        lower: metrics of which less is better; of accuracies and of `higher` more is; of others neither.
        wants: what a subject has to bring besides features, see `Subject.check`; "": nothing.
        long: whether it takes a paper's number of passes through the encoder.
    """

    id: str
    run: Callable[[Subject, torch.Generator], dict[str, float]]
    summary: str
    headline: str = "accuracy"
    settings: Mapping[str, object] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    lower: tuple[str, ...] = ()
    higher: tuple[str, ...] = ()
    requires: str = ""
    long: bool = False

    def better(self, metric: str) -> str:
        """ "higher", "lower" or "", of one metric."""
        if metric in self.lower:
            return "lower"
        return "higher" if metric.startswith("accuracy") or metric in self.higher else ""

    def unit(self, metric: str) -> str:
        """Of one metric."""
        return self.units.get(metric, "%" if metric.startswith("accuracy") else "1")


PLAIN = Probe("adam", lr=3e-3, epochs=200, batch_size=512)
"""The suite's probe, and that of SSD, FedU2 and FedSC."""

NEIGHBOURS = (200, 0.1)
"""k and temperature of the suite's kNN."""

Measure = Callable[[Features, torch.Generator], dict[str, float]]


def of_features(name: str, measure: Measure, summary: str, **rest: Any) -> Protocol:
    """A protocol that looks at features only."""
    return Protocol(name, lambda subject, generator: measure(subject.features, generator), summary, **rest)


def linear_protocol(name: str, probe: Probe, summary: str) -> Protocol:
    """A linear probe on cached features."""
    return of_features(name, lambda x, generator: linear_probe(x, probe, generator), summary, settings=asdict(probe))


def swept_protocol(name: str, probe: Probe, rates: tuple[float, ...], fraction: float, summary: str) -> Protocol:
    """A linear probe at several rates at once, one chosen on a held-out slice of train."""
    settings = asdict(probe) | {"rates": rates, "fraction": fraction}
    return of_features(name, lambda x, g: swept_probe(x, probe, g, rates, fraction), summary, settings=settings)


def augmented_protocol(name: str, probe: Probe, crop: Crop, summary: str) -> Protocol:
    """A linear probe that sees every training image cropped and flipped anew."""
    return Protocol(
        name,
        lambda subject, generator: augmented_probe(subject.features, subject.seen, probe, crop, generator),
        summary,
        settings=asdict(probe) | {"crop": crop},
        requires="shown",
        long=True,
    )


def lbfgs_protocol(name: str, strengths: tuple[float, ...], fraction: float, summary: str) -> Protocol:
    """Logistic regression, solved; its strength chosen on a held-out slice of train."""
    settings = {"strengths": strengths, "fraction": fraction}
    return of_features(name, lambda x, g: lbfgs_probe(x, g, strengths, fraction), summary, settings=settings)


def knn_protocol(name: str, k: int, temperature: float, summary: str) -> Protocol:
    """Weighted nearest neighbours."""
    settings = {"k": k, "temperature": temperature}
    return of_features(name, lambda x, _: knn(x, k, temperature), summary, settings=settings, units={"k": "neighbours"})


def knn_by_k_protocol(name: str, ks: tuple[int, ...], temperature: float, summary: str) -> Protocol:
    """Weighted nearest neighbours, of several numbers."""
    settings = {"ks": ks, "temperature": temperature}
    headline = f"accuracy_k{ks[0]}"
    return of_features(name, lambda x, _: knn_by_k(x, ks, temperature), summary, headline=headline, settings=settings)


def semi_protocol(name: str, tuning: FineTuning, summary: str, *, long: bool = True) -> Protocol:
    """Fine-tuning on shares of the labels; the headline is the largest share's."""
    return Protocol(
        name,
        lambda subject, generator: semi(subject.features, subject.seen, tuning, generator),
        summary,
        headline=f"accuracy_{100 * tuning.shares[-1]:g}pct",
        settings=asdict(tuning),
        units={f"spread_{100 * share:g}pct": "points" for share in tuning.shares},
        requires="shown",
        long=long,
    )


def transfer_protocol(target: str) -> Protocol:
    """Probe, neighbours and effective rank on another data set."""
    return Protocol(
        f"transfer-{target}/v1",
        lambda subject, generator: transfer(subject.target(target), PLAIN, *NEIGHBOURS, generator),
        f"On {target}, which the encoder was not trained on: linear/v1, knn/v1 and effective rank of its test set.",
        settings=asdict(PLAIN) | {"k": NEIGHBOURS[0], "temperature": NEIGHBOURS[1]},
        units={"effective_rank": "dimensions"},
        requires=f"target {target}",
    )


def drift_protocol(name: str, images: int, summary: str) -> Protocol:
    """Clients' networks against the global one, on so many test images at most."""

    def run(subject: Subject, _: torch.Generator) -> dict[str, float]:
        local, made, labels = subject.compared(images)
        return drift(made, local, labels, subject.features.num_classes)

    angles = ("local_global_angle", "local_global_angle_worst", "inter_class_angle_local", "inter_class_angle_global")
    units, settings = dict.fromkeys(angles, "degrees"), {"images": images}
    return Protocol(name, run, summary, "local_global_angle", settings, units, requires="locals")


def geometry_protocol(name: str, max_points: int, summary: str) -> Protocol:
    """Effective rank, alignment and uniformity."""
    ranks = ("effective_rank", "effective_rank_normalised", "effective_rank_centred")
    uniformities = ("uniformity", "uniformity_within", "uniformity_between")
    return of_features(
        name,
        lambda features, generator: geometry(features, generator, max_points),
        summary,
        headline="effective_rank",
        settings={"max_points": max_points},
        lower=("alignment", *uniformities),
        units=dict.fromkeys(ranks, "dimensions") | dict.fromkeys(uniformities, "nats") | {"alignment": "distance^2"},
    )


def spectrum_protocol(name: str, summary: str) -> Protocol:
    """Singular values of the test features, kept for a figure."""

    def run(subject: Subject, _: torch.Generator) -> dict[str, float]:
        values = singular_values(subject.features.test_x)
        subject.keep("spectrum", {"values": values})
        return spectrum(values)

    units = dict.fromkeys(("dimensions_90", "dimensions_99", "participation_ratio"), "dimensions")
    return Protocol(name, run, summary, headline="dimensions_90", units=units)


def embed_protocol(name: str, max_points: int, perplexity: float, summary: str) -> Protocol:
    """A map in the plane, kept for a figure."""

    def run(subject: Subject, generator: torch.Generator) -> dict[str, float]:
        places, labels = tsne(subject.features, generator, max_points, perplexity)
        subject.keep("embed", {"places": places, "labels": labels})
        return {"purity": purity(places, labels)}

    settings = {"max_points": max_points, "perplexity": perplexity}
    units = {"purity": "%"}
    return Protocol(name, run, summary, headline="purity", settings=settings, units=units, higher=("purity",))


def clusters_protocol(name: str, max_points: int, starts: int, summary: str) -> Protocol:
    """K-means against the classes."""
    settings = {"max_points": max_points, "starts": starts}
    goals: dict[str, Any] = {"higher": ("nmi", "ari"), "lower": ("mixing",)}
    return of_features(
        name, lambda x, g: clusters(x, g, max_points, starts), summary, headline="nmi", settings=settings, **goals
    )


def label_free_protocol(name: str, temperature: float, include_self: bool, weight: float, summary: str) -> Protocol:
    """Orchestra's score for choosing without labels."""

    def run(features: Features, _: torch.Generator) -> dict[str, float]:
        a, b, clients = features.view_a, features.view_b, features.view_clients
        assert a is not None  # all three: `Subject.check` has found them
        assert b is not None
        assert clients is not None
        return label_free_score(a, b, clients, temperature, include_self, weight)

    settings = {"temperature": temperature, "include_self": include_self, "weight": weight}
    return of_features(
        name,
        run,
        summary,
        headline="score",
        settings=settings,
        higher=("score", "alignment", "uniformity"),
        requires="views",
    )
