"""Partition rules against slow reference implementations, hand-made cases and the laws of their distributions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules import partition
from datamodules.errors import PartitionError
from datamodules.heterogeneity import counts
from datamodules.parts import sizes_of
from tests.datamodules.own_data import refused

LABELS = np.random.default_rng(7).permutation(np.repeat(np.arange(10), 300))
RULES: dict[str, dict[str, float]] = {
    "iid": {}, "dirichlet": {"alpha": 0.3}, "dirichlet_min": {"alpha": 0.5}, "dirichlet_balanced": {"alpha": 0.3},
    "classes": {"classes_per_client": 2}, "blocks": {}, "linear": {}, "square": {}, "exponential": {}, "lognormal": {},
}  # fmt: skip
FLOWER = {
    ("linear", 5): [66, 133, 200, 266, 335],
    ("linear", 10): [18, 36, 54, 72, 90, 109, 127, 145, 163, 186],
    ("square", 5): [18, 72, 163, 290, 457],
    ("square", 10): [2, 10, 23, 41, 64, 93, 127, 166, 210, 264],
    ("exponential", 5): [11, 31, 86, 234, 638],
}
"""Sizes that flwr-datasets 0.6.1 gives to clients of 1,000 images."""
DIRICHLET = [name for name in RULES if name.startswith("dirichlet")]


def split(name: str, labels: np.ndarray = LABELS, num_clients: int = 10, seed: int = 0, **params) -> list[np.ndarray]:
    return getattr(partition, name)(labels, num_clients, seed=seed, **(RULES[name] | params))


def as_lists(parts) -> list[list[int]]:
    return [part.tolist() for part in parts]


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(map(np.array_equal, a, b)) and len(a) == len(b)


@settings(max_examples=120)
@given(
    name=st.sampled_from(sorted(RULES)), sizes=st.lists(st.integers(20, 60), min_size=1, max_size=6),
    num_clients=st.integers(1, 20), alpha=st.floats(0.01, 100), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_every_index_has_at_most_one_client_and_the_arguments_decide(name, sizes, num_clients, alpha, seed) -> None:
    """For any rule, class sizes, number of clients, concentration and seed."""
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    params: dict[str, float] = {"alpha": alpha} if "alpha" in RULES[name] else {}
    params |= {"min_size": 0} if name in ("dirichlet_min", *TestSizes.BY_SIZE, "lognormal") else {}
    params |= {"classes_per_client": min(2, len(sizes))} if name == "classes" else {}
    if name == "blocks":
        num_clients = len(sizes) * (1 + num_clients // 5)
    partition = split(name, labels, num_clients, seed, **params)
    assert len(partition) == num_clients
    assert all(indices.dtype == np.int64 and (np.diff(indices) > 0).all() for indices in partition)
    assigned = np.concatenate(partition)
    assert len(np.unique(assigned)) == len(assigned)
    if name == "dirichlet_balanced":
        assert (np.array(sizes) - counts(labels, partition).sum(axis=0) < num_clients).all()
    elif name != "classes":
        np.testing.assert_array_equal(np.sort(assigned), np.arange(len(labels)))
    if name == "iid":
        assert max(map(len, partition)) - min(map(len, partition)) <= 1
    assert same(partition, split(name, labels, num_clients, seed, **params))


@pytest.mark.parametrize("name", RULES)
def test_another_seed_gives_another_partition(name: str) -> None:
    assert not same(split(name, num_clients=20), split(name, num_clients=20, seed=1))


def test_dirichlet_shares_have_the_dirichlets_mean_and_variance_and_are_cut_at_random_places() -> None:
    """1,000 classes of 1,000: K shares have mean 1/K and variance (1/K)(1 - 1/K)/(K alpha + 1)."""
    labels, K = np.repeat(np.arange(1000), 1000), 4
    for alpha in (0.05, 1.0, 20.0):
        shares = counts(labels, partition.dirichlet(labels, K, alpha=alpha, seed=3)).T / 1000
        variance = 1 / K * (1 - 1 / K) / (K * alpha + 1)
        # five standard errors of a mean, and of a variance of values whose fourth moment is measured
        assert abs(shares[:, 0].mean() - 1 / K) < 5 * np.sqrt(variance / 1000)
        squares = (shares - 1 / K) ** 2
        assert abs(squares.mean() - variance) < 5 * squares.mean(axis=1).std() / np.sqrt(1000)
    indices = partition.dirichlet(np.zeros(1000, dtype=int), 2, alpha=1e5, seed=0)[0]
    assert 400 < len(indices) < 600
    assert (np.diff(indices) > 1).sum() > 200  # a client's examples are not consecutive in the file


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), min_size=st.integers(0, 100))
def test_dirichlet_min_has_its_least_size_and_closes_full_clients(seed: int, min_size: int) -> None:
    parts = split("dirichlet_min", seed=seed, alpha=0.1, min_size=min_size)
    assert min(map(len, parts)) >= min_size
    # a client below N/K may still get one whole class
    assert max(map(len, parts)) < 3000 / 10 + 300
    examples = counts(LABELS, parts)
    before = np.cumsum(examples, axis=1) - examples
    assert (examples[before >= 300] == 0).all()
    assert (before >= 300).any()


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet_min"])
def test_redraws_only_for_a_min_size(name: str) -> None:
    first, redrawn = (split(name, alpha=0.1, min_size=size) for size in (0, 150))
    least = min(map(len, first))
    assert least < 150 <= min(map(len, redrawn))
    assert same(split(name, alpha=0.1, min_size=least), first)


@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_balanced_is_the_released_samplers_matrix(alpha: float) -> None:
    """Orchestra's sampler scales rows and columns by the sums of one and the same matrix, 100 times over.

    Here with plain probabilities, assigned by two loops in file order.
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
        members = [i for i, label in enumerate(LABELS) if label == c]
        for k in range(K):
            count = int(matrix[c, k] * C * n)
            expected[k] += members[:count]
            members = members[count:]
    parts = partition.dirichlet_balanced(LABELS, K, alpha=alpha, seed=11)
    for indices, reference in zip(parts, expected, strict=True):
        np.testing.assert_array_equal(indices, sorted(reference))


