from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from methods import trees
from methods.base import Outputs
from methods.fedu2 import UniformRegulariser, unified
from methods.maths import min_norm, min_norm_descent, sliced_wasserstein
from methods.objectives.simclr import SimCLR
from tests.methods.contract import ENCODER, PROJECTOR, STATISTICS, WEIGHTS, InterfaceContract
from tests.methods.objectives import batch, encoder
from tests.methods.toys import first_round

ALONE = "partition.clients=1 federation.participation=1"


def flat(tree):
    return torch.cat([leaf.flatten() for _, leaf in trees.leaves(tree)])


def step_and_updates(folder, *words):
    """The server's change of the trained weights in a first round, and visit and update of each client, flat."""
    run, before, sent = first_round(folder, "fedu2", *words)
    moved = trees.select(trees.subtract(run.loop.server["weights"], before), run.loop.method.trainable())
    return flat(moved), [(visit, flat(message["delta"])) for visit, message in sent]


class TestFedU2(InterfaceContract):
    method = "fedu2"
    choices = tuple(
        f"method.{word}" for word in ("weight=0", "variant=mean", "draws=view", "server_rate=0.5", "length=unit")
    )
    equals = ((f"method.weight=0 {ALONE}", f"fedavg {ALONE}", 1e-5),)
    refused: ClassVar = {
        "method.length=x": "mean or unit",
        "method.variant=x": "code or mean",
        "server_optimizer.class=methods.server.Momentum": "its own server step",
    }

    def bill(self, run):
        up = {("fit", "up", "delta"): 4 * (ENCODER + PROJECTOR), ("fit", "up", "running"): 4 * STATISTICS}
        return {("fit", "down", "weights"): WEIGHTS, **up}

    def test_the_server_steps_along_the_unified_update(self, tmp_path):
        step, sent = step_and_updates(tmp_path)
        torch.testing.assert_close(step, unified([delta for _, delta in sent]), rtol=1e-3, atol=1e-6)
        assert all(float(step @ delta) > 0 for _, delta in sent)

    @pytest.mark.parametrize("weighting", ["examples", "batches"])
    def test_the_codes_solver_starts_at_the_clients_weights(self, weighting, tmp_path):
        """With two clients its update is the mean of unit updates by examples, or by batches: 3 and 2 of 8 images."""
        words = ("method.solver=descent", "method.length=unit", f"method.weighting={weighting}")
        step, sent = step_and_updates(tmp_path, *words)
        images = [visit.client.examples for visit, _ in sent]
        sizes = images if weighting == "examples" else [-(-n // 8) for n in images]
        deltas = [delta for _, delta in sent]
        by_hand = sum(2 * n / sum(sizes) * delta / delta.norm() for n, delta in zip(sizes, deltas, strict=True))
        assert len(deltas) == 2
        torch.testing.assert_close(step, by_hand, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("variant", "draws", "per"), [("code", "batch", 5 / 6), ("mean", "batch", 1), ("mean", "view", 1)]
)
def test_the_regulariser_is_the_sum_over_the_views(variant: str, draws: str, per: float) -> None:
    """Variant `code` multiplies the sum by B / 6, here with B = 5; each view may have points of its own."""
    term = UniformRegulariser(weight=0.5, variant=variant, draws=draws)
    term.build(SimCLR(encoder(), projector=(5, 4)))
    drawn = term.draw(batch(), torch.Generator().manual_seed(0))
    z = tuple(torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1)))
    points = list(zip(drawn["samples"], drawn["tangents"], drawn["directions"], strict=True))
    assert all(len(rows) == 5 for own in points for rows in own)
    if draws == "view":
        assert not torch.equal(points[0][0], points[1][0])
    else:
        points = points[:1] * 2
    expected = 0.5 * per * sum(sliced_wasserstein(rows, *own) for rows, own in zip(z, points, strict=True))
    torch.testing.assert_close(term(Outputs((), z), batch()._replace(draws={term.name: drawn}), None), expected)


@given(st.integers(0, 10**6), st.integers(3, 6))
def test_the_codes_solver_ends_near_the_smallest_norm(seed: int, clients: int) -> None:
    updates = torch.randn(clients, 40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    gram = updates @ updates.T
    start = torch.rand(clients, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    found, best = min_norm_descent(gram, start / start.sum()), min_norm(gram)
    assert float(found.min()) >= 0
    assert float(found.sum()) == pytest.approx(1)
    assert float(found @ gram @ found) == pytest.approx(float(best @ gram @ best), rel=1e-3)
    pair = torch.tensor([0.3, 0.7], dtype=torch.float64)
    assert torch.equal(min_norm_descent(gram[:2, :2], pair), pair)  # its start, for two clients
