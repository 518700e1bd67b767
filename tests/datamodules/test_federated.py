"""Batches of clients, for the loop and for Trainer: who sees which image when, and what decides it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from datamodules import federated
from datamodules.federated import CHUNK, Batch, FederatedDataModule, number_of_batches
from datamodules.partition import PartitionError
from datamodules.recipe import Recipe
from datamodules.sources import Source, Split
from datamodules.views import apply, plain

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (90, 3, 8, 8), dtype=np.uint8)
LABELS = RNG.integers(0, 5, 90)
SOURCE = Source("toy", Split(IMAGES, LABELS), Split(IMAGES[:5], LABELS[:5]), tuple("abcde"), "0" * 64)
PARTS = [np.arange(0, 40, 2), np.array([7, 3, 5]), np.arange(41, 74), np.array([80, 82])]
"""20, 3, 33 and 2 images."""
RECIPE = Recipe(8)


def module(**kwargs: Any) -> FederatedDataModule:
    return FederatedDataModule(SOURCE, PARTS, RECIPE, **kwargs)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batches(
    client: int | None = 0, size: int = 8, *, order: int | None = 1, views: int = 2, names: Any = ("augment", "plain"),
    data: FederatedDataModule | None = None, **kwargs: Any,
) -> list[Batch]:  # fmt: skip
    """Batches by the seeds of order and views."""
    shuffle = None if order is None else seeded(order)
    return list((data or module()).batches(client, names, size, order=shuffle, views=seeded(views), **kwargs))


def same(one: list[Batch], other: list[Batch]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(torch.equal(a.index, b.index) and all(map(torch.equal, a.views, b.views)) for a, b in pairs)


def indices(found: list[Batch]) -> list[int]:
    return torch.cat([batch.index for batch in found]).tolist()


@pytest.mark.parametrize(("client", "sizes"), [(0, [8, 8, 4]), (1, [3]), (2, [8, 8, 8, 8]), (3, [2])])
def test_an_epoch_shows_every_image_once_unless_one_alone_is_left(client: int, sizes: list[int]) -> None:
    """A last batch of a single image has no statistics and no negatives: it is left out, another one each epoch."""
    found = batches(client, epochs=3)
    held = len(PARTS[client])
    assert [len(batch.index) for batch in found] == sizes * 3
    assert number_of_batches(held, min(8, held)) == len(sizes)
    epochs = [indices(found[start : start + len(sizes)]) for start in range(0, len(found), len(sizes))]
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch) == held - (held % 8 == 1)
        assert set(epoch) <= set(range(held))
    if held > 3:
        assert epochs[0] != epochs[1]
    if held % 8 == 1:
        left_out = [set(range(held)) - set(epoch) for epoch in epochs]
        assert left_out[0] != left_out[1] or left_out[1] != left_out[2]


@pytest.mark.parametrize(
    ("examples", "size", "expected"), [(16, 8, 2), (17, 8, 2), (18, 8, 3), (2, 2, 1), (3, 2, 1), (5, 5, 1)]
)
def test_number_of_batches(examples: int, size: int, expected: int) -> None:
    assert number_of_batches(examples, size) == expected


def test_images_are_the_clients_own() -> None:
    for client in range(4):
        for batch in batches(client, epochs=2):
            expected = plain(torch.from_numpy(IMAGES[PARTS[client][batch.index]]), RECIPE)
            torch.testing.assert_close(batch.views[1], expected)
            assert batch.views[0].shape == expected.shape
            assert batch.views[0].dtype == torch.float32
            assert not torch.equal(*batch.views)


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_steps_instead_of_epochs(steps: int) -> None:
    found = batches(steps=steps, epochs=99)
    assert len(found) == steps
    for start in range(0, steps, 3):  # passes of 3 batches
        one = indices(found[start : start + 3])
        assert len(set(one)) == len(one)
    passes = steps // 3
    assert same(found[: 3 * passes], batches(epochs=passes))  # whole passes are those of epochs
    assert indices(found) == indices(batches(epochs=3)[:steps])


def test_without_a_generator_the_order_is_that_of_the_data_and_nothing_is_left_out() -> None:
    found = batches(2, order=None, epochs=2)
    assert [len(batch.index) for batch in found] == [8, 8, 8, 8, 1] * 2
    assert indices(found) == list(range(33)) * 2


def test_the_same_generators_give_the_same_bits() -> None:
    first = batches(epochs=2)
    assert same(first, batches(epochs=2))
    other_views = batches(epochs=2, views=3)
    assert indices(other_views) == indices(first)
    assert not any(torch.equal(a.views[0], b.views[0]) for a, b in zip(first, other_views, strict=True))
    assert all(torch.equal(a.views[1], b.views[1]) for a, b in zip(first, other_views, strict=True))
    assert indices(batches(epochs=2, order=5)) != indices(first)


def test_nothing_but_the_generators_decides() -> None:
    first = batches(epochs=2)
    torch.manual_seed(123)
    np.random.seed(123)  # noqa: NPY002 - global generators must not matter
    state = torch.random.get_rng_state()
    data = module(seed=9)
    batches(2, data=data)
    assert same(first, batches(epochs=2, data=data))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_client_larger_than_a_chunk_is_seen_whole() -> None:
    images = RNG.integers(0, 256, (2 * CHUNK + 90, 1, 4, 4), dtype=np.uint8)
    split = Split(images, np.zeros(len(images), dtype=np.int64))
    data = FederatedDataModule(Source("big", split, split, ("a",), ""), [np.arange(len(images))], Recipe(4))
    for size in (100, CHUNK, 2 * CHUNK):
        found = batches(size=size, data=data)
        assert sorted(indices(found)) == list(range(len(images)))
        views, where = torch.cat([batch.views[1] for batch in found]), indices(found)
        torch.testing.assert_close(views, plain(torch.from_numpy(images[where]), Recipe(4)))
    assert same(batches(size=100, data=data), batches(size=100, data=data))


def test_a_client_too_large_for_the_device_is_read_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
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
    found = batches(2, epochs=2, names=("augment", "plain"), data=data)
    assert max(reads) <= 16
    assert indices(found) == indices(whole)
    assert all(torch.equal(one.views[1], other.views[1]) for one, other in zip(found, whole, strict=True))


def test_a_batch_larger_than_the_client_is_the_client() -> None:
    assert [len(batch.index) for batch in batches(1, size=64, epochs=2)] == [3, 3]


def test_labels_only_on_demand_and_none_of_public_images() -> None:
    data = module(public=np.array([9, 4, 4, 60]))
    for client in (0, None):
        assert all(batch.labels is None for batch in batches(client, data=data))
    assert all(batch.labels is None for batch in batches(None, data=data, labels=True))
    for batch in batches(0, data=data, labels=True):
        assert batch.labels is not None
        assert batch.labels.tolist() == LABELS[data.held_by(0)][batch.index].tolist()


def test_public_images_of_another_dataset() -> None:
    other = 255 - IMAGES[:7]
    data = module(public=np.array([4, 2]), public_images=other)
    (batch,) = data.batches(None, ("plain",), 8, order=None, views=torch.Generator())
    assert torch.equal(batch.views[0], plain(torch.from_numpy(other[[4, 2]]), RECIPE))


def test_quarter_turns_come_with_the_rotated_view() -> None:
    assert batches()[0].turns is None
    for batch in batches(names=("plain", "rotate"), data=FederatedDataModule(SOURCE, PARTS, Recipe(8, None, flip=0))):
        assert batch.turns is not None
        assert batch.turns.shape == batch.index.shape
    drawn = torch.cat([batch.turns for batch in batches(2, names=("rotate",), epochs=5)])
    assert set(drawn.tolist()) == {0, 1, 2, 3}


def test_the_other_view_has_an_order_of_its_own_over_the_clients_images() -> None:
    recipe = Recipe(8, crop_scale=None, flip=0, jitter_p=0, grayscale=0)
    data = FederatedDataModule(SOURCE, PARTS, recipe)
    found = batches(0, epochs=2, names=("plain", "other"), data=data)
    own = plain(torch.from_numpy(IMAGES[PARTS[0]]), recipe)
    for start in (0, 3):
        shown = torch.cat([batch.views[1] for batch in found[start : start + 3]])
        places = [next(i for i in range(20) if torch.equal(own[i], image)) for image in shown]
        assert sorted(places) == list(range(20))
        assert places != indices(found[start : start + 3])
    assert all(len(batch.views[1]) == len(batch.index) for batch in found)
    first = batches(0, epochs=1, names=("plain",), data=data)
    assert indices(first) == indices(found[:3])  # who asks for others sees its own images in the same order, at first


def test_a_look_shows_every_image_as_it_is_in_order() -> None:
    data = module(channels_last=True)
    own = list(data.look("cpu", held=data.held_by(0), batch_size=6))
    assert indices(own) == list(range(20))
    assert torch.equal(torch.cat([batch.views[0] for batch in own]), plain(torch.from_numpy(IMAGES[PARTS[0]]), RECIPE))
    pooled = list(data.look("cpu"))
    assert data.examples == sum(map(len, PARTS)) == len(indices(pooled))
    everyone = np.sort(np.concatenate(PARTS))
    assert torch.equal(
        torch.cat([batch.views[0] for batch in pooled]), plain(torch.from_numpy(IMAGES[everyone]), RECIPE)
    )


@pytest.mark.parametrize(("last", "layout"), [(True, torch.channels_last), (False, torch.contiguous_format)])
def test_memory_format(last: bool, layout: torch.memory_format) -> None:
    data = module(channels_last=last, batch_size=8)
    trainers = [data.on_after_batch_transfer(batch, 0) for batch in data.train_dataloader()]
    for batch in [*batches(data=data, epochs=2), *trainers]:
        assert all(view.is_contiguous(memory_format=layout) for view in batch.views)
    assert same(batches(data=data), batches())  # the numbers are the same


def test_compiled_views_are_the_same_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their function is tested where it lives; here, that the loop and Trainer take it, for every augmented view."""
    taken = []

    def counted(images: Tensor, draws: Any, recipe: Recipe) -> Tensor:
        taken.append(len(images))
        return apply(images, draws, recipe)

    monkeypatch.setattr(federated, "apply_compiled", counted)
    names = ("augment", "plain", "rotate")
    data = module(compiled=True, batch_size=20, view_names=names)
    assert same(batches(names=names, data=data), batches(names=names))
    assert taken == [20, 20]
    assert same(epoch(data), epoch(module(batch_size=20, view_names=names)))
    assert taken == [20, 20, *[20, 20, 20, 20, 18, 18]]


