from typing import ClassVar

import torch

from methods import trees
from methods.ldawa import layer_weights
from tests.methods.contract import InterfaceContract
from tests.methods.toys import replies
from tests.run_helpers import build_run, difference, trained


class TestLDAWA(InterfaceContract):
    method = "ldawa"
    overrides = ("method.start=1",)
    choices = ("method.start=3",)
    equals = (("method.start=3", "fedavg", "weights"),)
    refused: ClassVar = {"method.start=-1": "at least 0"}

    def by_hand(self, folder, *words, scaled):
        """Each tensor after one round is the clients' mean, times their cosines to the old one where it is `scaled`."""
        run = build_run(folder, "ldawa", "method.start=0", "federation.rounds=1", *words)
        sent = replies(run)
        run.loop.restore()
        before = dict(trees.leaves(trees.clone(run.loop.server["weights"])))
        run.loop.run_round(0)
        assert len(sent) == 2
        for path, got in trees.leaves(run.loop.server["weights"]):
            old, total = before[path].double().flatten(), 0
            for _, message in sent:
                new = dict(trees.leaves(message["weights"]))[path].double().flatten()
                cosine = old.any() and new.any() and scaled(path[-1])
                total += new * (min(1.0, float(old @ new / (old.norm() * new.norm()))) if cosine else 1.0)
            torch.testing.assert_close(got.double().flatten(), total / 2, rtol=1e-5, atol=1e-6)

    def test_one_round_by_hand(self, tmp_path):
        self.by_hand(tmp_path, scaled=lambda name: "running" not in name)

    def test_statistics_may_be_scaled_too(self, tmp_path):
        """As in the code: a running statistic is the clients' sum, each times its cosine, over their number."""
        self.by_hand(tmp_path, "method.statistics=scaled", scaled=lambda name: True)

    def test_one_client_is_scaled_by_its_own_cosine(self, tmp_path):
        """A mean normalised by the cosines would return the client's weights unchanged."""
        alone = ("partition.clients=1", "federation.participation=1", "federation.rounds=1")
        ours, theirs = trained("ldawa", "method.start=0", *alone).loop, trained("fedavg", *alone).loop.server["weights"]
        start = build_run(tmp_path, "fedavg", *alone).loop
        start.restore()
        cosines = layer_weights(theirs, start.server["weights"], ours.method.trainable())
        expected = trees.map(torch.mul, theirs, cosines)
        assert difference(ours.server["weights"], expected) < 1e-6
        assert difference(ours.server["weights"], theirs) > 1e-3

    def test_unchanged_clients_leave_the_model(self, tmp_path):
        loop = build_run(tmp_path, "ldawa", "method.start=0", "optimizer.lr=0", "federation.rounds=1").loop
        loop.restore()
        before = trees.clone(loop.method.trainable())
        loop.run_round(0)
        assert difference(trees.select(loop.server["weights"], before), before) < 1e-6
