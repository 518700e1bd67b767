"""Partition rules against slow retellings, hand-made cases and the laws of their distributions."""

from collections.abc import Callable

import numpy as np
import pytest

from datamodules import partition
from datamodules.heterogeneity import counts
from datamodules.partition import PartitionError

LABELS = np.random.default_rng(7).permutation(np.repeat(np.arange(10), 300))
RULES: dict[str, dict[str, float]] = {
    "iid": {},
    "dirichlet": {"alpha": 0.3},
    "dirichlet_min": {"alpha": 0.5},
    "dirichlet_balanced": {"alpha": 0.3},
    "classes": {"classes_per_client": 2},
    "blocks": {},
}
DIRICHLET = [name for name in RULES if name.startswith("dirichlet")]


def split(name: str, labels: np.ndarray = LABELS, num_clients: int = 10, seed: int = 0, **params) -> list[np.ndarray]:
    rule: Callable = getattr(partition, name)
    return rule(labels, num_clients, seed=seed, **(RULES[name] | params))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("num_clients", [1, 5, 10, 20])
def test_every_index_has_at_most_one_client(name: str, num_clients: int) -> None:
    parts = split(name, num_clients=num_clients)
    assert len(parts) == num_clients
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    held = np.concatenate(parts)
    assert len(np.unique(held)) == len(held)
    if name == "dirichlet_balanced":
        assert (300 - counts(LABELS, parts).sum(axis=0) < num_clients).all()
    elif name == "classes" and num_clients == 1:
        assert len(held) == 600  # the two classes of the only client
    else:
        np.testing.assert_array_equal(np.sort(held), np.arange(3000))


@pytest.mark.parametrize("name", RULES)
def test_seed_decides(name: str) -> None:
    def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
        return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))

    first = split(name, num_clients=20)
    assert same(first, split(name, num_clients=20))
    assert not same(first, split(name, num_clients=20, seed=1))


def test_rules_leave_numpys_global_generator_alone() -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    for name in RULES:
        split(name)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_iid_sizes_differ_by_at_most_one() -> None:
    sizes = sorted(map(len, split("iid", num_clients=7)))
    assert sizes == [428, 428, 428, 429, 429, 429, 429]


def test_dirichlet_shares_have_the_dirichlets_mean_and_variance() -> None:
    """1,000 classes of 1,000: K shares have mean 1/K and variance (1/K)(1 - 1/K)/(K alpha + 1)."""
    labels, K = np.repeat(np.arange(1000), 1000), 4
    for alpha in (0.05, 1.0, 20.0):
        shares = counts(labels, partition.dirichlet(labels, K, alpha=alpha, seed=3)).T / 1000
        variance = 1 / K * (1 - 1 / K) / (K * alpha + 1)
        # five standard errors of a mean, and of a variance of values whose fourth moment is measured
        assert abs(shares[:, 0].mean() - 1 / K) < 5 * np.sqrt(variance / 1000)
        squares = (shares - 1 / K) ** 2
        assert abs(squares.mean() - variance) < 5 * squares.mean(axis=1).std() / np.sqrt(1000)


def test_dirichlet_cuts_classes_at_random_places() -> None:
    """A client's part of a class is not a run of the file."""
    labels = np.zeros(1000, dtype=int)
    part = partition.dirichlet(labels, 2, alpha=1e5, seed=0)[0]
    assert 400 < len(part) < 600
    assert (np.diff(part) > 1).sum() > 200


@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_min_has_its_least_size_and_closes_full_clients(seed: int) -> None:
    parts = split("dirichlet_min", seed=seed, alpha=0.1, min_size=100)
    assert min(map(len, parts)) >= 100
    # a client below N/K may still take one whole class
    assert max(map(len, parts)) < 3000 / 10 + 300
    held = counts(LABELS, parts)
    before = np.cumsum(held, axis=1) - held
    assert (held[before >= 300] == 0).all()
    assert (before >= 300).any()


def test_dirichlet_redraws_only_where_a_size_is_asked_for() -> None:
    first, patient = split("dirichlet", alpha=0.1), split("dirichlet", alpha=0.1, min_size=150)
    assert min(map(len, first)) < 150 <= min(map(len, patient))
    assert all(map(np.array_equal, split("dirichlet", alpha=0.1, min_size=min(map(len, first))), first))


def test_dirichlet_min_redraws() -> None:
    first, patient = split("dirichlet_min", alpha=0.1, min_size=0), split("dirichlet_min", alpha=0.1, min_size=150)
    assert min(map(len, first)) < 150 <= min(map(len, patient))


def test_dirichlet_min_says_when_no_draw_will_do() -> None:
    with pytest.raises(
        PartitionError, match=r"no draw of 1000 gave every one of 20 clients min_size=100 .* larger alpha"
    ):
        split("dirichlet_min", num_clients=20, alpha=0.001, min_size=100)


@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_balanced_is_the_released_samplers_matrix(alpha: float) -> None:
    """Orchestra's sampler scales rows and columns by the sums of one and the same matrix, 100 times over.

    Retold with plain probabilities, dealt by two loops in file order.
    """
    K, C, n = 6, 10, 300
    rng = np.random.default_rng(11)
    gammas = rng.standard_gamma(alpha + 1, (C, K)) * np.exp(-rng.standard_exponential((C, K)) / alpha)
    matrix = gammas / gammas.sum(axis=1, keepdims=True) / C
    for _ in range(100):
        by_class, by_client = matrix.sum(axis=1, keepdims=True), matrix.sum(axis=0, keepdims=True)
        matrix = matrix / by_class / by_client
    expected: list[list[int]] = [[] for _ in range(K)]
    for c in range(C):
        waiting = [i for i, label in enumerate(LABELS) if label == c]
        for k in range(K):
            take = int(matrix[c, k] * C * n)
            expected[k] += waiting[:take]
            waiting = waiting[take:]
    parts = partition.dirichlet_balanced(LABELS, K, alpha=alpha, seed=11)
    for part, indices in zip(parts, expected, strict=True):
        np.testing.assert_array_equal(part, sorted(indices))


