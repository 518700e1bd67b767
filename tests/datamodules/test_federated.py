"""Batches of clients, for the loop and for Trainer: their images, their order, and the generators they depend on."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from datamodules import federated
from datamodules.errors import PartitionError
from datamodules.federated import CHUNK, Batch, FederatedDataModule
from datamodules.recipe import Recipe
from datamodules.sources import Source, Split
from datamodules.views import apply, plain
from tests.datamodules.own_data import refused, seeded

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (90, 3, 8, 8), dtype=np.uint8)
LABELS = RNG.integers(0, 5, 90)
SOURCE = Source("toy", Split(IMAGES, LABELS), Split(IMAGES[:5], LABELS[:5]), tuple("abcde"), "0" * 64)
PARTS = [np.arange(0, 40, 2), np.array([7, 3, 5]), np.arange(41, 74), np.array([80, 82])]
"""20, 3, 33 and 2 images."""
RECIPE = Recipe(8)


def module(**kwargs: Any) -> FederatedDataModule:
    return FederatedDataModule(SOURCE, PARTS, RECIPE, **kwargs)


def batches(
    client: int | None = 0, size: int = 8, *, order: int | None = 1, views: int = 2, names: Any = ("augment", "plain"),
    data: FederatedDataModule | None = None, **kwargs: Any,
) -> list[Batch]:  # fmt: skip
    """Batches by the seeds of order and views."""
    shuffle = None if order is None else seeded(order)
    return list((data or module()).batches(client, names, size, order=shuffle, views=seeded(views), **kwargs))


def shown(rows: np.ndarray, images: np.ndarray = IMAGES) -> Tensor:
    """The plain views of these images."""
    return plain(torch.from_numpy(images[rows]), RECIPE)


def same(first: list[Batch], second: list[Batch]) -> bool:
    pairs = list(zip(first, second, strict=True))
    return all(torch.equal(a.index, b.index) and all(map(torch.equal, a.views, b.views)) for a, b in pairs)


def indices(sequence: list[Batch]) -> list[int]:
    return torch.cat([batch.index for batch in sequence]).tolist()


@given(
    client=st.integers(0, 3), size=st.integers(2, 40), epochs=st.integers(1, 3), order=st.integers(0, 2**31),
    drop_last=st.booleans(), smallest=st.integers(1, 2),
)  # fmt: skip
def test_an_epoch_has_every_image_once_but_for_a_short_last_batch(client, size, epochs, order, drop_last, smallest):
    """By default the last batch is left out where it has one image, which has no statistics and no negatives."""
    data, examples = module(drop_last=drop_last, smallest=smallest), len(PARTS[client])
    full, rest = divmod(examples, min(size, examples))
    sizes = [min(size, examples)] * full + [rest] * (rest >= smallest and not drop_last)
    sequence = batches(client, size, order=order, epochs=epochs, names=("plain",), data=data)
    assert [len(batch.index) for batch in sequence] == sizes * epochs
    assert data.batches_per_epoch(client, size) == len(sizes)
    for start in range(0, len(sequence), len(sizes)):
        epoch_indices = indices(sequence[start : start + len(sizes)])
        assert len(set(epoch_indices)) == len(epoch_indices) == sum(sizes)
        assert set(epoch_indices) <= set(range(examples))


def test_images_are_the_clients_own_and_epochs_differ_in_their_order_and_in_the_image_they_leave_out() -> None:
    for client in range(4):
        for batch in batches(client, epochs=2):
            expected = shown(PARTS[client][batch.index])
            torch.testing.assert_close(batch.views[1], expected)
            assert (batch.views[0].shape, batch.views[0].dtype) == (expected.shape, torch.float32)
            assert not torch.equal(*batch.views)
    sequence = batches(2, epochs=3)
    epochs = [indices(sequence[start : start + 4]) for start in (0, 4, 8)]
    assert epochs[0] != epochs[1]
    assert len({frozenset(range(33)) - set(positions) for positions in epochs}) > 1


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_steps_instead_of_epochs_and_no_order(steps: int) -> None:
    sequence = batches(steps=steps, epochs=99)
    assert len(sequence) == steps
    passes = steps // 3  # of 3 batches
    assert same(sequence[: 3 * passes], batches(epochs=passes))  # whole passes are those of epochs
    assert indices(sequence) == indices(batches(epochs=3)[:steps])
    unordered = batches(2, order=None, epochs=2)
    assert [len(batch.index) for batch in unordered] == [8, 8, 8, 8, 1] * 2
    assert indices(unordered) == list(range(33)) * 2


def test_batches_depend_on_nothing_but_the_generators() -> None:
    first, other_views = batches(epochs=2), batches(epochs=2, views=3)
    assert same(first, batches(epochs=2))
    assert indices(other_views) == indices(first) != indices(batches(epochs=2, order=5))
    for a, b in zip(first, other_views, strict=True):
        assert not torch.equal(a.views[0], b.views[0])
        assert torch.equal(a.views[1], b.views[1])
    torch.manual_seed(123)
    np.random.seed(123)  # noqa: NPY002 - global generators must not matter
    state, data = torch.random.get_rng_state(), module(seed=9)
    batches(2, data=data)
    assert same(first, batches(epochs=2, data=data))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_client_larger_than_a_chunk_has_every_image_once() -> None:
    images = RNG.integers(0, 256, (2 * CHUNK + 90, 1, 4, 4), dtype=np.uint8)
    split = Split(images, np.zeros(len(images), dtype=np.int64))
    data = FederatedDataModule(Source("big", split, split, ("a",), ""), [np.arange(len(images))], Recipe(4))
    for size in (100, CHUNK, 2 * CHUNK):
        sequence = batches(size=size, data=data)
        assert sorted(indices(sequence)) == list(range(len(images)))
        views = torch.cat([batch.views[1] for batch in sequence])
        torch.testing.assert_close(views, plain(torch.from_numpy(images[indices(sequence)]), Recipe(4)))
    assert same(batches(size=100, data=data), batches(size=100, data=data))


def test_a_client_too_large_for_the_device_is_read_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = batches(2, epochs=2, names=("augment", "plain"))
    reads: list[int] = []

    class Map:
        def __getitem__(self, index: Any) -> np.ndarray:
            reads.append(np.size(index))
            return IMAGES[index]

    data = module()
    data.source = Source("toy", Split(Map(), LABELS), SOURCE.test, SOURCE.classes, SOURCE.sha256)  # type: ignore[arg-type]
    monkeypatch.setattr(federated, "WHOLE", 1000)  # bytes: five images
    monkeypatch.setattr(federated, "CHUNK", 16)
    sequence = batches(2, epochs=2, names=("augment", "plain"), data=data)
    assert max(reads) <= 16
    assert indices(sequence) == indices(whole)
    assert all(torch.equal(a.views[1], b.views[1]) for a, b in zip(sequence, whole, strict=True))


def test_batches_have_labels_on_demand_but_not_for_public_images() -> None:
    public = np.array([80, 1, 44, 7, 12])
    data = module(public=public)
    unasked = [batch for client in (0, None) for batch in batches(client, data=data)]
    assert all(batch.labels is None for batch in [*unasked, *batches(None, data=data, labels=True)])
    for batch in batches(0, data=data, labels=True):
        assert batch.labels.tolist() == LABELS[data.held_by(0)][batch.index].tolist()
    assert indices(batches(None, size=2, order=None, data=data)) == [0, 1, 2, 3, 4]
    for batch in batches(None, size=2, data=data):
        torch.testing.assert_close(batch.views[1], shown(public[batch.index]))
    with refused("public images", PartitionError):
        batches(None)
    for few in ([], [5]):  # and every client needs two
        with refused(f"client 1 holds {len(few)} image.*training needs two", PartitionError):
            FederatedDataModule(SOURCE, [PARTS[0], np.array(few, dtype=int)], RECIPE)
    (batch,) = batches(
        None, order=None, names=("plain",), data=module(public=np.array([4, 2]), public_images=255 - IMAGES)
    )
    assert torch.equal(batch.views[0], shown(np.array([4, 2]), 255 - IMAGES))  # those of another data set


def test_the_other_view_has_a_second_order_over_the_clients_images() -> None:
    recipe = Recipe(8, crop_scale=None, flip=0, jitter_p=0, grayscale=0)
    data, images = FederatedDataModule(SOURCE, PARTS, recipe), shown(PARTS[0])
    sequence = batches(0, epochs=2, names=("plain", "other"), data=data)
    for epoch in (sequence[:3], sequence[3:]):
        others = torch.cat([batch.views[1] for batch in epoch])
        positions = [next(i for i in range(20) if torch.equal(images[i], image)) for image in others]
        assert sorted(positions) == list(range(20))
        assert positions != indices(epoch)
    assert all(len(batch.views[1]) == len(batch.index) for batch in sequence)
    # the first epoch has the same order with and without the second view
    assert indices(batches(0, epochs=1, names=("plain",), data=data)) == indices(sequence[:3])


def test_look_yields_every_image_unaugmented_in_order() -> None:
    data = module(channels_last=True)
    assert data.examples == 58
    every = np.sort(np.concatenate(PARTS))
    for rows, given_ in ((PARTS[0], {"held": data.held_by(0), "batch_size": 6}), (every, {})):
        sequence = list(data.plain_batches("cpu", **given_))
        assert indices(sequence) == list(range(len(rows)))
        assert torch.equal(torch.cat([batch.views[0] for batch in sequence]), shown(rows))


@pytest.mark.parametrize(("last", "layout"), [(True, torch.channels_last), (False, torch.contiguous_format)])
def test_memory_format(last: bool, layout: torch.memory_format) -> None:
    data = module(channels_last=last, batch_size=8)
    trainers = [data.on_after_batch_transfer(batch, 0) for batch in data.train_dataloader()]
    for batch in [*batches(data=data, epochs=2), *trainers]:
        assert all(view.is_contiguous(memory_format=layout) for view in batch.views)
    assert same(batches(data=data), batches())  # only the layout differs


def test_compiled_views_are_the_same_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled function has tests of its own; here, the loop and Trainer use it for every augmented view."""
    sizes = []

    def counted(images: Tensor, draws: Any, recipe: Recipe) -> Tensor:
        sizes.append(len(images))
        return apply(images, draws, recipe)

    monkeypatch.setattr(federated, "apply_compiled", counted)
    names = ("augment", "plain", "rotate")
    data = module(compiled=True, batch_size=20, view_names=names)
    assert same(batches(names=names, data=data), batches(names=names))
    assert sizes == [20, 20]
    assert same(epoch(data), epoch(module(batch_size=20, view_names=names)))
    assert sizes == [20, 20, *[20, 20, 20, 20, 18, 18]]


