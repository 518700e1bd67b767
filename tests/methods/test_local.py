from tests.methods.contract import MethodContract
from tests.methods.toys import EVERYONE
from tests.run_helpers import build_run, difference, execute_run, same, trained


class TestLocal(MethodContract):
    method = "local"
    batch_norm = ("average", "local")

    def bill(self, run):
        return {("fit", "down", "weights"): 0}  # an entry without tensors

    def test_a_client_alone_trains_as_it_does_among_others(self, tmp_path):
        """At full participation client 0's networks equal those of FedAvg over client 0 alone."""
        alone = build_run(tmp_path, "fedavg", EVERYONE).loop
        alone.clients = alone.clients[:1]
        alone.fit()
        assert same(trained("local", EVERYONE).loop.client_state[0]["stays"], alone.server["weights"])

    def test_every_client_that_trained_is_exported_and_read_by_itself(self, unbroken):
        """A thousand clients' networks do not fit into memory together."""
        loop, read = unbroken.loop, []
        exported = loop.export()
        assert set(exported) == {f"client{client}" for client in loop.client_state}
        first, second = list(exported.values())[:2]
        assert difference(first, second) > 0

        class Counted(dict):
            def __getitem__(self, client):
                read.append(client)
                return super().__getitem__(client)

        exported = loop.method.export({"weights": {}}, Counted({3: {"w": 1}, 5: {"w": 2}}))
        assert (list(exported), len(exported), read) == (["client3", "client5"], 2, [])
        for name, _ in exported.items():
            assert read == {"client3": [3], "client5": [3, 5]}[name]

    def test_the_record_has_the_worst_client_and_the_mean(self, tmp_path):
        record, run = execute_run(tmp_path, "local")
        each = [scores["knn/v1"]["accuracy"] for scores in record["encoders"].values()]
        assert len(each) == len(run.loop.client_state)
        expected = {"accuracy": min(each), "accuracy_mean": sum(each) / len(each)}
        assert {name: record["scores"]["knn/v1"][name] for name in expected} == expected
