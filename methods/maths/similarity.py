"""Similarity matrices of public images: their ensemble and distillation (FLESD, eqs. 4-9)."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from methods.maths.precision import full_precision, upcast


@full_precision
def similarity(z: Tensor) -> Tensor:
    """Cosines `[n, n]` of all pairs of rows `[n, d]` (FLESD, eq. 4).

    >>> similarity(torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
    tensor([[ 1.,  0., -1.],
            [ 0.,  1.,  0.],
            [-1.,  0.,  1.]])
    """
    unit = normalize(upcast(z), dim=1)
    return unit @ unit.T


def ensemble_similarity(matrices: Iterable[Tensor], temperature: float) -> Tensor:
    """The sharpened ensemble `[n, n]` of the clients' similarities, `[n, n]` cosines each (FLESD, eqs. 5-6).

    Mean over clients of exp((M - 1) / temperature), which differs from the paper's by a constant factor that normalised
    rows do not contain. Sharpening comes before the mean, so that a large cosine of one client outweighs small ones of
    several; no entry is 0.

    >>> ensemble_similarity([torch.eye(2), torch.ones(2, 2)], temperature=0.5)  # off the diagonal: (exp(-2) + 1) / 2
    tensor([[1.0000, 0.5677],
            [0.5677, 1.0000]])
    """
    total, clients = None, 0
    for matrix in matrices:
        sharpened = ((upcast(matrix) - 1) / temperature).exp()
        total = sharpened if total is None else total.add_(sharpened)
        clients += 1
    if total is None:
        raise ValueError("an ensemble needs at least one matrix")
    return (total / clients).clamp_(min=torch.finfo(total.dtype).tiny)


@full_precision
def similarity_distillation(q_features: Tensor, anchors: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Mean KL(teacher || student) of each query's similarities to the anchors, a scalar (FLESD, eqs. 7-9).

    Args:
        q_features: `[B, d]` queries by the student, normalised inside. anchors: `[m, d]`, likewise.
        targets: `[B, m]`, the ensemble's entry of each query and anchor, in any scale; 0: the anchor is missing.
        temperature: temperature of the student's softmax.

    >>> anchors = torch.eye(2)
    >>> targets = similarity(anchors).div(0.5).exp()
    >>> similarity_distillation(anchors, anchors, targets, temperature=0.5).round(decimals=4)  # the student agrees
    tensor(0.)
    """
    logits = normalize(upcast(q_features), dim=1) @ normalize(upcast(anchors), dim=1).T / temperature
    missing = ~(targets > 0)
    student = logits.masked_fill(missing, -torch.inf).log_softmax(dim=1).masked_fill(missing, 0)
    teacher = upcast(targets) / upcast(targets).sum(dim=1, keepdim=True)
    return (torch.special.xlogy(teacher, teacher) - teacher * student).sum(dim=1).mean()


def top_similarities(matrix: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
    """The largest similarities of each row: (values `[n, k]`, their columns `[n, k]` int32), k = int(fraction n) + 1.

    The other entries count as 0 (FLESD's quantisation); `dense` restores the matrix.

    >>> top_similarities(torch.tensor([[1.0, 0.2, 0.7], [0.2, 1.0, 0.1], [0.7, 0.1, 1.0]]), fraction=0.4)
    (tensor([[1.0000, 0.7000],
            [1.0000, 0.2000],
            [1.0000, 0.7000]]), tensor([[0, 2],
            [1, 0],
            [2, 0]], dtype=torch.int32))
    """
    k = min(len(matrix), int(fraction * len(matrix)) + 1)
    values, columns = matrix.topk(k, dim=1)
    return values, columns.int()


def dense(values: Tensor, columns: Tensor) -> Tensor:
    """The matrix `[n, n]` with the entries that `top_similarities` selected and 0 elsewhere.

    >>> matrix = torch.tensor([[1.0, 0.2, 0.7], [0.2, 1.0, 0.1], [0.7, 0.1, 1.0]])
    >>> dense(*top_similarities(matrix, fraction=0.4))
    tensor([[1.0000, 0.0000, 0.7000],
            [0.2000, 1.0000, 0.0000],
            [0.7000, 0.0000, 1.0000]])
    """
    return values.new_zeros(len(values), len(values)).scatter_(1, columns.long(), values)
