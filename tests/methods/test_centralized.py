from tests.methods.contract import WEIGHTS, InterfaceContract


class TestCentralized(InterfaceContract):
    method = "centralized"
    equals = (("", "fedavg partition.name=iid partition.clients=1", "state"),)

    def bill(self, run):
        return {("fit", way, "weights"): WEIGHTS for way in ("up", "down")}

    def test_one_client_holds_everything(self, unbroken):
        assert len(unbroken.loop.clients) == 1
        assert unbroken.loop.clients[0].examples == len(unbroken.data.source.train.labels)
