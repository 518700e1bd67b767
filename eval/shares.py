"""Class shares of clients, read from their replies: each reply is taken for a mix of the replies of known clients."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.features import EvalError, Save

FOLDED = 1 << 16
"""Numbers of an entry that are kept; a larger entry is folded to so many, which keeps inner products to about 0.4 %."""


class ObservedReplies(NamedTuple):
    """Replies of one round to a server that looks at each of them.

    replies: entry -> `[K, d]`, a row a client. references: entry -> `[C, d]`, replies of clients that hold images of a
    single class each. shares: `[K, C]` float64, the clients' true class shares, rows sum to 1. overall: `[C]`, those of
    all clients together.
    """

    replies: Mapping[str, Tensor]
    references: Mapping[str, Tensor]
    shares: Tensor
    overall: Tensor


def folded(vector: Tensor) -> Tensor:
    """At most FOLDED numbers for a vector: each one is added, with a random sign, to a random place.

    Linear, always the same for one length, and inner products are kept in the mean (Charikar et al. 2002).
    """
    if len(vector) <= FOLDED:
        return vector
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(FOLDED, (len(vector),), generator=generator)
    signs = torch.randint(2, (len(vector),), generator=generator, dtype=torch.int8) * 2 - 1
    return vector.new_zeros(FOLDED).index_add_(0, places.to(vector.device), vector * signs.to(vector))


def read_shares(replies: Tensor, references: Tensor) -> Tensor:
    """Shares `[K, C]` by non-negative least squares: the mix of references `[C, d]` that is nearest each of `[K, d]`.

    Rows sum to 1; a row of equal shares where no mix is nearer than nothing.

    >>> read_shares(torch.tensor([[3.0, 1.0]]), torch.eye(2))
    tensor([[0.7500, 0.2500]], dtype=torch.float64)
    """
    from scipy.optimize import nnls

    basis, triangle = torch.linalg.qr(references.double().T)
    targets = replies.double() @ basis
    mixes = torch.stack([torch.from_numpy(nnls(triangle.numpy(), target.numpy())[0]) for target in targets])
    mixes[mixes.sum(dim=1) == 0] = 1.0
    return F.normalize(mixes, p=1, dim=1)


def shares(observed: ObservedReplies) -> tuple[dict[str, float], Tensor]:
    """How near the class shares are that a linear attacker reads from replies.

    Returns:
        "distance": half the sum of the differences of true and read shares, mean over clients, in [0, 1], of all
        entries together, each scaled to equal references; "distance_<entry>" of one alone, where there are several;
        "distance_blind", of the guess that each client is like all of them together; "main_class" and
        "main_class_blind": percent of the clients whose most frequent class is found. And the shares, `[K, C]`.

    Raises EvalError: a reply is not finite, or the references of every entry are zero.
    """
    scaled = {}
    for entry, references in observed.references.items():
        replies = observed.replies[entry]
        if not (references.isfinite().all() and replies.isfinite().all()):
            raise EvalError(f"shares: entry {entry} is not finite: there is nothing to read")
        if scale := references.double().norm(dim=1).mean().item():
            scaled[entry] = replies.double() / scale, references.double() / scale
    if not scaled:
        raise EvalError("shares: clients of a single class send nothing but zeros: there is nothing to read")
    together = read_shares(*(torch.cat(side, dim=1) for side in zip(*scaled.values(), strict=True)))
    truth, blind = observed.shares, observed.overall.expand_as(observed.shares)
    scores = {"distance": distance(together, truth), "distance_blind": distance(blind, truth)}
    if len(scaled) > 1:
        scores |= {f"distance_{entry}": distance(read_shares(*pair), truth) for entry, pair in scaled.items()}
    found, guessed = (100 * (each.argmax(1) == truth.argmax(1)).double().mean().item() for each in (together, blind))
    return {**scores, "main_class": found, "main_class_blind": guessed}, together


def distance(shares: Tensor, truth: Tensor) -> float:
    """Total variation distance of rows, mean over rows.

    >>> distance(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]]))
    0.5
    """
    return ((shares - truth).abs().sum(dim=1) / 2).mean().item()


def compute_shares(client_replies: Callable[[], ObservedReplies], save_arrays: Save) -> dict[str, float]:
    """Distance of clients' class shares from those read from their replies; both are saved for a figure."""
    observed = client_replies()
    scores, read = shares(observed)
    save_arrays("shares", {"truth": observed.shares, "read": read})
    return scores
