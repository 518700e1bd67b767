"""Semi-supervised fine-tuning: encoder and classifier trained together on a few labels."""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eval.features import EvalError, Features, accuracy, extract
from eval.inputs import Crop, EncoderInputs


@dataclass(frozen=True)
class FineTuning:
    """How encoder and classifier are trained on a share of the labels; SGD, the last step counts.

    Args:
        shares: of each class's training images, tried one by one; in (0, 1].
        draws: of the labelled images for every share.
        encoder_lr, classifier_lr: first learning rates. momentum, weight_decay: of both.
        batch_size: images; a short last batch is kept, unless it is a single image, which BatchNorm refuses.
        steps: of each training, or epochs: passes over the share.
        crop: the augmentation; None: images as they are.
        schedule: "constant", or "cosine" to zero, step by step.

    Raises:
        EvalError: a share outside (0, 1], or not one of steps and epochs.
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

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise EvalError(f"steps={self.steps} and epochs={self.epochs} were given: give one of them")
        if not all(0 < share <= 1 for share in self.shares):
            raise EvalError(f"shares {self.shares} of the labels were given: give numbers in (0, 1]")

    def length(self, rows: int) -> int:
        """Optimiser steps on so many labelled images."""
        return self.steps if self.steps is not None else (self.epochs or 0) * len(_sizes(rows, self.batch_size))


def labelled(labels: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Sorted rows of a random share of each class, rounded up: `[n]` int64 on the CPU."""
    chosen = []
    for label in labels.unique():
        rows = (labels == label).nonzero()[:, 0].cpu()
        chosen.append(rows[torch.randperm(len(rows), generator=generator)[: math.ceil(share * len(rows))]])
    return torch.cat(chosen).sort().values


def semi(features: Features, shown: EncoderInputs, tuning: FineTuning, generator: torch.Generator) -> dict[str, float]:
    """Accuracy after fine-tuning on each share of the labels.

    The test set makes no choice. Whether a labelled image was seen without its label before is the partition's affair.

    Args:
        generator: draws the labelled images, the classifier, the batches and crops; on the CPU.

    Returns:
        For every share, here of 1 %: "accuracy_1pct", percent on the whole test set, the mean over draws; with several
        draws also "spread_1pct", their standard deviation in points.
    """
    found: dict[str, float] = {}
    for share in tuning.shares:
        scores = []
        for _ in range(tuning.draws):
            rows = labelled(features.train_y, share, generator)
            scores.append(fine_tuned(features, shown, rows, tuning, generator))
        found[f"accuracy_{100 * share:g}pct"] = fmean(scores)
        if len(scores) > 1:
            found[f"spread_{100 * share:g}pct"] = stdev(scores)
    return found


def fine_tuned(
    features: Features, shown: EncoderInputs, rows: Tensor, tuning: FineTuning, generator: torch.Generator
) -> float:
    """Percent of the whole test set after one fine-tuning of a copy of the encoder, on these labelled training rows.

    Raises:
        EvalError: fewer than two rows, or a loss that is not finite.
    """
    if len(rows) < 2:
        raise EvalError(f"fine-tuning on {len(rows)} labelled image was asked for: give two at least")
    encoder = deepcopy(shown.encoder).requires_grad_(True)
    head = _classifier(features, generator)
    groups = [
        {"params": list(encoder.parameters()), "lr": tuning.encoder_lr},
        {"params": list(head.parameters()), "lr": tuning.classifier_lr},
    ]
    optimizer = torch.optim.SGD(groups, momentum=tuning.momentum, weight_decay=tuning.weight_decay)
    total = tuning.length(len(rows))
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: (1 + math.cos(math.pi * step / total)) / 2 if tuning.schedule == "cosine" else 1.0
    )
    encoder.train()
    with torch.enable_grad():
        for batch in _batches(rows, tuning.batch_size, total, generator):
            if tuning.crop is None:
                x = shown.prepare(torch.from_numpy(shown.train[batch.numpy()]).to(shown.device))
            else:
                x = shown.cropped(batch, tuning.crop, generator)
            loss = F.cross_entropy(head(encoder(x).float()), features.train_y[batch.to(features.train_y.device)])
            if not loss.isfinite():
                raise EvalError(f"fine-tuning on {len(rows)} labelled images diverged: its loss became {float(loss)}")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()
    logits = extract(nn.Sequential(encoder, head).eval(), shown.test, shown.prepare, device=shown.device)
    return accuracy(logits.argmax(dim=1), features.test_y)


def _classifier(features: Features, generator: torch.Generator) -> nn.Linear:
    """As `nn.Linear` initialises itself, by this generator."""
    width = features.train_x.shape[1]
    head = nn.Linear(width, features.num_classes)
    with torch.no_grad():
        for part in head.parameters():
            part.uniform_(-1 / math.sqrt(width), 1 / math.sqrt(width), generator=generator)
    return head.to(features.train_x.device)


def _batches(rows: Tensor, size: int, steps: int, generator: torch.Generator) -> Sequence[Tensor]:
    """The first `steps` batches of shuffled passes over the rows."""
    sizes, batches = _sizes(len(rows), size), list[Tensor]()
    while len(batches) < steps:
        batches += rows[torch.randperm(len(rows), generator=generator)][: sum(sizes)].split(sizes)
    return batches[:steps]


def _sizes(rows: int, size: int) -> list[int]:
    """Of the batches of one pass; a last one of a single row is left out, where it is not all there is."""
    rest = rows % size
    return [size] * (rows // size) + ([rest] if rest > 1 or 0 < rest == rows else [])
