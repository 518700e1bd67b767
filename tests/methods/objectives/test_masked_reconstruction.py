"""The masked autoencoder: what is hidden is restored from what is seen, and nothing else."""

import numpy as np
import pytest
import torch

from datamodules.federated import Batch
from methods.base import MethodError
from methods.maths import masked_reconstruction
from methods.maths.reconstruction import patches
from methods.networks import Encoder
from methods.networks.transformers import VisionTransformer
from methods.objectives.masked_reconstruction import MaskedReconstruction
from tests import run_helpers
from tests.methods.objectives import check_retold, encoder, views

VIT = "encoder={class: methods.networks.vit_tiny, patch_size: 4}"
SMALL = (VIT, "objective=masked_reconstruction", "objective.decoder_width=12", "objective.decoder_depth=1")


def vit() -> Encoder:
    settings = {"image_size": 8, "patch_size": 2, "width": 12, "depth": 1, "heads": 3, "in_channels": 3}
    torch.manual_seed(3)
    return Encoder(VisionTransformer(**settings, features="class"), 12)


@pytest.fixture
def objective() -> MaskedReconstruction:
    return MaskedReconstruction(vit(), decoder_width=6, decoder_depth=1).double()


def given(objective: MaskedReconstruction, seed: int = 0) -> Batch:
    (view,) = (view.double() for view in views(1))
    batch = Batch((view,), torch.arange(5))
    return batch._replace(draws={"objective": objective.draw(batch, torch.Generator().manual_seed(seed))})


def retold(predicted, targets, hidden, normalise):
    """The loss pixel by pixel (section 3)."""
    errors = []
    for image, patch in zip(*hidden.nonzero(), strict=True):
        pixels = targets[image, patch]
        if normalise:
            pixels = (pixels - pixels.mean()) / (pixels.var(ddof=1) + 1e-6) ** 0.5
        errors += [(p - t) ** 2 for p, t in zip(predicted[image, patch], pixels, strict=True)]
    return sum(errors) / len(errors)


@pytest.mark.parametrize("normalise", [True, False])
def test_values_and_gradients_are_the_retellings(normalise):
    rng = np.random.default_rng(0)
    predicted, targets = rng.standard_normal((2, 3, 4, 5))
    hidden = np.array([[1, 0, 1, 1], [0, 0, 1, 0], [1, 1, 1, 1]])
    check_retold(masked_reconstruction, retold, predicted, targets, hidden, normalise)
    flat = torch.full((1, 2, 12), 0.5)  # a patch of one colour is no reason for infinity
    assert masked_reconstruction(torch.zeros_like(flat), flat, torch.ones(1, 2)).item() == 0


