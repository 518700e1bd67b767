from typing import ClassVar

import torch

from methods import trees
from methods.ldawa import layer_weights
from tests import run_helpers
from tests.methods.contract import WEIGHTS, InterfaceContract


class TestLDAWA(InterfaceContract):
    method = "ldawa"
    overrides = ("method.start=1",)
    choices = ("method.start=3",)
    equals = (("method.start=3", "fedavg", "weights"),)
    refused: ClassVar = {"method.start=-1": "at least 0"}

    def bill(self, run):
        return {("fit", way, "weights"): WEIGHTS for way in ("up", "down")}

    def test_one_round_by_hand(self, tmp_path):
        run = run_helpers.build_run(tmp_path, "ldawa", "method.start=0", "federation.rounds=1")
        replies = []

        def collect(result):
            replies.append(trees.clone(result.message["weights"]))

        run.loop.callbacks = [run_helpers.OnVisitEnd(collect)]
        run.loop.restore()
        before = trees.clone(run.loop.server["weights"])
        run.loop.run_round(0)
        assert len(replies) == 2
        for path, got in trees.leaves(run.loop.server["weights"]):
            old = dict(trees.leaves(before))[path].double().flatten()
            total = torch.zeros_like(old)
            for reply in replies:
                new = dict(trees.leaves(reply))[path].double().flatten()
                trained = "running" not in path[-1] and bool(old.any()) and bool(new.any())
                total += new * (min(1.0, float(old @ new / (old.norm() * new.norm()))) if trained else 1.0)
            torch.testing.assert_close(got.double().flatten(), total / 2, rtol=1e-5, atol=1e-6)

    def test_one_client_is_scaled_by_its_own_cosine(self, tmp_path):
        """A mean normalised by the cosines would return the client's weights unchanged."""
        alone = ("partition.clients=1", "federation.participation=1", "federation.rounds=1")
        ours = run_helpers.train_run(tmp_path / "a", "ldawa", "method.start=0", *alone).loop
        theirs = run_helpers.train_run(tmp_path / "b", "fedavg", *alone).loop
        start = run_helpers.build_run(tmp_path / "c", "fedavg", *alone).loop
        start.restore()
        trained = ours.method.trainable()
        cosines = layer_weights(theirs.server["weights"], start.server["weights"], trained)
        expected = trees.map(lambda leaf, cosine: leaf * cosine, theirs.server["weights"], cosines)
        assert run_helpers.difference(ours.server["weights"], expected) < 1e-6
        assert run_helpers.difference(ours.server["weights"], theirs.server["weights"]) > 1e-3

    def test_unchanged_clients_leave_the_model(self, tmp_path):
        run = run_helpers.build_run(tmp_path, "ldawa", "method.start=0", "optimizer.lr=0", "federation.rounds=1")
        run.loop.restore()
        before = trees.clone(run.loop.method.trainable())
        run.loop.run_round(0)
        after = run.loop.server["weights"]
        trained = {part: {name: after[part][name] for name in names} for part, names in before.items()}
        assert run_helpers.difference(trained, before) < 1e-6

    def test_statistics_may_be_scaled_too(self, tmp_path):
        """As in the code: a running statistic is the clients' sum, each times its cosine, over their number."""
        words = ("method.start=0", "federation.rounds=1", "method.statistics=scaled")
        run = run_helpers.build_run(tmp_path, "ldawa", *words)
        replies = run_helpers.collect_visits(run, lambda done: trees.clone(done.message["weights"]))
        run.loop.restore()
        before = trees.clone(run.loop.server["weights"])
        run.loop.run_round(0)
        names = [path for path, _ in trees.leaves(before) if path[-1].endswith("running_var")]
        assert names
        for path in names:
            old = dict(trees.leaves(before))[path].double()
            new = [dict(trees.leaves(reply))[path].double() for reply in replies]
            by_hand = sum(torch.dot(a, old) / (a.norm() * old.norm()) * a for a in new) / len(new)
            torch.testing.assert_close(dict(trees.leaves(run.loop.server["weights"]))[path], by_hand.float())
