import numpy as np
import pytest
import torch

from methods import trees
from tests import run_helpers
from tests.methods.contract import WEIGHTS, MethodContract


class TestFedAvg(MethodContract):
    method = "fedavg"

    def bill(self, run):
        return {("fit", way, "weights"): WEIGHTS for way in ("up", "down")}

    @pytest.mark.parametrize("moment", ["visit", "written", "renamed"])
    def test_a_run_killed_in_any_round_at_any_moment_is_the_unbroken_one(self, moment, tmp_path, unbroken):
        """No method changes how a checkpoint is written, or what a run without one starts from."""
        for round in (0,) if moment == "visit" else (0, 1):
            run_helpers.run_until_killed(tmp_path / str(round), "fedavg", moment, round, "fit")
            run_helpers.check_resumed(tmp_path / str(round), unbroken, "fedavg")

    def test_the_update_is_the_mean_by_examples(self, tmp_path):
        run = run_helpers.build_run(tmp_path, self.method, "federation.participation=1")
        loop = run.loop
        replies = run_helpers.collect_visits(
            run, lambda done: (done.visit.client.examples, trees.clone(done.message["weights"]))
        )
        loop.restore()
        loop.run_round(0)
        total = sum(examples for examples, _ in replies)
        assert len({examples for examples, _ in replies}) > 1  # otherwise weighted and plain mean would be equal
        for path, leaf in trees.leaves(loop.server["weights"]):
            each = [(n, dict(trees.leaves(tree))[path].double().numpy()) for n, tree in replies]
            np.testing.assert_allclose(leaf.numpy(), sum(n * x for n, x in each) / total, rtol=1e-6, atol=1e-7)

    def test_weighting_is_a_choice(self, tmp_path):
        plain = run_helpers.train_run(tmp_path / "a", self.method)
        equal = run_helpers.train_run(tmp_path / "b", self.method, "method.weighting=clients")
        assert run_helpers.difference(plain.loop.server, equal.loop.server) > 0

    def test_one_client_is_a_plain_training_loop(self, tmp_path):
        """One client on one rank, against PyTorch written out by hand: the same bits."""
        run = run_helpers.build_run(
            tmp_path, self.method, "partition.name=iid", "partition.clients=1", "training.epochs=2"
        )
        loop, method, streams = run.loop, run.loop.method, run.loop.streams
        reference = run_helpers.build_run(tmp_path / "other", self.method, "partition.name=iid", "partition.clients=1")
        model = reference.loop.method.objective
        for round in range(3):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * (1 + np.cos(np.pi * round / 3)) / 2, momentum=0.9)
            key = {"round": round, "phase": "fit", "client": 0}
            batches = reference.data.batches(
                0, ("augment", "augment"), 8, epochs=2,
                order=streams.generator("order", **key), views=streams.generator("views", **key),
            )  # fmt: skip
            model.train()
            for batch in batches:
                out = model(*batch.views)
                optimizer.zero_grad()
                model.loss(out, batch).backward()
                optimizer.step()
        loop.fit()
        method.load(loop.server["weights"])
        ours, theirs = method.objective.state_dict(), model.state_dict()
        compared = [name for name in theirs if "num_batches" not in name]
        assert compared
        assert all(torch.equal(ours[name], theirs[name]) for name in compared)
