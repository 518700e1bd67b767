"""Reconstruction of hidden patches."""

import torch
from torch import Tensor
from torch.nn.functional import unfold

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
