"""Contract between every objective and the methods; an objective's test inherits it and adds its paper's rules."""

import re
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from datamodules.federated import Batch
from methods.base import MethodError, Objective, Outputs
from methods.networks import Encoder, convnet
from tests.methods.test_maths import numeric_gradient
from tests.methods.toys import shift


def encoder() -> Encoder:
    """A small BatchNorm encoder with 6 features, always the same."""
    torch.manual_seed(3)
    return convnet(widths=(4, 6), strides=(2, 2))


def views(count: int = 2, images: int = 5, seed: int = 0) -> tuple[Tensor, ...]:
    """Random views `[images, 3, 8, 8]`."""
    return torch.rand(count, images, 3, 8, 8, generator=torch.Generator().manual_seed(seed)).unbind()


def batch(images: int = 5, labels: Tensor | None = None) -> Batch:
    """A batch of two views."""
    return Batch(views(images=images), torch.arange(images), labels=labels)


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, always the same."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check_retold(loss: Callable[..., Tensor], retold: Callable[..., float], x: np.ndarray, *others: Any) -> None:
    """A loss of arrays and numbers, and its gradient with respect to the first, are those of its retelling."""
    ours = torch.tensor(x, requires_grad=True)
    value = loss(ours, *(torch.tensor(each) if isinstance(each, np.ndarray) else each for each in others))
    value.backward()
    assert value.item() == pytest.approx(retold(x, *others), abs=1e-6)
    expected = numeric_gradient(lambda moved: retold(moved, *others), x)
    np.testing.assert_allclose(ours.grad, expected, atol=1e-6, rtol=0)


class ObjectiveContract:
    """The tests every objective passes.

    objective, settings: what `build` builds. travels: parts that are sent. width: of the embeddings. predicts: whether
    it has predictions. targets: whether it has targets; None: as it predicts. contrastive: whether it compares the
    images of a batch. refused: values of settings that cannot work, with what the error says beside them.
    """

    objective: ClassVar[type[Objective]]
    settings: ClassVar[dict[str, Any]] = {}
    travels: ClassVar[tuple[str, ...]] = ("encoder", "projector")
    width: ClassVar[int] = 4
    predicts: ClassVar[bool] = False
    targets: ClassVar[bool | None] = None
    contrastive: ClassVar[bool] = False
    refused: ClassVar[tuple[tuple[str, Any, str], ...]] = ()

    def build(self, **settings: Any) -> Any:
        """The objective over `encoder()`, embedding into `width` dimensions; settings: in the place of its own."""
        return self.objective(encoder(), **{"projector": (5, 4)} | self.settings | settings)

    def expected(self, out: Outputs) -> Tensor:
        """The loss as the paper composes it from `methods.maths`."""
        raise NotImplementedError

    def batch(self) -> Batch:
        """The batch that the objective is tested on."""
        return batch()

    def test_outputs(self) -> None:
        objective, given = self.build(), self.batch()
        out = objective(*given.views)
        assert [h.shape for h in out.representations] == [(5, 6)] * 2
        assert [z.shape for z in out.embeddings] == [(5, self.width)] * 2
        targets = self.predicts if self.targets is None else self.targets
        assert [p.shape for p in out.predictions] == [(5, self.width)] * 2 * self.predicts
        assert [t.shape for t in out.targets] == [(5, self.width)] * 2 * targets
        assert out.extra == ()
        assert objective.loss(out, given).shape == ()
        assert objective.views == ("augment", "augment")
        assert objective.contrastive == self.contrastive

    def test_what_travels_are_modules_and_all_that_is_trained(self) -> None:
        objective = self.build()
        assert objective.travels == self.travels
        travelling = {p for name in self.travels for p in getattr(objective, name).parameters()}
        assert travelling == {p for p in objective.parameters() if p.requires_grad}

    def test_loss_is_the_papers_and_a_pure_function_of_its_outputs(self) -> None:
        objective, given = self.build(), self.batch()
        out = objective(*given.views)
        before = [buffer.clone() for buffer in objective.buffers()]
        ours, papers = objective.loss(out, given), self.expected(out)
        torch.testing.assert_close(ours, papers)
        encoder = tuple(objective.encoder.parameters())
        gradients = (torch.autograd.grad(loss, encoder, retain_graph=True) for loss in (ours, papers))
        torch.testing.assert_close(*gradients)
        shift(objective, 1)  # the loss must not encode the views again
        assert torch.equal(objective.loss(out, given), ours)
        assert all(map(torch.equal, before, objective.buffers()))

    def test_all_views_pass_through_the_networks_together(self) -> None:
        """BatchNorm sees all views in one batch, also the extra view of an add-on, which the loss ignores."""
        objective, reference, given = self.build(), self.build(), self.batch()
        (more,) = views(1, seed=9)
        out = objective(*given.views, extra=(more,))
        h, z = reference.embed(torch.cat([*given.views, more]))
        assert torch.equal(torch.cat([*out.representations, out.extra[0][0]]), h)
        assert torch.equal(torch.cat([*out.embeddings, out.extra[0][1]]), z)
        assert (len(out.representations), len(out.embeddings), len(out.extra)) == (2, 2, 1)
        assert objective.loss(out, given).isfinite()
        assert int(objective.encoder.backbone[1].num_batches_tracked) == 1

    def test_separate_views_pass_one_after_the_other(self) -> None:
        """Each view has the outputs of a pass of its own, and every network sees one batch for each view."""
        objective, reference, joint, given = self.build(), self.build(), self.build(), self.batch()
        (more,) = views(1, seed=9)
        objective.separate_views = True
        out, _ = (each(*given.views, extra=(more,)) for each in (objective, joint))
        found = (*zip(out.representations, out.embeddings, strict=True), out.extra[0])
        for view, pair in zip((*given.views, more), found, strict=True):
            assert all(map(torch.equal, pair, reference.embed(view)))
        assert objective.loss(out, given).isfinite()
        for name, count in objective.named_buffers():
            if name.endswith("num_batches_tracked") and dict(joint.named_buffers())[name] > 0:
                assert int(count) == (3 if name.startswith(("encoder", "projector")) else 2), name

    def test_gradient_reaches_all_that_is_trained_and_nothing_else(self) -> None:
        """Targets need no gradient even where the images do."""
        objective, given = self.build(), self.batch()
        out = objective(*(view.requires_grad_() for view in given.views))
        assert not any(t.requires_grad for t in out.targets)
        assert all(row.requires_grad for rows in (out.representations, out.embeddings, out.predictions) for row in rows)
        objective.loss(out, given).backward()
        for name, parameter in objective.named_parameters():
            assert (parameter.grad is not None) == parameter.requires_grad, name
            assert parameter.grad is None or parameter.grad.any(), name

    def test_views_may_change_places(self) -> None:
        objective, given = self.build().eval(), self.batch()
        losses = (objective.loss(objective(*order), given) for order in (given.views, given.views[::-1]))
        torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)

    def test_settings_that_cannot_work_are_refused(self) -> None:
        for name, value, reason in self.refused:
            with pytest.raises(MethodError, match=re.escape(f"objective.{name}={value!r}") + f".*{reason}"):
                self.build(**{name: value})


def step(objective: Objective, given: Batch) -> None:
    """One step of SGD, then the objective's `after_step`."""
    optimizer = torch.optim.SGD((p for p in objective.parameters() if p.requires_grad), lr=0.1)
    out = objective(*given.views)
    objective.loss(out, given).backward()
    optimizer.step()
    objective.after_step(out.push)
