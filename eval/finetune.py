"""Semi-supervised fine-tuning: encoder and classifier trained together on a few labels."""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eval.features import EvalError, Features, accuracy, extract, sample_classes
from eval.inputs import Crop, EncoderInputs
from eval.linear import cosine_factor


@dataclass(frozen=True)
class FineTuning:
    """Hyperparameters of fine-tuning on a fraction of the labels; SGD, scored after the last step.

    Args:
        shares: fractions of each class's training images to label, one fine-tuning each; in (0, 1].
        draws: random sets of labelled images for every fraction.
        encoder_lr, classifier_lr: initial learning rates. momentum, weight_decay: of both.
        batch_size: images; a short last batch is kept, unless it is a single image, which BatchNorm cannot normalise.
        steps: of each fine-tuning, or epochs: passes over the labelled images.
        crop: the augmentation; None: images as they are.
        schedule: "constant", or "cosine" to zero, updated at every step.
        held_out: whether the labelled images are among those that no client holds.

    Raises EvalError: a fraction outside (0, 1], or both or neither of steps and epochs.
    """

    shares: tuple[float, ...]
    encoder_lr: float
    classifier_lr: float
    batch_size: int
    draws: int = 1
    momentum: float = 0.9
    weight_decay: float = 0.0
    steps: int | None = None
    epochs: int | None = None
    crop: Crop | None = None
    schedule: str = "constant"
    held_out: bool = False

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise EvalError(f"steps={self.steps} and epochs={self.epochs} were given: give one of them")
        if not all(0 < fraction <= 1 for fraction in self.shares):
            raise EvalError(f"shares {self.shares} of the labels were given: give numbers in (0, 1]")

    def length(self, rows: int) -> int:
        """Optimiser steps on `rows` labelled images."""
        return self.steps if self.steps is not None else (self.epochs or 0) * len(_sizes(rows, self.batch_size))


def labelled(labels: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """Sorted rows of a random fraction of each class, rounded up: `[n]` int64 on the CPU."""
    return sample_classes(labels, lambda size: math.ceil(fraction * size), generator)


def labelled_held_out(features: Features, fraction: float, generator: torch.Generator) -> Tensor:
    """As `labelled`, among the rows that no client holds; the fraction is of all rows of a class, rounded down.

    Raises EvalError: a class has too few of them.
    """
    rows, labels = features.held_out.cpu(), features.train_y.cpu()
    chosen = []
    for label, size in zip(*labels.unique(return_counts=True), strict=True):
        candidates, count = rows[labels[rows] == label], max(1, math.floor(fraction * size))
        if len(candidates) < count:
            raise EvalError(
                f"{100 * fraction:g} % of class {label} are {count} images, but only {len(candidates)} are held out of "
                "the training: raise public.share"
            )
        chosen.append(candidates[torch.randperm(len(candidates), generator=generator)[:count]])
    return torch.cat(chosen).sort().values


def semi(features: Features, inputs: EncoderInputs, tuning: FineTuning, generator: torch.Generator) -> dict[str, float]:
    """Accuracy after fine-tuning on each fraction of the labels.

    No choice is made on test. Labelled images may be among those the encoder was trained on without labels, unless
    `tuning.held_out`.

    Args:
        generator: draws the labelled images, the classifier, the batches and crops; on the CPU.

    Returns:
        For every fraction, here 1 %: "accuracy_1pct", percent on the whole test set, the mean over draws; with several
        draws also "spread_1pct", their standard deviation in points.
    """
    scores: dict[str, float] = {}
    for fraction in tuning.shares:
        accuracies = []
        for _ in range(tuning.draws):
            if tuning.held_out:
                rows = labelled_held_out(features, fraction, generator)
            else:
                rows = labelled(features.train_y, fraction, generator)
            accuracies.append(fine_tuned(features, inputs, rows, tuning, generator))
        scores[f"accuracy_{100 * fraction:g}pct"] = fmean(accuracies)
        if len(accuracies) > 1:
            scores[f"spread_{100 * fraction:g}pct"] = stdev(accuracies)
    return scores


def fine_tuned(
    features: Features, inputs: EncoderInputs, rows: Tensor, tuning: FineTuning, generator: torch.Generator
) -> float:
    """Percent of the whole test set after one fine-tuning of a copy of the encoder, on these labelled training rows.

    Raises EvalError: fewer than two rows, or a loss that is not finite.
    """
    if len(rows) < 2:
        raise EvalError(f"fine-tuning on {len(rows)} labelled image: give two at least")
    encoder = deepcopy(inputs.encoder).requires_grad_(True)
    classifier = _classifier(features, generator)
    groups = [
        {"params": list(encoder.parameters()), "lr": tuning.encoder_lr},
        {"params": list(classifier.parameters()), "lr": tuning.classifier_lr},
    ]
    optimizer = torch.optim.SGD(groups, momentum=tuning.momentum, weight_decay=tuning.weight_decay)
    steps = tuning.length(len(rows))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: cosine_factor(step, steps) if tuning.schedule == "cosine" else 1.0
    )
    encoder.train()
    first_bad = torch.zeros((), device=features.train_y.device)  # the first loss that is not finite, read at the end
    with torch.enable_grad():
        for batch in _batches(rows, tuning.batch_size, steps, generator):
            x = inputs.batch(batch, tuning.crop, generator)
            y = features.train_y[batch.to(features.train_y.device, non_blocking=True)]
            loss = F.cross_entropy(classifier(encoder(x).float()), y)
            first_bad = torch.where(first_bad.isfinite(), loss.detach(), first_bad)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    if not first_bad.isfinite():
        raise EvalError(f"fine-tuning on {len(rows)} labelled images diverged: its loss became {first_bad.item()}")
    logits = extract(nn.Sequential(encoder, classifier).eval(), inputs.test, inputs.prepare)
    return accuracy(logits.argmax(dim=1), features.test_y)


def _classifier(features: Features, generator: torch.Generator) -> nn.Linear:
    """A linear layer, initialised as `nn.Linear` does but with this generator."""
    width = features.train_x.shape[1]
    classifier = nn.Linear(width, features.num_classes)
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.uniform_(-1 / math.sqrt(width), 1 / math.sqrt(width), generator=generator)
    return classifier.to(features.train_x.device)


def _batches(rows: Tensor, size: int, steps: int, generator: torch.Generator) -> Sequence[Tensor]:
    """The first `steps` batches of shuffled passes over the rows."""
    sizes, batches = _sizes(len(rows), size), list[Tensor]()
    while len(batches) < steps:
        batches += rows[torch.randperm(len(rows), generator=generator)][: sum(sizes)].split(sizes)
    return batches[:steps]


def _sizes(rows: int, size: int) -> list[int]:
    """Batch sizes of one pass; a last batch of a single row is left out, unless it is the only batch."""
    rest = rows % size
    return [size] * (rows // size) + ([rest] if rest > 1 or 0 < rest == rows else [])
