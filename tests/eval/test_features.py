"""Extraction, recalibration, the held-out slice, and the checks of `Features`."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from eval.features import EvalError, Features, class_subset, extract, holdout, recalibrate


def plain(batch):
    return batch.float() / 255


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (23, 3, 4, 4), dtype=np.uint8)


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten()).eval()


@pytest.mark.parametrize("batch_size", [1, 4, 10, 23, 512])
def test_extract_equals_one_pass_in_order(encoder, images, batch_size, tmp_path):
    """The batches are equal to within one image, the encoder stays, and the result may enter a later gradient."""
    sizes, before = [], deepcopy(encoder.state_dict())
    with torch.no_grad():
        expected = encoder(plain(torch.from_numpy(images)))

    def prepare(batch):
        assert batch.dtype == torch.uint8
        sizes.append(len(batch))
        return plain(batch)

    h = extract(encoder, images, prepare, batch_size=batch_size)
    torch.testing.assert_close(h, expected, rtol=1e-5, atol=1e-6)
    assert sum(sizes) == 23
    assert max(sizes) <= min(batch_size, min(sizes) + 1)
    assert all(map(torch.equal, encoder.state_dict().values(), before.values()))
    assert not h.requires_grad
    weight = torch.zeros(h.shape[1], requires_grad=True)
    (h @ weight).sum().backward()
    torch.testing.assert_close(weight.grad, h.sum(dim=0))
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")  # which cannot be written
    assert torch.equal(extract(encoder, mapped, plain, batch_size=batch_size), h)
    batches = extract(encoder, lambda: (images[i : i + 6] for i in range(0, 23, 6)), plain)
    torch.testing.assert_close(batches, expected, rtol=1e-5, atol=1e-6)


def test_wrong_encoders_images_and_outputs_are_errors(encoder, images):
    with pytest.raises(EvalError, match=r"float32: give uint8"):
        extract(encoder, images.astype(np.float32), plain)
    with pytest.raises(EvalError, match="no images"):
        extract(encoder, images[:0], plain)
    with pytest.raises(EvalError, match=r"returns shape \[23, 5, 2, 2\]"):
        extract(encoder[:3].eval(), images, plain)
    with pytest.raises(EvalError, match="module 'Sequential'"):
        extract(nn.Sequential(), images, plain)
    encoder[1].train()
    with pytest.raises(EvalError, match="module '1' is in train mode: call"):
        extract(encoder, images, plain)


def test_recalibrate_averages_the_statistics_of_batches(images):
    encoder = nn.Sequential(nn.BatchNorm2d(3, momentum=0.1), nn.Flatten())
    encoder[0].running_mean.fill_(7.0)
    weight = encoder[0].weight.detach().clone()
    recalibrate(encoder.train(), images, plain, batch_size=12)
    halves = [plain(torch.from_numpy(half)) for half in (images[:11], images[11:])]
    for ours, of in ((encoder[0].running_mean, torch.mean), (encoder[0].running_var, torch.var)):
        torch.testing.assert_close(ours, sum(of(half, dim=(0, 2, 3)) for half in halves) / 2)
    assert torch.equal(encoder[0].weight, weight)
    assert encoder[0].momentum == 0.1
    assert not any(module.training for module in encoder.modules())


@given(
    st.lists(st.integers(0, 4), min_size=6, max_size=80).map(torch.tensor), st.floats(0.01, 0.99),
    st.integers(0, 2**31),
)  # fmt: skip
def test_holdout_splits_every_class_once(labels, fraction, seed):
    fit, held_out = holdout(labels, fraction, seed)
    assert torch.equal(torch.cat([fit, held_out]).sort().values, torch.arange(len(labels)))
    for rows in (fit, held_out):
        assert torch.equal(rows, rows.sort().values)
    for label in labels.unique():
        size, held_out_size = int((labels == label).sum()), int((labels[held_out] == label).sum())
        assert held_out_size == min(max(1, round(fraction * size)), size - 1)
    assert torch.equal(held_out, holdout(labels, fraction, seed)[1])


def test_holdout_is_seeded_and_what_holds_out_none_is_refused():
    labels = torch.arange(50) % 5
    assert not torch.equal(*(holdout(labels, fraction=0.2, seed=seed)[1] for seed in (3, 4)))
    with pytest.raises(EvalError, match=r"fraction of 1\.0"):
        holdout(labels, fraction=1.0)
    with pytest.raises(EvalError, match="leave none to hold out"):
        holdout(torch.arange(5))
    with pytest.raises(EvalError, match="there are no rows"):
        holdout(torch.arange(0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_x": torch.randn(5, 2)}, "train_y has 6 rows, train_x 5"),
        ({"train_clients": torch.zeros(5)}, "train_clients has 5 rows, train_x 6"),
        ({"test_x": torch.randn(4, 3)}, r"test_x has shape \[4, 3\]"),
        ({"test_y": torch.tensor([0, 1, 2, 0])}, r"test_y holds labels 0\.\.2: give labels in 0\.\.1"),
        ({"train_x": torch.full((6, 2), float("nan"))}, "train_x holds values that are not finite"),
        ({"view_a": torch.randn(3, 2)}, "one of view_a and view_b is missing"),
        ({"view_a": torch.randn(3, 2), "view_b": torch.randn(2, 2)}, "view_b has 2 rows, view_a 3"),
        ({"view_clients": torch.zeros(3)}, "view_clients has 3 rows, view_a 0"),
    ],
)
def test_features_that_do_not_fit_are_errors(changes, message):
    fitting = {"train_x": torch.randn(6, 2), "train_y": torch.tensor([0, 1, 0, 1, 0, 1]), "num_classes": 2}
    fitting |= {"train_clients": torch.zeros(6), "test_x": torch.randn(4, 2), "test_y": torch.tensor([0, 1, 1, 0])}
    Features(**fitting)
    with pytest.raises(EvalError, match=message):
        Features(**fitting | changes)


def test_a_class_subset_has_as_many_rows_of_each_class_as_asked_for_or_all():
    labels = torch.tensor([0] * 30 + [1] * 5 + [2] * 12)
    x = torch.arange(47.0)[:, None].expand(-1, 3)
    whole = Features(train_x=x, train_y=labels, test_x=x, test_y=labels, num_classes=3, view_a=x, view_b=x)
    subset, other = (class_subset(whole, 8, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert subset.train_y.bincount().tolist() == [8, 5, 8]
    assert torch.equal(labels[subset.train_x[:, 0].long()], subset.train_y)
    assert not torch.equal(subset.train_x, other.train_x)
    assert subset.view_a is None
    assert len(subset.test_x) == 47
    with pytest.raises(EvalError, match="give at least 1"):
        class_subset(whole, 0, torch.Generator())
