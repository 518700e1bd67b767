"""Weighted k-nearest-neighbour classification of frozen features (Wu et al. 2018, section 3.4)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.features import EvalError, Features, Note, accuracy, ignore

LARGEST_SHARE = 0.1
"""Of the training rows: with more neighbours, those of other classes outnumber the near ones, and accuracy falls."""


def crowded(k: int, rows: int, data: str = "") -> str:
    """A line where k neighbours are more than a tenth of the training rows, else "". data: their set, if another.

    >>> crowded(200, 1000)
    'kNN votes with 200 neighbours of 1,000 training images, more than a tenth: images that are not alike vote too'
    >>> crowded(200, 2000)
    ''
    """
    if k <= LARGEST_SHARE * rows:
        return ""
    used, whose = min(k, rows), f" of {data}" if data else ""
    return (
        f"kNN votes with {used} neighbours of {rows:,} training images{whose}, more than a tenth: "
        "images that are not alike vote too"
    )


def neighbours(train_x: Tensor, train_y: Tensor, test_x: Tensor, k: int, chunk: int = 1000) -> tuple[Tensor, Tensor]:
    """Cosines and labels, `[M, k]` each, of the k training rows nearest to each test row, most similar first.

    Args:
        train_x: the bank, `[N, d]`; train_y: `[N]` int64; test_x: `[M, d]`. Rows are L2-normalised inside.
        k: 1 <= k <= N. chunk: test rows at a time; memory is chunk x N floats.

    Raises EvalError: k is outside 1..N.

    >>> bank, labels = torch.eye(3), torch.tensor([5, 6, 7])
    >>> neighbours(bank, labels, torch.tensor([[0.0, 2.0, 0.0]]), k=1)
    (tensor([[1.]]), tensor([[6]]))
    """
    if not 1 <= k <= len(train_x):
        raise EvalError(f"k={k} neighbours in a bank of {len(train_x)} rows: give k in 1..{len(train_x)}")
    bank = F.normalize(train_x, dim=1).T
    chunks = [(queries @ bank).topk(k, dim=1) for queries in F.normalize(test_x, dim=1).split(chunk)]
    cosine, nearest = (torch.cat(tensors) for tensors in zip(*chunks, strict=True))
    return cosine, train_y[nearest]


def vote(cosine: Tensor, labels: Tensor, num_classes: int, k: int, temperature: float) -> Tensor:
    """Majority vote `[M]` int64 of the k nearest, weighted by exp(cosine / temperature); of equals the lowest class.

    temperature: > 0; the larger, the more equal the weights.

    Raises EvalError: the temperature is not positive.

    >>> cosine, labels = torch.tensor([[0.9, 0.8, 0.8]]), torch.tensor([[0, 1, 1]])
    >>> [vote(cosine, labels, 2, k=3, temperature=t) for t in (1.0, 0.01)]  # two votes, or the nearest
    [tensor([1]), tensor([0])]
    """
    if temperature <= 0:
        raise EvalError(f"a vote temperature of {temperature} was given: give one above 0")
    cosine, labels = cosine[:, :k], labels[:, :k]
    # relative to the nearest, so that no temperature overflows; a class at a time, so that the order of sums is fixed
    weight = ((cosine - cosine[:, :1]) / temperature).exp()
    return torch.stack([(weight * (labels == c)).sum(dim=1) for c in range(num_classes)], dim=1).argmax(dim=1)


def knn_predict(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, num_classes: int, k: int, temperature: float, chunk: int = 1000
) -> Tensor:
    """Predicted classes `[M]` int64 of the test rows; see `neighbours` and `vote`.

    >>> bank, labels = torch.eye(3), torch.tensor([0, 1, 2])
    >>> knn_predict(bank, labels, torch.tensor([[0.0, 2.0, 0.1]]), num_classes=3, k=1, temperature=0.1)
    tensor([1])
    """
    return vote(*neighbours(train_x, train_y, test_x, k, chunk), num_classes, k, temperature)


def knn(
    features: Features, k: int = 200, temperature: float = 0.1, note: Note = ignore, data: str = ""
) -> dict[str, float]:
    """Accuracy in percent on the whole test set, with the whole training set as bank.

    With fewer than k training rows all of them are neighbours, and the scores then hold the "k" that was used.
    note: gets the line of `crowded`.
    """
    used = min(k, len(features.train_x))
    scores = {"accuracy": knn_by_k(features, [used], temperature, note, data)[f"accuracy_k{used}"]}
    return scores if used == k else scores | {"k": float(used)}


def knn_by_k(
    features: Features, ks: Sequence[int], temperature: float, note: Note = ignore, data: str = ""
) -> dict[str, float]:
    """As `knn` for several k with one search: "accuracy_k10" and so on; a k above the size of the bank is left out.

    One search for each `Features`: protocols whose largest k is the same share it.
    """
    ks = [k for k in ks if k <= len(features.train_x)]
    if not ks:
        return {}
    note(crowded(max(ks), len(features.train_x), data))
    key = ("neighbours", max(ks))
    if key not in features.computed:
        features.computed[key] = neighbours(features.train_x, features.train_y, features.test_x, max(ks))
    cosine, labels = features.computed[key]
    votes = {k: vote(cosine, labels, features.num_classes, k, temperature) for k in ks}
    return {f"accuracy_k{k}": accuracy(predicted, features.test_y) for k, predicted in votes.items()}
