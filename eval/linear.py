"""Linear probes: softmax regression on frozen features, by the optimiser of a paper or to convergence."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from eval.features import EvalError, Features, Progress, accuracy, class_subset, holdout, ignore, sample, seed_of
from eval.inputs import Crop, EncoderInputs
from eval.logistic_regression import fit_lbfgs, gradient_of, split

STRENGTHS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)

Embed = Callable[[Tensor], Tensor]
"""Row numbers `[B]` -> features `[B, d]`."""

SHARED_STEP = 2e8
"""Floating-point operations of a step, about 2 ms of a core, from which CPU threads share it. In a smaller step they
gain little, and where another process has one of the cores they wait for it at each of some fifteen operations."""


@dataclass(frozen=True)
class Probe:
    """Hyperparameters of a linear classifier's training; scores of different probes are not comparable.

    Args:
        lr: the first learning rate. weight_decay: L2, added to the gradient of weight and bias.
        momentum: SGD's. nesterov: whether that is Nesterov's.
        epochs: passes over the training features. batch_size: rows; a short last batch is kept.
        schedule: "cosine" to zero, updated at every step; "step": times `gamma` at each of `milestones` (epochs).
        shuffle: a new order every epoch; otherwise the order of the rows.

    Raises EvalError: an unknown optimizer or schedule, or a number that is not positive.
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
    nesterov: bool = False

    def __post_init__(self) -> None:
        for name in ("optimizer", "schedule"):
            if (value := getattr(self, name)) not in (choices := get_args(type(self).__annotations__[name])):
                raise EvalError(f"unknown {name} '{value}' for a linear probe: give one of {', '.join(choices)}")
        if self.nesterov and (self.optimizer != "sgd" or self.momentum <= 0):
            raise EvalError(f"{self}: Nesterov momentum is SGD's: give optimizer sgd and a momentum above 0")
        if min(self.lr, self.epochs, self.batch_size) <= 0:
            raise EvalError(f"{self} cannot be trained: give lr, epochs and batch_size above 0")

    def learning_rate(self, progress: float) -> float:
        """Learning rate after `progress` epochs, which may be fractional."""
        if self.schedule == "cosine":
            return self.lr * cosine_factor(progress, self.epochs)
        if self.schedule == "step":
            return self.lr * self.gamma ** sum(progress >= milestone for milestone in self.milestones)
        return self.lr


def cosine_factor(position: float, length: float) -> float:
    """Factor of the learning rate in a cosine schedule: 1 at position 0, 0 at position `length`.

    >>> [cosine_factor(position, 2) for position in (0, 1, 2)]
    [1.0, 0.5, 0.0]
    """
    return (1 + math.cos(math.pi * position / length)) / 2


class _Adam:
    """Adam (Kingma & Ba 2015, algorithm 1) on one buffer, in place: betas 0.9 and 0.999, epsilon 1e-8."""

    def __init__(self, parameters: Tensor) -> None:
        self.parameters, self.steps = parameters, 0
        self.mean, self.square = torch.zeros_like(parameters), torch.zeros_like(parameters)
        self.denominator = torch.empty_like(parameters)

    def step(self, gradient: Tensor, lr: float, scale: Tensor | None = None) -> None:
        """Update the parameters in place with learning rate `lr`, times `scale` where each parameter has its own."""
        self.steps += 1
        self.mean.lerp_(gradient, 0.1)
        self.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        torch.sqrt(self.square, out=self.denominator).div_(math.sqrt(1 - 0.999**self.steps)).add_(1e-8)
        mean = self.mean if scale is None else self.mean * scale
        self.parameters.addcdiv_(mean, self.denominator, value=-lr / (1 - 0.9**self.steps))


class _SGD:
    """Stochastic gradient descent with heavy-ball or Nesterov momentum (PyTorch's form) on one buffer, in place."""

    def __init__(self, parameters: Tensor, momentum: float, nesterov: bool) -> None:
        self.parameters, self.momentum, self.nesterov = parameters, momentum, nesterov
        self.velocity = torch.zeros_like(parameters)

    def step(self, gradient: Tensor, lr: float, scale: Tensor | None = None) -> None:
        """Update the parameters in place; arguments as for Adam."""
        self.velocity.mul_(self.momentum).add_(gradient)
        step = gradient.add(self.velocity, alpha=self.momentum) if self.nesterov else self.velocity
        self.parameters.add_(step if scale is None else step * scale, alpha=-lr)


