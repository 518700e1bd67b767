import math

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor

from benchmark.experiment import factory
from methods.base import Client, FederatedMethod, MethodError, Outputs, Visit
from methods.maths import prototype_nce
from methods.objectives.moco import MoCo
from methods.objectives.protocl import ProtoCL
from tests import run_helpers
from tests.methods.objectives import ObjectiveContract, batch, encoder, views

PICTURES = 24


def looked(objective: ProtoCL, round: int = 1, examples: int = PICTURES) -> ProtoCL:
    """The objective after the E-step of a client over its images."""
    method = FederatedMethod(objective)
    visit = Visit(round, 9, method.phases[0], Client(0, examples), {}, {}, torch.Generator())
    objective.receive(visit)
    (pictures,) = views(1, images=examples, seed=4)

    def look():
        return iter(batch()._replace(views=(piece,)) for piece in pictures.split(5))

    method.start_epoch(look, torch.Generator().manual_seed(0))
    return objective


class TestProtoCL(ObjectiveContract):
    targets = True

    def build(self, **kwargs: object) -> ProtoCL:
        torch.manual_seed(1)
        settings = {"queue_size": 30, "temperature": 0.3, "clusters": (3, 5), "warmup": 0} | kwargs
        return looked(ProtoCL(encoder(), projector=(5, 4), **settings))

    def expected(self, out: Outputs) -> Tensor:
        objective, index = self.build(), batch().index
        total = MoCo.loss(objective, out, batch())
        for m, (start, end) in enumerate(((0, 3), (3, 8))):
            prototypes, phi = objective.prototypes[start:end], objective.concentration[start:end]
            for z in out.embeddings:
                total = total + prototype_nce(z, prototypes, phi, objective.clusters_of[m][index]) / 2
        return total

    def test_prototypes_are_of_unit_length_and_concentrations_are_tau_in_the_mean(self) -> None:
        objective = self.build()
        torch.testing.assert_close(objective.prototypes.norm(dim=1), torch.ones(8))
        for widths in objective.concentration.split([3, 5]):
            assert float(widths.mean()) == pytest.approx(0.3, rel=1e-5)
        assert objective.clusters_of.shape == (2, 32)  # 24 images, rounded up so that few sizes occur
        assert [int(row.max()) < k for row, k in zip(objective.clusters_of, (3, 5), strict=True)] == [True, True]

    def test_the_networks_are_left_as_they_were(self) -> None:
        objective = ProtoCL(encoder(), projector=(5, 4), clusters=(3,), warmup=0)
        before = {name: value.clone() for name, value in objective.state_dict().items() if "ncoder" in name}
        looked(objective)
        assert objective.training
        assert all(torch.equal(value, before[name]) for name, value in objective.state_dict().items() if name in before)

    def test_within_the_warm_up_it_is_moco(self) -> None:
        objective = looked(ProtoCL(encoder(), projector=(5, 4), clusters=(3,), warmup=2))
        out = objective(*batch().views)
        assert torch.equal(objective.loss(out, batch()), MoCo.loss(objective, out, batch()))
        assert not objective.prototypes.any()

    def test_a_small_client_has_fewer_clusters(self) -> None:
        objective = looked(ProtoCL(encoder(), projector=(5, 4), clusters=(3, 50), warmup=0), examples=9)
        assert objective.concentration.isfinite().tolist() == [True] * 3 + [True] * 4 + [False] * 46
        loss = objective.loss(objective(*batch().views), batch())
        loss.backward()
        assert loss.isfinite()
        assert all(p.grad is None or p.grad.isfinite().all() for p in objective.parameters())

    def test_one_cluster_adds_nothing(self) -> None:
        objective = looked(ProtoCL(encoder(), projector=(5, 4), clusters=(1,), warmup=0))
        out = objective(*batch().views)
        torch.testing.assert_close(objective.loss(out, batch()), MoCo.loss(objective, out, batch()))

    @pytest.mark.parametrize("wrong", [{"clusters": ()}, {"clusters": (5, 0)}])
    def test_what_cannot_be_is_refused(self, wrong: dict[str, tuple[int, ...]]) -> None:
        with pytest.raises(MethodError, match="clusters"):
            ProtoCL(encoder(), projector=(5, 4), **wrong)


def test_the_e_step_comes_before_each_epoch_and_sees_every_image(tmp_path, monkeypatch) -> None:
    seen = []

    def start_epoch(self, look, stream):
        seen.append((self.training, torch.is_grad_enabled(), sum(len(shown.index) for shown in look())))

    monkeypatch.setattr(ProtoCL, "start_epoch", start_epoch)
    overrides = ("objective=protocl", "training.epochs=2", "federation.rounds=1", "federation.participation=1")
    run = run_helpers.train_run(tmp_path, "fedavg", *overrides)
    sizes = [client.examples for client in run.loop.clients]
    assert sorted(seen) == sorted((False, False, size) for size in sizes for _ in range(2))


def test_under_trainer_an_epoch_stands_for_a_round(tmp_path) -> None:
    run = run_helpers.build_run(tmp_path, "fedavg", "objective=protocl", "objective.clusters=[3,5]")
    method = factory.method(run.config, run.data.source)
    for epochs, expected in ((1, False), (2, True)):
        trainer = Trainer(
            max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(method, run.data)
        assert bool(method.objective.prototypes.any()) == expected


def test_prototypes_change_training_after_the_warm_up(tmp_path) -> None:
    common = ("federation.rounds=2", "objective.clusters=[3,5]")
    first = run_helpers.train_run(tmp_path / "a", "fedavg", "objective=protocl", *common)
    second = run_helpers.train_run(tmp_path / "b", "fedavg", "objective=protocl", *common, "objective.warmup=9")
    moco = run_helpers.train_run(tmp_path / "c", "fedavg", "objective=moco", "federation.rounds=2")
    assert run_helpers.difference(first.loop.server, second.loop.server) > 1e-6
    assert run_helpers.difference(second.loop.server, moco.loop.server) < 1e-6
    assert all(math.isfinite(row["loss"]) for row in first.loop.history)
