"""The official protocols: fixed, versioned ways to turn a frozen encoder into scores.

A protocol's numbers never change: other numbers are another version, so that a column of a table means one thing.
"""

import difflib
import re
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass

import torch

from eval.factories import (
    NEIGHBOURS,
    PLAIN,
    Protocol,
    augmented_protocol,
    clusters_protocol,
    drift_protocol,
    embed_protocol,
    geometry_protocol,
    knn_by_k_protocol,
    knn_protocol,
    label_free_protocol,
    lbfgs_protocol,
    linear_protocol,
    semi_protocol,
    spectrum_protocol,
    swept_protocol,
    transfer_protocol,
)
from eval.features import EvalError, Features
from eval.finetune import FineTuning
from eval.inputs import Crop, Subject
from eval.linear import STRENGTHS, Probe

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
    tell: Callable[[str], None] = lambda _: None,
    failed: MutableMapping[str, str] | None = None,
) -> list[Score]:
    """Scores of each protocol in turn, every metric of it.

    Args:
        subject: what is scored; features alone do for most protocols.
        stream: a protocol's id -> its own generator, so that protocols do not move one another.
        tell: told the id of each protocol as it begins.
        failed: takes the ids of protocols that cannot work with these features, each with the reason, and the others
            go on; None: the first such ends it.

    Raises:
        EvalError: an unknown id, or a protocol that asks for what the subject has not, before anything is run; or
            features a protocol cannot work with.
    """
    subject = Subject(features=subject) if isinstance(subject, Features) else subject
    protocols = [find(name) for name in ([ids] if isinstance(ids, str) else ids)]
    for protocol in protocols:
        subject.check(protocol.id, protocol.requires)
    scores: list[Score] = []
    for protocol in protocols:
        tell(protocol.id)
        try:
            found = protocol.run(subject, stream(protocol.id))
        except EvalError as error:
            if failed is None:
                raise
            failed[protocol.id] = str(error)
            continue
        scores += [Score(protocol.id, metric, value, protocol.unit(metric)) for metric, value in found.items()]
    return scores


TRANSFER = r"transfer-([\w.-]+)/v1"
"""Ids of the protocols that are about another data set, its name the group."""


def find(name: str) -> Protocol:
    """The protocol of an id; there is a `transfer-<data set>/v1` for every data set.

    Raises:
        EvalError: there is none of this id.
    """
    if name in PROTOCOLS:
        return PROTOCOLS[name]
    if target := re.fullmatch(TRANSFER, name):
        return transfer_protocol(target[1])
    close = difflib.get_close_matches(name, [*PROTOCOLS, "all", "papers"], n=1)
    meant = f" (did you mean '{close[0]}'?)" if close else ""
    raise EvalError(f"unknown protocol '{name}'{meant}: give any of {', '.join(PROTOCOLS)}, transfer-<data set>/v1")


ORCHESTRA = Probe("sgd", lr=30, epochs=50, batch_size=256, momentum=0.9, schedule="cosine")
FLESD = Probe("sgd", lr=3e-2, epochs=60, batch_size=256, momentum=0.9, schedule="step", milestones=(30, 50))

SQUARE = Crop((0.64, 1.0), ratio=(1.0, 1.0))
"""Of SSD's and FedU2's fine-tuning."""

_NO_AUGMENTATION = "its optimiser on cached features WITHOUT its augmentation (random resized crop and flip)"

