import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from methods.base import MethodError, Outputs
from methods.maths import info_nce
from methods.objectives.moco import MoCo
from tests import run_helpers
from tests.methods.objectives import ObjectiveContract, batch, encoder, step


class TestMoCo(ObjectiveContract):
    targets = True

    def build(self, **kwargs: object) -> MoCo:
        torch.manual_seed(1)
        objective = MoCo(encoder(), projector=(5, 4), **({"queue_size": 30, "temperature": 0.3} | kwargs))
        keys = torch.randn(7, 4, generator=torch.Generator().manual_seed(2))
        objective.after_step({"queue": normalize(keys, dim=1)})
        return objective

    def expected(self, out: Outputs) -> Tensor:
        earlier = self.build().queue[:7]
        everyone = torch.ones(7, dtype=torch.bool)
        pairs = ((out.embeddings[0], out.targets[1]), (out.embeddings[1], out.targets[0]))
        return sum(info_nce(q, k, earlier, everyone, 0.3) for q, k in pairs)

    def test_keys_start_as_the_queries_and_are_of_unit_length(self) -> None:
        objective = self.build().eval()
        out = objective(*batch().views)
        for z, t in zip(out.embeddings, out.targets, strict=True):
            torch.testing.assert_close(t, normalize(z, dim=1))

    @pytest.mark.parametrize(("momentum", "follows"), [(1.0, False), (0.0, True)])
    def test_the_limits_of_the_momentum(self, momentum: float, follows: bool) -> None:
        objective = self.build(momentum=momentum)
        before = [parameter.clone() for parameter in objective.key_encoder.parameters()]
        step(objective, batch())
        queries, keys = objective.encoder.parameters(), objective.key_encoder.parameters()
        for start, query, key in zip(before, queries, keys, strict=True):
            assert torch.equal(key, query if follows else start)
            assert not torch.equal(start, query)

    def test_the_queue_is_first_in_first_out_and_of_unit_rows(self) -> None:
        objective = self.build()
        first, seen = objective.queue[:7].clone(), []
        for seed in range(3):
            given = batch()._replace(views=tuple(view + seed for view in batch().views))
            seen.append(torch.cat(objective(*given.views).targets))
            step(objective, given)
            assert int(objective.queue_filled) == min(30, 7 + 10 * (seed + 1))
        torch.testing.assert_close(objective.queue, torch.cat([*seen[::-1], first])[:30])
        torch.testing.assert_close(objective.queue.norm(dim=1), torch.ones(30))

    def test_a_queue_that_is_the_positive_key(self) -> None:
        objective = self.build(queue_size=7)
        z = torch.randn(1, 4, generator=torch.Generator().manual_seed(0)).expand(5, 4)
        objective.queue.copy_(normalize(z, dim=1)[:1].expand(7, 4))
        loss = objective.loss(Outputs((), (z, z), (), (z, z)), batch())
        assert loss.item() == pytest.approx(2 * math.log(8), rel=1e-5)

    def test_one_direction(self) -> None:
        objective = self.build(symmetric=False)
        out = objective(*batch().views)
        everyone = torch.ones(7, dtype=torch.bool)
        torch.testing.assert_close(
            objective.loss(out, batch()),
            info_nce(out.embeddings[0], out.targets[1], objective.queue[:7], everyone, 0.3),
        )
        assert torch.equal(out.push["queue"], out.targets[1])

    @pytest.mark.parametrize("keep_queue", [True, False])
    def test_the_queue_stays_with_its_client(self, keep_queue: bool, tmp_path) -> None:
        overrides = ("objective=moco", "objective.queue_size=64", f"objective.keep_queue={str(keep_queue).lower()}")
        run = run_helpers.train_run(tmp_path, "fedavg", *overrides, "federation.participation=1")
        for client in run.loop.clients:
            kept_parts = run.loop.client_state.get(client.id, {}).get("stays", {})
            if not keep_queue:
                assert kept_parts == {}
                continue
            filled = int(kept_parts["queue"]["queue_filled"])
            seen = 2 * sum(size for size in (client.examples - client.examples % 8, client.examples % 8) if size > 1)
            assert filled == min(64, 3 * seen)
        sent = {entry for direction in ("up", "down") for entry in run.loop.ledger.total(direction)}
        assert sent == {"weights"}
        assert set(run.loop.server["weights"]) == {"encoder", "projector"}

    @pytest.mark.parametrize("wrong", [{"momentum": 1.5}, {"temperature": 0.0}, {"queue_size": 0}])
    def test_what_cannot_be_is_refused(self, wrong: dict[str, float]) -> None:
        with pytest.raises(MethodError, match=next(iter(wrong))):
            MoCo(encoder(), projector=(5, 4), **wrong)
