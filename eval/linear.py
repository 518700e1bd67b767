"""Linear probes: softmax regression on frozen features, by the optimiser of a paper or to convergence."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.features import EvalError, Features, accuracy, holdout, seed_of
from eval.inputs import Crop, EncoderInputs
from eval.logistic_regression import fit_lbfgs, gradient_of, split

STRENGTHS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)


@dataclass(frozen=True)
class Probe:
    """How a linear classifier is trained on cached features; two probes' numbers never share a column.

    Args:
        lr: the first learning rate. weight_decay: L2, added to the gradient of weight and bias. momentum: SGD's.
        epochs: passes over the training features. batch_size: rows; a short last batch is kept.
        schedule: "cosine" to zero, step by step; "step" times `gamma` at each of `milestones` (epochs).
        shuffle: a new order every epoch; without it, the order of the rows.

    Raises:
        EvalError: an unknown optimizer or schedule, or a number that is not positive.
    """

    optimizer: Literal["adam", "sgd"]
    lr: float
    epochs: int
    batch_size: int
    weight_decay: float = 0.0
    momentum: float = 0.0
    schedule: Literal["constant", "cosine", "step"] = "constant"
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    shuffle: bool = True

    def __post_init__(self) -> None:
        for given, name, known in (
            (self.optimizer, "optimizer", ("adam", "sgd")),
            (self.schedule, "schedule", ("constant", "cosine", "step")),
        ):
            if given not in known:
                raise EvalError(f"unknown {name} '{given}' for a linear probe: give one of {', '.join(known)}")
        if min(self.lr, self.epochs, self.batch_size) <= 0:
            raise EvalError(f"{self} cannot be trained: give lr, epochs and batch_size above 0")

    def learning_rate(self, progress: float) -> float:
        """The learning rate after `progress` epochs, whole or not."""
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * progress / self.epochs)) / 2
        if self.schedule == "step":
            return self.lr * self.gamma ** sum(progress >= milestone for milestone in self.milestones)
        return self.lr


class _Adam:
    """Adam (Kingma & Ba 2015, algorithm 1) on one buffer, in place: betas 0.9 and 0.999, epsilon 1e-8."""

    def __init__(self, parameters: Tensor) -> None:
        self.parameters, self.steps = parameters, 0
        self.mean, self.square = torch.zeros_like(parameters), torch.zeros_like(parameters)
        self.denominator = torch.empty_like(parameters)

    def step(self, gradient: Tensor, lr: float, scale: Tensor | None = None) -> None:
        """With the rate `lr`, times `scale` where each parameter has its own."""
        self.steps += 1
        self.mean.lerp_(gradient, 0.1)
        self.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        torch.sqrt(self.square, out=self.denominator).div_(math.sqrt(1 - 0.999**self.steps)).add_(1e-8)
        mean = self.mean if scale is None else self.mean * scale
        self.parameters.addcdiv_(mean, self.denominator, value=-lr / (1 - 0.9**self.steps))


class _SGD:
    """Stochastic gradient descent with heavy-ball momentum (PyTorch's form) on one buffer, in place."""

    def __init__(self, parameters: Tensor, momentum: float) -> None:
        self.parameters, self.momentum, self.velocity = parameters, momentum, torch.zeros_like(parameters)

    def step(self, gradient: Tensor, lr: float, scale: Tensor | None = None) -> None:
        """As Adam's."""
        self.velocity.mul_(self.momentum).add_(gradient)
        self.parameters.add_(self.velocity if scale is None else self.velocity * scale, alpha=-lr)


@torch.no_grad()
def fit_linear(
    train_x: Tensor,
    train_y: Tensor,
    num_classes: int,
    probe: Probe,
    generator: torch.Generator,
    *,
    rates: Sequence[float] = (),
    look: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Train a linear classifier on features by minibatches, or several at once that differ in their rate.

    The gradient of the softmax regression is written out and all C (d + 1) parameters are one buffer, so that a step
    is some fifteen operations in place, a third faster than with `torch.optim`. Initialised as `nn.Linear`.

    Args:
        train_x: `[N, d]` float32; train_y: `[N]` int64.
        generator: draws the initial parameters and the orders; its device need not be the features'.
        rates: a classifier each, instead of the probe's own; all start alike and see the same batches.
        look: rows `[B]` -> their features `[B, d]`, where they are made anew for every batch; None: those of `train_x`.

    Returns:
        weight `[C, d]`, bias `[C]`, after the last epoch; with rates `[R C, d]` and `[R C]`, a rate's classes together.
    """
    n, width = train_x.shape
    bound, heads = 1 / math.sqrt(width), max(1, len(rates))
    drawn = torch.empty(num_classes * (width + 1), device=generator.device)
    drawn = drawn.uniform_(-bound, bound, generator=generator).to(train_x.device)
    parameters = torch.cat([part.repeat(heads, *[1] * (part.ndim - 1)).flatten() for part in split(drawn, num_classes)])
    scale = _scale(rates, num_classes, width, probe.lr).to(train_x.device) if rates else None
    gradient = torch.empty_like(parameters)
    weight, bias = split(parameters, heads * num_classes)
    optimizer = _Adam(parameters) if probe.optimizer == "adam" else _SGD(parameters, probe.momentum)
    order = torch.arange(n, device=train_x.device)
    for epoch in range(probe.epochs):
        if probe.shuffle:
            order = torch.randperm(n, generator=generator, device=generator.device).to(train_x.device)
        for start in range(0, n, probe.batch_size):
            rows = order[start : start + probe.batch_size]
            x = train_x.index_select(0, rows) if look is None else look(rows)
            gradient_of(x, train_y.index_select(0, rows), weight, bias, gradient, heads)
            if probe.weight_decay:
                gradient.add_(parameters, alpha=probe.weight_decay)
            optimizer.step(gradient, probe.learning_rate(epoch + start / n), scale)
    return weight, bias


def _scale(rates: Sequence[float], num_classes: int, width: int, base: float) -> Tensor:
    """Each parameter's rate over the probe's, in the order of the buffer."""
    each = torch.tensor(rates) / base
    return torch.cat([each.repeat_interleave(num_classes * width), each.repeat_interleave(num_classes)])


def linear_probe(
    features: Features, probe: Probe, generator: torch.Generator, look: Callable[[Tensor], Tensor] | None = None
) -> dict[str, float]:
    """Accuracy in percent on the whole test set at the last epoch; it makes no choice. look: see `fit_linear`."""
    x, y = features.train_x, features.train_y
    weight, bias = fit_linear(x, y, features.num_classes, probe, generator, look=look)
    return {"accuracy": accuracy(F.linear(features.test_x, weight, bias).argmax(dim=1), features.test_y)}


def swept_probe(
    features: Features, probe: Probe, generator: torch.Generator, rates: Sequence[float], fraction: float = 0.1
) -> dict[str, float]:
    """The probe at several rates at once; the rate is chosen on a held-out slice of train, test makes no choice.

    Args:
        rates: tried; of equally accurate ones the smallest is taken. fraction: of each class, held out.

    Returns:
        "accuracy": percent on the whole test set, by the chosen classifier, which has seen the rest of train; "rate".
    """
    fit, held = holdout(features.train_y, fraction, seed_of(generator))
    rates, classes = sorted(rates), features.num_classes
    x, y = features.train_x, features.train_y
    weight, bias = fit_linear(x[fit], y[fit], classes, probe, generator, rates=rates)
    heads = list(zip(weight.split(classes), bias.split(classes), strict=True))
    scores = [accuracy(F.linear(x[held], *head).argmax(dim=1), y[held]) for head in heads]
    best = scores.index(max(scores))
    predicted = F.linear(features.test_x, *heads[best]).argmax(dim=1)
    return {"accuracy": accuracy(predicted, features.test_y), "rate": rates[best]}


def augmented_probe(
    features: Features, shown: EncoderInputs, probe: Probe, crop: Crop, generator: torch.Generator
) -> dict[str, float]:
    """As `linear_probe`, but every training image is cropped and flipped anew each time it is seen.

    The encoder stays frozen and in eval mode; test images are shown as they are.
    """
    return linear_probe(
        features, probe, generator, lambda rows: shown.encoder(shown.cropped(rows, crop, generator)).float()
    )


def lbfgs_probe(
    features: Features, generator: torch.Generator, strengths: tuple[float, ...] = STRENGTHS, fraction: float = 0.1
) -> dict[str, float]:
    """L2-regularised multinomial logistic regression, solved: a probe without a learning rate.

    Features are centred and divided by one number, the root of their mean variance, so that a strength means the same
    for every encoder. The strength is the one most accurate on a held-out slice of train, of equals the largest;
    the classifier is then fitted to all of train. The test set makes no choice.

    Args:
        generator: draws the slice. strengths: tried from the first to the last. fraction: of each class, held out.

    Returns:
        "accuracy": percent on the whole test set; "strength": the one chosen.
    """
    y, classes = features.train_y, features.num_classes
    x, test_x, gram = standardised(features)
    fit, held = holdout(y, fraction, seed_of(generator))
    part_x, part_y, held_x, held_y = x[fit], y[fit], x[held], y[held]
    best, chosen, start, solution = -1.0, strengths[0], None, None
    for strength in sorted(strengths, reverse=True):
        solution = fit_lbfgs(part_x, part_y, classes, strength, solution, gram=gram)
        score = accuracy(_predict(held_x, solution, classes), held_y)
        if score > best:
            best, chosen, start = score, strength, solution
    solution = fit_lbfgs(x, y, classes, chosen, start, gram=gram)
    return {"accuracy": accuracy(_predict(test_x, solution, classes), features.test_y), "strength": chosen}


def standardised(features: Features) -> tuple[Tensor, Tensor, Tensor]:
    """Train and test features, centred and divided by the root of train's mean variance, and train's `x^T x / N`."""
    centre = features.train_x.mean(dim=0, dtype=torch.float64).to(features.train_x)
    x, test_x = features.train_x - centre, features.test_x - centre
    gram = x.T @ x / len(x)
    variance = gram.diagonal().mean().clamp(min=1e-24)
    return x.div_(variance.sqrt()), test_x.div_(variance.sqrt()), gram.div_(variance)


def _predict(x: Tensor, parameters: Tensor, num_classes: int) -> Tensor:
    return F.linear(x, *split(parameters, num_classes)).argmax(dim=1)
