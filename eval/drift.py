"""Client drift: distance between clients' models and the global model on the same images (FedX, section 5.2)."""

import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.features import EvalError
from eval.inputs import ModelComparison


def angles(x: Tensor, y: Tensor) -> Tensor:
    """Angles in degrees between rows, `[N]` float64, of two `[N, d]` (Han et al. 2022, eq. 14).

    >>> angles(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]]))
    tensor([45.0000], dtype=torch.float64)
    """
    cosine = (F.normalize(x.double(), dim=1) * F.normalize(y.double(), dim=1)).sum(dim=1)
    return cosine.clamp(-1, 1).arccos().rad2deg()


def by_class(values: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Mean of `[N]` or `[N, d]` over each class's rows, `[C]` or `[C, d]` float64; nan for a class without rows.

    >>> by_class(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 2]), num_classes=3)
    tensor([2., nan, 5.], dtype=torch.float64)
    """
    counts = torch.bincount(labels, minlength=num_classes).double()
    sums = torch.zeros(num_classes, *values.shape[1:], dtype=torch.float64, device=values.device)
    sums.index_add_(0, labels, values.double())
    return sums / counts.view(-1, *[1] * (values.ndim - 1))


def inter_class_angles(x: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Angles in degrees between every two class prototypes, `[C (C - 1) / 2]` (Han et al. 2022, eqs. 15-16).

    A prototype is the mean of the class's L2-normalised rows, as in the text; classes without rows are left out.

    Raises EvalError: fewer than two classes have rows.

    >>> inter_class_angles(torch.eye(2), torch.tensor([0, 1]), num_classes=2)
    tensor([90.], dtype=torch.float64)
    """
    prototypes = by_class(F.normalize(x.double(), dim=1), labels, num_classes)
    prototypes = prototypes[~prototypes.isnan().any(dim=1)]
    if len(prototypes) < 2:
        raise EvalError("angles between classes of images of one class: give two classes at least")
    first, second = torch.combinations(torch.arange(len(prototypes))).T
    return angles(prototypes[first], prototypes[second])


def cka(x: Tensor, y: Tensor) -> float:
    """Linear centred kernel alignment of `[N, d]` and `[N, e]`: `||Y^T X||^2 / (||X^T X|| ||Y^T Y||)`, Frobenius norms.

    Kornblith et al. 2019, eq. 4 with linear kernels, columns centred. In [0, 1]: 1 where one is the other rotated,
    scaled and shifted; nan where one of them is the same row throughout.

    >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]])
    >>> round(cka(x, 3 * x.flip(1) + 7), 4)
    1.0
    """
    x, y = (rows.double() - rows.double().mean(dim=0) for rows in (x, y))
    norms = (x.T @ x).norm() * (y.T @ y).norm()
    return float((y.T @ x).square().sum() / norms) if norms > 0 else math.nan


def drift(global_x: Tensor, local_xs: Iterable[Tensor], labels: Tensor, num_classes: int) -> dict[str, float]:
    """Distances between the global model's and the clients' features of the same test images.

    Args:
        global_x: `[N, d]`, by the model the server aggregates from the clients'. local_xs: `[N, d]`, one a client.
        labels: `[N]` int64.

    Returns:
        "local_global_angle": degrees (eq. 14), the mean over images of a class, then over classes and clients;
        "local_global_angle_worst": of the class with the largest angle, mean over clients;
        "inter_class_angle_global" and "inter_class_angle_local": degrees (eq. 16), the mean over pairs of classes, and
        over clients; "cka": client and global, the mean over clients, left out where a model has collapsed.

    Raises EvalError: there is no client.
    """
    clients = []
    for x in local_xs:
        means = by_class(angles(x, global_x), labels, num_classes)
        means = means[~means.isnan()]
        between = inter_class_angles(x, labels, num_classes)
        clients.append((float(means.mean()), float(means.max()), float(between.mean()), cka(x, global_x)))
    if not clients:
        raise EvalError("drift without a client's features: give one client at least")
    mean, worst, local, similarity = (sum(values) / len(clients) for values in zip(*clients, strict=True))
    scores = {
        "local_global_angle": mean,
        "local_global_angle_worst": worst,
        "inter_class_angle_local": local,
        "inter_class_angle_global": float(inter_class_angles(global_x, labels, num_classes).mean()),
    }
    return scores if math.isnan(similarity) else scores | {"cka": similarity}


def compute_drift(local_models: Callable[[int], ModelComparison], num_classes: int, images: int) -> dict[str, float]:
    """Distances of clients' models from the global one, on at most `images` test images."""
    models = local_models(images)
    return drift(models.global_model, models.local_models, models.labels, num_classes)
