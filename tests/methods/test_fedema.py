import math
from typing import ClassVar

import pytest
import torch

from methods import trees
from methods.base import Client, Visit
from methods.fedema import FedEMA
from methods.fedu import convolutions
from methods.objectives.byol import BYOL
from tests import run_helpers
from tests.methods import toys
from tests.methods.contract import WEIGHTS, MethodContract
from tests.methods.objectives import encoder
from tests.methods.test_fedu import ALL, PREDICTOR, TARGETS, LocalTarget, limit


class Alone(LocalTarget):
    """Clients keep their own trained weights after the first round; the server's average has no effect on them."""

    stays = ("encoder", "projector", "predictor", *TARGETS)

    def receive(self, visit):
        local = trees.clone(self.trainable())
        super().receive(visit)
        if visit.round:
            self.load(local)


class TestFedEMA(MethodContract):
    method = "fedema"
    refused: ClassVar = {
        "method.scale=-1": "at least 0",
        "method.tau=2": "at least 0 and at most 1",
        "method.variant=x": "code or paper",
        "encoder.class=tests.methods.toys.linear": "convolutions move, and this encoder has none",
    }

    def bill(self, run):
        return {("fit", way, "weights"): WEIGHTS + PREDICTOR for way in ("up", "down")}

    def test_how_far_clients_have_moved_is_in_the_rounds_line(self, unbroken):
        noted = unbroken.loop.history[-1]["notes"]["divergence"]
        distances = [
            float(unbroken.loop.client_state[k]["memory"]["d"]) for k in unbroken.loop.streams.cohort(2, 4, 0.5)
        ]
        assert noted == {"least": min(distances), "mean": pytest.approx(sum(distances) / 2), "most": max(distances)}

    def test_a_scale_of_zero_takes_the_global_model(self, tmp_path):
        run = run_helpers.train_run(tmp_path / "a", "fedema", *ALL, "method.scale=0")
        assert run_helpers.difference(run.loop.server, limit(tmp_path / "b", LocalTarget).loop.server) < 1e-6

    def test_an_infinite_scale_keeps_the_own_one(self, tmp_path):
        run = run_helpers.train_run(tmp_path / "a", "fedema", *ALL, "method.scale=.inf")
        assert run_helpers.difference(run.loop.server, limit(tmp_path / "b", Alone).loop.server) < 1e-6

    def test_the_autoscaler_sets_each_clients_scale_once(self, tmp_path):
        first = run_helpers.train_run(tmp_path / "a", "fedema", *ALL, "federation.rounds=1")
        later = run_helpers.train_run(tmp_path / "b", "fedema", *ALL, "federation.rounds=3", "schedule.name=constant")
        constant = run_helpers.train_run(
            tmp_path / "c", "fedema", *ALL, "federation.rounds=1", "schedule.name=constant"
        )
        for client in range(4):
            memory = first.loop.client_state[client]["memory"]
            assert float(memory["scale"] * memory["d"]) == pytest.approx(0.7)
            memory = later.loop.client_state[client]["memory"]
            assert torch.equal(memory["scale"], constant.loop.client_state[client]["memory"]["scale"])
            assert not torch.equal(memory["d"], constant.loop.client_state[client]["memory"]["d"])
            assert int(memory["round"]) == 2

    def test_variants_differ(self, tmp_path):
        runs = [run_helpers.train_run(tmp_path / v, "fedema", *ALL, f"method.variant={v}") for v in ("code", "paper")]
        assert run_helpers.difference(*(run.loop.server for run in runs)) > 1e-6


def visited(method, sent, memory, stored, round):
    visit = Visit(round, 9, method.phases[0], Client(0, 5), {"weights": sent}, memory, torch.Generator())
    method.start_visit(visit, stored)
    return visit


