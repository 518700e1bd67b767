"""I-JEPA: the authors' loss told again, one block at a time, and the blocks and contexts that are drawn."""

from contextlib import nullcontext

import pytest
import torch

from benchmark.execution.parallel import ParallelExecutor
from benchmark.parity.libraries.registry import planted, relative
from datamodules.federated import Batch
from methods.base import MethodError
from methods.maths import latent_prediction
from methods.networks import Encoder, vit
from methods.objectives.ijepa import IJEPA, Predictor
from tests import run_helpers, tape
from tests.methods.objectives import encoder, views
from tests.methods.toys import shift
from tests.methods.vits import SMALL

WORDS = (SMALL, "objective=ijepa", "objective.blocks=2", "objective.predictor_width=6", "objective.predictor_depth=1")


def network(image_size: int = 8, features: str = "class") -> Encoder:
    torch.manual_seed(3)
    return vit(width=12, depth=1, heads=3, patch_size=2, image_size=image_size, features=features)


@pytest.fixture
def objective() -> IJEPA:
    """16 patches of 2 x 2 pixels, three blocks of 1 x 2; its target is another network than the online one."""
    found = IJEPA(network(), blocks=3, predictor_width=6, predictor_depth=1).double()
    shift(found.target_encoder, 0.3)
    return found


def given(objective: IJEPA, seed: int = 0, images: int = 5) -> Batch:
    (view,) = (view.double().requires_grad_() for view in views(1, images))
    batch = Batch((view,), torch.arange(images))
    return batch._replace(draws={"objective": objective.draw(batch, torch.Generator().manual_seed(seed))})


