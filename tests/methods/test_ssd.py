from typing import ClassVar

import pytest
import torch

from methods import trees
from methods.base import Client, Outputs, Visit
from tests import run_helpers
from tests.methods.contract import WEIGHTS, InterfaceContract, MethodContract


def at(run, client):
    """The run's method at the start of a visit of the client, with the client's memory."""
    loop = run.loop
    method, memory = loop.method, loop.client_state[client]["memory"]
    sent = {"weights": trees.clone(loop.server["weights"])}
    method.start_visit(Visit(1, 2, method.phases[0], Client(client, 5), sent, memory, torch.Generator()))
    return method


class TestSSD(MethodContract):
    method = "ssd"
    choices = (
        *("method.dsr_weight=0", "method.pd_weight=0", "method.basis=axis", "method.separation=hard"),
        "method.variant=paper",
    )
    equals = (("method.dsr_weight=0 method.pd_weight=0", "fedavg objective=align_uniform", "weights"),)
    refused: ClassVar = {
        "method.variant=other": "choose code or paper",
        "method.basis=other": "choose qr or axis",
        "method.separation=other": "choose soft or hard",
        "heads.projector=[12,6]": "the same width",
        "method.separation=hard objective=simsiam": "SimSiam's loss reads other outputs too",
        "partition.clients=10 partition.name=iid training.batch_size=2": "8 dimensions among 10 clients",
    }

    def bill(self, run):
        return {
            ("assign", "down", "scale"): 4 * 8,
            ("assign", "down", "basis"): 4 * 8 * 8,
            ("fit", "down", "weights"): WEIGHTS,
            ("fit", "up", "weights"): WEIGHTS,
        }

    @pytest.mark.parametrize(
        ("method", "overrides"),
        [("fedprox", ()), ("fedu2", ()), ("scaffold", ()), ("fedavg", ("server_optimizer.class=methods.server.Adam",))],
    )
    def test_no_projector_goes_with_other_methods_too(self, method, overrides, tmp_path):
        run = run_helpers.train_run(tmp_path, method, "objective=align_uniform", "objective.projector=[]", *overrides)
        assert set(run.loop.server["weights"]) == {"encoder"}

    def test_a_stretch_of_one_leaves_training_alone(self, tmp_path):
        unstretched = run_helpers.train_run(tmp_path / "a", "ssd", "method.alpha=1")
        none = run_helpers.train_run(tmp_path / "b", "ssd", "method.alpha=1", "method.dsr_weight=0")
        assert run_helpers.difference(unstretched.loop.server["weights"], none.loop.server["weights"]) < 1e-5

    def test_subspaces_are_disjoint_and_belong_to_clients_for_good(self, unbroken):
        loop = unbroken.loop
        scales = loop.server["scales"]
        stretched = torch.stack([scales[client] != 1 for client in range(4)])
        assert stretched.sum(dim=1).tolist() == [2, 2, 2, 2]  # floor(8 / 4) each
        assert int(stretched.sum(dim=0).max()) == 1
        assert set(scales[0].unique().tolist()) == {1.0, 10.0}
        for client in range(4):
            assert torch.equal(loop.client_state[client]["memory"]["scale"]["d"], scales[client])

    def test_the_basis_is_orthonormal_and_an_axis_needs_none(self, tmp_path, unbroken):
        Q = unbroken.loop.server["basis"]["Q"]
        torch.testing.assert_close(Q @ Q.T, torch.eye(8), rtol=1e-5, atol=1e-5)
        axis = run_helpers.train_run(tmp_path, "ssd", "method.basis=axis")
        assert "basis" not in axis.loop.server
        assert set(axis.loop.ledger.total("down")) == {"scale", "weights"}

    @pytest.mark.parametrize("basis", ["axis", "qr"])
    def test_a_client_stretches_along_its_own_directions(self, basis, tmp_path):
        run = run_helpers.train_run(tmp_path, "ssd", f"method.basis={basis}", "federation.participation=1")
        Q = run.loop.server["basis"]["Q"] if basis == "qr" else torch.eye(8)
        for client in range(4):
            method, scale = at(run, client), run.loop.server["scales"][client]
            stretch = method.stretch if basis == "qr" else torch.diag(method.stretch)
            torch.testing.assert_close(stretch @ Q, Q * scale, rtol=1e-4, atol=1e-5)

    def test_the_scale_is_sent_once(self, unbroken):
        rounds = {round for round, _, _, entry in unbroken.loop.ledger.lines if entry in ("scale", "basis")}
        assert rounds == {0}

    @pytest.mark.parametrize("basis", ["axis", "qr"])
    def test_hard_separation_leaves_the_other_clients_dimensions_untouched(self, basis, tmp_path):
        """Loss and gradient ignore other clients' dimensions; on a client's own ones the loss is the objective's."""
        overrides = (
            "method.separation=hard",
            "method.pd_weight=0",
            f"method.basis={basis}",
            "federation.participation=1",
        )
        run = run_helpers.train_run(tmp_path, "ssd", *overrides)
        loop = run.loop
        Q = loop.server["basis"]["Q"] if basis == "qr" else torch.eye(8)
        generator = torch.Generator().manual_seed(0)
        for client in range(4):
            mine = loop.server["scales"][client]
            assert sorted(mine.tolist()) == [0.0] * 6 + [1.0] * 2
            method = at(run, client)
            z = tuple(torch.randn(6, 8, generator=generator).requires_grad_() for _ in range(2))
            loss = method.loss(Outputs(z, z), None)
            loss.backward()
            confined = tuple((leaf @ Q)[:, mine > 0] for leaf in z)
            torch.testing.assert_close(loss, method.objective.loss(Outputs((), confined), None), rtol=1e-4, atol=1e-5)
            for leaf in z:
                assert float((leaf.grad @ Q)[:, mine == 0].abs().max()) < 1e-6
                assert float((leaf.grad @ Q)[:, mine > 0].abs().max()) > 1e-3

    def test_without_a_projector(self, tmp_path):
        run = run_helpers.train_run(tmp_path, "ssd", "objective.projector=[]", "method.pd_weight=0")
        assert run.loop.method.width == run.loop.method.objective.encoder.dim
        assert set(run.loop.server["weights"]) == {"encoder"}

    def test_without_distillation_embeddings_have_a_width_of_their_own(self, tmp_path):
        run = run_helpers.train_run(tmp_path, "ssd", "heads.projector=[12,6]", "method.pd_weight=0")
        assert run.loop.method.width == 6
        assert run.loop.method.objective.encoder.dim != 6


class TestHardSeparation(InterfaceContract):
    variant = True
    method = "ssd"
    overrides = ("method.separation=hard", "method.pd_weight=0")
    falls = False

    def bill(self, run):
        return TestSSD.bill(self, run)
