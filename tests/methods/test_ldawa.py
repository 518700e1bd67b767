from typing import ClassVar

import torch

from methods import trees
from tests.methods.contract import InterfaceContract
from tests.methods.toys import first_round


class TestLDAWA(InterfaceContract):
    method = "ldawa"
    overrides = ("method.start=1",)
    choices = ("method.start=3",)
    equals = (("method.start=3", "fedavg", "weights"),)
    refused: ClassVar = {"method.start=-1": "at least 0"}

    def by_hand(self, folder, *words, scaled):
        """Each tensor after one round is the clients' mean, times their cosines to the old one where it is `scaled`."""
        run, start, sent = first_round(folder, "ldawa", "method.start=0", *words)
        before = dict(trees.leaves(start))
        assert len(sent) == 2
        for path, got in trees.leaves(run.loop.server["weights"]):
            old, total = before[path].double().flatten(), 0
            for _, message in sent:
                new = dict(trees.leaves(message["weights"]))[path].double().flatten()
                cosine = old.any() and new.any() and scaled(path[-1])
                total += new * (min(1.0, float(old @ new / (old.norm() * new.norm()))) if cosine else 1.0)
            torch.testing.assert_close(got.double().flatten(), total / 2, rtol=1e-5, atol=1e-6)

    def test_one_round_by_hand(self, tmp_path):
        """Statistics may be scaled as in the code: the clients' sum, each times its cosine, over their number."""
        self.by_hand(tmp_path / "a", scaled=lambda name: "running" not in name)
        self.by_hand(tmp_path / "b", "method.statistics=scaled", scaled=lambda name: True)