def tokens(vit, image, patches):
    """Last tokens of a list of an image's patches, the class token first, each patch cut out by itself."""
    side, places = vit.patch_size, vit.encoder.pos_embedding[0]
    rows = [vit.class_token[0, 0] + places[0]]
    for patch in patches:
        top, left = (side * at for at in divmod(patch, image.shape[2] // side))
        pixels = image[:, top : top + side, left : left + side]
        rows.append(vit.conv_proj.weight.flatten(1) @ pixels.flatten() + vit.conv_proj.bias + places[1 + patch])
    return vit.encoder.ln(vit.encoder.layers(torch.stack(rows)[None]))[0]


def retold(objective, image, seen, blocks):
    """An image's errors: each predicted number's distance from the normalised target (the authors' train.py)."""
    predictor, errors = objective.predictor, []
    places = predictor.layers.pos_embedding[0]
    context = tokens(objective.encoder.backbone, image, seen)
    whole = tokens(objective.target_encoder.backbone, image.detach(), range(16))
    for block in blocks:
        rows = [predictor.embed(row) + places[at] for row, at in zip(context, [0, *(1 + p for p in seen)], strict=True)]
        rows += [predictor.mask_token[0, 0] + places[1 + patch] for patch in block]
        last = predictor.layers.ln(predictor.layers.layers(torch.stack(rows)[None]))[0]
        for row, patch in zip(last[len(context) :], block, strict=True):
            target = whole[1 + patch].detach()
            deviation = ((target - target.mean()) ** 2).mean().add(1e-5).sqrt()
            errors.append(predictor.head(row) - (target - target.mean()) / deviation)
    return torch.cat(errors)


def smooth(error):
    return error**2 / 2 if abs(error) < 1 else abs(error) - 0.5


def apart(objective: IJEPA) -> float:
    """How far loss and gradients are from the retelling's, of parameters and pixels."""
    batch, inputs = given(objective), [each for each in objective.parameters() if each.requires_grad]
    inputs += batch.views
    drawn = (batch.draws["objective"][name].tolist() for name in ("seen", "hidden"))
    told = [retold(objective, *each) for each in zip(batch.views[0], *drawn, strict=True)]
    theirs = torch.stack([smooth(error) for error in torch.cat(told)]).mean()
    ours = objective.loss(objective(*batch.views, draws=batch.draws["objective"]), batch)
    losses = (ours, theirs)
    return relative(*([loss, *torch.autograd.grad(loss, inputs, allow_unused=True)] for loss in losses))


FAULTS = {
    "none": None,
    "targets as they are": (latent_prediction, "layer_norm(targets, targets.shape[-1:])", "targets"),
    "targets of other blocks": (IJEPA.embed_targets, "hidden.flatten(1)", "hidden.flip(1).flatten(1)"),
    "predictions of other blocks": (Predictor.forward, "take(positions, hidden", "take(positions, hidden.flip(1)"),
    "a context somewhere else": (Predictor.forward, "take(positions, seen)", "take(positions, seen.flip(1))"),
    "a context of all": (IJEPA.forward, "tokens(views[0], seen)", "tokens(views[0], seen * 0)"),
    "the online network as target": (IJEPA.embed_targets, "self.target_encoder", "self.encoder"),
    "a gradient into the target": (
        *(IJEPA.embed_targets, "self.target_encoder.backbone"),
        "torch.set_grad_enabled(True) and self.target_encoder.backbone",
    ),
    "the context of another image": (Predictor.forward, "repeat_interleave(blocks, 0)", "repeat(blocks, 1, 1)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_loss_and_gradients_are_those_of_the_slow_retelling_and_a_fault_is_seen(fault, objective):
    with planted(*FAULTS[fault]) if FAULTS[fault] else nullcontext():
        found = apart(objective)
    assert found > 1e-3 if FAULTS[fault] else found < 1e-10


def test_the_papers_loss_is_the_squared_distance_of_a_blocks_tokens():
    predicted, targets = torch.randn(2, 4, 3, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    blocks = [((p - t) ** 2).sum() for p, t in zip(predicted.flatten(0, 1), targets.flatten(0, 1), strict=True)]
    torch.testing.assert_close(latent_prediction(predicted, targets, "paper"), sum(blocks) / 12)
    objective = IJEPA(network(), variant="paper")
    batch = given(objective.double())
    out = objective(*batch.views, draws=batch.draws["objective"])
    torch.testing.assert_close(
        objective.loss(out, batch), latent_prediction(out.predictions[0], out.targets[0], "paper")
    )


@pytest.mark.parametrize(
    ("image_size", "settings", "sides", "square", "seen"),
    [
        (8, {}, (1, 2), 4, 8),
        (16, {}, (3, 4), 8, 16),
        (28, {}, (5, 7), 13, 29),
        (14, {}, (3, 3), 7, 13),
        (16, {"blocks": 2, "block_scale": 0.25, "block_aspect": 1.0, "context_scale": 0.6}, (4, 4), 6, 4),
    ],
)
def test_blocks_lie_anywhere_and_the_context_is_in_a_square_without_them(image_size, settings, sides, square, seen):
    """Blocks are compared with all rectangles of their size, squares with all squares, patch by patch."""

    def rectangles(height, width):
        corners = ((y, x) for y in range(grid - height + 1) for x in range(grid - width + 1))
        return {frozenset((y + i) * grid + x + j for i in range(height) for j in range(width)) for y, x in corners}

    objective, images = IJEPA(network(image_size), **settings), 600
    grid, blocks = objective.grid, settings.get("blocks", 4)
    assert (objective.sides, objective.square, objective.seen) == (sides, square, seen)
    drawn = objective.draw(Batch((), torch.arange(images)), torch.Generator().manual_seed(0))
    assert (drawn["seen"].shape, drawn["hidden"].shape) == ((images, seen), (images, blocks, sides[0] * sides[1]))
    found = {frozenset(block) for block in drawn["hidden"].flatten(0, 1).tolist()}
    assert found == rectangles(*sides) | rectangles(*sides[::-1])
    squares, touched = rectangles(square, square), set()
    for context, hidden in zip(drawn["seen"].tolist(), drawn["hidden"].flatten(1).tolist(), strict=True):
        assert len(set(context)) == seen
        assert not set(context) & set(hidden)
        assert any(set(context) <= each for each in squares)
        touched |= set(context)
    assert touched == set(range(grid**2))


def test_blocks_and_context_are_those_of_the_generator(objective):
    first, again, other = (given(objective, seed).draws["objective"] for seed in (0, 0, 1))
    for name in ("seen", "hidden"):
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])


def test_outputs_and_what_the_target_follows(objective):
    batch = given(objective)
    out = objective(*batch.views, extra=[view.double() for view in views(1, seed=9)], draws=batch.draws["objective"])
    assert [h.shape for h in (*out.representations, *out.embeddings, *out.extra[0])] == [(5, 12)] * 4
    assert out.predictions[0].shape == out.targets[0].shape == (5, 3, 2, 12)
    assert (objective.views, IJEPA(network(), colours=True).views) == (("crop",), ("augment",))
    travelling = {each for part in objective.travels for each in getattr(objective, part).parameters()}
    assert travelling == {each for each in objective.parameters() if each.requires_grad}
    before = [each.clone() for each in objective.target_encoder.parameters()]
    objective.after_step({})
    followed = [0.996 * old + 0.004 * new for old, new in zip(before, objective.encoder.parameters(), strict=True)]
    torch.testing.assert_close([*objective.target_encoder.parameters()], followed)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder": encoder()}, "IJEPA hides patches, which this encoder does not have: set encoder="),
        ({"encoder": network(features="patches")}, "encoder.features=patches: IJEPA hides patches, .*features=mean"),
        ({"blocks": 8}, "8 blocks of 1 x 2 patches leave no context of 4 x 4, of an image of 4 x 4: set a smaller"),
        ({"block_scale": 0.9, "block_aspect": 0.1, "blocks": 1}, "1 blocks of 1 x 12 patches leave no context"),
        ({"context_scale": 0.2}, "leave no context of 2 x 2"),
        ({"block_scale": 0}, "objective.block_scale=0: give a number above 0 and at most 1"),
        ({"block_aspect": 2.0}, "objective.block_aspect=2.0: give a number above 0 and at most 1"),
        ({"blocks": 0}, "objective.blocks=0: give a number of at least 1"),
        ({"momentum": 2.0}, "objective.momentum=2.0: give a number of at least 0 and at most 1"),
        ({"predictor_width": 7}, "objective.predictor_width=7 predictor_depth=2 .* the width a multiple of the heads"),
        ({"variant": "mean"}, "objective.variant='mean': choose code or paper"),
    ],
)
def test_what_cannot_work_is_one_line(settings, message):
    with pytest.raises(MethodError, match=message):
        IJEPA(**{"encoder": network(), **settings})


def test_a_run_sends_encoder_and_predictor_and_its_steps_can_be_recorded(tmp_path):
    words = (*WORDS, "objective.stateful=true", "objective.momentum_end=1", "optimizer.lr=0.1")
    words += ("federation.participation=1",)
    tapes: list[tape.Tape] = []
    run = run_helpers.build_run(tmp_path, "fedavg", *words)
    run.loop.executor = ParallelExecutor(run.loop.executor, lanes=2, recorder=tape.recorder(tapes))
    run.loop.fit()
    plain = run_helpers.trained("fedavg", *words).loop
    assert run_helpers.difference(run.loop.server, plain.server) < 1e-5
    assert sum(recorded.replays for recorded in tapes) > 0
    assert [recorded.looks for recorded in tapes] == [[]] * len(tapes)
    assert set(plain.server["weights"]) == {"encoder", "predictor"}
    assert [set(state["stays"]) for state in plain.client_state.values()] == [{"target_encoder"}] * 4
    assert plain.history[-1]["loss"] < plain.history[0]["loss"]
