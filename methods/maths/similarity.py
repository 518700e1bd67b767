"""Knowledge as similarities of public images: ensembles of matrices, distillation from them (FLESD, eqs. 3-9)."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from methods.maths.losses import full_precision


@full_precision
def similarity(z: Tensor) -> Tensor:
    """Cosines `[n, n]` of all pairs of rows `[n, d]` (FLESD, eq. 3)."""
    unit = normalize(z.float(), dim=1)
    return unit @ unit.T


@full_precision
def ensemble_similarity(matrices: Tensor, temperature: float) -> Tensor:
    """The sharpened ensemble `[n, n]` of some clients' similarities `[clients, n, n]` (FLESD, eqs. 5-6).

    mean over clients of exp(M / temperature): sharpened first, so that one client that is sure outvotes several that
    are not. Each row is divided by exp(its largest similarity / temperature), which no distribution made of the row
    sees, so that nothing overflows.
    """
    sharpened = matrices.float() / temperature
    return (sharpened - sharpened.amax(dim=(0, 2), keepdim=True)).exp().mean(dim=0)


@full_precision
def similarity_distillation(q_features: Tensor, anchors: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Mean KL(teacher || student) of each query's similarities to the anchors, a scalar (FLESD, eqs. 7-9).

    Args:
        q_features: `[B, d]` queries by the student, normalised inside. anchors: `[m, d]`, likewise.
        targets: `[B, m]`, the ensemble's entries of each query and anchor, not normalised; only > 0 ones count.
        temperature: of the student's softmax.
    """
    student = (normalize(q_features.float(), dim=1) @ normalize(anchors.float(), dim=1).T / temperature).log_softmax(1)
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
