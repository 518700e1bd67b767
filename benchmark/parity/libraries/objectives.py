"""Objectives and what they are made of, beside lightly's and stable-pretraining's."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from benchmark.parity.libraries.registry import case
from methods import maths
from methods.core import modules, objective
from methods.maths import reconstruction
from methods.networks import Encoder, mlp
from methods.objectives.dino import DINO
from methods.objectives.moco import MoCo

BATCH, WIDTH = 12, 8


def rows(count: int, *shape: int, seed: int = 0) -> list[Tensor]:
    """Normal numbers, `[BATCH, WIDTH]` each or of another shape, that require a gradient."""
    stream = torch.Generator().manual_seed(seed)
    return [
        torch.randn(shape or (BATCH, WIDTH), generator=stream, dtype=torch.float64).requires_grad_()
        for _ in range(count)
    ]


def with_gradients(loss: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """A loss and its gradients."""
    value = loss(*inputs)
    return [value.reshape(()), *torch.autograd.grad(value.sum(), inputs)]


def both(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], *inputs: Tensor) -> tuple[Any, Any]:
    """Loss and gradients of two functions."""
    return with_gradients(ours, *inputs), with_gradients(theirs, *inputs)


@case(
    "stable_pretraining.losses.NTXEntLoss",
    maths.nt_xent,
    'float("-inf")',
    "0.0",
    title="NT-Xent of SimCLR, another library's",
)
@case("lightly.loss.NTXentLoss", maths.nt_xent, ".roll(len(a))", ".roll(1)")
def nt_xent(NTXentLoss: Any) -> tuple[Any, Any]:
    """NT-Xent of SimCLR."""
    return both(lambda a, b: maths.nt_xent(a, b, 0.3), NTXentLoss(0.3), *rows(2))


@case("lightly.loss.NegativeCosineSimilarity", maths.negative_cosine, "upcast(z)", "upcast(z).roll(1, 0)")
def negative_cosine(NegativeCosineSimilarity: Any) -> tuple[Any, Any]:
    """Negative cosine of SimSiam."""
    return both(maths.negative_cosine, NegativeCosineSimilarity(), *rows(2))


@case("stable_pretraining.losses.BYOLLoss", maths.byol_regression, "2 + 2 *", "2 +")
def byol_regression(BYOLLoss: Any) -> tuple[Any, Any]:
    """Regression of BYOL."""
    return both(maths.byol_regression, BYOLLoss(), *rows(2))


@case("lightly.loss.BarlowTwinsLoss", maths.barlow_twins, "/ len(a)", "/ (len(a) - 1)")
def barlow_twins(BarlowTwinsLoss: Any) -> tuple[Any, Any]:
    """Barlow Twins."""
    return both(lambda a, b: maths.barlow_twins(a, b, 0.02), BarlowTwinsLoss(0.02), *rows(2))


@case(
    "stable_pretraining.losses.VICRegLoss", maths.vicreg, "variance / 2", "variance", title="VICReg, another library's"
)
@case("lightly.loss.VICRegLoss", maths.vicreg, "(images - 1)", "images")
def vicreg(VICRegLoss: Any) -> tuple[Any, Any]:
    """VICReg, in the form of its authors' code."""
    return both(maths.vicreg, VICRegLoss(), *rows(2))


@case("lightly.loss.hypersphere_loss.HypersphereLoss", maths.uniformity, "-t *", "-2 * t *")
def align_uniform(HypersphereLoss: Any) -> tuple[Any, Any]:
    """Alignment and uniformity."""

    def ours(a: Tensor, b: Tensor) -> Tensor:
        return maths.alignment(a, b) + 0.7 * (maths.uniformity(a, 2) + maths.uniformity(b, 2)) / 2

    return both(ours, HypersphereLoss(t=2, lam=0.7, alpha=2), *rows(2))


@case("lightly.loss.swav_loss.sinkhorn", maths.sinkhorn, "if weighted:", "if not weighted:")
def sinkhorn() -> tuple[Any, Any]:
    """Assignment of SwAV by Sinkhorn's scalings."""
    from lightly.loss import swav_loss

    (scores,) = rows(1)
    scores = scores.detach().tanh()
    return maths.sinkhorn(scores, 0.05, 3, weighted=True), swav_loss.sinkhorn(scores, 3, 0.05)


@case("lightly.loss.SwaVLoss", maths.swav, "- entropies.diagonal().sum()", "")
def swav(SwaVLoss: Any) -> tuple[Any, Any]:
    """SwAV of two large and one small view."""

    def ours(*scores: Tensor) -> Tensor:
        codes = [maths.sinkhorn(view.detach(), 0.05, 3, weighted=True) for view in scores[:2]]
        return maths.swav(torch.stack(scores), torch.stack(codes), 0.1)

    def theirs(*scores: Tensor) -> Tensor:
        return SwaVLoss(0.1, 3, 0.05)(list(scores[:2]), list(scores[2:]))

    return both(ours, theirs, *(view.detach().tanh().requires_grad_() for view in rows(3)))