PROTOCOLS: dict[str, Protocol] = {
    protocol.id: protocol
    for protocol in (
        linear_protocol(
            "linear/v1",
            PLAIN,
            "Linear probe of the suite: Adam 3e-3, 200 epochs, batch 512, cached features, last epoch.",
        ),
        lbfgs_protocol(
            "linear-lbfgs/v1",
            STRENGTHS,
            0.1,
            "L2-regularised logistic regression, solved by L-BFGS; its strength chosen on a tenth of train.",
        ),
        linear_protocol(
            "linear-fedx/v1",
            Probe("adam", lr=1e-3, epochs=100, batch_size=64, weight_decay=1e-6),
            "Linear probe of FedX's code: Adam 1e-3, weight decay 1e-6, 100 epochs, batch 64; last epoch, not best.",
        ),
        linear_protocol(
            "linear-ssd/v1",
            PLAIN,
            "Linear probe of SSD's, FedU2's and FedSC's code: Adam 3e-3, 200 epochs, batch 512; the suite's today.",
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
            "Linear probe of L-DAWA's code, on pooled features (its: before pooling); SGD 1e-2, 100 epochs, batch 128.",
        ),
        swept_protocol(
            "linear-sweep/v1",
            Probe("adam", lr=1e-3, epochs=100, batch_size=512),
            (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
            0.1,
            "As linear/v1 for 100 epochs at six rates at once, 1e-4 to 3e-2; the best on a tenth of train, held out.",
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
        knn_protocol(
            "knn/v1", *NEIGHBOURS, "Weighted kNN: the 200 nearest by cosine, votes exp(cosine / 0.1); bank: train."
        ),
        knn_by_k_protocol("knn-by-k/v1", (10, 20, 100, 200), 0.1, "As knn/v1, with the 10, 20, 100 and 200 nearest."),
        semi_protocol(
            "semi/v1",
            FineTuning(
                (0.01, 0.05, 0.1),
                encoder_lr=0.03,
                classifier_lr=0.3,
                batch_size=128,
                draws=3,
                steps=200,
                crop=SQUARE,
                schedule="cosine",
            ),
            "Fine-tuning of the suite: 1, 5 and 10 % of the labels, three draws each, 200 steps, cosine to zero.",
            long=False,
        ),
        semi_protocol(
            "semi-ssd/v1",
            FineTuning((0.01, 0.1), encoder_lr=1e-3, classifier_lr=0.3, batch_size=128, epochs=200, crop=SQUARE),
            "Fine-tuning of SSD's and FedU2's code: encoder 1e-3, classifier 0.3, 200 epochs; last epoch, not best.",
        ),
        semi_protocol(
            "semi-fedx/v1",
            FineTuning((0.01, 0.05, 0.1), encoder_lr=1e-3, classifier_lr=1e-3, batch_size=64, epochs=100),
            "Fine-tuning of FedX: SGD 1e-3, 100 epochs; momentum 0.9, batch 64 and no crops are ours, it names none.",
        ),
        semi_protocol(
            "semi-orchestra/v1",
            FineTuning(
                (0.01, 0.1),
                encoder_lr=30,
                classifier_lr=30,
                batch_size=256,
                epochs=50,
                crop=Crop((0.5, 1.0)),
                schedule="cosine",
            ),
            "Fine-tuning of Orchestra's code, its probe's rate of 30 included; labelled images were trained on before.",
        ),
        geometry_protocol(
            "geometry/v1",
            10_000,
            "Effective rank of test, alignment of two views, uniformity of at most 10,000 training rows.",
        ),
        spectrum_protocol(
            "spectrum/v1", "Singular values of the centred test features: how many hold 90 and 99 % of it; decay."
        ),
        clusters_protocol(
            "clusters/v1",
            10_000,
            10,
            "K-means of normalised test features, as many as classes: NMI, ARI, mixing (Orchestra, definition 3.1).",
        ),
        embed_protocol(
            "embed/v1", 2_000, 30, "t-SNE of at most 2,000 normalised test features: a figure, and how pure it is."
        ),
        drift_protocol(
            "drift/v1",
            2_000,
            "FedX's eqs. 14-16 and CKA: clients after a visit more at the last rate, against the model made of them.",
        ),
        label_free_protocol(
            "label-free/v1",
            0.2,
            False,
            0.2,
            "Orchestra's eq. 5 without self pairs: alignment + 0.2 uniformity per client, averaged over clients.",
        ),
    )
}
