"""Distillation without labels: of a network's own average, and of several teachers."""

import torch
from torch import Tensor

from methods.maths.losses import swav
from methods.maths.precision import full_precision, upcast


@full_precision
def dino(
    scores: Tensor,
    targets: Tensor,
    centre: Tensor,
    temperature: float = 0.1,
    target_temperature: float | Tensor = 0.04,
) -> Tensor:
    """Cross-entropy of the student with the centred, sharpened teacher (Caron et al. 2021, DINO, eqs. 2-3).

    The mean over images and over pairs of a teacher's view and another view of the student.

    Args:
        scores: `[V, B, K]`, the student's outputs for all views; V >= 2.
        targets: `[C, B, K]`, the teacher's for the first C <= V views; the caller detaches them.
        centre: `[K]`, subtracted from the teacher's outputs.
        temperature, target_temperature: divide the outputs of student and teacher; > 0. The second may be 0-d.

    Returns:
        A scalar. Equal outputs of all images, with themselves as centre, give log K.

    >>> outputs = torch.randn(1, 1, 10).expand(2, 4, 10)
    >>> dino(outputs * 0, outputs, centre=outputs[0, 0])  # log 10
    tensor(2.3026)
    """
    sharpened = ((upcast(targets) - upcast(centre)) / target_temperature).softmax(dim=2)
    return swav(scores, sharpened, temperature)


@full_precision
def attended(values: Tensor, queries: Tensor, keys: Tensor, of_queries: Tensor, of_keys: Tensor) -> Tensor:
    """Means `[B, d]` of several teachers' rows by attention (Li et al. 2024, FedMKD, authors' code).

    A row's weights are the softmax over teachers of the products of its mapped query and keys, divided by K.

    Args:
        values: `[B, N, d]`, the rows of N teachers. keys: `[B, N, K]`, theirs. queries: `[B, K]`, the student's.
        of_queries, of_keys: `[K, K]`, the matrices that map them.

    >>> values, keys = torch.tensor([[[1.0], [3.0]]]), torch.tensor([[[0.5], [0.5]]])
    >>> attended(values, torch.ones(1, 1), keys, torch.eye(1), torch.eye(1))  # equal keys: the mean
    tensor([[2.]])
    """
    mapped, others = upcast(queries) @ upcast(of_queries), upcast(keys) @ upcast(of_keys)
    weights = (torch.einsum("bk,bnk->bn", mapped, others) / queries.shape[1]).softmax(dim=1)
    return torch.einsum("bn,bnd->bd", weights, upcast(values))
