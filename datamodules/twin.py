"""Twins of natural federations: as many clients, each as large, whose images are dealt anew, at random or by class."""

from collections.abc import Sequence

import numpy as np

from datamodules.errors import PartitionError
from datamodules.partition import balanced_counts, by_class, log_dirichlet
from datamodules.parts import Partition


def redealt(labels: np.ndarray, parts: Sequence[np.ndarray], alpha: float, *, seed: int) -> Partition:
    """The images of all clients, dealt to clients of the same sizes.

    By class it is the rule of `partition.dirichlet_balanced`, with the clients' own sizes in place of equal ones: a
    draw of Dir(alpha) over clients for each class, normalised in turn to sizes of clients and of classes. What rounding
    down leaves is dealt at random to the clients that lack images, so that every image has its client.

    Args:
        labels: `[N]` integers of the whole data set. parts: indices into it, no image twice.
        alpha: concentration of the draws; infinite: the images are dealt at random, whatever their labels.

    Raises PartitionError: alpha is not positive.

    >>> labels = np.repeat(np.arange(4), 5)
    >>> [len(part) for part in redealt(labels, np.split(np.arange(20), [2, 9]), 0.1, seed=0)]
    [2, 7, 11]
    """
    if not alpha > 0:
        raise PartitionError(f"alpha={alpha}: the Dirichlet concentration is a positive number")
    rng, images = np.random.default_rng(seed), np.sort(np.concatenate(parts))
    lacking = np.fromiter(map(len, parts), np.int64, len(parts))
    dealt = [np.empty(0, np.int64) for _ in parts]
    if alpha < np.inf:
        members = [images[rng.permutation(rows)] for rows in by_class(labels[images])]
        counts = balanced_counts(
            log_dirichlet(rng, alpha, len(members), len(parts)), np.array(list(map(len, members))), lacking
        )
        ends = np.cumsum(counts, axis=1)
        pieces = [np.split(rows, row) for rows, row in zip(members, ends, strict=True)]
        dealt = [np.concatenate(of_client) for of_client in zip(*(row[:-1] for row in pieces), strict=True)]
        images = np.concatenate([row[-1] for row in pieces])
        lacking = lacking - counts.sum(axis=0)
    rest = np.split(rng.permutation(images), np.cumsum(lacking)[:-1])
    return [np.sort(np.concatenate(both)) for both in zip(dealt, rest, strict=True)]
