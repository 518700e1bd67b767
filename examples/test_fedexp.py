import torch

from methods import trees
from methods.base import Replies
from tests import run_helpers
from tests.methods.contract import WEIGHTS, MethodContract

CONFIG = "examples/fedexp.yaml"


class TestFedExP(MethodContract):
    method = CONFIG

    def bill(self, run):
        return {
            ("fit", "down", "weights"): WEIGHTS,
            ("fit", "up", "weights"): WEIGHTS,
            ("fit", "up", "norm"): 4,
        }


def test_one_client_is_fedavg(tmp_path):
    """With one client the quotient is below one half, so eta_g is 1."""
    alone = ("partition.clients=1", "federation.participation=1")
    ours = run_helpers.train_run(tmp_path / "ours", CONFIG, *alone)
    theirs = run_helpers.train_run(tmp_path / "theirs", "fedavg", *alone)
    assert run_helpers.difference(ours.loop.server, theirs.loop.server) < 1e-6


def test_one_step_by_hand(tmp_path):
    method = run_helpers.build_run(tmp_path, CONFIG, "method.epsilon=0").loop.method
    start = trees.map(torch.zeros_like, method.weights(statistics=False))
    mean = trees.map(torch.ones_like, start)  # the mean change is 1 in every weight: its squared norm is n
    n = sum(leaf.numel() for _, leaf in trees.leaves(start))
    replies = Replies({"weights": mean, "norm": {"squared": torch.tensor(6.0 * n)}}, clients=(0, 1))
    moved = method.update({"weights": start}, None, replies)["weights"]
    assert all((leaf == 3).all() for _, leaf in trees.leaves(moved))  # eta_g = 6 n / (2 n)