def test_balanced_clients_are_equally_large_also_when_classes_are_not() -> None:
    labels = np.repeat(np.arange(5), [100, 200, 400, 800, 1500])
    sizes = np.array([len(part) for part in partition.dirichlet_balanced(labels, 10, alpha=1.0, seed=0)])
    # each of 5 counts loses less than one example to the floor
    assert (sizes > 300 - 5).all()
    assert (sizes <= 300).all()


def test_balanced_keeps_whole_shares_whole() -> None:
    """Equal shares of 100 examples are 10 each, though their logarithms carry rounding errors."""
    held = partition.balanced_counts(np.log(np.full((7, 10), 0.1)), np.full(7, 100))
    np.testing.assert_array_equal(held, np.full((7, 10), 10))


@pytest.mark.parametrize("name", DIRICHLET)
@pytest.mark.parametrize("alpha", [1e-3, 1e5])
def test_extreme_concentrations(name: str, alpha: float) -> None:
    params: dict[str, float] = {"min_size": 1} if name == "dirichlet_min" else {}
    for seed in range(5):
        parts = split(name, seed=seed, num_clients=5, alpha=alpha, **params)
        held = counts(LABELS, parts)
        if alpha == 1e5:
            np.testing.assert_allclose(held, 60, atol=2)
        else:
            # nearly every class is whole, or shared by the few clients that the rule's balance asks for
            assert (held > 0).sum() <= 10 + 5
    assert held.sum() >= 3000 - 10 * 5


@pytest.mark.parametrize(("num_clients", "per_client"), [(5, 2), (10, 2), (10, 7), (20, 3), (7, 2), (30, 10), (3, 1)])
def test_classes_per_client(num_clients: int, per_client: int) -> None:
    held = counts(LABELS, split("classes", num_clients=num_clients, classes_per_client=per_client))
    cuts = -(-num_clients * per_client // 10)
    assert ((held > 0).sum(axis=1) == per_client).all()
    assert ((held > 0).sum(axis=0) <= cuts).all()
    # array_split: parts of 300 // cuts or one more
    assert set(held[held > 0].tolist()) <= {300 // cuts, 300 // cuts + 1}


def test_classes_are_drawn() -> None:
    sets = {tuple(np.flatnonzero(counts(LABELS, split("classes", seed=seed))[0])) for seed in range(20)}
    assert len(sets) > 10


def test_blocks_by_hand() -> None:
    labels = np.array([3, 0, 1, 2, 0, 3, 2, 1])
    parts = partition.blocks(labels, 2, seed=0)
    assert [part.tolist() for part in parts] == [[1, 2, 4, 7], [0, 3, 5, 6]]
    shared = partition.blocks(labels, 8, seed=0)
    assert [labels[part].tolist() for part in shared] == [[0], [0], [1], [1], [2], [2], [3], [3]]


def test_classes_are_the_distinct_labels() -> None:
    labels = np.array([10, 30, 10, 30])
    assert [part.tolist() for part in partition.blocks(labels, 2, seed=0)] == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("iid", {"num_clients": 0}, r"0 clients for 3000 examples: give 1 to 3000 clients"),
        ("iid", {"num_clients": 3001}, r"3001 clients for 3000 examples"),
        ("blocks", {"num_clients": 4}, r"4 clients cannot share 10 classes .* use 1, 2, 5, 10 or a multiple of 10"),
        (
            "blocks",
            {"num_clients": 8, "labels": np.array([0] * 9 + [1] * 3)},
            r"4 clients share each .* smallest has 3",
        ),
        ("classes", {"classes_per_client": 11}, r"classes_per_client=11 and there are 10 classes: give 1 to 10"),
        ("classes", {"classes_per_client": 0}, r"classes_per_client=0"),
        ("classes", {"num_clients": 3000}, r"cut every class in 600 parts, and the smallest class has 300"),
        ("dirichlet_min", {"min_size": 301}, r"needs 3010 examples and there are 3000: min_size can be at most 300"),
        *[(name, {"alpha": alpha}, rf"alpha={alpha}: ") for name in DIRICHLET for alpha in (0.0, -1.0, np.inf, np.nan)],
        ("iid", {"labels": np.zeros((4, 2), dtype=int)}, r"labels are int64 of shape \(4, 2\)"),
        ("iid", {"labels": np.zeros(40)}, r"labels are float64 of shape \(40,\)"),
    ],
)
def test_mistakes_are_one_clear_line(name: str, given: dict, message: str) -> None:
    with pytest.raises(PartitionError, match=message) as caught:
        split(name, **given)
    assert "\n" not in str(caught.value)


def test_parts_are_the_lists_they_were_made_of() -> None:
    lists = [np.array([4, 7]), np.array([0]), np.array([], dtype=np.int64), np.array([1, 2, 9])]
    parts = partition.Parts(lists)
    assert [part.tolist() for part in parts] == [[4, 7], [0], [], [1, 2, 9]]
    assert len(parts) == 4
    assert parts[-1].tolist() == [1, 2, 9]
    assert parts.sizes.tolist() == [2, 1, 0, 3]
    assert parts.holders.tolist() == [0, 0, 1, 3, 3, 3]
    with pytest.raises(IndexError):
        parts[4]
