import math

import pytest
import torch

from eval.features import EvalError
from eval.inversion import ObservedStep, psnr, reconstruct, similarity, ssim, total_variation


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def images(n, seed, size=12):
    coarse = torch.rand(n, 3, 3, 3, generator=stream(seed))
    return torch.nn.functional.interpolate(coarse, size, mode="bilinear")


def step(truth, observed=None, mean=0.0, std=1.0):
    """A step whose gradient shows its inputs, beside a constant that sets their scale."""
    low, high = (torch.full((1, 3, 1, 1), (end - mean) / std) for end in (0.0, 1.0))

    def gradients(inputs):
        return [inputs.flatten() * std + mean, torch.full((1,), 20.0)]

    views = low + truth * (high - low)
    blind = torch.full((1, 3, *truth.shape[2:]), (0.5 - mean) / std)
    return ObservedStep(views, low, high, blind, observed or [g.detach() for g in gradients(views)], gradients)


@pytest.mark.parametrize("scale", [{}, {"mean": 0.4, "std": 0.2}], ids=["plain", "normalised"])
def test_images_are_reconstructed_where_the_gradient_shows_them(scale):
    truth = images(4, seed=1)
    observed = step(truth, **scale)
    guesses, cosine = reconstruct(observed, stream(2), steps=300, lr=0.02, variation=0.0)
    scores, nearest = similarity(observed.pixels(guesses), truth, observed.pixels(observed.blind))
    assert cosine > 0.9999
    assert nearest.tolist() == [0, 1, 2, 3]
    assert scores["ssim"] > 0.95
    assert scores["psnr"] > 25 > scores["psnr_blind"]
    assert scores["ssim_blind"] < 0.5


def test_another_gradient_gives_no_image():
    truth = images(4, seed=1)
    noise = [torch.randn(truth.numel(), generator=stream(3)), torch.zeros(1)]
    observed = step(truth, noise)
    guesses, _ = reconstruct(observed, stream(2), steps=100, lr=0.02, variation=0.1)
    scores, _ = similarity(observed.pixels(guesses), truth, observed.pixels(observed.blind))
    assert scores["psnr"] < scores["psnr_blind"]


def test_each_image_is_shown_by_the_guess_that_is_most_like_it():
    truth, blind = images(4, seed=1), torch.full((1, 3, 12, 12), 0.5)
    scores, nearest = similarity(truth[[2, 0]], truth, blind)
    assert nearest[[0, 2]].tolist() == [1, 0]
    assert scores["ssim_best"] == pytest.approx(1)
    assert scores["ssim"] < 1
    by_hand = -10 * torch.log10((truth - blind).square().mean(dim=(1, 2, 3)))
    assert scores["psnr_blind"] == pytest.approx(by_hand.mean().item(), rel=1e-5)


def test_pairs_are_measured_by_themselves():
    first, second = images(3, seed=1), images(3, seed=2)
    for measure in (ssim, psnr):
        alone = torch.cat([measure(first[k : k + 1], second[k : k + 1]) for k in range(3)])
        torch.testing.assert_close(measure(first, second), alone)
    assert psnr(first, first).tolist() == [100] * 3
    small = torch.rand(2, 1, 8, 8, generator=stream())
    torch.testing.assert_close(ssim(small, small), torch.ones(2))


def test_total_variation_by_hand():
    ramp = torch.arange(3.0).view(1, 1, 1, 3).expand(1, 1, 2, 3)
    assert total_variation(ramp).item() == 1
    assert total_variation(ramp.mT).item() == 1
    assert total_variation(torch.ones(1, 1, 4, 4)).item() == 0


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_a_reply_that_says_nothing_is_refused(value):
    with pytest.raises(EvalError, match="nothing to invert"):
        reconstruct(step(images(2, 1), [torch.full((864,), value)]), stream(), steps=2, lr=0.1, variation=0.0)
