"""Accuracy of each client by its own encoder, on data whose test images name the clients."""

import numpy as np
import pytest
import torch

from benchmark.evaluation.personal import own_models, owner_of
from eval.features import Features
from eval.linear import linear_probe
from eval.protocol import find
from methods import trees
from tests import run_helpers

NAMES = ("lima", "oslo", "rome")


@pytest.fixture
def execute(tmp_path):
    """Runs a method on images of three clients; rome has no test images, and one test image is of nobody."""
    rng = np.random.default_rng(0)
    content = {}
    for split, owners in {"train": [*NAMES] * 12, "test": ["lima"] * 9 + ["oslo"] * 12 + ["nobody"]}.items():
        labels = np.arange(len(owners)) // 2 % 3
        images = rng.integers(0, 150, (len(owners), 8, 8, 3), dtype=np.uint8)
        images[np.arange(len(owners)), ..., labels] += 40
        content |= {f"{split}_images": images, f"{split}_labels": labels, f"{split}_clients": np.array(owners)}
    np.savez(tmp_path / "mine.npz", **content)

    def run(method, *overrides, partition="{name: folders}"):
        data = ("data={name: mine, options: {}}", f"data.root={tmp_path}", f"partition={partition}")
        given = ("evaluation.protocols=[clients/v1,linear/v1]", "federation.participation=1", "scenario=mine")
        return run_helpers.execute_run(tmp_path / "out", method, *data, *given, *overrides)

    return run


def accuracy(run, weights, name):
    """The probe on features of an encoder with these weights, by hand."""
    evaluator, source = run.evaluator, run.data.source
    encoder, own = evaluator.encoder(weights, recalibrated=False), source.test.clients == name
    features = Features(
        train_x=evaluator.extract(encoder, source.train.images),
        train_y=torch.from_numpy(source.train.labels),
        test_x=evaluator.extract(encoder, source.test.images)[own],
        test_y=torch.from_numpy(source.test.labels)[own],
        num_classes=3,
    )
    stream = evaluator.streams.generator("evaluation/clients/v1")
    return linear_probe(features, find("clients/v1").arguments["probe"], stream)["accuracy"]


@pytest.mark.parametrize(
    "words",
    [
        "local",
        "fedavg method.stays=[encoder]",
        *(f"{name} federation.batch_norm=local" for name in ("fedavg", "local")),
    ],
)
def test_each_client_is_scored_by_its_own_encoder(execute, words):
    record, run = execute(*words.split())
    loop, scores = run.loop, record["scores"]["clients/v1"]
    models = {}
    for client, name in enumerate(NAMES):
        state = loop.client_state[client]
        kept = trees.overlay(state.get("stays", {}), state.get("statistics", {}))
        models[name] = {"encoder": trees.overlay(loop.server["weights"], kept)["encoder"]}
    assert run_helpers.difference(models["lima"], models["oslo"]) > 0
    each = {name: accuracy(run, models[name], name) for name in ("lima", "oslo")}
    assert {name: scores[f"accuracy of {name}"] for name in each} == pytest.approx(each)
    assert scores["accuracy"] == pytest.approx(sum(each.values()) / 2)
    assert (scores["clients"], "accuracy of rome" in scores) == (2, False)


def test_a_common_encoder_scores_all(execute):
    record, run = execute("fedavg")
    weights = run.loop.server["weights"]
    assert own_models(run.loop, run.loop.export(), "global") == {}
    for name in ("lima", "oslo", "nobody"):
        assert record["scores"]["clients/v1"][f"accuracy of {name}"] == pytest.approx(accuracy(run, weights, name))


def test_before_a_visit_clients_have_the_common_encoder(execute):
    record, _ = execute("fedavg", "federation.batch_norm=local", "federation.rounds=0")
    assert record["scores"]["clients/v1"]["clients"] == 3


def test_of_clients_that_test_images_do_not_name_every_encoder_scores_all(execute):
    record, _ = execute("local", partition="{name: iid, clients: 2}")
    each = [scores["clients/v1"]["accuracy"] for scores in record["encoders"].values()]
    assert len(each) == 2
    assert record["scores"]["clients/v1"]["accuracy"] == min(each)


def test_the_images_of_an_encoder_of_its_own_are_those_of_its_client(execute):
    """Membership of `local` looks for each client's images, of `fedavg` for those of all."""
    for method, sizes in (("local", [12, 12, 12]), ("fedavg", [36])):
        _, run = execute(method)
        members = [run.evaluator.members(owner_of(run.loop, name)) for name in run.loop.export()]
        assert [len(rows) for rows in members] == sizes
        held = [set(run.data.source.train.clients[rows.numpy()]) for rows in members]
        assert held == ([{"lima"}, {"oslo"}, {"rome"}] if method == "local" else [set(NAMES)])