def test_the_public_set() -> None:
    public = np.array([80, 1, 44, 7, 12])
    data = module(public=public)
    assert indices(batches(None, size=2, order=None, data=data)) == [0, 1, 2, 3, 4]
    for batch in batches(None, size=2, data=data):
        torch.testing.assert_close(batch.views[1], plain(torch.from_numpy(IMAGES[public[batch.index]]), RECIPE))
    with pytest.raises(PartitionError, match="public images"):
        batches(None)


@pytest.mark.parametrize("held", [[], [5]])
def test_a_client_with_less_than_two_images_is_refused(held: list[int]) -> None:
    with pytest.raises(PartitionError, match=f"client 1 holds {len(held)} image.*training needs two") as caught:
        FederatedDataModule(SOURCE, [PARTS[0], np.array(held, dtype=int)], RECIPE)
    assert "\n" not in str(caught.value)


# --- under Trainer


def epoch(data: FederatedDataModule) -> list[Batch]:
    return [data.on_after_batch_transfer(batch, 0) for batch in data.train_dataloader()]


@pytest.mark.parametrize(("size", "sizes"), [(20, [20, 20, 18]), (19, [19, 19, 19]), (64, [58])])
def test_trainer_sees_the_pooled_images_of_all_clients(size: int, sizes: list[int]) -> None:
    """58 images in all; the last one alone is left out here too."""
    data = module(batch_size=size, view_names=("augment", "plain"))
    pooled = np.sort(np.concatenate(PARTS))
    found = epoch(data)
    assert [len(batch.index) for batch in found] == sizes
    assert len(set(indices(found))) == sum(sizes)
    for batch in found:
        torch.testing.assert_close(batch.views[1], plain(torch.from_numpy(IMAGES[pooled[batch.index]]), RECIPE))
    if len(sizes) > 1:
        assert indices(epoch(data)) != indices(found)  # a new order each epoch
        assert same(epoch(module(batch_size=size, view_names=("augment", "plain"))), found)
        assert indices(epoch(module(batch_size=size, seed=1))) != indices(found)


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