def test_balanced_clients_are_equally_large_also_when_classes_are_not_and_exact_counts_are_kept() -> None:
    labels = np.repeat(np.arange(5), [100, 200, 400, 800, 1500])
    sizes = np.array([len(indices) for indices in partition.dirichlet_balanced(labels, 10, alpha=1.0, seed=0)])
    # each of 5 counts loses less than one example to the floor
    assert (sizes > 300 - 5).all()
    assert (sizes <= 300).all()
    # ten equal parts of 100 examples are 10 each, though their logarithms have rounding errors
    examples = partition.balanced_counts(np.log(np.full((7, 10), 0.1)), np.full(7, 100))
    np.testing.assert_array_equal(examples, np.full((7, 10), 10))


@pytest.mark.parametrize("name", DIRICHLET)
@pytest.mark.parametrize("alpha", [1e-3, 1e5])
def test_extreme_concentrations(name: str, alpha: float) -> None:
    params: dict[str, float] = {"min_size": 1} if name == "dirichlet_min" else {}
    for seed in range(5):
        parts = split(name, seed=seed, num_clients=5, alpha=alpha, **params)
        examples = counts(LABELS, parts)
        if alpha == 1e5:
            np.testing.assert_allclose(examples, 60, atol=2)
        else:
            # nearly every class is whole, or shared by the few clients that the rule's balance requires
            assert (examples > 0).sum() <= 10 + 5
        assert examples.sum() >= 3000 - 10 * 5