class TestReceive:
    """The blend of one client by hand: its own weights are all 1, the server's are all 3."""

    @pytest.fixture
    def method(self):
        return FedEMA(BYOL(encoder(), projector=(5, 4), predictor=3))

    def received(self, method, memory, round):
        local = trees.map(torch.ones_like, {name: method.tensors(name) for name in method.stays})
        sent = trees.map(lambda leaf: torch.full_like(leaf, 3.0), trees.clone(method.weights()))
        visited(method, sent, memory, local, round)
        target = {float(leaf.unique()) for name in TARGETS for _, leaf in trees.leaves(method.tensors(name))}
        trained = {round_(leaf) for _, leaf in trees.leaves(method.trainable())}
        running = {float(leaf.unique()) for _, leaf in trees.leaves(method.statistics())}
        return trained, target, running

    def test_who_was_there_the_round_before_blends(self, method):
        memory = {"d": torch.tensor(0.5), "scale": torch.tensor(0.5), "round": torch.tensor(3)}
        assert self.received(method, memory, round=4) == ({2.5}, {1.0}, {3.0})  # mu = 1/4, statistics are the server's

    def test_mu_is_at_most_one(self, method):
        memory = {"d": torch.tensor(5.0), "scale": torch.tensor(0.5), "round": torch.tensor(3)}
        assert self.received(method, memory, round=4) == ({1.0}, {1.0}, {3.0})

    def test_the_papers_variant_measures_what_was_kept_against_what_came(self):
        """The first blend has mu = tau at any distance; the next one has mu = tau d2 / d1."""
        method = FedEMA(BYOL(encoder(), projector=(5, 4), predictor=3), variant="paper")
        local = trees.map(torch.ones_like, {name: method.tensors(name) for name in method.stays})
        memory = {"round": torch.tensor(0)}
        for round, sent, mu in ((1, 3.0, 0.7), (2, 2.0, 0.35), (3, 9.0, 1.0)):
            message = trees.map(lambda leaf, sent=sent: torch.full_like(leaf, sent), trees.clone(method.weights()))
            visit = visited(method, message, memory, local, round)
            (blended,) = {round_(leaf) for _, leaf in trees.leaves(method.trainable())}
            assert blended == pytest.approx(mu + (1 - mu) * sent, rel=1e-4)
            kernels = convolutions(method.objective.encoder).values()
            apart = sum((sent - 1) * kernel.numel() ** 0.5 for kernel in kernels) / len(kernels)
            assert float(visit.memory["d"]) == pytest.approx(apart, rel=1e-5)
            memory = {**visit.memory, "round": torch.tensor(round)}

    @pytest.mark.parametrize(("d", "kept"), [(0.5, 3.0), (1.5, 1.0)])
    def test_the_predictors_statistics_stay_where_mu_is_above_a_half(self, d, kept):
        method = FedEMA(BYOL(encoder(), projector=(5, 4), predictor=3), keep_statistics=True)
        self.received(method, {"d": torch.tensor(d), "scale": torch.tensor(0.5), "round": torch.tensor(3)}, round=4)
        statistics = method.statistics()
        assert {float(leaf.unique()) for leaf in statistics["predictor"].values()} == {kept}
        assert {float(leaf.unique()) for leaf in statistics["encoder"].values()} == {3.0}

    def test_who_was_away_takes_everything(self, method):
        memory = {"d": torch.tensor(0.5), "scale": torch.tensor(0.5), "round": torch.tensor(2)}
        assert self.received(method, memory, round=4) == ({3.0}, {3.0}, {3.0})

    def test_who_is_new_takes_everything(self, method):
        assert self.received(method, {}, round=4) == ({3.0}, {3.0}, {3.0})


def round_(leaf):
    (value,) = leaf.unique().tolist()
    return round(value, 5)


@pytest.mark.parametrize(
    ("scale", "memory", "expected"),
    [
        (None, {"d": 0.0}, 0.0),
        (None, {"d": 2.0, "scale": 0.25}, 0.5),
        (None, {"d": 2.0, "scale": 0.75}, 1.0),
        (0.25, {"d": 2.0}, 0.5),
        (math.inf, {"d": 1e-9}, 1.0),
        (math.inf, {"d": 0.0}, 0.0),
    ],
)
def test_mu_is_lambda_d_and_at_most_one(scale, memory, expected) -> None:
    method = FedEMA(BYOL(encoder(), projector=(5, 4), predictor=3), scale=scale)
    assert method.local_weight({name: torch.tensor(value) for name, value in memory.items()}) == expected


def test_toys_are_what_they_say(tmp_path) -> None:
    """The two reference methods of the limits above give different results."""
    runs = [toys.train_run(tmp_path / m.__name__, m, *ALL, objective="byol") for m in (LocalTarget, Alone)]
    assert run_helpers.difference(*(run.loop.server for run in runs)) > 1e-6
