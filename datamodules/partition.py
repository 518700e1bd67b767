"""Partitions of a data set over clients: rules of the literature, as pure functions of labels and a seed.

The rules are not interchangeable: at the same Dirichlet concentration they give clients of different sizes with
different numbers of classes. Each takes `labels: [N] int` and returns one sorted int64 index array per client; no
index appears twice, and every example has a client unless the rule's docstring says which are left out. Classes are
the distinct values of `labels`, in increasing order. The same arguments give the same arrays.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from datamodules.errors import PartitionError
from datamodules.parts import Partition, Parts, sizes_of

NORMALISATIONS = 100
"""Alternating normalisations of `dirichlet_balanced`: clients and classes in turn (Orchestra's released sampler)."""
REDRAWS = 1000
"""Draws after which a rule with a `min_size` gives up."""


def refuse_small(partition: Sequence[np.ndarray], names: Sequence[str], remedy: str) -> None:
    """PartitionError where a client has fewer than the two images that training needs. names: none, or one a client."""
    if not len(small := np.flatnonzero(sizes_of(partition) < 2)):
        return
    sizes = [(k, f" ({names[k]})" if names else "", len(partition[k])) for k in small[:3]]
    held = ", ".join(f"client {k}{name} holds {size} image{'' if size == 1 else 's'}" for k, name, size in sizes)
    if len(small) > 1:
        held += f" ({len(small):,} of {len(partition):,} clients hold fewer than two)"
    raise PartitionError(f"{held}, but training needs two: {remedy}")


def thinned(partition: Sequence[np.ndarray], fraction: float, *, seed: int) -> Partition:
    """Random fraction of each client's images, at least two, in their order.

    >>> [len(indices) for indices in thinned([np.arange(10), np.arange(10, 30)], 0.5, seed=0)]
    [5, 10]
    """
    rng = np.random.default_rng([seed, 1])
    positions = (rng.permutation(len(indices))[: max(2, round(fraction * len(indices)))] for indices in partition)
    return [indices[np.sort(chosen)] for indices, chosen in zip(partition, positions, strict=True)]


def of_every_class(labels: np.ndarray, fraction: float, *, seed: int) -> np.ndarray:
    """Sorted indices of a random fraction of every class, at least one image each: a public set (FLESD, Table 2).

    >>> len(of_every_class(np.repeat([0, 1], 10), 0.2, seed=0))  # two of each class
    4
    """
    rng = np.random.default_rng([seed, 2])
    return _join([rng.permutation(rows)[: max(1, round(fraction * len(rows)))] for rows in by_class(labels)])


def iid(labels: np.ndarray, num_clients: int, *, seed: int) -> Partition:
    """Cut a random permutation into equal parts (sizes differ by at most one), whatever the labels.

    >>> [len(indices) for indices in iid(np.zeros(10, dtype=int), 3, seed=0)]
    [4, 3, 3]
    """
    _check(labels, num_clients)
    order = np.random.default_rng(seed).permutation(len(labels))
    return Parts.cut(order, len(labels) // num_clients + (np.arange(num_clients) < len(labels) % num_clients))


def dirichlet(labels: np.ndarray, num_clients: int, *, alpha: float, min_size: int = 0, seed: int) -> Partition:
    """Cut each class at random by its own draw of Dir(alpha) over clients (FedU2, SSD, FLESD).

    Sizes differ, and without a `min_size` a client may get no example at small `alpha`. With one, all is drawn
    again until the smallest client has `min_size` examples; PartitionError after `REDRAWS` draws.

    >>> labels = np.repeat(np.arange(10), 10)
    >>> sum(len(indices) for indices in dirichlet(labels, 5, alpha=0.1, seed=0))
    100
    """

    def draw(rng: np.random.Generator, members: Partition) -> np.ndarray:
        probabilities = np.exp(log_dirichlet(rng, alpha, len(members), num_clients))
        return np.stack([_cut(row, len(rows)) for row, rows in zip(probabilities, members, strict=True)])

    return _redraw(draw, labels, num_clients, alpha, min_size, seed)


def dirichlet_min(labels: np.ndarray, num_clients: int, *, alpha: float, min_size: int = 10, seed: int) -> Partition:
    """As `dirichlet`, but a client with N/K examples or more gets no further class (MOON, FedX, EasyFL).

    Classes come one after another; the probabilities of full clients become 0 and the others' are scaled to sum to 1.
    All is drawn again until the smallest client has `min_size` examples; PartitionError after `REDRAWS` draws.

    >>> labels = np.repeat(np.arange(10), 10)
    >>> min(len(indices) for indices in dirichlet_min(labels, 5, alpha=0.5, seed=0)) >= 10
    True
    """

    def draw(rng: np.random.Generator, members: Partition) -> np.ndarray:
        counts = np.zeros((len(members), num_clients), dtype=np.int64)
        for row, log_p in enumerate(log_dirichlet(rng, alpha, len(members), num_clients)):
            full = counts.sum(axis=0) >= len(labels) / num_clients
            # in logarithms, so that open clients whose probabilities would all round to 0 still divide the class
            log_p = np.where(full, -np.inf, log_p)
            counts[row] = _cut(np.exp(log_p - np.logaddexp.reduce(log_p)), len(members[row]))
        return counts

    return _redraw(draw, labels, num_clients, alpha, min_size, seed)


Draw = Callable[[np.random.Generator, Partition], np.ndarray]
"""A generator and the members of each class -> counts `[C, K]`."""


def _redraw(draw: Draw, labels: np.ndarray, num_clients: int, alpha: float, min_size: int, seed: int) -> Partition:
    """Partition by the first draw that gives every client `min_size` examples."""
    _check(labels, num_clients, alpha)
    members = by_class(labels)
    _refuse_min_size(min_size, num_clients, len(labels))
    rng = np.random.default_rng(seed)
    members = [rng.permutation(indices) for indices in members]
    largest = 0
    for _ in range(REDRAWS):
        counts = draw(rng, members)
        smallest = counts.sum(axis=0).min()
        if smallest >= min_size:
            return _assign(members, counts)
        largest = max(largest, smallest)
    raise PartitionError(
        f"no draw of {REDRAWS} gave every one of {num_clients} clients min_size={min_size} examples at alpha={alpha} "
        f"(best smallest client: {largest}); use a larger alpha, fewer clients or a smaller min_size"
    )


def dirichlet_balanced(labels: np.ndarray, num_clients: int, *, alpha: float, seed: int) -> Partition:
    """Draw Dir(alpha) over clients per class, then make clients equally large (Orchestra; after Hsu et al., 2019).

    The class-by-client matrix is normalised 100 times in turn, clients to 1/K of the data and classes to their own
    size, classes last. Counts are rounded down and a class's examples are assigned in file order, so the last few of
    each class, fewer than K, are left out. At very small `alpha` 100 normalisations do not converge and sizes differ.

    >>> labels = np.repeat(np.arange(10), 10)
    >>> [len(indices) for indices in dirichlet_balanced(labels, 5, alpha=0.1, seed=0)]
    [18, 18, 18, 18, 17]
    """
    _check(labels, num_clients, alpha)
    members = by_class(labels)
    log_p = log_dirichlet(np.random.default_rng(seed), alpha, len(members), num_clients)
    return _assign(members, balanced_counts(log_p, np.array(list(map(len, members)))))


def balanced_counts(log_p: np.ndarray, class_sizes: np.ndarray, client_sizes: np.ndarray | None = None) -> np.ndarray:
    """Counts `[C, K]` of `dirichlet_balanced` from drawn log-probabilities `log_p: [C, K]` and `class_sizes: [C]`.

    client_sizes: `[K]`, of the same sum, which no client's counts then exceed; None: equal ones.
    """
    log_sizes = np.log(class_sizes)[:, None]
    client_size = np.log(class_sizes.sum() / log_p.shape[1] if client_sizes is None else client_sizes)
    log_counts = log_p + log_sizes
    for _ in range(NORMALISATIONS // 2):
        # in logarithms: at alpha 0.001 most entries are below the smallest float, and 0/0 would spread over the matrix
        log_counts = log_counts + client_size - np.logaddexp.reduce(log_counts, axis=0, keepdims=True)
        log_counts = log_counts + log_sizes - np.logaddexp.reduce(log_counts, axis=1, keepdims=True)
    if client_sizes is not None:  # where 100 normalisations do not converge, a client's counts may sum to more
        log_counts = log_counts + np.minimum(0, client_size - np.logaddexp.reduce(log_counts, axis=0, keepdims=True))
    # the margin keeps a count of exactly n examples from being rounded down to n - 1
    return np.floor(np.exp(log_counts) * (1 + 1e-12)).astype(np.int64)


def classes(labels: np.ndarray, num_clients: int, *, classes_per_client: int = 2, seed: int) -> Partition:
    """Give every client equal parts of `classes_per_client` = c classes (FedU, FedEMA).

    Each of the C classes is cut at random into ceil(cK/C) equal parts; clients in turn get one part of each of the c
    classes with most parts left, ties drawn. Where C does not divide cK, the remaining parts are left out.

    >>> labels = np.repeat(np.arange(4), 10)
    >>> [len(np.unique(labels[indices])) for indices in classes(labels, 4, classes_per_client=2, seed=0)]
    [2, 2, 2, 2]
    """
    _check(labels, num_clients)
    members = by_class(labels)
    C = len(members)
    if not 1 <= classes_per_client <= C:
        raise PartitionError(f"classes_per_client={classes_per_client} and there are {C} classes: give 1 to {C}")
    cuts = math.ceil(classes_per_client * num_clients / C)
    if min(map(len, members)) < cuts:
        raise PartitionError(
            f"{num_clients} clients with {classes_per_client} of {C} classes each cut every class in {cuts} parts, and "
            f"the smallest class has {min(map(len, members))} examples; use fewer clients or classes per client"
        )
    rng = np.random.default_rng(seed)
    unassigned = [np.array_split(rng.permutation(indices), cuts) for indices in members]
    partition = []
    for _ in range(num_clients):
        left = np.array([len(pieces) for pieces in unassigned])
        fullest = np.lexsort((rng.random(C), -left))[:classes_per_client]
        partition.append(_join([unassigned[c].pop() for c in fullest]))
    return partition


def blocks(labels: np.ndarray, num_clients: int, *, seed: int) -> Partition:
    """Give client k the k-th block of C/K successive classes; with K > C, K/C clients share each class (FedSC).

    A shared class is cut at random into equal parts. One of K and C has to divide the other.

    >>> labels = np.repeat(np.arange(4), 10)
    >>> [np.unique(labels[indices]).tolist() for indices in blocks(labels, 2, seed=0)]
    [[0, 1], [2, 3]]
    """
    _check(labels, num_clients)
    members = by_class(labels)
    C = len(members)
    if C % num_clients == 0:
        return [_join(members[k : k + C // num_clients]) for k in range(0, C, C // num_clients)]
    if num_clients % C:
        divisors = ", ".join(str(k) for k in range(1, C + 1) if C % k == 0)
        raise PartitionError(
            f"{num_clients} clients cannot share {C} classes in equal blocks: use {divisors} or a multiple of {C}"
        )
    sharing, smallest = num_clients // C, min(map(len, members))
    if smallest < sharing:
        raise PartitionError(
            f"{sharing} clients share each class and the smallest has {smallest} examples; use fewer clients"
        )
    rng = np.random.default_rng(seed)
    return [_join([piece]) for rows in members for piece in np.array_split(rng.permutation(rows), sharing)]


def linear(labels: np.ndarray, num_clients: int, *, min_size: int = 2, seed: int) -> Partition:
    """Sizes in proportion to 1, 2, ..., K, images at random, whatever the labels (Flower Datasets).

    Sizes are rounded down, and the largest client gets the rest. One of fewer than `min_size` has so many, and the
    others share what is left, in this rule and the next three.

    >>> [len(indices) for indices in linear(np.zeros(20, dtype=int), 4, seed=0)]
    [2, 4, 6, 8]
    """
    return _by_size(labels, num_clients, lambda _: np.arange(1, num_clients + 1), min_size, seed)


def square(labels: np.ndarray, num_clients: int, *, min_size: int = 2, seed: int) -> Partition:
    """As `linear`, in proportion to the squares of 1, 2, ..., K."""
    return _by_size(labels, num_clients, lambda _: np.arange(1.0, num_clients + 1) ** 2, min_size, seed)


def exponential(labels: np.ndarray, num_clients: int, *, min_size: int = 2, seed: int) -> Partition:
    """As `linear`, in proportion to exp(1), exp(2), ..., exp(K)."""
    return _by_size(labels, num_clients, lambda _: np.exp(np.arange(1.0 - num_clients, 1.0)), min_size, seed)


def lognormal(labels: np.ndarray, num_clients: int, *, sigma: float = 1, min_size: int = 2, seed: int) -> Partition:
    """As `linear`, in proportion to drawn numbers whose logarithms are normal, of standard deviation `sigma`."""
    if not 0 <= sigma <= 100:
        raise PartitionError(f"sigma={sigma}: give the deviation of the sizes' logarithms, 0 to 100")

    def draw(rng: np.random.Generator) -> np.ndarray:
        logs = sigma * rng.standard_normal(num_clients)
        return np.exp(logs - logs.max())

    return _by_size(labels, num_clients, draw, min_size, seed)


def _by_size(
    labels: np.ndarray, K: int, draw: Callable[[np.random.Generator], np.ndarray], min_size: int, seed: int
) -> Partition:
    """Cut a random permutation into K parts in proportion to the weights `[K]` that `draw` returns, see `linear`."""
    _check(labels, K)
    _refuse_min_size(min_size, K, len(labels))
    rng = np.random.default_rng(seed)
    weights, small = draw(rng), np.zeros(K, dtype=bool)
    while True:
        rest = len(labels) - min_size * small.sum()
        sizes = np.where(small, min_size, np.floor(weights * rest / weights[~small].sum()).astype(np.int64))
        if (sizes >= min_size).all():
            break
        small |= sizes < min_size
    sizes[weights.argmax()] += len(labels) - sizes.sum()
    return Parts.cut(rng.permutation(len(labels)), sizes)


def _refuse_min_size(min_size: int, num_clients: int, examples: int) -> None:
    """PartitionError where the examples are too few for so many clients of so many."""
    if not min_size >= 0:
        raise PartitionError(f"min_size={min_size}: give a number of examples, at least 0")
    if num_clients * min_size > examples:
        raise PartitionError(
            f"min_size={min_size} for {num_clients} clients needs {num_clients * min_size} examples and there are "
            f"{examples}: min_size can be at most {examples // num_clients}"
        )


def _check(labels: np.ndarray, num_clients: int, alpha: float = 1.0) -> None:
    """Check the arguments of a rule."""
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise PartitionError(f"labels are {labels.dtype} of shape {labels.shape}; a partition needs integers [N]")
    if not 1 <= num_clients <= len(labels):
        raise PartitionError(f"{num_clients} clients for {len(labels)} examples: give 1 to {len(labels)} clients")
    if not 0 < alpha < math.inf:
        raise PartitionError(f"alpha={alpha}: the Dirichlet concentration is a positive, finite number")


def by_class(labels: np.ndarray) -> list[np.ndarray]:
    """The indices of each class, in file order."""
    sizes = np.unique(labels, return_counts=True)[1]
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])


def log_dirichlet(rng: np.random.Generator, alpha: float, rows: int, num_clients: int) -> np.ndarray:
    """Logarithms `[rows, K]` of draws of Dir(alpha), finite where the draws themselves round to 0.

    A Dirichlet draw is normalised gammas, and Gamma(alpha) is Gamma(alpha + 1) U^(1/alpha) with U uniform.
    """
    shape = (rows, num_clients)
    log_gamma = np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / alpha
    return log_gamma - np.logaddexp.reduce(log_gamma, axis=1, keepdims=True)


def _cut(probabilities: np.ndarray, size: int) -> np.ndarray:
    """Counts that sum to `size` from probabilities that sum to 1; the cumulative sums are rounded."""
    return np.diff(np.rint(np.cumsum(probabilities) * size).astype(np.int64), prepend=0)


def _assign(members: list[np.ndarray], counts: np.ndarray) -> Partition:
    """Split each class's `members` in order, `counts[c, k]` of class c for client k."""
    pieces = [np.split(rows, np.cumsum(row))[:-1] for rows, row in zip(members, counts, strict=True)]
    return [_join(client_pieces) for client_pieces in zip(*pieces, strict=True)]


def _join(pieces: Sequence[np.ndarray]) -> np.ndarray:
    return np.sort(np.concatenate(pieces)).astype(np.int64)
