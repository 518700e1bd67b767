"""The official protocols: fixed, versioned ways to turn a frozen encoder into scores.

The numbers of a protocol stay fixed; other numbers are a new version, so that all entries of a table's column compare.
"""

import difflib
import re
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, replace

import torch

from eval.clustering import clusters
from eval.factories import (
    Protocol,
    augmented_protocol,
    compute_drift,
    compute_label_free,
    compute_map,
    compute_spectrum,
    linear_protocol,
    semi_protocol,
    transfer_protocol,
)
from eval.features import EvalError, Features
from eval.finetune import FineTuning
from eval.geometry import geometry
from eval.inputs import Crop, Subject
from eval.knn import knn, knn_by_k
from eval.linear import STRENGTHS, Probe, lbfgs_probe, swept_probe

__all__ = ["PROTOCOLS", "EvalError", "Features", "Protocol", "Score", "Subject", "evaluate", "find"]


@dataclass(frozen=True)
class Score:
    """One number: the protocol's id, the metric's name, its value and unit ("%", "nats", ...; "1" for a ratio)."""

    protocol: str
    metric: str
    value: float
    unit: str


def evaluate(
    subject: Subject | Features,
    ids: Iterable[str],
    stream: Callable[[str], torch.Generator] = lambda _: torch.Generator().manual_seed(0),
    on_start: Callable[[str], None] = lambda _: None,
    failures: MutableMapping[str, str] | None = None,
) -> list[Score]:
    """Scores of every metric of the protocols, in the order of the ids.

    Args:
        subject: the encoder to evaluate; its features suffice for most protocols.
        stream: protocol id -> its generator, so that no protocol's score depends on which others run.
        on_start: called with the id of each protocol before it runs.
        failures: filled with protocol id -> reason for each protocol that cannot work with these features; the others
            still run. None: the first failure is raised.

    Raises:
        EvalError: an unknown id, or an input that a protocol requires is missing, before any protocol runs; or
            features a protocol cannot work with.
    """
    subject = Subject(features=subject) if isinstance(subject, Features) else subject
    protocols = [find(name) for name in ([ids] if isinstance(ids, str) else ids)]
    for protocol in protocols:
        subject.check(protocol.id, protocol.requires)
    scores: list[Score] = []
    for protocol in protocols:
        on_start(protocol.id)
        try:
            metrics = protocol.run(subject, stream(protocol.id))
        except EvalError as error:
            if failures is None:
                raise
            failures[protocol.id] = str(error)
            continue
        scores += [Score(protocol.id, metric, value, protocol.unit(metric)) for metric, value in metrics.items()]
    return scores


TRANSFER = r"transfer-([\w.-]+)/v1"
"""Ids of the protocols on another data set; the group is its name."""


