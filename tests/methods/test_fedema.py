import math
from typing import ClassVar

import pytest
import torch

from methods import trees
from methods.base import Client, Visit
from methods.fedema import FedEMA
from methods.fedu import convolutions
from methods.objectives.byol import BYOL
from tests.methods.contract import MethodContract
from tests.methods.objectives import encoder
from tests.methods.test_fedu import ALL, STATEFUL, TARGETS, Moving
from tests.run_helpers import difference, trained


class TestFedEMA(Moving, MethodContract):
    method = "fedema"
    refused: ClassVar = {**Moving.refused, "method.scale=-1": "at least 0", "method.tau=2": "at most 1"}

    def test_a_scale_of_zero_takes_the_global_model_and_an_infinite_one_keeps_the_own_one(self):
        taken, kept = (
            trained("fedema", *ALL, f"method.scale={scale}").loop.server["weights"] for scale in ("0", ".inf")
        )
        assert difference(taken, trained("fedavg", *STATEFUL).loop.server["weights"]) < 1e-6
        code, paper = (trained("fedema", *ALL, f"method.variant={variant}").loop for variant in ("code", "paper"))
        assert difference(code.server, paper.server) > 1e-6
        alone = trained("local", *STATEFUL).loop
        own = [trees.select(alone.client_state[client]["stays"], alone.method.trainable()) for client in range(4)]
        sizes = [client.examples for client in alone.clients]
        mean = trees.map(lambda *each: sum(n * leaf for n, leaf in zip(sizes, each, strict=True)) / sum(sizes), *own)
        assert difference(trees.select(kept, mean), mean) < 1e-6

    def test_the_autoscaler_sets_each_clients_scale_once(self):
        constant = ("federation.rounds=1", "schedule.name=constant")
        words = (("federation.rounds=1",), constant, ("federation.rounds=3", "schedule.name=constant"))
        states = [trained("fedema", *ALL, *each).loop.client_state for each in words]
        for client in range(4):
            first, once, later = (state[client]["memory"] for state in states)
            assert float(first["scale"] * first["d"]) == pytest.approx(0.7)
            assert torch.equal(later["scale"], once["scale"])
            assert not torch.equal(later["d"], once["d"])
            assert int(later["round"]) == 2


def fedema(**settings):
    return FedEMA(BYOL(encoder(), projector=(5, 4), predictor=3), **settings)


def memory(d, round):
    return {"d": torch.tensor(d), "scale": torch.tensor(0.5), "round": torch.tensor(round)}


def visited(method, value, memory, round):
    """A visit of a client whose weights are all 1, to which the server sends weights that are all `value`."""
    local = trees.map(torch.ones_like, {name: method.tensors(name) for name in method.stays})
    sent = trees.map(lambda leaf: torch.full_like(leaf, value), trees.clone(method.weights()))
    visit = Visit(round, 9, method.phases[0], Client(0, 5), {"weights": sent}, memory, torch.Generator())
    method.start_visit(visit, local)
    return visit


def values(tree):
    """The different numbers of a tree."""
    return {round(value, 5) for _, leaf in trees.leaves(tree) for value in leaf.unique().tolist()}


def test_the_blend_of_one_client_by_hand():
    """Its own weights are all 1, the server's are all 3; statistics are the server's."""
    for stored, blended, target in (
        (memory(0.5, 3), 2.5, 1.0),  # there the round before: mu = 1/4
        (memory(5.0, 3), 1.0, 1.0),  # mu is at most one
        (memory(0.5, 2), 3.0, 3.0),  # who was away takes everything
        ({}, 3.0, 3.0),  # as does who is new
    ):
        visited(method := fedema(), 3.0, stored, round=4)
        parts = (method.trainable(), {name: method.tensors(name) for name in TARGETS}, method.statistics())
        assert [*map(values, parts)] == [{blended}, {target}, {3.0}]
    for d, kept in ((0.5, 3.0), (1.5, 1.0)):  # the predictor's statistics stay where mu is above a half
        visited(method := fedema(keep_statistics=True), 3.0, memory(d, 3), round=4)
        assert [values(method.statistics()[part]) for part in ("predictor", "encoder")] == [{kept}, {3.0}]


def test_the_papers_variant_measures_what_was_kept_against_what_came():
    """The first blend has mu = tau at any distance; the next one has mu = tau d2 / d1."""
    method, stored = fedema(variant="paper"), {"round": torch.tensor(0)}
    for round, sent, mu in ((1, 3.0, 0.7), (2, 2.0, 0.35), (3, 9.0, 1.0)):
        visit = visited(method, sent, stored, round)
        (blended,) = values(method.trainable())
        assert blended == pytest.approx(mu + (1 - mu) * sent, rel=1e-4)
        kernels = convolutions(method.objective.encoder).values()
        apart = sum((sent - 1) * kernel.numel() ** 0.5 for kernel in kernels) / len(kernels)
        assert float(visit.memory["d"]) == pytest.approx(apart, rel=1e-5)
        stored = {**visit.memory, "round": torch.tensor(round)}


def test_mu_is_lambda_d_and_at_most_one():
    for scale, stored, expected in (
        *((None, {"d": 0.0}, 0.0), (None, {"d": 2.0, "scale": 0.25}, 0.5), (None, {"d": 2.0, "scale": 0.75}, 1.0)),
        *((0.25, {"d": 2.0}, 0.5), (math.inf, {"d": 1e-9}, 1.0), (math.inf, {"d": 0.0}, 0.0)),
    ):
        tensors = {name: torch.tensor(value) for name, value in stored.items()}
        assert fedema(scale=scale).local_weight(tensors) == expected
