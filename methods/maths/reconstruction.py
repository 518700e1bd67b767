"""Reconstruction of hidden patches: of their pixels, or of what another network makes of them."""

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, smooth_l1_loss, unfold

from methods.maths.precision import full_precision, upcast

EPSILON = 1e-6
"""Added to the variance of a patch's pixels, as in the code of MAE."""


def patches(images: Tensor, size: int) -> Tensor:
    """`[B, C, H, W]` -> `[B, patches, C * size * size]`, row after row; `size` divides H and W.

    >>> patches(torch.arange(16.0).view(1, 1, 4, 4), size=2)[0, 0]
    tensor([0., 1., 4., 5.])
    """
    return unfold(images, size, stride=size).transpose(1, 2)


@full_precision
def masked_reconstruction(predicted: Tensor, targets: Tensor, hidden: Tensor, normalise: bool = True) -> Tensor:
    """Mean squared error of the pixels of hidden patches (He et al. 2022, MAE, section 3).

    Args:
        predicted, targets: `[B, patches, pixels]`.
        hidden: `[B, patches]`, 1 for a patch that the encoder has not seen, else 0; at least one is 1.
        normalise: whether a target patch is normalised by the mean and the unbiased variance of its own pixels.

    Returns:
        A scalar. Predicted zeros give about 1 with `normalise`, unless patches are of one colour.

    >>> targets = torch.tensor([[[1.0, 3.0], [5.0, 5.0]]])
    >>> hidden = torch.tensor([[1.0, 0.0]])
    >>> masked_reconstruction(torch.zeros(1, 2, 2), targets, hidden, normalise=False)  # (1 + 9) / 2
    tensor(5.)
    """
    predicted, targets = upcast(predicted), upcast(targets)
    if normalise:
        variance, mean = torch.var_mean(targets, dim=2, keepdim=True)
        targets = (targets - mean) / (variance + EPSILON).sqrt()
    errors = (predicted - targets).square().mean(2)
    return (errors * hidden).sum() / hidden.sum()


@full_precision
def latent_prediction(predicted: Tensor, targets: Tensor, variant: str = "code") -> Tensor:
    """How far predicted tokens of blocks of patches are from a target network's (Assran et al. 2023, I-JEPA).

    Args:
        predicted, targets: `[B, M, n, width]`, tokens of the n patches of M blocks; the caller detaches the targets.
        variant: "code": targets are normalised by the mean and variance of their own numbers, and the loss is the mean
            over all numbers of d^2 / 2 where |d| < 1, else |d| - 1 / 2. "paper": the mean over blocks of the squared
            distances of their tokens, added up.

    Returns:
        A scalar. Predicted zeros give at most 1 / 2 by the code.

    >>> predicted, targets = torch.zeros(1, 1, 2, 2), torch.tensor([[[[1.0, 3.0], [2.0, 0.0]]]])
    >>> latent_prediction(predicted, targets)  # all are -1 or 1, once they are normalised
    tensor(0.5000)
    >>> latent_prediction(predicted, targets, "paper")  # 1 + 9 + 4
    tensor(14.)
    """
    predicted, targets = upcast(predicted), upcast(targets)
    if variant == "paper":
        return (predicted - targets).square().sum((2, 3)).mean()
    return smooth_l1_loss(predicted, layer_norm(targets, targets.shape[-1:]))
