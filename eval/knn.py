"""Weighted k-nearest-neighbour classification of frozen features (Wu et al. 2018, section 3.4)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.features import EvalError, Features, accuracy


def knn_predict(
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    num_classes: int,
    k: int,
    temperature: float,
    chunk: int = 1000,
) -> Tensor:
    """Classes voted by the k training rows of largest cosine, each with weight exp(cosine / temperature).

    Args:
        train_x: the bank, `[N, d]`; train_y: `[N]` int64; test_x: `[M, d]`. Rows are L2-normalised inside.
        k: neighbours, 1 <= k <= N. temperature: > 0; towards infinity the vote becomes the majority's.
        chunk: test rows at a time; memory is chunk x N floats.

    Returns:
        `[M]` int64; of equal votes the lowest class.

    Raises:
        EvalError: k is outside 1..N, or the temperature is not positive.
    """
    if not 1 <= k <= len(train_x):
        raise EvalError(f"k={k} neighbours were asked of a bank of {len(train_x)} rows: give k in 1..{len(train_x)}")
    if temperature <= 0:
        raise EvalError(f"a vote temperature of {temperature} was given: give one above 0")
    bank = F.normalize(train_x, dim=1).T
    predicted = []
    for queries in F.normalize(test_x, dim=1).split(chunk):
        cosine, nearest = (queries @ bank).topk(k, dim=1)
        # relative to the nearest, so that no temperature overflows; a class at a time, so that the sums have an order
        weight = ((cosine - cosine[:, :1]) / temperature).exp()
        label = train_y[nearest]
        votes = torch.stack([(weight * (label == c)).sum(dim=1) for c in range(num_classes)], dim=1)
        predicted.append(votes.argmax(dim=1))
    return torch.cat(predicted)


def knn(features: Features, k: int = 200, temperature: float = 0.1) -> dict[str, float]:
    """Accuracy in percent on the whole test set, the whole training set being the bank.

    A bank of fewer than k rows is used whole, and the scores then hold the "k" that was used.
    """
    used = min(k, len(features.train_x))
    bank = (features.train_x, features.train_y)
    predicted = knn_predict(*bank, features.test_x, features.num_classes, used, temperature)
    scores = {"accuracy": accuracy(predicted, features.test_y)}
    return scores if used == k else scores | {"k": float(used)}
