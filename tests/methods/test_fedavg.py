import numpy as np
import pytest
import torch

from methods import trees
from methods.base import Mean, Phase
from methods.fedavg import FedAvg
from tests.methods.contract import MethodContract
from tests.methods.toys import first_round
from tests.run_helpers import build_run, check_resumed, run_until_killed, same, trained


class TestFedAvg(MethodContract):
    method = "fedavg"
    choices = ("method.weighting=clients",)

    @pytest.mark.parametrize("moment", ["visit", "written", "renamed"])
    def test_a_run_killed_in_any_round_at_any_moment_is_the_unbroken_one(self, moment, tmp_path, unbroken):
        """No method changes how a checkpoint is written, or what a run without one starts from."""
        for round in (0,) if moment == "visit" else (0, 1):
            run_until_killed(tmp_path / str(round), "fedavg", moment, round, "fit")
            check_resumed(tmp_path / str(round), unbroken, "fedavg")

    def test_the_update_is_the_mean_by_examples(self, tmp_path):
        run, _, sent = first_round(tmp_path, "fedavg", "federation.participation=1")
        sizes = [visit.client.examples for visit, _ in sent]
        assert len(set(sizes)) > 1  # otherwise weighted and plain mean would be equal
        for path, leaf in trees.leaves(run.loop.server["weights"]):
            each = [dict(trees.leaves(message["weights"]))[path].double().numpy() for _, message in sent]
            mean = sum(n * x for n, x in zip(sizes, each, strict=True)) / sum(sizes)
            np.testing.assert_allclose(leaf.numpy(), mean, rtol=1e-6, atol=1e-7)

    def test_one_client_is_a_plain_training_loop(self, tmp_path):
        """One client on one rank, against PyTorch written out by hand: the same bits."""
        alone = ("partition.name=iid", "partition.clients=1")
        loop = build_run(tmp_path, self.method, *alone, "training.epochs=2").loop
        reference = build_run(tmp_path / "other", self.method, *alone)
        model = reference.loop.method.objective.train()
        for round in range(3):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * (1 + np.cos(np.pi * round / 3)) / 2, momentum=0.9)
            key = {"round": round, "phase": "fit", "client": 0}
            order, views = (loop.streams.generator(purpose, **key) for purpose in ("order", "views"))
            for batch in reference.data.batches(0, ("augment", "augment"), 8, epochs=2, order=order, views=views):
                out = model(*batch.views)
                optimizer.zero_grad()
                model.loss(out, batch).backward()
                optimizer.step()
        loop.fit()
        ours, theirs = dict(trees.leaves(loop.server["weights"])), dict(trees.leaves(reference.loop.method.weights()))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[path], theirs[path]) for path in theirs)

    def test_a_subclass_keeps_the_combination_that_its_phases_declare(self):
        equal = trained(f"{__name__}.Equal").loop.server["weights"]
        assert same(equal, trained("fedavg", "method.weighting=clients").loop.server["weights"])
        assert not same(equal, trained("fedavg").loop.server["weights"])


class Equal(FedAvg):
    """Phases as the page on methods shows them."""

    phases = (Phase("fit", uplink={"weights": Mean("clients")}),)