@torch.no_grad()
def fit_linear(
    train_x: Tensor,
    train_y: Tensor,
    num_classes: int,
    probe: Probe,
    generator: Generator,
    *,
    rates: Sequence[float] = (),
    embed: Embed | None = None,
    on_progress: Progress = ignore,
) -> tuple[Tensor, Tensor]:
    """Train a linear classifier on features by minibatches, or several at once that differ in their learning rate.

    The gradient of the softmax regression is written out and all C (d + 1) parameters are one buffer, so that a step
    is some fifteen operations in place, a third faster than with `torch.optim`. Initialised as `nn.Linear`.

    Args:
        train_x: `[N, d]` float32; train_y: `[N]` int64.
        generator: draws the initial parameters and the orders; its device need not be the features'.
        rates: learning rates, one classifier each, instead of the probe's; all start alike and see the same batches.
        embed: row numbers `[B]` -> features `[B, d]`, recomputed for every batch; None: rows of `train_x`.
        on_progress: called after each epoch with the fraction that is done.

    Returns:
        weight `[C, d]`, bias `[C]`, after the last epoch; with R rates `[R C, d]` and `[R C]`, the classes of the first
        rate first.
    """
    n, width = train_x.shape
    bound, heads = 1 / math.sqrt(width), max(1, len(rates))
    initial = torch.empty(num_classes * (width + 1), device=generator.device)
    initial = initial.uniform_(-bound, bound, generator=generator).to(train_x.device)
    weight, bias = split(initial, num_classes)
    parameters = torch.cat([weight.repeat(heads, 1).flatten(), bias.repeat(heads)])
    scale = None
    if rates:  # each parameter's rate over the probe's, in the order of the buffer
        factors = (torch.tensor(rates) / probe.lr).to(train_x.device)
        scale = torch.cat([factors.repeat_interleave(num_classes * width), factors.repeat_interleave(num_classes)])
    gradient = torch.empty_like(parameters)
    weight, bias = split(parameters, heads * num_classes)
    adam = probe.optimizer == "adam"
    optimizer = _Adam(parameters) if adam else _SGD(parameters, probe.momentum, probe.nesterov)
    order = torch.arange(n, device=train_x.device)
    operations = 4 * heads * num_classes * width * min(n, probe.batch_size)  # of the step's two matrix products
    with _one_thread(embed is None and train_x.device.type == "cpu" and operations < SHARED_STEP):
        for epoch in range(probe.epochs):
            if probe.shuffle:
                order = sample(n, n, generator, train_x.device)
            for start in range(0, n, probe.batch_size):
                rows = order[start : start + probe.batch_size]
                x = train_x.index_select(0, rows) if embed is None else embed(rows)
                gradient_of(x, train_y.index_select(0, rows), weight, bias, gradient, heads)
                if probe.weight_decay:
                    gradient.add_(parameters, alpha=probe.weight_decay)
                optimizer.step(gradient, probe.learning_rate(epoch + start / n), scale)
            on_progress((epoch + 1) / probe.epochs)
    return weight, bias


@contextmanager
def _one_thread(small: bool) -> Iterator[None]:
    """Computes every operation on one thread where the steps are small."""
    before = torch.get_num_threads()
    try:
        if small:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


def linear_probe(
    features: Features, probe: Probe, generator: Generator, embed: Embed | None = None, on_progress: Progress = ignore
) -> dict[str, float]:
    """Accuracy in percent on the whole test set after the last epoch; nothing is selected.

    embed, on_progress: see `fit_linear`.
    """
    return {"accuracy": accuracy(linear_predictions(features, probe, generator, embed, on_progress), features.test_y)}


def linear_predictions(
    features: Features, probe: Probe, generator: Generator, embed: Embed | None = None, on_progress: Progress = ignore
) -> Tensor:
    """Predicted class of each test row, `[T]` int64; arguments as for `linear_probe`.

    A probe that begins at the same state of the generator is the same to the last bit: it is trained once for each
    `Features`, and the generator is left as its training left it.
    """
    x, y, key = features.train_x, features.train_y, (probe, generator.get_state().numpy().tobytes())
    if embed is None and key in features.computed:
        predicted, state = features.computed[key]
        generator.set_state(state)
        return predicted
    classifier = fit_linear(x, y, features.num_classes, probe, generator, embed=embed, on_progress=on_progress)
    predicted = _predict(features.test_x, *classifier)
    if embed is None:
        features.computed[key] = predicted, generator.get_state()
    return predicted


def subset_probe(
    features: Features, probe: Probe, generator: Generator, per_class: int, on_progress: Progress = ignore
) -> dict[str, float]:
    """As `linear_probe`, on at most `per_class` training images of each class, drawn at random."""
    return linear_probe(class_subset(features, per_class, generator), probe, generator, on_progress=on_progress)


