from tests.methods.contract import InterfaceContract


class TestCentralized(InterfaceContract):
    method = "centralized"
    equals = (("", "fedavg partition.name=iid partition.clients=1", "state"),)

    def test_one_client_holds_everything(self, unbroken):
        assert [client.examples for client in unbroken.loop.clients] == [len(unbroken.data.source.train.labels)]
