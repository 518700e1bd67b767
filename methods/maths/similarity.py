"""Knowledge as similarities of public images: ensembles of matrices, distillation from them (FLESD, eqs. 4-9)."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from methods.maths.losses import full_precision


@full_precision
def similarity(z: Tensor) -> Tensor:
    """Cosines `[n, n]` of all pairs of rows `[n, d]` (FLESD, eq. 4)."""
    unit = normalize(z.float(), dim=1)
    return unit @ unit.T


def ensemble_similarity(matrices: Iterable[Tensor], temperature: float) -> Tensor:
    """The sharpened ensemble `[n, n]` of some clients' similarities, `[n, n]` cosines each (FLESD, eqs. 5-6).

    mean over clients of exp((M - 1) / temperature), the paper's but for a constant factor that no row of it shows once
    normalised. Sharpened first, so that a client that is sure outvotes several that are not; no entry is 0.
    """
    total, clients = None, 0
    for matrix in matrices:
        sharpened = ((matrix.float() - 1) / temperature).exp()
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
        targets: `[B, m]`, the ensemble's entry of each query and anchor, any scale; 0: that anchor is not there.
        temperature: of the student's softmax.
    """
    logits = normalize(q_features.float(), dim=1) @ normalize(anchors.float(), dim=1).T / temperature
    there = targets > 0
    student = logits.masked_fill(~there, -torch.inf).log_softmax(dim=1).masked_fill(~there, 0)
    teacher = targets.float() / targets.float().sum(dim=1, keepdim=True)
    return (torch.special.xlogy(teacher, teacher) - teacher * student).sum(dim=1).mean()


def kept(matrix: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The largest similarities of each row: (values `[n, k]`, their columns `[n, k]` int32), k = share n + 1 (itself).

    The rest are taken for 0 (FLESD's quantisation): `dense` makes the matrix again.
    """
    k = min(len(matrix), int(share * len(matrix)) + 1)
    values, columns = matrix.topk(k, dim=1)
    return values, columns.int()


def dense(values: Tensor, columns: Tensor) -> Tensor:
    """The matrix `[n, n]` of what `kept` left; 0 elsewhere."""
    return values.new_zeros(len(values), len(values)).scatter_(1, columns.long(), values)