class TestSizes:
    BY_SIZE = ("linear", "square", "exponential")

    @pytest.mark.parametrize("name", BY_SIZE)
    @settings(max_examples=40)
    @given(examples=st.integers(60, 400), num_clients=st.integers(1, 20), min_size=st.integers(0, 3))
    def test_they_are_those_of_a_slow_retelling(self, name, examples, num_clients, min_size) -> None:
        """In exact fractions of the weights, one client after another is raised to `min_size`."""
        weight = {"linear": int, "square": lambda k: k**2, "exponential": lambda k: Fraction(math.exp(k))}[name]
        weights, small = [Fraction(weight(k)) for k in range(1, num_clients + 1)], set[int]()
        while True:
            rest, total = examples - min_size * len(small), sum(w for k, w in enumerate(weights) if k not in small)
            sizes = [min_size if k in small else math.floor(w * rest / total) for k, w in enumerate(weights)]
            below = {k for k, size in enumerate(sizes) if size < min_size}
            if not below:
                break
            small |= below
        sizes[-1] += examples - sum(sizes)
        parts = split(name, np.zeros(examples, dtype=int), num_clients, min_size=min_size)
        assert np.abs(np.array(sizes) - list(map(len, parts))).max() <= (name == "exponential")  # rounded exp
        if name != "exponential":
            assert list(map(len, parts)) == sizes

    def test_squares_of_a_million_clients_do_not_overflow(self) -> None:
        sizes = sizes_of(split("square", np.zeros(9_300_000, dtype=np.int8), 1_000_000))
        assert (np.diff(sizes) >= 0).all()
        assert 25 < sizes[-2] < 30

    def test_they_are_flowers_where_no_client_is_small(self) -> None:
        for (name, clients), sizes in FLOWER.items():
            parts = split(name, np.zeros(1000, dtype=int), clients, min_size=0)
            assert list(map(len, parts)) == sizes

    @pytest.mark.parametrize("name", [*BY_SIZE, "lognormal"])
    def test_the_smallest_can_train_and_images_are_random(self, name) -> None:
        parts = split(name, num_clients=100)
        assert min(map(len, parts)) == 2
        largest = max(parts, key=len)
        share = counts(LABELS, [largest])[0] / len(largest)
        assert np.abs(share - 0.1).max() < 5 * np.sqrt(0.09 / len(largest))
        with refused("min_size=40 for 100 clients needs 4000 examples", PartitionError):
            split(name, num_clients=100, min_size=40)

    def test_the_logarithms_of_drawn_sizes_are_normal(self) -> None:
        labels = np.zeros(2_000_000, dtype=int)
        for sigma in (0.5, 1.0):
            logs = np.log(list(map(len, partition.lognormal(labels, 2000, sigma=sigma, seed=0))))
            assert abs(logs.std() - sigma) < 5 * sigma / np.sqrt(2 * 2000)
        equal = partition.lognormal(labels[:1000], 10, sigma=0, seed=0)
        assert [len(part) for part in equal] == [100] * 10
        for sigma in (-1.0, float("nan"), float("inf")):
            with refused("give the deviation of the sizes' logarithms", PartitionError):
                partition.lognormal(labels[:10], 2, sigma=sigma, seed=0)


@given(num_clients=st.integers(1, 30), per_client=st.integers(1, 10), seed=st.integers(0, 2**32 - 1))
def test_classes_per_client(num_clients: int, per_client: int, seed: int) -> None:
    examples = counts(LABELS, split("classes", LABELS, num_clients, seed, classes_per_client=per_client))
    cuts = -(-num_clients * per_client // 10)
    assert ((examples > 0).sum(axis=1) == per_client).all()
    assert ((examples > 0).sum(axis=0) <= cuts).all()
    # array_split: parts of 300 // cuts or one more
    assert set(examples[examples > 0].tolist()) <= {300 // cuts, 300 // cuts + 1}


def test_blocks_by_hand() -> None:
    labels = np.array([3, 0, 1, 2, 0, 3, 2, 1])
    assert as_lists(partition.blocks(labels, 2, seed=0)) == [[1, 2, 4, 7], [0, 3, 5, 6]]
    shared = partition.blocks(labels, 8, seed=0)
    assert [labels[indices].tolist() for indices in shared] == [[0], [0], [1], [1], [2], [2], [3], [3]]
    assert as_lists(partition.blocks(np.array([10, 30, 10, 30]), 2, seed=0)) == [[0, 2], [1, 3]]  # of distinct labels


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("iid", {"num_clients": 0}, r"0 clients for 3000 examples: give 1 to 3000 clients"),
        ("iid", {"num_clients": 3001}, r"3001 clients for 3000 examples"),
        ("blocks", {"num_clients": 4}, r"4 clients cannot share 10 classes .* use 1, 2, 5, 10 or a multiple of 10"),
        ("blocks", {"num_clients": 8, "labels": np.repeat([0, 1], [9, 3])}, r"4 clients share each .* smallest has 3"),
        ("classes", {"classes_per_client": 11}, r"classes_per_client=11 and there are 10 classes: give 1 to 10"),
        ("classes", {"classes_per_client": 0}, r"classes_per_client=0"),
        ("classes", {"num_clients": 3000}, r"cut every class in 600 parts, and the smallest class has 300"),
        ("dirichlet_min", {"min_size": -1}, "min_size=-1: give a number of examples, at least 0"),
        ("linear", {"min_size": float("nan")}, "min_size=nan: give a number of examples"),
        ("dirichlet_min", {"min_size": 301}, r"needs 3010 examples and there are 3000: min_size can be at most 300"),
        ("dirichlet_min", {"num_clients": 301}, "min_size=10 for 301 clients"),  # 10 where it is not given
        ("dirichlet_min", {"num_clients": 20, "alpha": 0.001, "min_size": 100},
         r"no draw of 1000 gave every one of 20 clients min_size=100 .* larger alpha"),
        *[(name, {"alpha": alpha}, rf"alpha={alpha}: ") for name in DIRICHLET for alpha in (0.0, -1.0, np.inf, np.nan)],
        ("iid", {"labels": np.zeros((4, 2), dtype=int)}, r"labels are int64 of shape \(4, 2\)"),
        ("iid", {"labels": np.zeros(40)}, r"labels are float64 of shape \(40,\)"),
    ],
)  # fmt: skip
def test_impossible_partitions_are_errors_of_one_line(name: str, arguments: dict, message: str) -> None:
    with refused(message, PartitionError):
        split(name, **arguments)