def encoder() -> Encoder:
    """Of images `[B, 1, 3, 3]`."""
    return Encoder(nn.Sequential(nn.Flatten(), nn.Linear(9, WIDTH)), WIDTH)


@case("lightly.loss.DINOLoss", DINO, "1 - self.centre_momentum", "self.centre_momentum", within=DINO.after_step)
def dino(DINOLoss: Any) -> tuple[Any, Any]:
    """DINO over three steps, its centre moving."""
    student = DINO(encoder(), projector=(WIDTH,), outputs=6, local_views=1)
    theirs, pairs = DINOLoss(6), []
    for step in range(3):
        out = student(*rows(3, BATCH, 1, 3, 3, seed=step))
        pairs.append((student.loss(out, None), theirs(list(out.targets), list(out.predictions))))  # type: ignore[arg-type]
        student.after_step(out.push)
    ours, losses = map(list, zip(*pairs, strict=True))
    return [*ours, student.centre.value], [*losses, theirs.center.flatten()]


@case(
    "lightly.loss.NTXentLoss",
    MoCo,
    "filled.add_(len(rows))",
    "filled.add_(len(rows) - 1)",
    within=objective.fill,
    note="lightly's queue starts with random rows as negatives and ours empty; compared once both are full",
)
def moco(NTXentLoss: Any) -> tuple[Any, Any]:
    """MoCo's loss with its queue, over five batches."""
    student = MoCo(encoder(), projector=(WIDTH,), queue_size=2 * BATCH, symmetric=False)
    theirs, pairs = NTXentLoss(0.2, memory_bank_size=(2 * BATCH, WIDTH)).double(), []
    for step in range(5):
        out = student(*rows(2, BATCH, 1, 3, 3, seed=step))
        pairs.append((student.loss(out, None), theirs(out.embeddings[0], out.targets[1])))  # type: ignore[arg-type]
        student.after_step(out.push)
    ours, losses = map(list, zip(*pairs[2:], strict=True))
    return ours, losses


@case("lightly.models.utils.update_momentum", objective.update_ema, "1 - momentum)  #", "momentum)  #")
def moving_average(update_momentum: Any) -> tuple[Any, Any]:
    """Moving average of a target's weights."""
    source, first = encoder(), encoder()
    second = deepcopy(first)
    objective.update_ema(first, source, 0.97)
    update_momentum(source, second, 0.97)
    return list(first.parameters()), list(second.parameters())


@case("lightly.models.modules.heads.SimSiamProjectionHead", modules.mlp, "if norm else []", "if not norm else []")
def heads() -> tuple[Any, Any]:
    """Projector of SimSiam and predictor of BYOL, of the same weights."""
    from lightly.models.modules import heads as theirs

    (x,), outputs = rows(1), []
    for ours, other in (
        (mlp((WIDTH, 16, 16, 4), last_norm=True), theirs.SimSiamProjectionHead(WIDTH, 16, 4)),
        (mlp((WIDTH, 16, 4)), theirs.BYOLPredictionHead(WIDTH, 16, 4)),
    ):
        for mine, its in zip(ours.parameters(), other.parameters(), strict=False):
            if mine.shape == its.shape:
                its.data.copy_(mine)
        outputs.append((ours(x), other(x)))
    first, second = map(list, zip(*outputs, strict=True))
    return first, second


@case(
    "lightly.models.utils.patchify",
    reconstruction.patches,
    "unfold(images, size",
    "unfold(images.mT, size",
    note="a patch's numbers are ordered by channel, row, column here and by row, column, channel there; the loss is "
    "the same",
)
def patches(patchify: Any) -> tuple[Any, Any]:
    """Patches of an image."""
    (images,) = rows(1, 2, 3, 8, 8)
    by_channel = patchify(images, 4).unflatten(2, (4, 4, 3)).permute(0, 1, 4, 2, 3).flatten(2)
    return reconstruction.patches(images, 4), by_channel


@case("stable_pretraining.losses.reconstruction.mae", maths.masked_reconstruction, "variance + EPSILON", "variance")
def masked_reconstruction(mae: Any) -> tuple[Any, Any]:
    """Loss of MAE, of patches normalised by their own pixels."""
    predicted, targets = rows(2, 3, 5, 6)
    targets = 0.01 * targets.detach()
    hidden = (torch.arange(15).view(3, 5) % 3 > 0).double()
    return both(
        lambda x: maths.masked_reconstruction(x, targets, hidden), lambda x: mae(targets, x, hidden, True), predicted
    )
