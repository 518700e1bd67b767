import pytest
import torch

from methods import networks, trees
from methods.base import MethodError
from methods.lwfedssl import LWFedSSL, RepresentationAlignment
from methods.maths import nt_xent
from methods.objectives.simclr import SimCLR
from tests import run_helpers
from tests.methods.contract import MethodContract
from tests.methods.test_progfedssl import FIT, NARROW, expected_ledger, images, size, turn, visit
from tests.methods.vits import SMALL, small

PLAIN = ("method.calibration_epochs=0", "method.alignment=0")


class TestLWFedSSL(MethodContract):
    """Three layers, three rounds: a new block in every round."""

    method = "lwfedssl"
    overrides = (SMALL,)
    shipped = (NARROW,)
    falls = False  # the second round trains another block
    least = 50  # FedAvg over ViT-Tiny scores 68 at the rate of the convnets

    def test_ledger_equals_a_hand_count(self, unbroken):
        down = [size(1), size(2), size(3)]
        up = [size(1), size(1, embedding=False), size(1, embedding=False)]
        assert unbroken.loop.ledger.lines == expected_ledger(unbroken, down, up)


def test_one_stage_without_calibration_and_alignment_is_fedavg(tmp_path):
    ours = run_helpers.train_run(tmp_path / "a", "lwfedssl", SMALL, *PLAIN, "method.stages=1")
    theirs = run_helpers.train_run(tmp_path / "b", "fedavg", SMALL)
    mine = run_helpers.state(ours)
    del mine["server"]["layers"]
    assert run_helpers.same(mine, run_helpers.state(theirs))


def test_without_calibration_all_clients_train_and_there_are_no_public_images(tmp_path):
    run = run_helpers.build_run(tmp_path / "a", "lwfedssl", SMALL, "method.calibration_epochs=0")
    assert run.data.public is None
    assert [phase.name for phase in run.loop.method.plan(0)] == ["fit"]
    assert [client.id for client in run.loop.clients] == [0, 1, 2, 3]
    calibrated = run_helpers.build_run(tmp_path / "b", "lwfedssl", SMALL)
    assert [client.id for client in calibrated.loop.clients] == [1, 2, 3]


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
        run_helpers.build_run(tmp_path / "a", "lwfedssl", SMALL, *words)
    run = run_helpers.train_run(tmp_path / "b", "lwfedssl", SMALL, *words, "method.calibration_epochs=0")
    assert all(leaf.isfinite().all() for _, leaf in trees.leaves(run.loop.server))


def test_an_add_on_that_stays_is_not_needed_by_the_calibration(tmp_path):
    term = "method.addons=[{class: methods.fedx.CrossDistillation}]"
    words = (SMALL, term, "row=lwfedssl-fedx", "method.stays=[fedx]", "federation.rounds=2")
    run = run_helpers.train_run(tmp_path, "lwfedssl", *words)
    assert [phase.name for phase in run.loop.method.plan(0)] == ["fit", "calibrate"]


def layer(weights, index):
    return {name: value for name, value in weights["encoder"].items() if f"encoder_layer_{index}." in name}


def unchanged(before, after, names):
    """Which of the encoder's layers, and of the other groups of its tensors, are equal bit for bit."""
    groups = {str(index): [*layer(before, index)] for index in range(3)}
    groups |= {name: [key for key in before["encoder"] if name in key] for name in names}
    return {
        group: all(torch.equal(before["encoder"][key], after["encoder"][key]) for key in keys)
        for group, keys in groups.items()
    }


@pytest.mark.parametrize("epochs", [0, 1])
def test_fixed_blocks_move_by_calibration_alone(tmp_path, epochs):
    words = (SMALL, f"method.calibration_epochs={epochs}", "method.weight_transfer=false")
    run = run_helpers.build_run(tmp_path, "lwfedssl", *words, "method.stages=3", "federation.batch_norm=average")
    run.loop.restore()
    seen = []
    for round in range(3):
        before = trees.clone(run.loop.server["weights"])
        run.loop.run_round(round)
        seen.append(unchanged(before, run.loop.server["weights"], ["conv_proj", "class_token", "encoder.ln."]))
    calibrated = epochs > 0
    for round, groups in enumerate(seen):
        for index in range(3):
            moves = index == round or (calibrated and index < round)
            assert groups[str(index)] != moves, (round, index)
        assert groups["conv_proj"] == groups["class_token"] == (round > 0 and not calibrated)
        assert not groups["encoder.ln."]


def test_a_client_trains_and_sends_its_stages_block(tmp_path):
    run = run_helpers.build_run(tmp_path, "lwfedssl", SMALL, "federation.participation=1")
    seen = run_helpers.collect_visits(run, lambda done: (done.visit, trees.clone(done.message["weights"])), "fit")
    run.loop.fit()
    assert len(seen) == 9
    for done, message in seen:
        received = done.message["weights"]
        trained = {index for index in range(3) if layer(message, index)}
        assert trained == {done.round}
        assert {index for index in range(3) if layer(received, index)} == set(range(done.round + 1))
        own = layer(message, done.round)
        assert any(not torch.equal(value, received["encoder"][name]) for name, value in own.items())


