from tests import run_helpers
from tests.methods.contract import WEIGHTS, MethodContract


class TestCentralized(MethodContract):
    method = "centralized"

    def bill(self, run):
        return {("fit", way, "weights"): WEIGHTS for way in ("up", "down")}

    def test_one_client_holds_everything(self, unbroken):
        assert len(unbroken.loop.clients) == 1
        assert unbroken.loop.clients[0].examples == len(unbroken.data.source.train.labels)

    def test_it_is_fedavg_with_one_client(self, tmp_path, unbroken):
        plain = run_helpers.train_run(tmp_path, "fedavg", "partition.name=iid", "partition.clients=1")
        assert run_helpers.same(run_helpers.state(plain), run_helpers.state(unbroken))
