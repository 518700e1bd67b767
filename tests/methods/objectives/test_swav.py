from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from methods import trees
from methods.base import MethodError, Outputs
from methods.maths import cosines, sinkhorn, swav
from methods.objectives.swav import SwAV
from tests import run_helpers
from tests.methods.objectives import ObjectiveContract, batch, encoder, step, views

SMALL = ("objective=swav", "objective.prototypes=12")


class TestSwAV(ObjectiveContract):
    travels = ("encoder", "projector", "prototypes")
    predicts = True
    contrastive = True
    queue: ClassVar[dict[str, int]] = {}

    def build(self, **kwargs: object) -> SwAV:
        torch.manual_seed(1)
        return SwAV(encoder(), projector=(5, 4), **{"prototypes": 4, "temperature": 0.3, **self.queue, **kwargs})

    def earlier(self) -> Tensor:
        """Rows that take part in the assignment beside the batch's own."""
        return torch.zeros(0, 4)

    def expected(self, out: Outputs) -> Tensor:
        scores = [cosines(z, self.build().prototypes.weight.detach()) for z in out.embeddings]
        more = cosines(self.earlier(), self.build().prototypes.weight.detach())
        codes = [sinkhorn(torch.cat([own.detach(), more]), 0.05, 3, weighted=True)[: len(own)] for own in scores]
        return swav(torch.stack(scores), torch.stack(codes), 0.3)

    def test_the_loss_by_hand(self) -> None:
        """Each view's code is the target of the other view's softmax."""
        out = self.build()(*batch().views)
        (p_a, p_b), (q_a, q_b) = out.predictions, out.targets
        both = [-(q * (p / 0.3).log_softmax(dim=1)).sum(dim=1).mean() for p, q in ((p_a, q_b), (p_b, q_a))]
        torch.testing.assert_close(self.build().loss(out, batch()), sum(both) / 2)

    def test_codes_are_assignments_that_use_all_prototypes_equally(self) -> None:
        objective = self.build(iterations=500, prototypes=3, queue_size=0)
        for code in objective(*batch(16).views).targets:
            torch.testing.assert_close(code.sum(dim=1), torch.ones(16))
            torch.testing.assert_close(code.sum(dim=0), torch.full((3,), 16 / 3), rtol=1e-3, atol=0)

    def test_prototypes_count_by_their_direction_alone(self) -> None:
        """So the gradient is orthogonal to them, and a mean of clients' prototypes needs no unit length."""
        objective, given = self.build(), self.batch()
        torch.testing.assert_close(objective.prototypes.weight.norm(dim=1), torch.ones(4))
        assert objective.prototypes.bias is None
        before = objective.loss(objective(*given.views), given)
        before.backward()
        gradient = objective.prototypes.weight.grad
        torch.testing.assert_close(
            (gradient * objective.prototypes.weight).sum(dim=1), torch.zeros(4), atol=1e-6, rtol=0
        )
        with torch.no_grad():
            objective.prototypes.weight.mul_(torch.tensor([[0.1], [1.0], [3.0], [20.0]]))
        torch.testing.assert_close(objective.loss(objective(*given.views), given), before)

    def test_steps_lower_the_loss(self) -> None:
        objective, given = self.build(), batch(16)
        losses = []
        for _ in range(60):
            losses.append(objective.loss(objective(*given.views), given).item())
            step(objective, given)
        assert losses[-1] < 0.5 * losses[0]

    def test_further_views_predict_the_codes_of_the_first_two(self) -> None:
        """As the crops of multi-crop would; the queues, too, are of the first two."""
        objective, given = self.build().eval(), self.batch()
        crops = views(2, seed=7)
        out = objective(*given.views, *crops)
        assert len(out.predictions) == 4
        assert len(out.targets) == 2
        two = objective(*given.views)
        torch.testing.assert_close(out.targets, two.targets)
        torch.testing.assert_close(
            objective.loss(out, given), swav(torch.stack(out.predictions), torch.stack(out.targets), 0.3)
        )
        assert set(out.push) == set(two.push)

    @pytest.mark.parametrize(
        "wrong",
        [{"temperature": 0.0}, {"epsilon": 0.0}, {"iterations": 0}, {"prototypes": 1}, {"queue_size": -1}],
    )
    def test_settings_that_cannot_work_are_refused(self, wrong: dict[str, float]) -> None:
        (name,) = wrong
        with pytest.raises(MethodError, match=f"objective.{name}="):
            self.build(**wrong)


