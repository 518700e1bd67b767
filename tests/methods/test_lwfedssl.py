from types import SimpleNamespace

import pytest
import torch

from methods import trees
from methods.base import MethodError
from methods.lwfedssl import LWFedSSL
from methods.maths import nt_xent
from methods.objectives.simclr import SimCLR
from tests.methods.contract import MethodContract
from tests.methods.test_progfedssl import NARROW, Growing, context_of, images, layers_of, size, visit
from tests.methods.toys import EVERYONE, replies
from tests.methods.vits import SMALL, small
from tests.run_helpers import build_run, same, state, train_run, trained

PLAIN = ("method.calibration_epochs=0", "method.alignment=0")
"""Without the server's calibration and the alignment."""


class TestLWFedSSL(Growing, MethodContract):
    """Three layers, three rounds: a new block in every round."""

    method = "lwfedssl"
    overrides = (SMALL,)
    shipped = (NARROW,)
    falls = False  # the second round trains another block
    accuracy = 50  # FedAvg over ViT-Tiny scores 68 at the rate of the convnets
    up = (size(1), size(1, embedding=False), size(1, embedding=False))


def test_one_stage_without_calibration_and_alignment_is_fedavg():
    mine = state(trained("lwfedssl", SMALL, *PLAIN, "method.stages=1"), activity=False)
    mine["server"] = {key: tree for key, tree in mine["server"].items() if key != "layers"}
    assert same(mine, state(trained("fedavg", SMALL)))


def test_without_calibration_all_clients_train_and_there_are_no_public_images(tmp_path):
    run = build_run(tmp_path, "lwfedssl", SMALL, PLAIN[0])
    assert run.data.public is None
    assert [phase.name for phase in run.loop.method.plan(0)] == ["fit"]
    assert [client.id for client in run.loop.clients] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("objective=protocl",), "the server calibrates without ProtoCL's work before each epoch"),
        (("objective=supervised", "method.alignment=0"), "public images, which lack Supervised's labels"),
        (("method.stays=[projector]",), "part 'projector' stays .* would calibrate with one that nobody trains"),
    ],
)
def test_an_objective_that_the_server_cannot_calibrate_is_refused_unless_it_does_not(words, message, tmp_path):
    with pytest.raises(MethodError, match=rf"{message}.*set method\.calibration_epochs=0"):
        build_run(tmp_path / "a", "lwfedssl", SMALL, *words)
    run = train_run(tmp_path / "b", "lwfedssl", SMALL, *words, PLAIN[0])
    assert all(leaf.isfinite().all() for _, leaf in trees.leaves(run.loop.server))


def test_an_add_on_that_stays_is_not_needed_by_the_calibration():
    term = "method.addons=[{class: methods.fedx.CrossDistillation}]"
    words = (SMALL, term, "row=lwfedssl-fedx", "method.stays=[fedx]", "federation.rounds=2")
    assert [phase.name for phase in trained("lwfedssl", *words).loop.method.plan(0)] == ["fit", "calibrate"]


GROUPS = ("layer_0.", "layer_1.", "layer_2.", "conv_proj", "class_token", "encoder.ln.")
"""Parts of the names of the encoder's tensors: its layers, and what is before and behind them."""


@pytest.mark.parametrize("calibrated", [False, True])
def test_fixed_blocks_move_by_calibration_alone(tmp_path, calibrated):
    words = (f"method.calibration_epochs={int(calibrated)}", "method.weight_transfer=false", "method.stages=3")
    loop = build_run(tmp_path, "lwfedssl", SMALL, *words, "federation.batch_norm=average").loop
    loop.restore()
    for round in range(3):
        before = trees.clone(loop.server["weights"]["encoder"])
        loop.run_round(round)
        after = loop.server["weights"]["encoder"]
        parts = {key: [name for name in before if key in name] for key in GROUPS}
        moved = {key: not all(torch.equal(before[k], after[k]) for k in names) for key, names in parts.items()}
        layers = {f"layer_{index}.": index == round or (calibrated and index < round) for index in range(3)}
        first = round == 0 or calibrated
        assert moved == {**layers, "conv_proj": first, "class_token": first, "encoder.ln.": True}, round


