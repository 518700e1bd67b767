from methods import trees
from tests import run_helpers
from tests.methods.contract import MethodContract


class TestLocal(MethodContract):
    method = "local"
    batch_norm = ("average", "local")

    def bill(self, run):
        return {("fit", "down", "weights"): 0}

    def test_nothing_travels(self, unbroken):
        assert sum(unbroken.loop.ledger.total("up").values()) == 0
        assert sum(unbroken.loop.ledger.total("down").values()) == 0

    def test_a_client_alone_trains_as_it_does_among_others(self, tmp_path, unbroken):
        """At full participation client 0's networks equal those of FedAvg over client 0 alone."""
        everyone = run_helpers.train_run(tmp_path / "a", "local", "federation.participation=1")
        alone = run_helpers.build_run(tmp_path / "b", "fedavg", "federation.participation=1")
        alone.loop.clients = alone.loop.clients[:1]
        alone.loop.fit()
        ours = everyone.loop.client_state[0]["stays"]
        assert run_helpers.same(ours, alone.loop.server["weights"])

    def test_every_client_that_trained_is_exported(self, unbroken):
        loop = unbroken.loop
        networks = {client: loop.client_state[client]["stays"] for client in loop.client_state}
        exported = loop.method.export(loop.server, networks)
        assert set(exported) == {f"client{client}" for client in networks}
        assert len(networks) > 1
        first, second = list(exported.values())[:2]
        assert run_helpers.difference(first, second) > 0

    def test_networks_are_read_one_at_a_time(self, unbroken):
        """A thousand clients' networks do not fit into memory together."""
        read = []

        class Counted(dict):
            def __getitem__(self, client):
                read.append(client)
                return super().__getitem__(client)

        exported = unbroken.loop.method.export({"weights": {}}, Counted({3: {"w": 1}, 5: {"w": 2}}))
        assert (list(exported), len(exported), read) == (["client3", "client5"], 2, [])
        for name, _ in exported.items():
            assert read == {"client3": [3], "client5": [3, 5]}[name]

    def test_the_record_has_the_worst_client_and_the_mean(self, tmp_path):
        record, run = run_helpers.execute_run(tmp_path, "local")
        each = [scores["knn/v1"]["accuracy"] for scores in record["encoders"].values()]
        assert len(each) == len(run.loop.client_state)
        assert record["scores"]["knn/v1"]["accuracy"] == min(each)
        assert record["scores"]["knn/v1"]["accuracy_mean"] == sum(each) / len(each)

    def test_initial_weights_are_the_same_for_all(self, tmp_path):
        run = run_helpers.build_run(
            tmp_path, "local", "optimizer.lr=0", "federation.participation=1", "federation.rounds=1"
        )
        run.loop.fit()
        networks = [run.loop.client_state[k]["stays"] for k in run.loop.client_state]
        trained = [{path: leaf for path, leaf in trees.leaves(tree) if "running" not in path[1]} for tree in networks]
        assert all(bool((trained[0][path] == other[path]).all()) for other in trained[1:] for path in other)