def test_the_draws_of_a_seed_are_pinned() -> None:
    """Committed results depend on them; a public set and a part of the images have streams of their own."""
    labels, rows = np.array([0, 1, 2] * 4), np.arange(12)
    assert as_lists(partition.iid(labels, 3, seed=0)) == [[2, 4, 7, 9], [0, 3, 5, 11], [1, 6, 8, 10]]
    assert partition.of_every_class(labels, 0.5, seed=0).tolist() == [3, 4, 5, 6, 7, 11]
    assert as_lists(partition.thinned([rows[:6], rows[6:]], 0.5, seed=0)) == [[1, 3, 4], [7, 9, 11]]
    drawn = {tuple(np.flatnonzero(counts(LABELS, split("classes", seed=each))[0])) for each in range(20)}
    assert len(drawn) > 10  # sets of classes
    # what is not given: two classes a client, and no least size
    assert same(partition.classes(LABELS, 5, seed=0), split("classes", num_clients=5, classes_per_client=2))
    assert same(partition.dirichlet(LABELS, 10, alpha=0.1, seed=0), split("dirichlet", alpha=0.1, min_size=0))


def test_a_part_of_the_images_keeps_two_a_client_and_one_a_class() -> None:
    parts = [np.arange(10), np.arange(10, 12), np.arange(12, 42)]
    thin = partition.thinned(parts, 0.1, seed=0)
    assert list(map(len, thin)) == [2, 2, 3]
    assert all(set(kept) <= set(part) and (np.diff(kept) > 0).all() for kept, part in zip(thin, parts, strict=True))
    labels = np.repeat([0, 1, 2], [4, 10, 30])
    assert np.bincount(labels[partition.of_every_class(labels, 0.1, seed=0)]).tolist() == [1, 1, 3]


def test_clients_too_small_to_train_are_named_and_counted() -> None:
    sizes = [2, 0, 1, 1, 1]
    line = r"client 1 \(b\) holds 0 images, client 2 \(c\) holds 1 image, client 3 \(d\) holds 1 image \(4 of 5 clients"
    with refused(rf"{line} hold fewer than two\), but training needs two: x$", PartitionError):
        partition.refuse_small([np.arange(size) for size in sizes], "abcde", "x")
    with refused("^client 1 holds 1 image, but training needs two: x$", PartitionError):
        partition.refuse_small([np.arange(2), np.arange(1)], (), "x")
    partition.refuse_small([np.arange(2)], (), "x")


def test_parts_equal_the_arrays_they_store() -> None:
    stored = [[4, 7], [0], [], [1, 2, 9]]
    parts = partition.Parts([np.array(each, dtype=np.int64) for each in stored])
    assert (as_lists(parts), len(parts), parts[-1].tolist()) == (stored, 4, [1, 2, 9])
    assert parts.sizes.tolist() == [2, 1, 0, 3]
    assert parts.holders.tolist() == [0, 0, 1, 3, 3, 3]
    with pytest.raises(IndexError):
        parts[4]


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=9), block=st.integers(1, 4), seed=st.integers(0, 99))
def test_a_cut_order_is_sorted_client_by_client(sizes: list[int], block: int, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(sum(sizes))
    expected = [sorted(each.tolist()) for each in np.split(order, np.cumsum(sizes)[:-1])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datamodules.parts.BLOCK", block)
        cut = partition.Parts.cut(order.copy(), np.array(sizes))
        joined = [few for each in cut.blocks() for few in each]
    assert as_lists(cut) == as_lists(joined) == expected
    assert cut.ends.tolist() == np.cumsum(sizes).tolist()
