"""`encoder.freeze`: frozen tensors do not move, are sent once, and are no part of anything that travels."""

import copy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmark.errors import ConfigError
from methods import trees
from methods.base import MethodError
from methods.core.freezing import frozen_tensors
from tests.methods import test_measures
from tests.methods.contract import WEIGHTS, MethodContract
from tests.methods.frozen import FrozenContract, check_interrupted
from tests.methods.toys import EVERYONE, first_round
from tests.methods.vits import SMALL
from tests.run_helpers import build_run, difference, execute_run, same, state, train_run, trained

ALL, FIRST = "encoder.freeze=all", "encoder.freeze=[0,1]"
BLOCK = 4 * (6 * 3 * 9 + 2 * 6 + 2 * 6)
"""Bytes of the first convolution and its BatchNorm, running statistics included."""
PLAIN = ("encoder.norm=group", "heads.head_norm=false")
"""Networks without BatchNorm."""


class TestFirstBlock(FrozenContract, MethodContract):
    overrides = (FIRST,)
    sent, frozen = WEIGHTS - BLOCK, BLOCK

    def test_what_is_frozen_is_what_it_was_and_nowhere_but_in_the_model(self, unbroken, tmp_path):
        before = frozen_tensors(build_run(tmp_path, self.method, *self.overrides).loop.method.objective.encoder)
        after = frozen_tensors(unbroken.loop.method.objective.encoder)
        assert set(after) == {f"backbone.{name}" for name in ("0.weight", *(f"1.{of}" for of in NORM))}
        assert same(dict(before), dict(after))
        assert not {name for _, name in dict(trees.leaves(unbroken.loop.server["weights"]))} & set(after)


NORM = ("weight", "bias", "running_mean", "running_var")


@pytest.mark.parametrize("method", ["fedavg", "fedema", "scaffold"])
def test_to_freeze_nothing_is_the_run_without_the_key(method):
    assert same(*(state(trained(method, *words)) for words in ((), ("encoder.freeze=[]",))))


def test_to_freeze_all_but_the_heads_is_to_train_them_on_features(tmp_path):
    """FedAvg by hand over a projector whose inputs, the features of every batch, are computed before it trains."""
    loop = train_run(tmp_path, "fedavg", ALL, EVERYONE, "schedule.name=constant").loop
    reference = build_run(tmp_path / "other", "fedavg", ALL, EVERYONE, "schedule.name=constant")
    method = reference.loop.method
    encoder, projector, loss = method.objective.encoder.eval(), method.objective.projector.train(), method.objective
    weights = copy.deepcopy(projector.state_dict())
    for round in range(3):
        sums = dict.fromkeys(weights, 0.0)
        for client in reference.loop.clients:
            key = {"round": round, "phase": "fit", "client": client.id}
            order, views = (loop.streams.generator(purpose, **key) for purpose in ("order", "views"))
            batches = [*reference.data.batches(client.id, ("augment", "augment"), 8, order=order, views=views)]
            with torch.no_grad():
                cached = [encoder(torch.cat(batch.views)) for batch in batches]
            projector.load_state_dict(weights)
            optimizer = torch.optim.SGD(projector.parameters(), lr=0.05, momentum=0.9)
            for batch, features in zip(batches, cached, strict=True):
                z = projector(features).chunk(2)
                optimizer.zero_grad()
                loss.loss(type("Out", (), {"embeddings": z}), batch).backward()
                optimizer.step()
            share = client.examples / sum(each.examples for each in reference.loop.clients)
            sums = {name: total + share * projector.state_dict()[name].double() for name, total in sums.items()}
        weights = {name: total.to(weights[name].dtype) for name, total in sums.items()}
    assert set(loop.server["weights"]) == {"projector"}
    ours = loop.server["weights"]["projector"]
    assert difference(ours, {name: weights[name] for name in ours}) < 1e-6


@pytest.mark.parametrize("mechanism", ["central", "local"])
def test_clip_and_noise_are_of_what_travels_alone(tmp_path, mechanism):
    """The update of the projector is cut to C / norm; the noise's deviation is over its numbers, and the rest stays."""
    words = (ALL, *PLAIN, EVERYONE, f"privacy.mechanism={mechanism}", "privacy.clip=0.001")
    clipped, before, sent = first_round(tmp_path, "fedavg", *words, "privacy.noise_multiplier=0")
    plain = first_round(tmp_path / "plain", "fedavg", ALL, *PLAIN, EVERYONE)[2]
    for (_, message), (_, free) in zip(sent, plain, strict=True):
        update = trees.subtract(free["weights"], before)
        length = float(trees.squared_norm(update).sqrt())
        assert length > 0.001
        expected = trees.add(before, update, 0.001 / length)
        assert difference(message["weights"], expected) < 1e-6
    noisy = first_round(tmp_path / "noisy", "fedavg", *words, "privacy.noise_multiplier=100")[0].loop
    noise = trees.subtract(noisy.server["weights"], clipped.loop.server["weights"])
    numbers = torch.cat([leaf.flatten() for _, leaf in trees.leaves(noise)])
    deviation = 100 * 0.001 / (4 if mechanism == "central" else 2)  # of a mean over 4 clients
    assert len(numbers) == 12 * 8 + 12 + 8 * 12 + 8
    assert 0.8 < float(numbers.std()) / deviation < 1.2
    assert same(*(dict(frozen_tensors(run.method.objective.encoder)) for run in (noisy, clipped.loop)))


