"""Membership inference: are an encoder's training images told from others by how alike it maps their views?"""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from eval.features import EvalError, extract, sample
from eval.inputs import EncoderInputs, Subject

INTERVAL = 1.96
"""Standard errors on either side of the AUC in its 95 % interval."""

SHOWN = 16
"""Training images in the figure: those that the attack is surest of."""


def membership(
    subject: Subject, inputs: EncoderInputs, members: Tensor, generator: Generator, max_images: int, views: int
) -> dict[str, float]:
    """The threshold attack of EncoderMI (Liu et al. 2021, EncoderMI-T) on training images and test images.

    Whoever has the encoder calls an image a training image if its views, drawn with the training's augmentation, are
    mapped close to each other. Both sides have the same number of images of each class, so that classes tell nothing.

    Args:
        max_images: of either side, drawn at random. views: of an image, two at least.

    Returns:
        See `attack_scores`. The similarities and the images that the attack is surest of are saved for a figure.

    Raises EvalError: the two sides share no class.
    """
    labels, other_labels = subject.features.train_y.cpu(), subject.features.test_y.cpu()
    drawn = members.cpu()[sample(len(members), max_images, generator, torch.device("cpu"))]
    rows, others = matched(drawn, torch.randperm(len(other_labels), generator=generator), labels, other_labels)
    done = 0.0

    def similarity(images: np.ndarray) -> Tensor:
        def on_view() -> None:
            nonlocal done
            done += 0.5 / views
            subject.on_progress(done)

        return view_similarity(inputs, images, views, generator, on_view)

    found, false = similarity(inputs.train[rows.numpy()]), similarity(inputs.test[others.numpy()])
    surest = inputs.train[rows[found.argsort(descending=True)[:SHOWN]].numpy()]
    subject.save_arrays("membership", {"members": found, "others": false, "surest": torch.from_numpy(surest)})
    return attack_scores(found, false)


def matched(rows: Tensor, others: Tensor, labels: Tensor, other_labels: Tensor) -> tuple[Tensor, Tensor]:
    """Of two lists of row numbers, in their order, as many of each class from both.

    Args:
        rows: `[n]` int64, of `labels` `[N]`. others: `[m]` int64, of `other_labels` `[M]`.

    Raises EvalError: no class has rows in both lists.

    >>> matched(torch.tensor([0, 1, 2]), torch.tensor([1, 0]), torch.tensor([5, 5, 7]), torch.tensor([5, 8]))
    (tensor([0]), tensor([0]))
    """
    pairs = []
    for label in labels[rows].unique():
        ours, theirs = rows[labels[rows] == label], others[other_labels[others] == label]
        size = min(len(ours), len(theirs))
        pairs.append((ours[:size], theirs[:size]))
    first, second = (torch.cat(side) for side in zip(*pairs, strict=True))
    if not len(first):
        raise EvalError("membership: training images and test images share no class: give test images of their classes")
    return first, second


def view_similarity(
    inputs: EncoderInputs,
    images: np.ndarray,
    views: int,
    generator: Generator,
    on_view: Callable[[], None] = lambda: None,
) -> Tensor:
    """Mean cosine over all pairs of an image's views, `[N]` float64 on the CPU.

    Args:
        images: uint8 `[N, C, H, W]`. views: drawn of each image by `EncoderInputs.view`. on_view: called after each.

    Raises EvalError: `views` is below 2.
    """
    if views < 2:
        raise EvalError(f"membership by {views} views of an image: give two at least")
    total: Tensor | float = 0.0
    for _ in range(views):
        x = extract(inputs.encoder, images, lambda batch: inputs.view(batch, generator))  # type: ignore[misc]
        total = total + F.normalize(x.double(), dim=1)
        on_view()
    assert isinstance(total, Tensor)
    norms = total.square().sum(dim=1)  # of a sum of unit vectors: `views` and twice the cosine of every pair
    return ((norms - views) / (views * (views - 1))).cpu()


def attack_scores(members: Tensor, others: Tensor) -> dict[str, float]:
    """How well a threshold on a value tells members, whose values are larger, from others.

    Args:
        members: `[n]`. others: `[m]`.

    Returns:
        "auc": the probability that a member's value is the larger one, ties counted half; 0.5 is chance. "auc_low" and
        "auc_high": its 95 % interval (DeLong et al. 1988). "tpr_1pct": percent of the members that are found where the
        threshold lets at most 1 % of the others through (Carlini et al. 2022).

    >>> attack_scores(torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0]))["auc"]
    1.0
    """
    wins = _share_below(others, members)  # of each member, the share of the others it exceeds
    losses = _share_below(members, others)
    auc = wins.mean().item()
    error = math.sqrt(sum(float(part.var(correction=min(1, len(part) - 1))) / len(part) for part in (wins, losses)))
    threshold = others.sort(descending=True).values[math.floor(0.01 * len(others))]
    return {
        "auc": auc,
        "auc_low": max(0.0, auc - INTERVAL * error),
        "auc_high": min(1.0, auc + INTERVAL * error),
        "tpr_1pct": 100 * (members > threshold).double().mean().item(),
    }


def _share_below(values: Tensor, points: Tensor) -> Tensor:
    """Of each point `[m]`, the share of the values `[n]` below it, equal ones counted half."""
    ordered = values.sort().values
    below, to = (torch.searchsorted(ordered, points.contiguous(), right=right) for right in (False, True))
    return (below + to).double() / (2 * len(values))