def slice_probe(
    train_x: Tensor,
    train_y: Tensor,
    num_classes: int,
    probe: Probe,
    generator: Generator,
    limit: int,
    on_progress: Progress = ignore,
) -> dict[str, float]:
    """The probe within a slice of the training images: half of it trains the classifier, the other half scores it.

    Args:
        limit: largest number of images of the slice, drawn at random. on_progress: see `fit_linear`.

    Returns:
        "accuracy": percent on the second half of each class. No test image is looked at.
    """
    chosen = torch.randperm(len(train_y), generator=generator)[:limit].sort().values.to(train_x.device)
    x, y = train_x[chosen], train_y[chosen]
    fit, held_out = holdout(y, 0.5, seed_of(generator))
    classifier = fit_linear(x[fit], y[fit], num_classes, probe, generator, on_progress=on_progress)
    return {"accuracy": accuracy(_predict(x[held_out], *classifier), y[held_out])}


def swept_probe(
    features: Features,
    probe: Probe,
    generator: Generator,
    rates: Sequence[float],
    fraction: float = 0.1,
    on_progress: Progress = ignore,
) -> dict[str, float]:
    """The probe at several rates at once; the rate is chosen on a held-out slice of train, never on test.

    Args:
        rates: tried; of equally accurate ones the smallest is chosen. fraction: of each class, held out.
        on_progress: see `fit_linear`.

    Returns:
        "accuracy": percent on the whole test set, by the chosen classifier, trained on the rest of train; "rate".
    """
    fit, held_out = holdout(features.train_y, fraction, seed_of(generator))
    rates, classes = sorted(rates), features.num_classes
    x, y = features.train_x, features.train_y
    weight, bias = fit_linear(x[fit], y[fit], classes, probe, generator, rates=rates, on_progress=on_progress)
    classifiers = list(zip(weight.split(classes), bias.split(classes), strict=True))
    scores = [accuracy(_predict(x[held_out], *classifier), y[held_out]) for classifier in classifiers]
    best = scores.index(max(scores))
    return {"accuracy": accuracy(_predict(features.test_x, *classifiers[best]), features.test_y), "rate": rates[best]}


def augmented_probe(
    features: Features,
    inputs: EncoderInputs,
    probe: Probe,
    crop: Crop,
    generator: Generator,
    on_progress: Progress = ignore,
) -> dict[str, float]:
    """As `linear_probe`, but every training image is cropped and flipped anew in every epoch.

    The encoder stays frozen and in eval mode; test images are not augmented. on_progress: see `fit_linear`.
    """

    def embed(rows: Tensor) -> Tensor:
        return inputs.encoder(inputs.batch(rows, crop, generator)).float()

    return linear_probe(features, probe, generator, embed, on_progress)


def lbfgs_probe(
    features: Features, generator: Generator, strengths: tuple[float, ...] = STRENGTHS, fraction: float = 0.1
) -> dict[str, float]:
    """L2-regularised multinomial logistic regression, solved to convergence: a probe without a learning rate.

    Features are centred and divided by one number, the root of their mean variance, so that a strength means the same
    for every encoder. The strength is the one most accurate on a held-out slice of train, of equals the largest;
    the classifier is then fitted to all of train. No choice is made on test.

    Args:
        generator: draws the slice. strengths: tried in decreasing order. fraction: of each class, held out.

    Returns:
        "accuracy": percent on the whole test set; "strength": the chosen one.
    """
    y, classes = features.train_y, features.num_classes
    x, test_x, gram = standardised(features)
    fit, held_out = holdout(y, fraction, seed_of(generator))
    fit_x, fit_y, held_out_x, held_out_y = x[fit], y[fit], x[held_out], y[held_out]
    best, best_strength, start, solution = -1.0, strengths[0], None, None
    for strength in sorted(strengths, reverse=True):
        solution = fit_lbfgs(fit_x, fit_y, classes, strength, solution, gram=gram)
        score = accuracy(_predict(held_out_x, *split(solution, classes)), held_out_y)
        if score > best:
            best, best_strength, start = score, strength, solution
    solution = fit_lbfgs(x, y, classes, best_strength, start, gram=gram)
    predicted = _predict(test_x, *split(solution, classes))
    return {"accuracy": accuracy(predicted, features.test_y), "strength": best_strength}


def standardised(features: Features) -> tuple[Tensor, Tensor, Tensor]:
    """Train and test features, centred and divided by the root of train's mean variance, and train's `x^T x / N`."""
    centre = features.train_x.mean(dim=0, dtype=torch.float64).to(features.train_x)
    x, test_x = features.train_x - centre, features.test_x - centre
    gram = x.T @ x / len(x)
    variance = gram.diagonal().mean().clamp(min=1e-24)
    return x.div_(variance.sqrt()), test_x.div_(variance.sqrt()), gram.div_(variance)


def _predict(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, weight, bias).argmax(dim=1)