def test_a_client_sends_its_stages_block_and_the_server_trains_all_layers_at_its_own_rate(tmp_path):
    words = (SMALL, EVERYONE, "method.calibration_lr=0.125", "schedule.name=cosine")
    seen = replies(run := build_run(tmp_path, "lwfedssl", *words))
    run.loop.fit()
    steps, calibrations = -(-len(run.data.public) // 8), []
    for done, message in seen:
        received, present = done.message["weights"], [*range(done.round + 1)]
        assert layers_of(received) == present
        if done.phase.name == "calibrate":
            assert layers_of(message["calibrated"]) == present
            calibrations.append((done.steps, done.lr_sum))
        else:
            sent = message["weights"]
            assert layers_of(sent) == [done.round]
            own = [name for name in sent["encoder"] if f"layer_{done.round}." in name]
            assert any(not torch.equal(sent["encoder"][name], received["encoder"][name]) for name in own)
    assert len(seen) == 9 + 3
    assert calibrations == [(steps, pytest.approx(0.125 * steps))] * 3


class TestAlignment:
    def test_it_compares_with_the_received_sub_model(self):
        torch.manual_seed(0)
        method = LWFedSSL(SimCLR(small(), projector=(12, 8), head_norm=False), alignment=0.5, temperature=0.1, stages=3)
        server, views = method.init_server(context_of(method, 0, 3)), (images(), images().flip(0))
        method.start_visit(visit(1, 3, method.send(server, context_of(method, 1, 3)).common))
        with torch.no_grad():
            received = [method.objective.embed(view)[1] for view in views]
            for parameter in method.parameters():
                parameter.add_(0.1 * torch.ones_like(parameter) * parameter.requires_grad)
        out = method.objective(*views)
        value = method.addons["alignment"](out, SimpleNamespace(views=views), method)

        def by_hand(a, b):
            """Each view's embeddings with the received ones of the other view."""
            terms = nt_xent(a, received[1], 0.1, "one-way") + nt_xent(b, received[0], 0.1, "one-way")
            return 0.25 * float(terms.detach())

        assert float(value.detach()) == pytest.approx(by_hand(*out.embeddings), rel=1e-5)
        assert float(value.detach()) != pytest.approx(by_hand(*received), rel=1e-3)
        value.backward()  # into the block that is trained
        named = method.objective.encoder.named_parameters()
        moved = {"encoder": {name: 0 for name, value in named if value.grad is not None and value.grad.any()}}
        assert layers_of(moved) == [1]
        assert all(value.grad is None for value in method.addons["alignment"].parameters())

    def test_it_is_an_add_on_for_other_methods_over_objectives_with_two_embeddings(self, tmp_path):
        words = (SMALL, "objective=masked_reconstruction", "objective.decoder_width=12", "objective.decoder_depth=1")
        with pytest.raises(MethodError, match=r"method\.alignment=0"):
            build_run(tmp_path / "a", "lwfedssl", *words)
        term = "method.addons=[{class: methods.lwfedssl.RepresentationAlignment}]"
        with pytest.raises(MethodError, match="has not: choose another objective"):
            build_run(tmp_path / "c", "fedavg", *words, term, "row=x")
        server = trained("lwfedssl", *words, "method.alignment=0").loop.server
        assert all(leaf.isfinite().all() for _, leaf in trees.leaves(server))
        term = "method.addons=[{class: methods.lwfedssl.RepresentationAlignment, weight: 0.5}]"
        assert "alignment" in trained("fedavg", term, "row=fedavg-aligned", "federation.rounds=1").loop.method.addons
