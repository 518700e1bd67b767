"""Geometry of representations, without labels: effective rank, alignment, uniformity, Orchestra's tuning score."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.features import EvalError, Features, Save, sample
from methods.maths import alignment


def effective_rank(features: Tensor) -> float:
    """`exp(-sum_i p_i log p_i)`, `p_i = s_i / sum s` (Roy & Vetterli 2007, section 2), with 0 log 0 = 0.

    The s_i are the singular values, not their squares, in float64. Between 1 and the rank; 0 for a matrix of zeros.

    Args:
        features: `[N, d]`.

    >>> round(effective_rank(torch.eye(3)), 4)
    3.0
    >>> round(effective_rank(torch.ones(3, 3)), 4)  # collapsed
    1.0
    """
    values = torch.linalg.svdvals(features.double())
    total = values.sum()
    if total == 0:
        return 0.0
    p = values / total
    return float(torch.special.entr(p).sum().exp())


def singular_values(features: Tensor) -> Tensor:
    """Singular values of the centred rows `[N, d]`, in decreasing order: `[min(N, d)]` float64.

    >>> singular_values(torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
    tensor([1.4142, 0.0000], dtype=torch.float64)
    """
    return torch.linalg.svdvals(features.double() - features.double().mean(dim=0))


def spectrum(values: Tensor) -> dict[str, float]:
    """Summary of a spectrum of singular values s_1 >= s_2 >= ...

    Returns:
        "dimensions_90", "dimensions_99": the fewest dimensions with 90 and 99 % of the variance `sum s^2`;
        "participation_ratio": `(sum s^2)^2 / sum s^4`;
        "decay_k" for k = 2, 4, 8, ... up to d: `log10(s_k / s_1)`, at least -12. All are 0 for equal rows.

    >>> spectrum(torch.ones(4))
    {'dimensions_90': 4.0, 'dimensions_99': 4.0, 'participation_ratio': 4.0, 'decay_2': 0.0, 'decay_4': 0.0}
    """
    values = values.cpu()  # each number is read
    variance = values.square()
    total = float(variance.sum())
    powers = [2**exponent for exponent in range(1, len(values).bit_length())]
    if not total:
        names = ("dimensions_90", "dimensions_99", "participation_ratio", *(f"decay_{k}" for k in powers))
        return dict.fromkeys(names, 0.0)
    cumulative = variance.cumsum(0) / total
    decay = (values / values[0].clamp(min=1e-300)).clamp(min=1e-12).log10()
    return {
        **{f"dimensions_{percent}": float((cumulative < percent / 100).sum() + 1) for percent in (90, 99)},
        "participation_ratio": total**2 / float(variance.square().sum()),
        **{f"decay_{k}": float(decay[k - 1]) for k in powers},
    }


def compute_spectrum(test_x: Tensor, save_arrays: Save) -> dict[str, float]:
    """Summary of the singular values of the centred test features, which are saved for a figure."""
    values = singular_values(test_x)
    save_arrays("spectrum", {"values": values})
    return spectrum(values)


def uniformity_parts(x: Tensor, clients: Tensor, t: float = 2, chunk: int = 1000) -> dict[str, float]:
    """Uniformity (Wang & Isola 2020, eq. 6) of L2-normalised rows: total, within clients and between clients.

    Each is the log of the mean of `exp(-t ||u_i - u_j||^2)` over distinct pairs i < j: all pairs, pairs of one client,
    pairs of two clients. With n_k rows at client k and N in total, `w = sum_k n_k (n_k - 1) / (N (N - 1))` is the
    fraction of pairs within clients, and

        exp(total) = w exp(within) + (1 - w) exp(between).

    Args:
        x: `[N, d]`, N >= 2; clients: `[N]` int64.
        chunk: rows at a time; memory is chunk x N floats. Sums are float64.

    Returns:
        "total", "within", "between" in nats, in [-4t, 0]: 0 when collapsed, lower is more uniform (papers often print
        the negative). Without a pair the value is nan.

    Raises EvalError: fewer than two rows.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> parts = uniformity_parts(x, torch.tensor([0, 0, 1, 1]))
    >>> {name: round(value, 3) for name, value in parts.items()}  # squared distances: 0 within clients, 2 between
    {'total': -1.063, 'within': 0.0, 'between': -4.0}
    """
    n = len(x)
    if n < 2:
        raise EvalError(f"uniformity of {n} rows: give at least two")
    u = F.normalize(x, dim=1)
    sums = torch.zeros(2, dtype=torch.float64, device=x.device)
    for start in range(0, n, chunk):
        rows = slice(start, start + chunk)
        # ||u_i - u_j||^2 = 2 - 2 u_i.u_j; the first column is the first row, so the upper triangle is i < j
        potential = (u[rows] @ u[start:].T).sub_(1).clamp_(max=0).mul_(2 * t).exp_().triu_(diagonal=1)
        same = clients[rows, None] == clients[None, start:]
        sums[0] += (potential * same).sum(dtype=torch.float64)
        sums[1] += (potential * ~same).sum(dtype=torch.float64)
    within, between = sums.tolist()
    sizes = torch.unique(clients, return_counts=True)[1]
    pairs = n * (n - 1) // 2
    pairs_within = int((sizes * (sizes - 1)).sum()) // 2
    return {
        "total": _log_mean(within + between, pairs),
        "within": _log_mean(within, pairs_within),
        "between": _log_mean(between, pairs - pairs_within),
    }


def label_free_score(
    view_a: Tensor,
    view_b: Tensor,
    view_clients: Tensor,
    temperature: float = 0.2,
    include_self: bool = False,
    weight: float = 0.2,
    chunk: int = 1000,
) -> dict[str, float]:
    """Orchestra's score for tuning hyperparameters without labels (Lubana et al. 2022, eq. 5): higher is better.

    At each client, over its images x with augmentation x~, `Align = mean_x cos(x, x~)` and
    `Unif = -mean_x log mean_y exp(cos(x, y) / temperature)`; both are then averaged over clients, each counting once.
    Note the signs: both terms are higher for better features, unlike `alignment` and `uniformity_parts`.

    Args:
        view_a, view_b: `[M, d]`, x and x~ row by row; view_clients: `[M]` int64, rows with -1 are left out.
        temperature: > 0; Unif is in [-1/temperature, 1/temperature].
        include_self: whether y may be x, which the paper leaves open.
        weight: of Unif in the score. chunk: rows at a time.

    Returns:
        "alignment" and "uniformity", the two means, and "score", `alignment + weight * uniformity`.

    Raises EvalError: no client has two images (one, if `include_self`).

    >>> view = torch.eye(2)
    >>> label_free_score(view, view, torch.tensor([0, 0]), temperature=0.5)  # another image has cosine 0
    {'alignment': 1.0, 'uniformity': 0.0, 'score': 1.0}
    """
    alignments, uniformities = [], []
    for client in view_clients[view_clients >= 0].unique():
        rows = view_clients == client
        a, b = F.normalize(view_a[rows], dim=1), F.normalize(view_b[rows], dim=1)
        others = len(a) if include_self else len(a) - 1
        if not others:
            continue
        logs = []
        for start in range(0, len(a), chunk):
            similarity = a[start : start + chunk] @ a.T / temperature
            if not include_self:
                similarity.diagonal(start).fill_(-math.inf)
            logs.append(similarity.logsumexp(dim=1).double())
        alignments.append((a * b).sum(dim=1).double().mean())
        uniformities.append(math.log(others) - torch.cat(logs).mean())
    if not alignments:
        raise EvalError(f"the label-free score of {len(view_clients)} images: give two of one known client")
    align, unif = (float(torch.stack(values).mean()) for values in (alignments, uniformities))
    return {"alignment": align, "uniformity": unif, "score": align + weight * unif}


def geometry(features: Features, generator: torch.Generator, max_points: int = 10_000) -> dict[str, float]:
    """Effective rank of the test features, alignment of the views and uniformity of the training features.

    Args:
        generator: draws the training rows for uniformity where there are more than `max_points`.

    Returns:
        "effective_rank" of the raw rows, "effective_rank_normalised" of the L2-normalised ones and
        "effective_rank_centred" of the raw ones less their mean;
        "alignment": the mean squared distance of the two normalised views, in [0, 4], lower is better (papers often
        print the negative); left out without views;
        "uniformity", "uniformity_within", "uniformity_between": see `uniformity_parts`, over the rows whose client is
        known. Where no client is known, "uniformity" is over all rows. A value without a pair is left out.
    """
    test = features.test_x
    scores = {
        "effective_rank": effective_rank(test),
        "effective_rank_normalised": effective_rank(F.normalize(test, dim=1)),
        "effective_rank_centred": effective_rank(test.double() - test.double().mean(dim=0)),
    }
    if features.view_a is not None and features.view_b is not None:
        scores["alignment"] = float(alignment(features.view_a, features.view_b))
    known = features.train_clients >= 0  # a partition may leave rows out; they belong to no pair of clients
    any_known = bool(known.any())
    rows = known if any_known else ~known
    x, clients = features.train_x[rows], features.train_clients[rows]
    if len(x) > max_points:
        chosen = sample(len(x), max_points, generator, x.device)
        x, clients = x[chosen], clients[chosen]
    uniformities = uniformity_parts(x, clients)
    scores["uniformity"] = uniformities["total"]
    for name in ("within", "between"):
        if any_known and not math.isnan(uniformities[name]):
            scores[f"uniformity_{name}"] = uniformities[name]
    return scores


def _log_mean(total: float, count: int) -> float:
    return math.log(total / count) if count else math.nan
