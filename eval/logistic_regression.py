"""Softmax regression: its gradient, and its minimum with an L2 penalty by L-BFGS.

All C (d + 1) parameters are one buffer: the weight `[C, d]` row by row, then the bias `[C]`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.linalg import solve_triangular

BLOCK = 512  # rows of one matrix product; threads work on several blocks at a time


def split(buffer: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The weight `[C, d]` and the bias `[C]` inside one buffer `[C (d + 1)]`; C counts the classes of all heads."""
    return buffer[:-num_classes].view(num_classes, -1), buffer[-num_classes:]


def gradient_of(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, out: Tensor, heads: int = 1) -> None:
    """Gradient of the mean cross-entropy of softmax regression, `(softmax - one hot) x / B`.

    heads: number of independent classifiers whose classes follow one another; each gets its own gradient.
    """
    logits = torch.addmm(bias[:, None], weight, x.T)
    errors, _ = _errors(logits.view(heads, -1, len(x)), y.expand(heads, 1, -1))
    error = errors.flatten(0, 1).div_(len(x))
    grad_weight, grad_bias = split(out, len(bias))
    torch.mm(error, x, out=grad_weight)
    torch.sum(error, dim=1, out=grad_bias)


@torch.no_grad()
def fit_lbfgs(
    train_x: Tensor,
    train_y: Tensor,
    num_classes: int,
    strength: float,
    start: Tensor | None = None,
    tolerance: float = 3e-5,
    max_iter: int = 500,
    gram: Tensor | None = None,
) -> Tensor:
    """Minimise `mean cross-entropy + strength / 2 ||weight||^2` by full-batch L-BFGS; the bias is free.

    Args:
        train_x: `[N, d]`, in the precision to work in, best centred; train_y: `[N]` int64. strength: > 0.
        start: initial parameters; zeros if None. The problem is convex: they change the time, not the solution.
        tolerance: of the largest entry of the gradient, in coordinates in which the curvature is about one; the default
            ends some 1e-7 above the objective's minimum. The solver also stops after `max_iter` iterations, or where
            the precision allows no further progress.
        gram: `[d, d]`, `x^T x / N` of these features, or of a larger set of them; computed if None.

    Returns:
        The parameters as one buffer `[C (d + 1)]`: the weight `[C, d]` row by row, then the bias `[C]`.
    """
    gram = train_x.T @ train_x / len(train_x) if gram is None else gram
    coordinates = _Coordinates(gram, strength, num_classes)
    parameters = train_x.new_zeros(num_classes * (train_x.shape[1] + 1)) if start is None else start.clone()
    gradient, unknowns = torch.empty_like(parameters), torch.empty_like(parameters)
    coordinates.enter(parameters, out=unknowns)
    unknowns.grad = slope = torch.empty_like(parameters)
    weight, bias = split(parameters, num_classes)
    decayed, blocks = gradient[: weight.numel()], _blocks(train_x, train_y)
    solver = torch.optim.LBFGS(
        [unknowns],
        max_iter=max_iter,
        history_size=20,
        tolerance_grad=tolerance,
        tolerance_change=torch.finfo(unknowns.dtype).eps / 100,
        line_search_fn="strong_wolfe",
    )

    def objective() -> float:
        coordinates.leave(unknowns, out=parameters)
        loss = _blockwise_gradient(blocks, weight, bias, gradient)
        decayed.add_(weight.flatten(), alpha=strength)
        coordinates.differentiate(gradient, out=slope)
        return float(loss + strength / 2 * weight.double().square().sum())

    solver.step(objective)
    coordinates.leave(unknowns, out=parameters)
    return parameters


class _Coordinates:
    """Preconditioned unknowns `weight @ L` and `bias / sqrt(C)`; the curvature of the objective is about one in them.

    `L L^T = gram / C + strength` is exactly the curvature where all classes are equally likely. So neither correlated
    features nor a small strength slow a solver down, and its first step has about the right length.
    """

    def __init__(self, gram: Tensor, strength: float, num_classes: int) -> None:
        curvature = gram.double() / num_classes
        # rounding may give a gram slightly negative eigenvalues, which the strength alone need not make positive
        rounding = 10 * torch.finfo(gram.dtype).eps * curvature.trace()
        curvature.diagonal().add_(strength + rounding)
        self.root = torch.linalg.cholesky(curvature).to(gram)
        self.num_classes, self.scale = num_classes, math.sqrt(num_classes)

    def enter(self, parameters: Tensor, out: Tensor) -> None:
        """Write the unknowns of these parameters into `out`."""
        self._write(parameters, 1 / self.scale, lambda weight: weight @ self.root, out)

    def leave(self, unknowns: Tensor, out: Tensor) -> None:
        """Write the parameters of these unknowns into `out`."""
        self._write(unknowns, self.scale, lambda w: solve_triangular(self.root, w, upper=False, left=False), out)

    def differentiate(self, gradient: Tensor, out: Tensor) -> None:
        """Write the gradient with respect to the unknowns into `out`, given that with respect to the parameters."""
        self._write(gradient, self.scale, lambda w: solve_triangular(self.root.mT, w, upper=True, left=False), out)

    def _write(self, buffer: Tensor, scale: float, transform: Callable[[Tensor], Tensor], out: Tensor) -> None:
        (weight, bias), (new_weight, new_bias) = split(buffer, self.num_classes), split(out, self.num_classes)
        new_weight.copy_(transform(weight))
        torch.mul(bias, scale, out=new_bias)


def _blocks(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Rows as `[blocks, BLOCK, d]` and labels as `[blocks, 1, BLOCK]`, then the remaining rows as one short block."""
    whole = len(x) - len(x) % BLOCK
    slices = ((slice(whole), BLOCK), (slice(whole, None), len(x) - whole))
    return [(x[rows].unflatten(0, (-1, size)), y[rows].view(-1, 1, size)) for rows, size in slices if len(x[rows])]


def _blockwise_gradient(blocks: list[tuple[Tensor, Tensor]], weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    """As `gradient_of`, but block by block: one long product with few classes would run on a single thread.

    Returns:
        The mean cross-entropy, summed in double: near the minimum, single precision would round away the differences
        that a line search compares.
    """
    grad_weight, grad_bias = split(out.zero_(), len(bias))
    loss = torch.zeros((), dtype=torch.float64, device=out.device)
    for x, y in blocks:
        error, log_likelihood = _errors(torch.baddbmm(bias[:, None], weight.expand(len(x), -1, -1), x.mT), y)
        loss -= log_likelihood.sum(dtype=torch.float64)
        grad_weight += torch.bmm(error, x).sum(dim=0)
        grad_bias += error.sum(dim=(0, 2))
    rows = sum(y.numel() for _, y in blocks)
    out /= rows
    return loss / rows


def _errors(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax minus one-hot, `[..., C, B]`, and the rows' log-likelihoods, `[..., 1, B]`, of labels `[..., 1, B]`.

    Classes are rows here: the softmax over C of them then runs along contiguous memory.
    """
    log_p = logits.log_softmax(dim=-2)
    log_likelihood = log_p.gather(-2, y)
    return log_p.exp_().scatter_add_(-2, y, log_p.new_full((), -1.0).expand_as(y)), log_likelihood
