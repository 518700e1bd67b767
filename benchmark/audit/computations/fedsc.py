"""FedSC's theory on synthetic clients: a linear encoder, images of a few directions for each client, full batches.

A client holds N images `[N, 8]` in two views, of random directions of its own, so that clients are not alike. FedSC's
and FedAvg's local losses are those of `methods.fedsc` and of its objective; a round measures the correlation matrices,
makes STEPS steps at every client, and averages. The error of a round is the squared norm of the gradient of the pooled
objective, over all images of all clients.
"""

import math
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor, nn

from leaderboards.papers.computed import Printed, computation
from leaderboards.papers.tables import Published
from methods.base import Outputs
from methods.fedsc import FedSC
from methods.maths import correlation, gaussian_mechanism, gaussian_sigma
from methods.networks import Encoder
from methods.objectives.spectral import Spectral

SEEDS, CLIENTS, IMAGES, PIXELS, WIDTH, STEPS = 3, 4, 64, 8, 3, 3
MU = 4.0
"""Largest squared norm of an embedding, of the authors' config."""
RATE = 0.4
"""Learning rate of a run of T rounds, times sqrt(T)."""
ROUNDS = (8, 32, 128, 512)
SLACK = 1.05
"""What may be lost to the constant of a rate between two of ROUNDS."""
FLOOR, FAR = 0.9, 10
"""A floor is constant where four times the rounds leave this part of it, and above zero where it is so many times
FedSC's error."""
EPSILON, DELTA = 8.0, 1e-5
"""Privacy of one release of a correlation matrix."""
SIZES = (64, 256, 1024)
"""Images of a client at which the floor is measured."""

Views = tuple[Tensor, Tensor]


class Federation(NamedTuple):
    """The method with its linear encoder, and both views `[N, 8]` of each client's images."""

    method: FedSC
    clients: list[Views]

    @property
    def weight(self) -> Tensor:
        """The encoder's matrix `[WIDTH, PIXELS]`."""
        return next(self.method.objective.encoder.parameters())

    def loss(self, views: Views, others: Tensor | None = None) -> Tensor:
        """A client's loss, FedAvg's or, with the mean of the others' matrices, FedSC's at alpha = 1 / K."""
        self.method.context = {}
        if others is not None:
            weight = torch.tensor(1 - 1 / CLIENTS)
            self.method.context = {"others": {"R": others}, "cross": {"weight": weight}}
        return self.method.loss(self.method.objective(*views), None)  # type: ignore[arg-type] # no batch is read

    def error(self) -> float:
        """Squared norm of the pooled objective's gradient."""
        pooled = torch.cat([a for a, _ in self.clients]), torch.cat([b for _, b in self.clients])
        (gradient,) = torch.autograd.grad(self.loss(pooled), self.weight)
        return float(gradient.square().sum())


