import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.errors import PartitionError
from datamodules.partition import balanced_counts, dirichlet_balanced, log_dirichlet
from datamodules.twin import redealt
from tests.datamodules.own_data import refused


def federation(sizes: list[int], classes: int, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Labels of more images than the clients hold, and clients of these sizes, in an order of no meaning."""
    rng, total = np.random.default_rng(seed), sum(sizes)
    held = rng.permutation(total + 7)[:total]
    return rng.integers(0, classes, total + 7), np.split(held, np.cumsum(sizes)[:-1])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.integers(1, 9),
    st.sampled_from([0.001, 0.1, 1.0, 1000.0, np.inf]),
    st.integers(0, 9),
)
def test_sizes_and_images_are_kept_and_the_seed_decides(sizes, classes, alpha, seed) -> None:
    labels, parts = federation(sizes, classes, seed)
    made = redealt(labels, parts, alpha, seed=seed)
    assert [len(part) for part in made] == sizes
    assert sorted(np.concatenate(made)) == sorted(np.concatenate(parts))
    assert all((np.diff(part) > 0).all() for part in made)
    again = redealt(labels, parts, alpha, seed=seed)
    assert all(map(np.array_equal, made, again))


def classes_held(alpha: float) -> float:
    """Mean number of classes of forty clients of 50 images, of 20 classes."""
    labels, parts = federation([50] * 40, 20, 3)
    return float(np.mean([len(np.unique(labels[part])) for part in redealt(labels, parts, alpha, seed=5)]))


def test_the_smaller_the_concentration_the_fewer_classes() -> None:
    few, some, many, random = map(classes_held, (0.01, 0.1, 100.0, np.inf))
    assert few < some / 2
    assert some < random / 2
    assert many == 20  # nearly equal shares of each class
    assert abs(random - 20 * (1 - 0.95**50)) < 0.3


def test_of_equal_clients_it_is_dirichlet_balanced_and_the_rest() -> None:
    labels = np.repeat(np.arange(5), 40)
    log_p = log_dirichlet(np.random.default_rng(1), 0.1, 5, 8)
    equal, given_sizes = (balanced_counts(log_p, np.full(5, 40), sizes) for sizes in (None, np.full(8, 25)))
    assert np.array_equal(equal, given_sizes)
    assert abs(equal.sum() - sum(map(len, dirichlet_balanced(labels, 8, alpha=0.1, seed=1)))) < 20


def test_no_client_has_more_than_its_size_where_normalising_does_not_converge() -> None:
    sizes = np.array([1, 2, 3, 500])
    counts = balanced_counts(log_dirichlet(np.random.default_rng(0), 1e-3, 3, 4), np.array([6, 250, 250]), sizes)
    assert (counts.sum(axis=0) <= sizes).all()


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
def test_a_concentration_is_positive(alpha) -> None:
    labels, parts = federation([3, 4], 2, 0)
    with refused("the Dirichlet concentration is a positive number", PartitionError):
        redealt(labels, parts, alpha, seed=0)