class TestWithAQueue(TestSwAV):
    """Both views' queues hold the same seven rows, so that the views may change places."""

    queue: ClassVar[dict[str, int]] = {"queue_size": 30}

    def earlier(self) -> Tensor:
        return normalize(torch.randn(7, 4, generator=torch.Generator().manual_seed(2)), dim=1)

    def build(self, **kwargs: object) -> SwAV:
        objective = super().build(**kwargs)
        objective.after_step(dict.fromkeys(objective.queues, self.earlier()))
        return objective

    def test_a_queue_for_each_view_is_first_in_first_out_and_of_unit_rows(self) -> None:
        objective, given = self.build(queue_size=11), batch()
        first = self.earlier()
        for seed in range(2):
            given = given._replace(views=tuple(view + seed for view in given.views))
            rows = [normalize(z.detach(), dim=1) for z in objective(*given.views).embeddings]
            step(objective, given)
            for name, newest in zip(objective.queues, rows, strict=True):
                # a pass moves BatchNorm's running statistics only, so that the step's own rows are these
                torch.testing.assert_close(getattr(objective, name)[:5], newest)
                assert int(getattr(objective, f"{name}_filled")) == min(11, 7 + 5 * (seed + 1))
        assert not torch.equal(objective.queue_a, objective.queue_b)
        torch.testing.assert_close(objective.queue_a[10:], first[:1])

    def test_an_empty_queue_is_none(self) -> None:
        given = self.batch()
        with_queue, without = SwAV(encoder(), projector=(5, 4), queue_size=9), SwAV(encoder(), projector=(5, 4))
        without.load_state_dict(with_queue.state_dict(), strict=False)
        for ours, theirs in zip(with_queue(*given.views).targets, without(*given.views).targets, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("keep_queue", [True, False])
def test_prototypes_travel_and_queues_stay(keep_queue: bool, tmp_path) -> None:
    queue = ("objective.queue_size=64", f"objective.keep_queue={str(keep_queue).lower()}")
    run = run_helpers.train_run(tmp_path, "fedavg", *SMALL, *queue, "federation.participation=1")
    for client in run.loop.clients:
        kept = run.loop.client_state.get(client.id, {}).get("stays", {})
        assert set(kept) == ({"queue_a", "queue_b"} if keep_queue else set())
        seen = sum(size for size in (client.examples - client.examples % 8, client.examples % 8) if size > 1)
        assert all(int(kept[name][f"{name}_filled"]) == min(64, 3 * seen) for name in kept)
    assert {entry for direction in ("up", "down") for entry in run.loop.ledger.total(direction)} == {"weights"}
    assert set(run.loop.server["weights"]) == {"encoder", "projector", "prototypes"}
    assert run.loop.server["weights"]["prototypes"]["weight"].shape == (12, 8)


def test_the_server_averages_prototypes_like_all_weights(tmp_path) -> None:
    everyone = ("federation.participation=1", "federation.rounds=1", "method.weighting=clients")
    run = run_helpers.build_run(tmp_path, "fedavg", *SMALL, *everyone)
    sent = run_helpers.collect_visits(run, lambda result: trees.clone(result.message["weights"]["prototypes"]))
    run.loop.fit()
    mean = torch.stack([reply["weight"] for reply in sent]).mean(dim=0)
    torch.testing.assert_close(run.loop.server["weights"]["prototypes"]["weight"], mean)
    assert mean.norm(dim=1).max() < 2
