"""How far apart the features of test images are."""

import torch
from torch import Tensor


def spread(test_x: Tensor, rows: int = 200) -> float:
    """The mean distance of the first features `[T, d]`. rows: how many."""
    return float(torch.pdist(test_x[:rows]).mean())
