"""How far apart a client's network and the global one have come, seen on the same images (FedX, section 5.2)."""

import math
from collections.abc import Iterable
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.features import EvalError


def angles(x: Tensor, y: Tensor) -> Tensor:
    """Angles in degrees between rows, `[N]` float64, of two `[N, d]` (Han et al. 2022, eq. 14)."""
    cosine = (F.normalize(x.double(), dim=1) * F.normalize(y.double(), dim=1)).sum(dim=1)
    return cosine.clamp(-1, 1).arccos().rad2deg()


def by_class(values: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Mean of `[N]` or `[N, d]` over each class's rows, `[C]` or `[C, d]` float64; nan for a class without rows."""
    counts = torch.bincount(labels, minlength=num_classes).double()
    sums = torch.zeros(num_classes, *values.shape[1:], dtype=torch.float64, device=values.device)
    sums.index_add_(0, labels, values.double())
    return sums / counts.view(-1, *[1] * (values.ndim - 1))


def inter_class_angles(x: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Angles in degrees between every two class prototypes, `[C (C - 1) / 2]` (Han et al. 2022, eqs. 15-16).

    A prototype is the mean of the class's L2-normalised rows, as the text has them; classes without rows are left out.

    Raises:
        EvalError: fewer than two classes have rows.
    """
    prototypes = by_class(F.normalize(x.double(), dim=1), labels, num_classes)
    prototypes = prototypes[~prototypes.isnan().any(dim=1)]
    if len(prototypes) < 2:
        raise EvalError("angles between classes were asked of images of one class: give two at least")
    first, second = zip(*combinations(range(len(prototypes)), 2), strict=True)
    return angles(prototypes[list(first)], prototypes[list(second)])


def cka(x: Tensor, y: Tensor) -> float:
    """Linear centred kernel alignment of `[N, d]` and `[N, e]`: `||Y^T X||^2 / (||X^T X|| ||Y^T Y||)`, Frobenius norms.

    Kornblith et al. 2019, eq. 4 with linear kernels, columns centred. In [0, 1]: 1 where one is the other rotated,
    scaled and shifted; nan where one of them is the same row throughout.
    """
    x, y = (part.double() - part.double().mean(dim=0) for part in (x, y))
    norms = (x.T @ x).norm() * (y.T @ y).norm()
    return float((y.T @ x).square().sum() / norms) if norms > 0 else math.nan


def drift(global_x: Tensor, local_xs: Iterable[Tensor], labels: Tensor, num_classes: int) -> dict[str, float]:
    """Global and local features of the same test images held against each other.

    Args:
        global_x: `[N, d]`, of the network the server makes of the locals. local_xs: `[N, d]`, one a client.
        labels: `[N]` int64.

    Returns:
        "local_global_angle": degrees (eq. 14), the mean over images of a class, then over classes and clients;
        "local_global_angle_worst": of the class that is furthest apart, mean over clients;
        "inter_class_angle_global" and "inter_class_angle_local": degrees (eq. 16), the mean over pairs of classes, and
        over clients; "cka": client and global, the mean over clients, left out where a network has collapsed.

    Raises:
        EvalError: there is no client.
    """
    apart, worst, between, alike = [], [], [], []
    for x in local_xs:
        means = by_class(angles(x, global_x), labels, num_classes)
        means = means[~means.isnan()]
        apart.append(float(means.mean()))
        worst.append(float(means.max()))
        between.append(float(inter_class_angles(x, labels, num_classes).mean()))
        alike.append(cka(x, global_x))
    if not apart:
        raise EvalError("drift was asked without a client's features: give one client at least")
    found = {
        "local_global_angle": sum(apart) / len(apart),
        "local_global_angle_worst": sum(worst) / len(worst),
        "inter_class_angle_local": sum(between) / len(between),
        "inter_class_angle_global": float(inter_class_angles(global_x, labels, num_classes).mean()),
    }
    return found if any(map(math.isnan, alike)) else found | {"cka": sum(alike) / len(alike)}
