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
from tests import run_helpers
from tests.methods.contract import ENCODER, PROJECTOR, STATISTICS, WEIGHTS, InterfaceContract
from tests.methods.objectives import batch, encoder

ALONE = "partition.clients=1 federation.participation=1"


def server_step(run, collect):
    """The server's change of the trained weights in a first round, flat; collect: is given each visit's result."""
    run.loop.callbacks = [run_helpers.OnVisitEnd(collect)]
    run.loop.restore()
    before = trees.clone(run.loop.server["weights"])
    run.loop.run_round(0)
    trained = run.loop.method.trainable()
    moved = trees.subtract(run.loop.server["weights"], before)
    return torch.cat([moved[part][name].flatten() for (part, name), _ in trees.leaves(trained)])


class TestFedU2(InterfaceContract):
    method = "fedu2"
    choices = (
        *("method.weight=0", "method.variant=mean", "method.draws=view", "method.server_rate=0.5"),
        "method.length=unit",
    )
    equals = ((f"method.weight=0 {ALONE}", f"fedavg {ALONE}", 1e-5),)
    refused: ClassVar = {
        "method.length=x": "mean or unit",
        "method.variant=x": "code or mean",
        "server_optimizer.class=methods.server.Momentum": "its own server step",
    }

    def bill(self, run):
        return {
            ("fit", "down", "weights"): WEIGHTS,
            ("fit", "up", "delta"): 4 * (ENCODER + PROJECTOR),
            ("fit", "up", "running"): 4 * STATISTICS,
        }

    def test_the_server_steps_along_the_unified_update(self, tmp_path):
        run = run_helpers.build_run(tmp_path, "fedu2", "federation.rounds=1")
        deltas = []

        def collect(result):
            deltas.append(torch.cat([leaf.flatten() for _, leaf in trees.leaves(result.message["delta"])]))

        flat = server_step(run, collect)
        torch.testing.assert_close(flat, unified(deltas), rtol=1e-3, atol=1e-6)
        assert all(float(flat @ delta) > 0 for delta in deltas)


@pytest.mark.parametrize(("variant", "per"), [("code", 5 / 6), ("mean", 1.0)])
def test_the_regulariser_is_the_sum_over_the_views(variant: str, per: float) -> None:
    """Variant `code` multiplies the sum by B / 6, here with B = 5; the points are those drawn for this batch."""
    term = UniformRegulariser(weight=0.5, variant=variant)
    term.width = 4
    drawn = term.draw(batch(), torch.Generator().manual_seed(0))
    z = tuple(torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1)))
    points = drawn["samples"][0], drawn["tangents"][0], drawn["directions"][0]
    expected = 0.5 * per * sum(sliced_wasserstein(rows, *points) for rows in z)
    total = term(Outputs((), z), batch()._replace(draws={term.name: drawn}), None)
    torch.testing.assert_close(total, expected)
    assert tuple(len(rows) for rows in points) == (5, 5, 5)


def test_each_view_may_have_points_of_its_own() -> None:
    term = UniformRegulariser(weight=1.0, variant="mean", draws="view")
    term.build(SimCLR(encoder(), projector=(5, 4)))
    drawn = term.draw(batch(), torch.Generator().manual_seed(0))
    z = tuple(torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1)))
    points = list(zip(drawn["samples"], drawn["tangents"], drawn["directions"], strict=True))
    assert not torch.equal(points[0][0], points[1][0])
    expected = sum(sliced_wasserstein(rows, *own) for rows, own in zip(z, points, strict=True))
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


def test_the_codes_solver_returns_its_start_for_two_clients() -> None:
    start = torch.tensor([0.3, 0.7], dtype=torch.float64)
    assert torch.equal(min_norm_descent(torch.eye(2), start), start)


def test_the_codes_solver_starts_at_the_clients_weights(tmp_path) -> None:
    """With two clients its update is the mean of unit updates by examples, or by batches: 3 and 2 of 8 images."""
    for weighting in ("examples", "batches"):
        words = ("method.solver=descent", "method.length=unit", f"method.weighting={weighting}", "federation.rounds=1")
        run = run_helpers.build_run(tmp_path / weighting, "fedu2", *words)
        deltas, sizes = [], []

        def collect(result, deltas=deltas, sizes=sizes, weighting=weighting):
            deltas.append(torch.cat([leaf.flatten() for _, leaf in trees.leaves(result.message["delta"])]))
            images = result.visit.client.examples
            sizes.append(images if weighting == "examples" else -(-images // 8))

        flat = server_step(run, collect)
        by_hand = sum(2 * n / sum(sizes) * delta / delta.norm() for n, delta in zip(sizes, deltas, strict=True))
        assert len(deltas) == 2
        torch.testing.assert_close(flat, by_hand, rtol=1e-3, atol=1e-6)
