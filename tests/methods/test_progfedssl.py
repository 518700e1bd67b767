from typing import ClassVar

import pytest
import torch

from methods import networks, trees
from methods.base import Client, MethodError, Phase, Replies, Turn, Visit
from methods.objectives.simclr import SimCLR
from methods.progfedssl import ProgFedSSL
from tests import run_helpers
from tests.methods.contract import PROJECTOR, InterfaceContract
from tests.methods.vits import SMALL, small

LAYER = 12 * 8**2 + 13 * 8  # attention 4 d^2 + 4 d, MLP of width 4 d 8 d^2 + 5 d, two LayerNorms 4 d
TOKENS = 1 + (8 // 4) ** 2
EMBEDDING = 3 * 4**2 * 8 + 8 + 8 + TOKENS * 8  # patches with bias, class token, positions
NORM = 2 * 8
HEAD = PROJECTOR + 2 * 12  # with running statistics
FIT = Phase("fit")
NARROW = "encoder={class: methods.networks.vit, width: 48, depth: 4, heads: 3}"
"""In the place of ViT-Tiny, which has thirty times as many weights and takes half a minute for two rounds."""


def size(layers, *, embedding=True):
    """Bytes of so many layers of the small encoder, with the last LayerNorm and the projector."""
    return 4 * (layers * LAYER + embedding * EMBEDDING + NORM + HEAD)


def expected_ledger(run, down, up):
    """The ledger's lines from the bytes that one client receives and sends in each round."""
    loop, lines = run.loop, {}
    for round in range(loop.rounds):
        members = len(loop.cohort(round))
        lines[round, "fit", "down", "weights"] = members * down[round]
        lines[round, "fit", "up", "weights"] = members * up[round]
    return lines


def turn(method, round, rounds, phase=FIT):
    return Turn(round, rounds, phase, (Client(0, 2),), (Client(0, 2),), torch.Generator())


def visit(round, rounds, message, phase=FIT, client=0):
    return Visit(round, rounds, phase, Client(client, 2), message, {}, torch.Generator())


def images(n=6):
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class TestProgFedSSL(InterfaceContract):
    """Three layers, three rounds: a new block in every round."""

    method = "progfedssl"
    overrides = (SMALL,)
    shipped = (NARROW,)
    refused: ClassVar = {
        f"'{SMALL}' method.stages=2": r"does not divide the encoder's 3 layers: choose 1, 3$",
        f"'{SMALL}' method.stages=3 federation.rounds=2": "at least 3, not 2",
        f"'{SMALL}' objective=byol objective.stateful=true": r"objective\.stateful=false",
        f"'{SMALL}' server_optimizer.class=methods.server.Adam": "move blocks that are not trained",
    }
    falls = False  # the second round trains a larger model
    least = 50  # FedAvg over ViT-Tiny scores 68 at the rate of the convnets

    def test_ledger_equals_a_hand_count(self, unbroken):
        sizes = [size(1), size(2), size(3)]
        assert unbroken.loop.ledger.lines == expected_ledger(unbroken, sizes, sizes)


@pytest.mark.parametrize("policy", ["average", "local", "recalibrate"])
def test_one_stage_is_fedavg(tmp_path, policy):
    words = (SMALL, f"federation.batch_norm={policy}")
    ours = run_helpers.train_run(tmp_path / "a", "progfedssl", *words, "method.stages=1")
    theirs = run_helpers.train_run(tmp_path / "b", "fedavg", *words)
    assert run_helpers.same(ours.loop.export()["global"], theirs.loop.export()["global"])
    mine = run_helpers.state(ours)
    assert mine["server"].pop("layers")["present"] == 3
    assert run_helpers.same(mine, run_helpers.state(theirs))


class TestStages:
    @pytest.fixture
    def method(self):
        return ProgFedSSL(SimCLR(small(depth=4), projector=(12, 8)))

    def blocks(self, method, rounds):
        return [[*method.block(turn(method, round, rounds))] for round in range(rounds)]

    def test_they_are_equal_shares_of_the_rounds(self, method):
        method.stages = 2
        assert self.blocks(method, 6) == [[0, 1]] * 3 + [[2, 3]] * 3
        assert self.blocks(method, 5) == [[0, 1]] * 3 + [[2, 3]] * 2

    def test_there_is_one_for_each_layer_if_there_are_rounds_enough(self, method):
        assert self.blocks(method, 8) == [[0], [0], [1], [1], [2], [2], [3], [3]]
        assert self.blocks(method, 3) == [[0, 1], [0, 1], [2, 3]]
        assert self.blocks(method, 1) == [[0, 1, 2, 3]]
        assert [*method.block(turn(method, 0, 0))] == [0, 1, 2, 3]

    def test_an_encoder_that_does_not_fit_is_refused(self):
        with pytest.raises(MethodError, match=r"vit_tiny or methods\.networks\.vit_small"):
            ProgFedSSL(SimCLR(networks.resnet18()))


class TestGrowth:
    """Four layers in two blocks, two rounds in each of two stages."""

    @pytest.fixture
    def method(self):
        torch.manual_seed(0)
        return ProgFedSSL(SimCLR(small(depth=4), projector=(12, 8)), stages=2)

    def layers_of(self, weights):
        return sorted({int(name.split("encoder_layer_")[1][0]) for name in weights["encoder"] if "layer_" in name})

    def layer(self, weights, index):
        names = {name: value for name, value in weights["encoder"].items() if f"encoder_layer_{index}." in name}
        return {name.replace(f"layer_{index}", "layer"): value for name, value in names.items()}

    def test_a_new_block_starts_as_the_one_before(self, method):
        server = method.init_server(turn(method, 0, 4))
        first, new, later = (method.send(server, turn(method, round, 4)).common["weights"] for round in (1, 2, 3))
        assert self.layers_of(first) == [0, 1]
        assert self.layers_of(new) == self.layers_of(later) == [0, 1, 2, 3]
        for old in (0, 1):
            assert run_helpers.same(self.layer(new, old + 2), self.layer(new, old))
            assert not run_helpers.same(self.layer(later, old + 2), self.layer(later, old))
        method.weight_transfer = False
        untouched = method.send(server, turn(method, 2, 4)).common["weights"]
        assert run_helpers.same(untouched, later)

    def test_absent_layers_are_left_out_and_exported_as_identities(self, method):
        server = method.init_server(turn(method, 0, 4))
        received = visit(0, 4, method.send(server, turn(method, 0, 4)).common)
        method.eval()
        method.start_visit(received)
        ran = []
        for index, layer in enumerate(method.objective.encoder.backbone.encoder.layers):
            layer.register_forward_hook(lambda *_, index=index: ran.append(index))
        small_model = method.objective.encoder(images())
        assert ran == [0, 1]
        method.reply(received)
        method.load(method.export(server, {})["global"])
        assert torch.equal(method.objective.encoder(images()), small_model)
        assert ran == [0, 1, 0, 1, 2, 3]

    def test_absent_layers_get_no_gradient_and_everything_does_after_the_visit(self, method):
        server = method.init_server(turn(method, 0, 4))
        received = visit(0, 4, method.send(server, turn(method, 0, 4)).common)
        method.start_visit(received)
        assert self.layers_of(method.trainable()) == [0, 1]
        method.reply(received)
        assert self.layers_of(method.trainable()) == [0, 1, 2, 3]

    def test_export_is_undone_by_adopt(self, method):
        server = method.init_server(turn(method, 0, 4))
        adopted = method.adopt(server, method.export(server, {}))
        assert run_helpers.same(trees.clone(adopted), trees.clone(server))

    def test_the_mean_of_a_sub_model_changes_no_other_layer(self, method):
        server = method.init_server(turn(method, 0, 4))
        ones = trees.map(torch.ones_like, method.send(server, turn(method, 0, 4)).common["weights"])
        updated = method.update(server, turn(method, 0, 4), Replies({"weights": ones}, (0,)))
        for index in range(4):
            leaves = [value for _, value in trees.leaves(self.layer(updated["weights"], index))]
            assert all(bool((value == 1).all()) for value in leaves) == (index < 2)
        assert int(updated["layers"]["present"]) == 2

    def test_a_clients_weights_are_compared_as_a_sub_model(self, method):
        server = method.init_server(turn(method, 0, 4))
        received = visit(0, 4, method.send(server, turn(method, 0, 4)).common)
        method.start_visit(received)
        message, _ = method.reply(received)
        assert run_helpers.same(method.local_weights(message, server), method.export(server, {})["global"])


def test_weights_of_copies_of_the_encoder_are_left_out_too():
    """The target network of BYOL passes as many layers as the online one."""
    from methods.objectives.byol import BYOL

    method = ProgFedSSL(BYOL(small(depth=4), projector=(12, 8), predictor=4), stages=4)
    server = method.init_server(turn(method, 0, 4))
    method.start_visit(visit(0, 4, method.send(server, turn(method, 0, 4)).common))
    assert method.objective.target_encoder.backbone.applied == 1


def test_bytes_of_vit_tiny_are_the_papers_ratio():
    """12 layers, 12 stages: 2 * 12 / (6.5 + 6.5) = 1.8 times fewer bytes than end to end, heads left out."""
    layer, embedding, norm = 12 * 192**2 + 13 * 192, (3 * 4**2 + 1) * 192 + 192 + 65 * 192, 2 * 192
    head = 192 * 512 + 4 * 512 + 512 * 256 + 256
    method = ProgFedSSL(SimCLR(networks.vit_tiny()))
    server = method.init_server(turn(method, 0, 12))
    both = 0
    for round in range(12):
        weights = method.send(server, turn(method, round, 12)).common["weights"]
        assert trees.nbytes(weights) == 4 * ((round + 1) * layer + embedding + norm + head)
        both += 2 * (trees.nbytes(weights) // 4 - embedding - norm - head)
    end_to_end = 12 * 2 * 12 * layer
    assert end_to_end / both == pytest.approx(24 / 13)
