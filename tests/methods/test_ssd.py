from typing import ClassVar

import pytest
import torch
from torch.nn.functional import normalize

from methods import trees
from methods.base import Client, Outputs, Visit
from methods.maths import dimension_scaling, projector_distillation
from methods.objectives.align_uniform import AlignUniform
from methods.ssd import SSD
from tests.methods.contract import WEIGHTS, InterfaceContract, MethodContract
from tests.methods.objectives import batch, encoder
from tests.methods.toys import EVERYONE
from tests.run_helpers import train_run, trained


def at(run, client):
    """The run's method at the start of a visit of the client, with the client's memory."""
    loop = run.loop
    method, memory = loop.method, loop.client_state[client]["memory"]
    sent = {"weights": trees.clone(loop.server["weights"])}
    method.start_visit(Visit(1, 2, method.phases[0], Client(client, 5), sent, memory, torch.Generator()))
    return method


def basis_of(run):
    return run.loop.server["basis"]["Q"] if "basis" in run.loop.server else torch.eye(8)


class TestSSD(MethodContract):
    method = "ssd"
    choices = (
        *("method.dsr_weight=0", "method.pd_weight=0", "method.basis=axis", "method.separation=hard"),
        "method.variant=paper",
    )
    equals = (
        ("method.dsr_weight=0 method.pd_weight=0", "fedavg objective=align_uniform", "weights"),
        ("method.alpha=1", "ssd method.alpha=1 method.dsr_weight=0", 1e-5),
    )
    refused: ClassVar = {
        "method.variant=other": "choose code or paper",
        "method.basis=other": "choose qr or axis",
        "method.separation=other": "choose soft or hard",
        "heads.projector=[12,6]": "the same width",
        "method.separation=hard objective=simsiam": "SimSiam's loss reads other outputs too",
        "partition.clients=10 partition.name=iid training.batch_size=2": "8 dimensions among 10 clients",
    }

    def bill(self, run):
        assigned = {("assign", "down", "scale"): 4 * 8, ("assign", "down", "basis"): 4 * 8 * 8}
        return {**assigned, ("fit", "down", "weights"): WEIGHTS, ("fit", "up", "weights"): WEIGHTS}

    def test_subspaces_are_disjoint_and_belong_to_clients_for_good(self, unbroken):
        loop, scales = unbroken.loop, unbroken.loop.server["scales"]
        stretched = torch.stack([scales[client] != 1 for client in range(4)])
        assert stretched.sum(dim=1).tolist() == [2, 2, 2, 2]  # floor(8 / 4) each
        assert int(stretched.sum(dim=0).max()) == 1
        assert set(scales[0].unique().tolist()) == {1.0, 10.0}
        for client in range(4):
            assert torch.equal(loop.client_state[client]["memory"]["scale"]["d"], scales[client])
        rounds = {round for round, _, _, entry in loop.ledger.lines if entry in ("scale", "basis")}
        assert rounds == {0}  # they are sent once
        Q, axis = loop.server["basis"]["Q"], trained("ssd", "method.basis=axis").loop
        torch.testing.assert_close(Q @ Q.T, torch.eye(8), rtol=1e-5, atol=1e-5)
        assert "basis" not in axis.server  # an axis needs none
        assert set(axis.ledger.total("down")) == {"scale", "weights"}

    @pytest.mark.parametrize("basis", ["axis", "qr"])
    def test_a_client_stretches_along_its_own_directions_or_leaves_those_of_others_untouched(self, basis, tmp_path):
        """With hard separation the loss is the objective's on the own directions, whose gradient has no others."""
        run = train_run(tmp_path / "soft", "ssd", f"method.basis={basis}", EVERYONE)
        for client, scale in run.loop.server["scales"].items():
            stretch = at(run, client).stretch
            stretch = stretch if basis == "qr" else torch.diag(stretch)
            torch.testing.assert_close(stretch @ basis_of(run), basis_of(run) * scale, rtol=1e-4, atol=1e-5)
        words = ("method.separation=hard", "method.pd_weight=0", f"method.basis={basis}", EVERYONE)
        run = train_run(tmp_path / "hard", "ssd", *words)
        Q, generator = basis_of(run), torch.Generator().manual_seed(0)
        for client, mine in run.loop.server["scales"].items():
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

    def test_without_distillation_embeddings_have_a_width_of_their_own(self):
        words = ("ssd", "method.pd_weight=0", "federation.rounds=1")
        loops = [trained(*words, head).loop for head in ("heads.projector=[12,6]", "objective.projector=[]")]
        assert [(loop.method.width, loop.method.objective.encoder.dim) for loop in loops] == [(6, 8), (8, 8)]
        assert set(loops[1].server["weights"]) == {"encoder"}


def test_the_loss_by_hand_with_its_default_weights():
    """Weight 1 for the scaling of each view's unit rows, on average, and 0.1 for the distillation of all rows."""
    method = SSD(AlignUniform(encoder(), projector=(5, 6)))
    method.stretch = torch.tensor([10.0, 1.0, 1.0, 10.0, 1.0, 1.0])
    out = method.objective(*batch().views)
    scaling = sum(dimension_scaling(normalize(z, dim=1), method.stretch, "code") for z in out.embeddings) / 2
    distilled = projector_distillation(torch.cat(out.representations), torch.cat(out.embeddings), "code")
    expected = method.objective.loss(out, batch()) + scaling + 0.1 * distilled
    torch.testing.assert_close(method.loss(out, batch()), expected)


class TestHardSeparation(InterfaceContract):
    variant = True
    method = "ssd"
    overrides = ("method.separation=hard", "method.pd_weight=0")
    falls = False
    bill = TestSSD.bill