def test_patches_are_cut_row_after_row():
    images = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert patches(images, 2).tolist() == [[[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]]


class TestObjective:
    def test_a_quarter_of_the_patches_is_seen_and_the_others_are_restored(self, objective):
        batch = given(objective)
        out = objective(*batch.views, draws=batch.draws["objective"])
        assert objective.seen == 4
        assert [h.shape for h in out.representations] == [(5, 12)]
        assert out.predictions[0].shape == out.targets[0].shape == (5, 16, 12)
        order = batch.draws["objective"]["order"]
        hidden = order > order.sort(1).values[:, 3:4]
        assert hidden.sum().item() == 5 * 12
        expected = masked_reconstruction(out.predictions[0], out.targets[0], hidden)
        torch.testing.assert_close(objective.loss(out, batch), expected)
        objective.loss(out, batch).backward()
        assert all(parameter.grad.abs().max() > 0 for parameter in objective.parameters())

    def test_the_prediction_depends_on_the_patches_that_are_seen_alone(self, objective):
        batch = given(objective)
        drawn, view = batch.draws["objective"], batch.views[0].clone().requires_grad_()
        seen, out = drawn["order"].argsort(1)[:, : objective.seen], objective(view, draws=drawn)
        (gradient,) = torch.autograd.grad(out.predictions[0].square().sum(), view)
        touched = patches(gradient.abs(), 2).sum(2) > 0
        assert touched.sum(1).tolist() == [objective.seen] * 5
        assert touched.gather(1, seen).all()
        assert not out.targets[0].requires_grad

    def test_the_decoder_puts_every_token_where_its_patch_was(self, objective):
        batch, decoder = given(objective), objective.decoder
        seen = batch.draws["objective"]["order"].argsort(1)[:, : objective.seen]
        assert not torch.equal(seen, seen.sort(1).values)
        decoder.layers, decoder.head = torch.nn.Identity(), torch.nn.Identity()
        tokens = objective.backbone.tokens(batch.views[0], seen)
        expected = decoder.mask_token.expand(5, 16, -1).clone()
        expected[torch.arange(5)[:, None], seen] = decoder.embed(tokens[:, 1:])
        torch.testing.assert_close(decoder(tokens, seen), expected)

    def test_masks_are_those_of_the_generator_and_at_least_one_patch_is_seen_and_one_hidden(self, objective):
        first, again, other = (given(objective, seed).draws["objective"]["order"] for seed in (0, 0, 1))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert [MaskedReconstruction(vit(), mask_ratio=share).seen for share in (0.5, 0.001, 0.999)] == [8, 15, 1]

    def test_bad_values_are_one_line(self):
        for arguments, message in (
            ({"mask_ratio": 1.0}, "objective.mask_ratio=1.0: give a number above 0 and below 1"),
            ({"decoder_width": 7}, "objective.decoder_width=7 .* the width a multiple of the heads"),
            ({"decoder": "goes"}, "objective.decoder='goes': choose travels or stays"),
            ({"encoder": encoder()}, "MaskedReconstruction hides patches, which this encoder does not have"),
        ):
            with pytest.raises(MethodError, match=message):
                MaskedReconstruction(**{"encoder": vit(), **arguments})


def released_mask(noise, ratio):
    """Which patches the released code hides: `random_masking` of models_mae.py, 1 is hidden."""
    length = noise.shape[1]
    kept = int(length * (1 - ratio))
    shuffle = np.argsort(noise, axis=1)
    mask = np.ones_like(noise)
    mask[:, :kept] = 0
    return np.take_along_axis(mask, np.argsort(shuffle, axis=1), axis=1)


def test_patches_of_four_pixels_of_an_image_of_cifar_are_hidden_as_by_the_released_code():
    """64 squares of 4 x 4 pixels, 48 of them hidden: a change of a hidden pixel changes no prediction."""
    settings = {"image_size": 32, "patch_size": 4, "width": 12, "depth": 1, "heads": 3, "in_channels": 3}
    network = Encoder(VisionTransformer(**settings, features="mean"), 12)
    objective = MaskedReconstruction(network, decoder_width=6, decoder_depth=1, colours=False).eval()
    assert objective.views == ("crop",)
    batch = Batch((torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)),), torch.arange(2))
    drawn = objective.draw(batch, torch.Generator().manual_seed(1))
    mask = torch.from_numpy(released_mask(drawn["order"].numpy(), 0.75))
    assert mask.sum(1).tolist() == [48, 48]
    pixels = mask.reshape(2, 1, 8, 8).repeat_interleave(4, 2).repeat_interleave(4, 3)
    changed = batch.views[0] * (1 - pixels) + pixels * 0.5
    first, second = (objective(view, draws=drawn).predictions[0] for view in (batch.views[0], changed))
    assert torch.equal(first, second)
    visible = objective(batch.views[0] * pixels, draws=drawn).predictions[0]
    assert not torch.equal(first, visible)
    given = batch._replace(draws={"objective": drawn})
    out = objective(*batch.views, draws=drawn)
    expected = masked_reconstruction(out.predictions[0], out.targets[0], mask)
    torch.testing.assert_close(objective.loss(out, given), expected)


def test_a_run_learns_and_its_decoder_travels(tmp_path):
    """That a decoder may stay is in `test_stays.py`."""
    loop = run_helpers.train_run(tmp_path, "fedavg", *SMALL, "federation.rounds=4", "optimizer.lr=0.1").loop
    assert loop.history[-1]["loss"] < loop.history[0]["loss"]
    assert set(loop.server["weights"]) == {"encoder", "decoder"}
