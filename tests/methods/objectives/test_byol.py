from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmark.execution.parallel import ParallelExecutor
from methods import trees
from methods.base import Client, FederatedMethod, MethodError, Outputs, Visit
from methods.core.objective import cosine
from methods.maths import byol_regression
from methods.objectives.byol import BYOL
from tests import run_helpers, tape
from tests.methods.objectives import ObjectiveContract, batch, encoder, step
from tests.methods.toys import shift


def visit(first: bool, **received: trees.Tree) -> Visit:
    return Visit(0, 1, FederatedMethod.phases[0], Client(0, 5), received, {}, torch.Generator(), first=first)


def parameters(module: torch.nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


class TestBYOL(ObjectiveContract):
    objective, settings, predicts = BYOL, {"predictor": 3, "momentum": 0.9}, True
    travels = ("encoder", "projector", "predictor")

    def expected(self, out: Outputs) -> Tensor:
        return byol_regression(out.predictions[0], out.targets[1]) + byol_regression(out.predictions[1], out.targets[0])

    def test_targets_are_those_of_the_target_networks(self):
        objective = self.build().eval()
        shift(objective.target_encoder, 0.1)
        out = objective(*batch().views)
        for view, z, p, t in zip(batch().views, out.embeddings, out.predictions, out.targets, strict=True):
            torch.testing.assert_close(t, objective.target_projector(objective.target_encoder(view)))
            torch.testing.assert_close(p, objective.predictor(z))
            assert not torch.allclose(t, z)

    def test_the_target_starts_at_the_received_networks(self):
        """At the start of a visit the received networks replace the target's parameters and BatchNorm statistics."""
        method = FederatedMethod(self.build())
        step(method.objective, batch())
        received = trees.map(lambda leaf: leaf + 0.25, trees.clone(method.weights()))
        method.start_visit(visit(True, weights=received))
        for part in ("encoder", "projector"):
            assert any("running_mean" in name for name in received[part])
            assert run_helpers.same(method.tensors(f"target_{part}"), received[part])

    @pytest.mark.parametrize("momentum", [0.0, 0.9, 1.0])
    def test_the_target_follows_after_the_step(self, momentum: float):
        objective = self.build(momentum=momentum)
        start = parameters(objective.encoder) + parameters(objective.projector)
        for _ in range(2):
            step(objective, batch())
            online = parameters(objective.encoder) + parameters(objective.projector)
            target = parameters(objective.target_encoder) + parameters(objective.target_projector)
            start = [momentum * then + (1 - momentum) * now for then, now in zip(start, online, strict=True)]
            torch.testing.assert_close(target, start)
        assert not torch.equal(online[0], parameters(self.build().encoder)[0])
        objective.encoder.backbone[1].running_mean.fill_(7.0)
        before = deepcopy([*objective.target_encoder.buffers()])
        objective.after_step({})
        assert all(map(torch.equal, before, objective.target_encoder.buffers()))  # buffers are not averaged

    def test_one_direction_regresses_the_second_views_target(self):
        objective = self.build(symmetric=False)
        out = objective(*batch().views)
        assert (len(out.predictions), len(out.targets)) == (1, 1)
        target = objective.target_projector(objective.target_encoder(batch().views[1]))
        torch.testing.assert_close(out.targets[0], target)
        torch.testing.assert_close(objective.loss(out, batch()), byol_regression(out.predictions[0], target))


class TestAFirstTargetThatIsTheOnlineNetwork:
    """As in EasyFL: no lag in a client's first visit, and the target's passes move the online running statistics."""

    def build(self, first: bool) -> BYOL:
        objective = BYOL(encoder(), projector=(5, 4), predictor=3, first_target="online")
        objective.separate_views = True
        objective.receive(visit(first))
        return objective

    def test_it_follows_without_lag_with_its_statistics(self):
        for first, passes in ((True, 4), (False, 2)):
            objective = self.build(first)
            objective(*batch().views)
            counts = [int(each) for name, each in objective.encoder.named_buffers() if name.endswith("batches_tracked")]
            assert set(counts) == {passes}
        objective = self.build(first=True)
        for _ in range(2):
            step(objective, batch())
            for target, source in objective.ema.items():
                ours, theirs = (getattr(objective, part).state_dict().values() for part in (target, source))
                assert all(map(torch.equal, ours, theirs))

    def test_later_visits_are_like_those_of_a_copy(self):
        later, copy = self.build(first=False), BYOL(encoder(), projector=(5, 4), predictor=3)
        copy.separate_views = True
        copy.load_state_dict(later.state_dict())
        for objective in (later, copy):
            step(objective, batch())
        assert all(torch.equal(a, b) for a, b in zip(later.parameters(), copy.parameters(), strict=True))


def test_a_stateful_target_stays_with_its_client(tmp_path: Path):
    everyone = ("objective=byol", "federation.participation=1", "federation.rounds=2")
    run = run_helpers.train_run(tmp_path / "a", "fedavg", *everyone, "objective.stateful=true")
    plain = run_helpers.train_run(tmp_path / "b", "fedavg", *everyone)
    kept = run.loop.client_state[0]["stays"]
    assert set(kept) == {"target_encoder", "target_projector"}
    assert "stays" not in plain.loop.client_state.get(0, {})
    assert run_helpers.difference(run.loop.server, plain.loop.server) > 1e-6
    assert run.loop.ledger.total("up") == plain.loop.ledger.total("up")


def test_a_first_target_needs_one_that_stays(tmp_path: Path):
    """Under FedAvg every visit would be a first one; FedU keeps the target."""
    with pytest.raises(MethodError, match=r"objective\.stateful=true"):
        run_helpers.build_run(tmp_path, "fedavg", "objective=byol", "objective.first_target=online")
    run = run_helpers.build_run(tmp_path, "fedu", "objective.first_target=online", "federation.participation=1")
    objective = run.loop.method.objective
    shared = run_helpers.collect_visits(run, lambda done: (done.visit.round, objective.shares_target))
    run.loop.fit()
    assert {shares for round, shares in shared if round == 0} == {True}
    assert {shares for round, shares in shared if round > 0} == {False}


STEPS = 6
"""Of a client in the run below: three rounds of two steps."""


def paper_momentum(step: int, base: float) -> float:
    """tau of step k of K (section 3.2): 1 - (1 - tau_base) (cos(pi k / K) + 1) / 2."""
    return 1 - (1 - base) * (np.cos(np.pi * step / STEPS) + 1) / 2


@pytest.mark.parametrize("objective", ["byol", "dino"])
def test_the_momentum_rises_by_the_papers_cosine_over_the_steps_of_the_run(objective: str, tmp_path: Path):
    words = (f"objective={objective}", "objective.momentum=0.9", "objective.momentum_end=1")
    run = run_helpers.build_run(tmp_path, "fedavg", *words, "training.steps=2", "federation.participation=1")
    loss, seen = run.loop.method.objective, []
    after, loss.after_step = loss.after_step, lambda push: (seen.append(float(loss.momentum_now)), after(push))
    run.loop.fit()
    clients = len(run.loop.clients)
    expected = [paper_momentum(2 * round + step, 0.9) for round in range(3) for _ in range(clients) for step in (0, 1)]
    assert seen == pytest.approx(expected, abs=1e-7)
    assert seen[0] == pytest.approx(0.9)
    assert cosine(0.9, 1.0, 1.0) == 1.0


def test_a_recorded_step_follows_the_schedules_too_and_waits_for_no_value(tmp_path: Path):
    words = ("objective=dino", "objective.momentum=0.5", "objective.momentum_end=1", "objective.target_temperature=0.5")
    words += ("objective.start_temperature=0.1", "objective.temperature_warmup=1", "federation.participation=1")
    tapes: list[tape.Tape] = []
    run = run_helpers.build_run(tmp_path, "fedavg", *words)
    run.loop.executor = ParallelExecutor(run.loop.executor, lanes=2, recorder=tape.recorder(tapes))
    run.loop.fit()
    plain = run_helpers.trained("fedavg", *words)
    assert run_helpers.difference(run.loop.server, plain.loop.server) < 1e-5
    assert sum(recorded.replays for recorded in tapes) > 0
    assert [recorded.looks for recorded in tapes] == [[]] * len(tapes)
    constant = run_helpers.trained("fedavg", *words[:2], *words[3:4], words[-1])
    assert run_helpers.difference(constant.loop.server, plain.loop.server) > 1e-4


@pytest.mark.parametrize("now", [0.0, 0.3, 1.0])
def test_the_target_follows_with_the_momentum_of_the_step(now: float):
    objective = BYOL(encoder(), projector=(5, 4), predictor=3, momentum=0.9, momentum_end=1.0)
    shift(objective.target_encoder, 0.5)
    before = parameters(objective.target_encoder)
    objective.momentum_now.fill_(now)
    objective.after_step({})
    followed = [now * old + (1 - now) * new for old, new in zip(before, parameters(objective.encoder), strict=True)]
    torch.testing.assert_close(parameters(objective.target_encoder), followed)
    assert "momentum_now" not in objective.state_dict()


@pytest.mark.parametrize(("objective", "parts"), [("byol", ()), ("dino", ("prototypes",))])
def test_a_kept_target_goes_on_where_its_client_left_it(objective: str, parts: tuple[str, ...], tmp_path: Path):
    """Momentum 1: a target that never moves is that of the client's first visit, the initial networks."""
    words = (f"objective={objective}", "objective.momentum=1", "federation.participation=1", "optimizer.lr=0.1")
    start = run_helpers.build_run(tmp_path / "start", "fedavg", *words).loop
    start.restore()
    run = run_helpers.train_run(tmp_path / "kept", "fedavg", *words, "objective.stateful=true")
    kept = run.loop.client_state[0]["stays"]
    assert set(kept) == {f"target_{part}" for part in ("encoder", "projector", *parts)}
    for part in ("encoder", "projector", *parts):
        trained = dict(run.loop.method.part(part).named_parameters())
        mine = {name: leaf for name, leaf in kept[f"target_{part}"].items() if name in trained}
        first = start.server["weights"][part]
        assert run_helpers.same(mine, {name: first[name] for name in mine})
        assert run_helpers.apart(mine, run.loop.server["weights"][part]) > 1e-6