# --- under Trainer


def epoch(data: FederatedDataModule) -> list[Batch]:
    return [data.on_after_batch_transfer(batch, 0) for batch in data.train_dataloader()]


@pytest.mark.parametrize(("size", "sizes"), [(20, [20, 20, 18]), (19, [19, 19, 19]), (64, [58])])
def test_trainer_gets_the_pooled_images_of_all_clients(size: int, sizes: list[int]) -> None:
    """58 images in all; a last batch of a single image is left out here too."""
    given_ = {"batch_size": size, "view_names": ("augment", "plain")}
    data, pooled = module(**given_), np.sort(np.concatenate(PARTS))
    sequence = epoch(data)
    assert [len(batch.index) for batch in sequence] == sizes
    assert len(set(indices(sequence))) == sum(sizes)
    for batch in sequence:
        torch.testing.assert_close(batch.views[1], shown(pooled[batch.index]))
    if len(sizes) > 1:
        assert indices(epoch(data)) != indices(sequence)  # a new order each epoch
        assert same(epoch(module(**given_)), sequence)
        assert indices(epoch(module(**given_, seed=1))) != indices(sequence)


def test_trainers_batches_have_the_loops_structure() -> None:
    def outline(batch: Batch) -> list[Any]:
        tensors = [*batch.views, batch.index, batch.turns, batch.labels]
        return [(t.dtype, t.shape) if isinstance(t, Tensor) else t for t in tensors] + [type(batch), batch.draws]

    names = ("augment", "plain", "rotate")
    for labels in (True, False):
        data = module(batch_size=20, view_names=names, labels=labels)
        ours = next(data.batches(2, names, 20, order=seeded(0), views=seeded(1), labels=labels))
        theirs = epoch(data)[0]
        assert outline(theirs) == outline(ours)
        if labels:
            assert theirs.labels.tolist() == LABELS[np.sort(np.concatenate(PARTS))[theirs.index]].tolist()