def test_calibration_trains_all_layers_of_the_sub_model_at_its_own_rate(tmp_path):
    run = run_helpers.build_run(tmp_path, "lwfedssl", SMALL, "method.calibration_lr=0.125", "schedule.name=cosine")
    seen = run_helpers.collect_visits(
        run, lambda done: (done.visit, {i for i in range(3) if layer(done.message["calibrated"], i)}), "calibrate"
    )
    run.loop.fit()
    assert [sent for _, sent in seen] == [{0}, {0, 1}, {0, 1, 2}]
    assert all(done.lr_sum == pytest.approx(0.125 * done.steps) for done, _ in seen)
    assert all(done.steps == -(-len(run.data.public) // 8) for done, _ in seen)


def test_bytes_of_vit_tiny_are_the_papers_ratio():
    """12 layers, 12 stages: 2 * 12 / (6.5 + 1) = 3.2 times fewer bytes than end to end, heads left out."""
    layer_size, embedding, norm = 12 * 192**2 + 13 * 192, (3 * 4**2 + 1) * 192 + 192 + 65 * 192, 2 * 192
    head = 192 * 512 + 4 * 512 + 512 * 256 + 256
    method = LWFedSSL(SimCLR(networks.vit_tiny()), alignment=0)
    server = method.init_server(turn(method, 0, 12))
    both = 0
    for round in range(12):
        down = method.send(server, turn(method, round, 12)).common
        received = visit(round, 12, down, method.phases[0])
        method.start_visit(received)
        up, _ = method.reply(received)
        tokens = embedding if round == 0 else 0
        assert trees.nbytes(down["weights"]) == 4 * ((round + 1) * layer_size + embedding + norm + head)
        assert trees.nbytes(up["weights"]) == 4 * (layer_size + tokens + norm + head)
        both += (trees.nbytes(down["weights"]) + trees.nbytes(up["weights"])) // 4
        both -= embedding + tokens + 2 * (norm + head)
    assert 12 * 2 * 12 * layer_size / both == pytest.approx(3.2)


class TestAlignment:
    @pytest.fixture
    def method(self):
        torch.manual_seed(0)
        method = LWFedSSL(SimCLR(small(), projector=(12, 8), head_norm=False), alignment=0.5, temperature=0.1, stages=3)
        server = method.init_server(turn(method, 0, 3))
        method.start_visit(visit(1, 3, method.send(server, turn(method, 1, 3)).common, FIT))
        return method

    def test_it_compares_with_the_received_sub_model(self, method):
        term = method.addons["alignment"]
        views = (images(), images().flip(0))
        with torch.no_grad():
            received = [method.objective.embed(view)[1] for view in views]
            for parameter in method.parameters():
                parameter.add_(0.1 * torch.ones_like(parameter) * parameter.requires_grad)
        out = method.objective(*views)
        value = term(out, Views(views), method)
        z_a, z_b = out.embeddings
        by_hand = nt_xent(z_a, received[1], 0.1, "one-way") + nt_xent(z_b, received[0], 0.1, "one-way")
        assert float(value.detach()) == pytest.approx(0.25 * float(by_hand.detach()), rel=1e-5)
        assert float(value.detach()) != pytest.approx(0.25 * float(self.of_equal(received)), rel=1e-3)

    def of_equal(self, z):
        return nt_xent(z[0], z[1], 0.1, "one-way") + nt_xent(z[1], z[0], 0.1, "one-way")

    def test_only_the_trained_block_gets_its_gradient(self, method):
        views = (images(), images().flip(0))
        method.addons["alignment"](method.objective(*views), Views(views), method).backward()
        with_gradient = {
            name.split("encoder_layer_")[1][0]
            for name, value in method.objective.encoder.named_parameters()
            if "layer_" in name and value.grad is not None and value.grad.abs().max() > 0
        }
        assert with_gradient == {"1"}
        assert all(value.grad is None for value in method.addons["alignment"].parameters())

    def test_an_objective_without_two_embeddings_is_refused(self, tmp_path):
        words = (SMALL, "objective=masked_reconstruction", "objective.decoder_width=12", "objective.decoder_depth=1")
        with pytest.raises(MethodError, match=r"method\.alignment=0"):
            run_helpers.build_run(tmp_path / "a", "lwfedssl", *words)
        term = "method.addons=[{class: methods.lwfedssl.RepresentationAlignment}]"
        with pytest.raises(MethodError, match="has not: choose another objective"):
            run_helpers.build_run(tmp_path / "c", "fedavg", *words, term, "row=x")
        run = run_helpers.train_run(tmp_path / "b", "lwfedssl", *words, "method.alignment=0")
        assert all(leaf.isfinite().all() for _, leaf in trees.leaves(run.loop.server))

    def test_it_is_an_add_on_for_other_methods(self, tmp_path):
        term = "method.addons=[{class: methods.lwfedssl.RepresentationAlignment, weight: 0.5}]"
        run = run_helpers.train_run(tmp_path, "fedavg", term, "row=fedavg-aligned")
        assert isinstance(run.loop.method.addons["alignment"], RepresentationAlignment)


class Views:
    """A batch of which only the views are read."""

    def __init__(self, views):
        self.views = views