def find(name: str) -> Protocol:
    """Look up a protocol by id; there is a `transfer-<data set>/v1` for every data set.

    Raises:
        EvalError: an unknown id.
    """
    if name in PROTOCOLS:
        return PROTOCOLS[name]
    if target := re.fullmatch(TRANSFER, name):
        return transfer_protocol(target[1], SUITE_PROBE, SUITE_KNN)
    close = difflib.get_close_matches(name, [*PROTOCOLS, "all", "papers"], n=1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    raise EvalError(f"unknown protocol '{name}'{hint}: give any of {', '.join(PROTOCOLS)}, transfer-<data set>/v1")


SUITE_PROBE = Probe("adam", lr=3e-3, epochs=200, batch_size=512)
"""The suite's probe, and that of SSD, FedU2 and FedSC."""
SUITE_KNN = {"k": 200, "temperature": 0.1}
ORCHESTRA = Probe("sgd", lr=30, epochs=50, batch_size=256, momentum=0.9, schedule="cosine")
FLESD = Probe("sgd", lr=3e-2, epochs=60, batch_size=256, momentum=0.9, schedule="step", milestones=(30, 50))

SQUARE = Crop((0.64, 1.0), ratio=(1.0, 1.0))
SSD_TUNING = FineTuning((0.01, 0.1), encoder_lr=1e-3, classifier_lr=0.3, batch_size=128, epochs=200, crop=SQUARE)
"""SSD's and FedU2's fine-tuning."""
SUITE_TUNING = replace(
    SSD_TUNING, shares=(0.01, 0.05, 0.1), encoder_lr=0.03, draws=3, steps=200, epochs=None, schedule="cosine"
)
ORCHESTRA_TUNING = FineTuning(
    (0.01, 0.1), encoder_lr=30, classifier_lr=30, batch_size=256, epochs=50, crop=Crop((0.5, 1.0)), schedule="cosine"
)

_NO_AUGMENTATION = "its optimiser on cached features WITHOUT its augmentation (random resized crop and flip)"

PROTOCOLS: dict[str, Protocol] = {
    protocol.id: protocol
    for protocol in (
        linear_protocol(
            "linear/v1",
            SUITE_PROBE,
            "Linear probe of the suite: Adam 3e-3, 200 epochs, batch 512, cached features, last epoch.",
        ),
        Protocol(
            "linear-lbfgs/v1",
            lambda subject, generator, **settings: lbfgs_probe(subject.features, generator, **settings),
            "L2-regularised logistic regression, solved by L-BFGS; its strength is chosen on a tenth of train.",
            {"strengths": STRENGTHS, "fraction": 0.1},
        ),
        linear_protocol(
            "linear-fedx/v1",
            Probe("adam", lr=1e-3, epochs=100, batch_size=64, weight_decay=1e-6),
            "Linear probe of FedX's code: Adam 1e-3, weight decay 1e-6, 100 epochs, batch 64; last epoch, not best.",
        ),
        linear_protocol(
            "linear-ssd/v1",
            SUITE_PROBE,
            "Linear probe of SSD's, FedU2's and FedSC's code: Adam 3e-3, 200 epochs, batch 512; as linear/v1.",
        ),
        linear_protocol(
            "linear-orchestra-cached/v1",
            ORCHESTRA,
            f"Linear probe of Orchestra: {_NO_AUGMENTATION}, shuffled, none dropped; SGD 30 to 0 cosine, 50 epochs.",
        ),
        linear_protocol(
            "linear-flesd-cached/v1",
            FLESD,
            f"Linear probe of FLESD: {_NO_AUGMENTATION}; SGD 3e-2, x0.1 at 30 and 50 of 60 epochs, last epoch.",
        ),
        linear_protocol(
            "linear-fedu/v1",
            Probe("adam", lr=3e-3, epochs=200, batch_size=2048, shuffle=False),
            "Linear probe of FedU's and FedEMA's code: Adam 3e-3, 200 epochs, batch 2048, not shuffled; whole test.",
        ),
        linear_protocol(
            "linear-ldawa/v1",
            Probe("sgd", lr=1e-2, epochs=100, batch_size=128, momentum=0.9),
            "Linear probe of L-DAWA's code, on pooled features (there: unpooled); SGD 1e-2, 100 epochs, batch 128.",
        ),
        Protocol(
            "linear-sweep/v1",
            lambda subject, generator, **settings: swept_probe(subject.features, generator=generator, **settings),
            "As linear/v1 for 100 epochs at six rates at once, 1e-4 to 3e-2; the best on a tenth of train, held out.",
            {
                "probe": Probe("adam", lr=1e-3, epochs=100, batch_size=512),
                "rates": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
                "fraction": 0.1,
            },
        ),
        augmented_protocol(
            "linear-orchestra/v1",
            ORCHESTRA,
            Crop((0.5, 1.0)),
            "Linear probe of Orchestra, with its crops and flips; shuffled, none dropped, the whole test set.",
        ),
        augmented_protocol(
            "linear-flesd/v1",
            FLESD,
            Crop((0.08, 1.0)),
            "Linear probe of FLESD, with its crops and flips; last epoch.",
        ),
        Protocol(
            "knn/v1",
            lambda subject, generator, **settings: knn(subject.features, **settings),
            "Weighted kNN: the 200 nearest by cosine, votes exp(cosine / 0.1); bank: train.",
            SUITE_KNN,
            units={"k": "neighbours"},
        ),
        Protocol(
            "knn-by-k/v1",
            lambda subject, generator, **settings: knn_by_k(subject.features, **settings),
            "As knn/v1, with the 10, 20, 100 and 200 nearest.",
            {"ks": (10, 20, 100, 200), "temperature": 0.1},
            headline="accuracy_k10",
        ),
        semi_protocol(
            "semi/v1",
            SUITE_TUNING,
            "Fine-tuning of the suite: 1, 5 and 10 % of the labels, three draws each, 200 steps, cosine to zero.",
            long=False,
        ),
        semi_protocol(
            "semi-ssd/v1",
            SSD_TUNING,
            "Fine-tuning of SSD's and FedU2's code: encoder 1e-3, classifier 0.3, 200 epochs; last epoch, not best.",
        ),
        semi_protocol(
            "semi-fedx/v1",
            FineTuning((0.01, 0.05, 0.1), encoder_lr=1e-3, classifier_lr=1e-3, batch_size=64, epochs=100),
            "Fine-tuning of FedX: SGD 1e-3, 100 epochs; momentum 0.9, batch 64 and no crops are our choices.",
        ),
        semi_protocol(
            "semi-orchestra/v1",
            ORCHESTRA_TUNING,
            "Fine-tuning of Orchestra's code, with its probe's rate of 30; the encoder was trained on these images.",
        ),
        Protocol(
            "geometry/v1",
            lambda subject, generator, **settings: geometry(subject.features, generator, **settings),
            "Effective rank of test, alignment of two views, uniformity of at most 10,000 training rows.",
            {"max_points": 10_000},
            headline="effective_rank",
            lower=("alignment", "uniformity", "uniformity_within", "uniformity_between"),
            units=dict.fromkeys(("effective_rank", "effective_rank_normalised", "effective_rank_centred"), "dimensions")
            | dict.fromkeys(("uniformity", "uniformity_within", "uniformity_between"), "nats")
            | {"alignment": "distance^2"},
        ),
        Protocol(
            "spectrum/v1",
            compute_spectrum,
            "Singular values of the centred test features: dimensions with 90 and 99 % of the variance; decay.",
            headline="dimensions_90",
            units=dict.fromkeys(("dimensions_90", "dimensions_99", "participation_ratio"), "dimensions"),
        ),
        Protocol(
            "clusters/v1",
            lambda subject, generator, **settings: clusters(subject.features, generator, **settings),
            "K-means of normalised test features, as many as classes: NMI, ARI, mixing (Orchestra, definition 3.1).",
            {"max_points": 10_000, "starts": 10},
            headline="nmi",
            higher=("nmi", "ari"),
            lower=("mixing",),
        ),
        Protocol(
            "embed/v1",
            compute_map,
            "t-SNE of at most 2,000 normalised test features: a figure, and its purity.",
            {"max_points": 2_000, "perplexity": 30},
            headline="purity",
            higher=("purity",),
            units={"purity": "%"},
        ),
        Protocol(
            "drift/v1",
            compute_drift,
            "FedX's eqs. 14-16 and CKA: clients after one more visit at the last rate, against the global model.",
            {"images": 2_000},
            headline="local_global_angle",
            units=dict.fromkeys(("local_global_angle", "local_global_angle_worst"), "degrees")
            | dict.fromkeys(("inter_class_angle_local", "inter_class_angle_global"), "degrees"),
            requires="local_models",
        ),
        Protocol(
            "label-free/v1",
            compute_label_free,
            "Orchestra's eq. 5 without self pairs: alignment + 0.2 uniformity per client, averaged over clients.",
            {"temperature": 0.2, "include_self": False, "weight": 0.2},
            headline="score",
            higher=("score", "alignment", "uniformity"),
            requires="views",
        ),
    )
}