def test_a_frozen_step_has_no_gradient_no_state_of_the_optimiser_and_half_the_work(tmp_path):
    work = []
    for words in ((), (ALL,)):
        run = build_run(tmp_path / str(len(work)), "fedavg", SMALL, *words)
        method, seen = run.loop.method, {"optimizers": []}
        configure = method.configure_optimizers
        method.configure_optimizers = lambda c=configure, s=seen: s["optimizers"].append(c()) or s["optimizers"][-1]
        with FlopCounterMode(display=False) as counter:
            run.loop.run_round(0) if run.loop.restore() is None else None
        work.append(counter.get_total_flops())
        (heads, everything) = ({id(p) for p in part.parameters()} for part in (method.objective.projector, method))
        held = {id(p) for optimizer in seen["optimizers"] for p in optimizer.state}
        assert held == (heads if words else everything)
    assert work[0] > 2 * work[1]


def test_batch_norm_of_what_is_frozen_normalises_as_it_did(tmp_path):
    method = build_run(tmp_path, "fedavg", FIRST).loop.method
    first, second = (method.objective.encoder.backbone[index] for index in (1, 4))
    first.running_mean.fill_(0.5)
    images, before = torch.randn(6, 3, 8, 8), first.running_mean.clone()
    layers = method.objective.encoder.backbone[:2]
    expected = copy.deepcopy(layers).eval()(images)
    method.train()
    assert torch.equal(layers(images), expected)
    assert torch.equal(first.running_mean, before)
    assert (first.training, second.training) == (False, True)


@pytest.mark.parametrize("policy", ["local", "recalibrate"])
def test_policies_of_batch_norm_are_for_what_trains(tmp_path, policy):
    record, run = execute_run(tmp_path, "fedavg", FIRST, f"federation.batch_norm={policy}")
    encoder = run.evaluator.encoder(run.loop.export()["global"])
    assert record["scores"]["knn/v1"]["accuracy"] > 0
    norm, other = (encoder.backbone[index] for index in (1, 4))
    assert torch.equal(norm.running_mean, torch.zeros(6))  # where it started
    assert float(other.running_mean.abs().max()) > 0


def test_targets_of_what_is_frozen_do_not_move(tmp_path):
    run = train_run(tmp_path, "fedavg", "objective=byol", FIRST)
    objective = run.loop.method.objective
    frozen, target = (frozen_tensors(network) for network in (objective.encoder, objective.target_encoder))
    assert frozen
    assert same(frozen, target)


@pytest.mark.parametrize("method", [each for each in test_measures.GRID if each not in ("progfedssl", "lwfedssl")])
def test_under_every_method_a_frozen_block_is_sent_once_and_a_resumed_run_is_the_unbroken_one(method, tmp_path):
    words = (*test_measures.OVERRIDES[method], FIRST, "federation.rounds=2")
    whole = check_interrupted(tmp_path, method, *words)
    shown = [*trees.leaves(whole.loop.server)]
    assert not any(str(path[-1]) in ("backbone.0.weight", "backbone.1.weight") for path, _ in shown)
    assert whole.loop.ledger.total("down")["frozen"] == BLOCK * len(whole.loop.ledger.set_up)


REFUSED = {
    ("fedavg", "encoder.freeze=[nowhere]"): "the encoder has no tensor 'nowhere': choose all, or names or globs of its",
    ("fedavg", "encoder.freeze=[0,7-9]"): "no tensor '7-9'",
    ("fedavg", "encoder.freeze={a: 1}"): "give all, or a list of names or globs",
    ("fedavg", "encoder.freeze=[1.5]"): "give all, or a list of names or globs",
    ("fedavg", "encoder.freeze=all heads.projector=[]"): "no other weights here that could be trained",
    ("fedema", ALL): "FedEMA measures how far convolutions move, and this encoder has none that train",
    ("fedu", ALL): "FedU measures how far convolutions move",
}


@pytest.mark.parametrize(("method", "words"), REFUSED)
def test_what_cannot_be_frozen_is_refused_in_one_line(tmp_path, method, words):
    key, *rest = words.split(" heads")
    with pytest.raises((ConfigError, MethodError), match=REFUSED[method, words]) as error:
        build_run(tmp_path, method, key, *(f"heads{word}" for word in rest))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", ["progfedssl", "lwfedssl"])
def test_methods_that_need_every_layer_say_so(tmp_path, method):
    with pytest.raises(MethodError, match="needs all weights of the encoder: it grows by its layers") as error:
        build_run(tmp_path, method, SMALL, "method.stages=3", "encoder.freeze=[blocks.0-1]")
    assert "\n" not in str(error.value)


def test_ranges_of_layers_are_those_of_any_transformer(tmp_path):
    method = build_run(tmp_path, "fedavg", SMALL, "encoder.freeze=[blocks.0-1,conv_*]").loop.method
    layers = {name.split(".")[3] if "layers" in name else name for name in frozen_tensors(method.objective.encoder)}
    assert layers == {"encoder_layer_0", "encoder_layer_1", "backbone.conv_proj.weight", "backbone.conv_proj.bias"}