def federation(seed: int, images: int = IMAGES) -> Federation:
    """Clients and initial weights of a seed, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    linear = nn.Linear(PIXELS, WIDTH, bias=False)
    objective = Spectral(Encoder(linear, WIDTH), projector=[], head_norm=False, mu=MU, negatives="correlation")
    method = FedSC(objective).double()
    clients = []
    for _ in range(CLIENTS):
        directions = torch.randn(2, PIXELS, generator=generator, dtype=torch.float64)
        plain = torch.randn(images, 2, generator=generator, dtype=torch.float64) @ directions
        noise = torch.randn(2, images, PIXELS, generator=generator, dtype=torch.float64)
        clients.append((plain + 0.3 * noise[0], plain + 0.3 * noise[1]))
    with torch.no_grad():
        linear.weight.copy_(0.3 * torch.randn(WIDTH, PIXELS, generator=generator, dtype=torch.float64))
    return Federation(method, clients)


def errors(made: Federation, rounds: int, shares: bool, sigma: float = 0.0) -> Iterator[float]:
    """The error before each round of FedSC, or of FedAvg without shared matrices; sigma: of the noise on them."""
    rate, generator = RATE / math.sqrt(rounds), torch.Generator().manual_seed(rounds)
    for _ in range(rounds):
        yield made.error()
        start, trained = made.weight.detach().clone(), []
        with torch.no_grad():
            rows = [torch.cat(made.method.objective(*views).embeddings) for views in made.clients]
            matrices = [gaussian_mechanism(correlation(z), MU, sigma, generator) for z in rows]
        for client, views in enumerate(made.clients):
            others = (sum(matrices) - matrices[client]) / (CLIENTS - 1) if shares else None
            with torch.no_grad():
                made.weight.copy_(start)
            for _ in range(STEPS):
                (gradient,) = torch.autograd.grad(made.loss(views, others), made.weight)
                with torch.no_grad():
                    made.weight.sub_(rate * gradient)
            trained.append(made.weight.detach().clone())
        with torch.no_grad():
            made.weight.copy_(torch.stack(trained).mean(dim=0))


@computation("simulated/fedsc-decomposition")
def decomposition(cell: Published, _: Printed) -> list[float]:
    """Largest relative difference of the pooled loss, or of its gradient, from the clients' weighted sum.

    The cross terms of the clients' losses count twice in the sum, as the other client's matrix is fixed in each: half
    of them is taken off the value, and the gradient needs no correction.
    """
    generator, sizes = torch.Generator().manual_seed(0), (3, 5, 8)
    method = federation(0).method
    views = [[torch.randn(n, 5, generator=generator, dtype=torch.float64) for _ in "ab"] for n in sizes]
    own, weights, total = [correlation(torch.cat(client)) for client in views], [n / sum(sizes) for n in sizes], 0.0
    gradients = []
    for j, (weight, client) in enumerate(zip(weights, views, strict=True)):
        leaves = [view.clone().requires_grad_() for view in client]
        rest = sum(weights[i] * own[i] for i in range(len(sizes)) if i != j) / (1 - weight)
        method.context = {"others": {"R": rest}, "cross": {"weight": torch.tensor(1 - weight)}}
        loss = weight * method.loss(Outputs((), tuple(leaves)), None)  # type: ignore[arg-type]
        gradients.append(torch.autograd.grad(loss, leaves))
        total += float(loss.detach()) - weight * (1 - weight) * float((own[j] * rest).sum())
    pooled = [torch.cat(view).requires_grad_() for view in zip(*views, strict=True)]
    method.context = {}
    whole = method.loss(Outputs((), tuple(pooled)), None)  # type: ignore[arg-type]
    if cell.row == "value":
        return [abs(total / float(whole.detach()) - 1)]
    parts = [torch.cat(view) for view in zip(*gradients, strict=True)]
    pairs = list(zip(torch.autograd.grad(whole, pooled), parts, strict=True))
    return [max(float((a - b).abs().max()) for a, b in pairs) / max(float(a.abs().max()) for a, _ in pairs)]


@computation("simulated/fedsc-rate", stored=True)
def rate(_: Published, __: Printed) -> list[float]:
    """The mean error of T rounds of FedSC, times sqrt(T), does not grow with T."""
    against = []
    for seed in range(SEEDS):
        bounds = [fmean(errors(federation(seed), rounds, True)) * math.sqrt(rounds) for rounds in ROUNDS]
        against += [float(later > SLACK * earlier) for earlier, later in pairwise(bounds)]
    return against


@computation("simulated/fedsc-floor", stored=True)
def floor(_: Published, __: Printed) -> list[float]:
    """FedAvg's last error hardly falls with four times the rounds, and is far above FedSC's."""
    against = []
    for seed in range(SEEDS):
        before, after = (last(federation(seed), rounds, False) for rounds in ROUNDS[-2:])
        against += [float(after < FLOOR * before), float(after < FAR * last(federation(seed), ROUNDS[-1], True))]
    return against


def last(made: Federation, rounds: int, shares: bool, sigma: float = 0.0) -> float:
    """The mean error over the last half of the rounds."""
    return fmean([*errors(made, rounds, shares, sigma)][rounds // 2 :])


@computation("simulated/fedsc-images", stored=True)
def with_images(cell: Published, _: Printed) -> list[float]:
    """The floor falls to less than half with every four times more images a client.

    FedSC's is what noise of one epsilon on its matrices adds to the error; FedAvg's is its error.
    """
    multiplier, against = gaussian_sigma(EPSILON, DELTA) * math.sqrt(2) * MU, []
    for seed in range(SEEDS):
        floors = []
        for images in SIZES:
            made, shares = partial(federation, seed, images), "FedAvg" not in cell.row
            floors.append(last(made(), ROUNDS[-2], shares, multiplier / images if shares else 0.0))
            floors[-1] -= last(made(), ROUNDS[-2], True) if shares else 0.0
        against += [float(fewer <= 2 * more) for fewer, more in pairwise(floors)]
    return against
