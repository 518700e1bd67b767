from typing import ClassVar

import pytest
import torch

from methods import networks, trees
from methods.base import Client, MethodError, Phase, Replies, RoundContext, Visit
from methods.objectives.byol import BYOL
from methods.objectives.simclr import SimCLR
from methods.progfedssl import ProgFedSSL
from tests.methods.contract import PROJECTOR, InterfaceContract
from tests.methods.vits import SMALL, small
from tests.run_helpers import same, state, trained

LAYER = 12 * 8**2 + 13 * 8  # attention 4 d^2 + 4 d, MLP of width 4 d 8 d^2 + 5 d, two LayerNorms 4 d
TOKENS = 1 + (8 // 4) ** 2
EMBEDDING = 3 * 4**2 * 8 + 8 + 8 + TOKENS * 8  # patches with bias, class token, positions
NORM = 2 * 8
HEAD = PROJECTOR + 2 * 12  # with running statistics
NARROW = "encoder={class: methods.networks.vit, width: 48, depth: 4, heads: 3}"
"""In the place of ViT-Tiny, which has thirty times as many weights and takes half a minute for two rounds."""


def size(layers, *, embedding=True):
    """Bytes of so many layers of the small encoder, with the last LayerNorm and the projector."""
    return 4 * (layers * LAYER + embedding * EMBEDDING + NORM + HEAD)


def context_of(method, round, rounds):
    return RoundContext(round, rounds, Phase("fit"), (Client(0, 2),), (Client(0, 2),), torch.Generator())


def visit(round, rounds, message):
    return Visit(round, rounds, Phase("fit"), Client(0, 2), message, {}, torch.Generator())


def images(n=6):
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def layers_of(weights):
    """Which of the encoder's layers are there."""
    return sorted({int(name.split("encoder_layer_")[1][0]) for name in weights["encoder"] if "layer_" in name})


def layer(weights, index):
    names = {name: value for name, value in weights["encoder"].items() if f"encoder_layer_{index}." in name}
    return {name.replace(f"layer_{index}", "layer"): value for name, value in names.items()}


class Growing(InterfaceContract):
    """A model of one layer more in each of three rounds. up: bytes that one client sends in each; None: as received."""

    down = (size(1), size(2), size(3))
    up: ClassVar[tuple[int, ...] | None] = None

    def test_ledger_equals_a_hand_count(self, unbroken):
        loop, each = unbroken.loop, {"down": self.down, "up": self.up or self.down}
        lines = {
            (round, "fit", way, "weights"): len(loop.cohort(round)) * sizes[round]
            for round in range(3)
            for way, sizes in each.items()
        }
        assert loop.ledger.lines == lines


class TestProgFedSSL(Growing):
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
    accuracy = 50  # FedAvg over ViT-Tiny scores 68 at the rate of the convnets


@pytest.mark.parametrize("policy", ["average", "local", "recalibrate"])
def test_one_stage_is_fedavg(policy):
    words = (SMALL, f"federation.batch_norm={policy}")
    ours, theirs = trained("progfedssl", *words, "method.stages=1"), trained("fedavg", *words)
    assert same(ours.loop.export()["global"], theirs.loop.export()["global"])
    mine = state(ours, activity=False)
    assert mine["server"]["layers"]["present"] == 3
    mine["server"] = {key: tree for key, tree in mine["server"].items() if key != "layers"}
    assert same(mine, state(theirs))


def grown(objective=None, **settings):
    torch.manual_seed(0)
    return ProgFedSSL(objective or SimCLR(small(depth=4), projector=(12, 8)), **settings)


def test_stages_are_equal_shares_of_the_rounds_one_for_each_layer_if_there_are_rounds_enough():
    def blocks(method, rounds):
        return [[*method.block(context_of(method, round, rounds))] for round in range(rounds)]

    assert blocks(grown(stages=2), 6) == [[0, 1]] * 3 + [[2, 3]] * 3
    assert blocks(grown(stages=2), 5) == [[0, 1]] * 3 + [[2, 3]] * 2
    assert blocks(method := grown(), 8) == [[0], [0], [1], [1], [2], [2], [3], [3]]
    assert blocks(method, 3) == [[0, 1], [0, 1], [2, 3]]
    assert blocks(method, 1) == [[0, 1, 2, 3]] == [[*method.block(context_of(method, 0, 0))]]
    with pytest.raises(MethodError, match=r"vit_tiny or methods\.networks\.vit_small"):
        grown(SimCLR(networks.resnet18()))


class TestGrowth:
    """Four layers in two blocks, two rounds in each of two stages; a visit in the first has two layers."""

    @pytest.fixture
    def method(self):
        return grown(stages=2)

    @pytest.fixture
    def server(self, method):
        return method.init_server(context_of(method, 0, 4))

    @pytest.fixture
    def received(self, method, server):
        return visit(0, 4, method.send(server, context_of(method, 0, 4)).common)

    def test_a_new_block_starts_as_the_one_before(self, method, server):
        first, new, later = (method.send(server, context_of(method, round, 4)).common["weights"] for round in (1, 2, 3))
        assert layers_of(first) == [0, 1]
        assert layers_of(new) == layers_of(later) == [0, 1, 2, 3]
        for old in (0, 1):
            assert same(layer(new, old + 2), layer(new, old))
            assert not same(layer(later, old + 2), layer(later, old))
        method.weight_transfer = False
        assert same(method.send(server, context_of(method, 2, 4)).common["weights"], later)

    def test_absent_layers_are_left_out_get_no_gradient_and_are_exported_as_identities(self, method, server, received):
        method.eval()
        method.start_visit(received)
        ran = []
        for index, block in enumerate(method.objective.encoder.backbone.encoder.layers):
            block.register_forward_hook(lambda *_, index=index: ran.append(index))
        small_model = method.objective.encoder(images())
        assert (ran, layers_of(method.trainable())) == ([0, 1], [0, 1])
        message, _ = method.reply(received)
        assert layers_of(method.trainable()) == [0, 1, 2, 3]
        exported = method.export(server, {})
        assert same(method.local_weights(message, server), exported["global"])  # for the drift
        assert same(trees.clone(method.adopt(server, exported)), trees.clone(server))
        method.load(exported["global"])
        assert torch.equal(method.objective.encoder(images()), small_model)
        assert ran == [0, 1, 0, 1, 2, 3]

    def test_the_mean_of_a_sub_model_changes_no_other_layer(self, method, server, received):
        ones = trees.map(torch.ones_like, received.message["weights"])
        updated = method.update(server, context_of(method, 0, 4), Replies({"weights": ones}, (0,)))
        for index in range(4):
            leaves = [value for _, value in trees.leaves(layer(updated["weights"], index))]
            assert all(bool((value == 1).all()) for value in leaves) == (index < 2)
        assert int(updated["layers"]["present"]) == 2


def test_weights_of_copies_of_the_encoder_are_left_out_too():
    """The target network of BYOL passes as many layers as the online one."""
    method = grown(BYOL(small(depth=4), projector=(12, 8), predictor=4), stages=4)
    server = method.init_server(context_of(method, 0, 4))
    method.start_visit(visit(0, 4, method.send(server, context_of(method, 0, 4)).common))
    assert method.objective.target_encoder.backbone.applied == 1
