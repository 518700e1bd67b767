"""Gradient inversion: a client's images, reconstructed from what one step of training changed (Geiping et al. 2020)."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from eval.features import EvalError, Progress, Save, ignore


class ObservedStep(NamedTuple):
    """One step of a client, as seen by a server that knows everything but the images.

    views: `[n, C, H, W]`, the inputs that the step was made on. low, high: `[1, C, 1, 1]`, inputs of black and white.
    blind: `[1, C, H, W]`, the input that an attacker would show without a reply: the mean training image.
    observed: the gradient by tensor, worked out from the client's reply; perhaps with weight decay.
    gradients: inputs `[n, C, H, W]` -> the same of a step on them; can be differentiated.
    """

    views: Tensor
    low: Tensor
    high: Tensor
    blind: Tensor
    observed: Sequence[Tensor]
    gradients: Callable[[Tensor], Sequence[Tensor]]

    def pixels(self, inputs: Tensor) -> Tensor:
        """Inputs as images in [0, 1]."""
        return ((inputs - self.low) / (self.high - self.low)).clamp(0, 1)

    def inputs(self, pixels: Tensor) -> Tensor:
        """Images in [0, 1] as inputs."""
        return self.low + pixels * (self.high - self.low)


def reconstruct(
    step: ObservedStep, generator: Generator, steps: int, lr: float, variation: float, on_progress: Progress = ignore
) -> tuple[Tensor, float]:
    """Inputs whose gradient points where the observed one does, `[n, C, H, W]`, and the cosine that is left.

    Minimises 1 - cosine + `variation` times the total variation (mean absolute difference of neighbouring pixels, in
    [0, 1], down and across) by Adam on the signs of the gradient, from grey with noise. The rate falls to a tenth after
    3/8, 5/8 and 7/8 of the steps.

    Args:
        lr: in pixels in [0, 1].

    Raises EvalError: the step has changed nothing, or what is observed is not finite.
    """
    observed = torch.cat([part.flatten() for part in step.observed])
    if not observed.isfinite().all() or not observed.any():
        raise EvalError("inversion: the client's reply changes nothing, or is not finite: there is nothing to invert")
    observed = observed / observed.norm()
    noise = torch.randn(step.views.shape, generator=generator).to(step.views)
    guess = (0.5 + 0.1 * noise).requires_grad_()
    optimizer = torch.optim.Adam([guess], lr=lr)
    milestones = [round(share * steps) for share in (3 / 8, 5 / 8, 7 / 8)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    cosine = torch.zeros(())
    for done in range(steps):
        gradients = torch.cat([part.flatten() for part in step.gradients(step.inputs(guess))])
        cosine = (gradients @ observed) / gradients.norm().clamp(min=1e-12)
        (guess.grad,) = torch.autograd.grad(1 - cosine + variation * total_variation(guess), guess)
        guess.grad.sign_()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            guess.clamp_(0, 1)
        on_progress((done + 1) / steps)
    return step.inputs(guess).detach(), cosine.item()


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels of `[n, C, H, W]`, down and across, a scalar."""
    down, across = images[..., 1:, :] - images[..., :-1, :], images[..., 1:] - images[..., :-1]
    return down.abs().mean() + across.abs().mean()


def similarity(guesses: Tensor, truth: Tensor, blind: Tensor) -> tuple[dict[str, float], Tensor]:
    """How well guesses show the images, each by the guess that is most like it in structure.

    Args:
        guesses: `[m, C, H, W]`. truth: `[n, C, H, W]`. blind: `[1, C, H, W]`; all in [0, 1].

    Returns:
        "ssim" (Wang et al. 2004), at most 1, and "psnr" in dB, means over images; "ssim_best" of the image that is
        shown best; "ssim_blind" and "psnr_blind", where each is guessed to be `blind`. And of each image its guess,
        `[n]` int64.
    """
    pairs = [(guesses[k : k + 1].expand_as(truth), truth) for k in range(len(guesses))]
    values, nearest = torch.stack([ssim(*pair) for pair in pairs], dim=1).max(dim=1)
    return {
        "ssim": values.mean().item(),
        "ssim_best": values.max().item(),
        "ssim_blind": ssim(blind.expand_as(truth), truth).mean().item(),
        "psnr": psnr(guesses[nearest], truth).mean().item(),
        "psnr_blind": psnr(blind.expand_as(truth), truth).mean().item(),
    }, nearest


def ssim(guesses: Tensor, images: Tensor) -> Tensor:
    """Structural similarity of pairs of images in [0, 1], `[n]`; windows of at most 11 pixels."""
    from torchmetrics.functional.image import structural_similarity_index_measure

    size = min(11, *(side - 1 + side % 2 for side in images.shape[-2:]))
    values = structural_similarity_index_measure(
        guesses, images, data_range=1.0, reduction="none", gaussian_kernel=size == 11, kernel_size=size
    )
    assert isinstance(values, Tensor)
    return values


def psnr(guesses: Tensor, images: Tensor) -> Tensor:
    """Peak signal-to-noise ratios in dB of pairs of images in [0, 1], `[n]`, at most 100."""
    from torchmetrics.functional.image import peak_signal_noise_ratio

    values = peak_signal_noise_ratio(guesses, images, data_range=1.0, reduction="none", dim=(1, 2, 3))
    return values.clamp(max=100.0)


def compute_inversion(
    local_step: Callable[[], ObservedStep],
    save_arrays: Save,
    on_progress: Progress,
    generator: Generator,
    images: int,
    **settings: Any,
) -> dict[str, float]:
    """Likeness of a client's views and what is reconstructed of them, which are saved for a figure.

    images: that the step was made on, `local_step` has them already.
    """
    step = local_step()
    guesses, cosine = reconstruct(step, generator, on_progress=on_progress, **settings)
    truth, shown = step.pixels(step.views), step.pixels(guesses)
    scores, nearest = similarity(shown, truth, step.pixels(step.blind))
    save_arrays("inversion", {"truth": truth.cpu(), "guesses": shown[nearest].cpu()})
    return {**scores, "cosine": cosine}
