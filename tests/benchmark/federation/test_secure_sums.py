"""Masked sums: equal to plain ones but for rounding, and no masked message tells anything by itself."""

import pytest
import torch

from benchmark.errors import ConfigError, DivergedError
from benchmark.federation.aggregation import Aggregation
from benchmark.federation.secure_sums import MODULUS, MaskedCohort, SecureSums
from benchmark.rng import Streams
from methods import trees
from methods.base import Cat, Client, Each, Mean, MethodError, Phase, Replies, Sum, Visit
from tests import run_helpers
from tests.methods import test_fedavg, test_scaffold
from tests.methods.contract import InterfaceContract

SECURE = "privacy.secure_sums=true"
FIT = Phase("fit", uplink={"weights": Mean("examples"), "delta": Sum(), "rows": Each()})
N = 10_000


def reply(client):
    drawn = torch.Generator().manual_seed(client)
    return {name: {"w": torch.randn(N, generator=drawn)} for name in FIT.uplink}


def visit(client):
    return Visit(0, 3, FIT, Client(client, 10 + client), {}, {}, torch.Generator())


def cohort(clients, largest=8.0, seed=0):
    weights = {"examples": 50, "batches": 5, "clients": 1}
    return SecureSums(largest, weights, torch.float32, Streams(seed)).cohort(FIT, 0, clients)


def summed(masked, clients):
    """The combined replies of those of the cohort that reply, and what the server received of each."""
    received = {client: masked.sent(visit(client), reply(client), FIT.uplink) for client in clients}
    total = {entry: trees.map(lambda leaf: leaf, received[clients[0]][entry]) for entry in ("weights", "delta")}
    for client in clients[1:]:
        total = {entry: trees.map(torch.add, tree, received[client][entry]) for entry, tree in total.items()}
    return masked.combined(Replies(total, clients), FIT.uplink), received


class TestSums:
    @pytest.mark.parametrize("replying", [range(4), [0, 2, 3], [1]], ids=["all", "one-is-absent", "one-replies"])
    def test_they_are_the_plain_ones_to_half_a_step_a_client(self, replying):
        masked, clients = cohort(range(4)), list(replying)
        combined, _ = summed(masked, clients)
        plain = sum(reply(client)["delta"]["w"].double() for client in clients)
        assert (combined["delta"]["w"] - plain).abs().max() <= masked.step * len(clients) / 2 + 1e-6
        weights = [10 + client for client in clients]
        mean = sum(w * reply(k)["weights"]["w"].double() for w, k in zip(weights, clients, strict=True)) / sum(weights)
        share = sum(weights) / 50
        assert (combined["weights"]["w"] - mean).abs().max() <= 5 * masked.step * len(clients) / 2 / share + 1e-6

    def test_large_cohorts_share_masks_with_few(self):
        masked, clients = cohort(range(30)), [client for client in range(30) if client not in (3, 4, 17)]
        assert all(len(masked._neighbours(client)) == 10 for client in range(30))
        assert all(a in masked._neighbours(b) for a in range(30) for b in masked._neighbours(a))
        combined, _ = summed(masked, clients)
        plain = sum(reply(client)["delta"]["w"].double() for client in clients)
        assert (combined["delta"]["w"] - plain).abs().max() <= masked.step * len(clients) / 2 + 1e-5

    @pytest.mark.parametrize("clients", [1, 2, 3, 4, 7, 10])
    def test_the_largest_numbers_of_all_clients_do_not_overflow(self, clients):
        masked = cohort(range(clients), largest=2.0)
        full = {"delta": {"w": torch.tensor([2.0, -2.0])}}
        received = [masked.sent(visit(client), full, FIT.uplink)["delta"] for client in range(clients)]
        total = trees.map(lambda *leaves: sum(leaves), *received)
        combined = masked.combined(Replies({"delta": total}, range(clients)), FIT.uplink)
        assert combined["delta"]["w"].tolist() == pytest.approx([2.0 * clients, -2.0 * clients])

    def test_equal_weights_at_their_limit_do_not_overflow(self):
        uplink = {"weights": Mean("clients")}
        masked = cohort(range(10), largest=1.0)
        half = {"weights": {"w": torch.tensor([0.5, -0.25])}}
        received = [masked.sent(visit(client), half, uplink)["weights"] for client in range(10)]
        total = trees.map(lambda *leaves: sum(leaves), *received)
        combined = masked.combined(Replies({"weights": total}, range(10)), uplink)
        assert combined["weights"]["w"].tolist() == pytest.approx([0.5, -0.25])

    def test_masks_do_not_depend_on_how_a_reply_was_put_together(self):
        masked = cohort(range(2))
        trained = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}
        turned = {"b": torch.tensor([3.0]), "a": torch.tensor([1.0, 2.0])}
        first, second = (
            masked.sent(visit(client), {"delta": tree}, FIT.uplink)["delta"]
            for client, tree in enumerate((trained, turned))
        )
        total = trees.map(lambda mine, other: mine + other, first, second)
        combined = masked.combined(Replies({"delta": total}, range(2)), FIT.uplink)["delta"]
        assert [*combined["a"].tolist(), *combined["b"].tolist()] == pytest.approx([2.0, 4.0, 6.0])

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_what_is_not_finite_is_no_number_under_a_mask(self, value):
        broken = {"delta": {"w": torch.tensor([1.0, value])}}
        with pytest.raises(DivergedError, match="'delta' is not finite in round 1"):
            cohort(range(2)).sent(visit(0), broken, FIT.uplink)

    def test_a_weight_above_the_largest_is_refused(self):
        heavy = Visit(0, 3, FIT, Client(0, 51), {}, {}, torch.Generator())
        with pytest.raises(MethodError, match="weighs more in 'weights' than was agreed on"):
            cohort(range(2)).sent(heavy, {"weights": {"w": torch.zeros(1)}}, FIT.uplink)

    def test_what_is_needed_one_by_one_is_sent_as_it_is(self):
        sent = cohort(range(4)).sent(visit(0), reply(0), FIT.uplink)
        assert torch.equal(sent["rows"]["w"], reply(0)["rows"]["w"])
        uplink = {
            "a": Mean(lambda server, message: 1.0),
            "b": Mean(over="clients"),
            "c": Cat(),
            "d": Sum(),
            "e": Mean(),
        }
        assert cohort([0]).uplink(uplink) == {**uplink, "d": Sum(), "e": Sum()}


def correlation(received, plain):
    """Of two arrays; masked numbers are compared by what they would be without a mask."""
    signed = (received.double() + MODULUS // 2) % MODULUS - MODULUS // 2
    return float(torch.corrcoef(torch.stack([signed, plain.double()]))[0, 1])


class TestSecrecy:
    """Chance has a deviation of 1 / sqrt(N) = 0.01."""

    def correlations(self):
        masked = cohort(range(4))
        _, received = summed(masked, list(range(4)))
        return [
            correlation(received[client][entry]["sum"]["w"], reply(other)[entry]["w"])
            for client in range(4)
            for other in range(4)
            for entry in ("weights", "delta")
        ]

    def test_no_received_array_correlates_with_any_clients_reply(self):
        assert max(map(abs, self.correlations())) < 0.045

    def test_without_masks_every_array_does(self, monkeypatch):
        bare = lambda self, entry, client, others, like: trees.map(lambda leaf: torch.zeros_like(leaf).long(), like)  # noqa: E731
        monkeypatch.setattr(MaskedCohort, "_masks", bare)
        assert sum(value > 0.99 for value in self.correlations()) == 8

    def test_masked_numbers_are_uniform(self):
        _, received = summed(cohort(range(4)), list(range(4)))
        counts = torch.bincount(received[1]["delta"]["sum"]["w"] * 16 // MODULUS, minlength=16)
        chi = float(((counts - N / 16) ** 2 / (N / 16)).sum())
        assert chi < 44  # 15 degrees of freedom: 1 in 10,000

    def test_two_clients_that_pool_what_they_know_do_not_open_a_third(self):
        """Without the masks of clients 0 and 1, those of 2 with 3 remain."""
        masked = cohort(range(4))
        _, received = summed(masked, list(range(4)))
        content = received[2]["delta"]
        opened = trees.subtract(content, masked._masks("delta", 2, [0, 1], content))
        assert abs(correlation(opened["sum"]["w"] % MODULUS, reply(2)["delta"]["w"])) < 0.045

    def test_the_server_of_a_run_receives_masked_updates_only(self, tmp_path, monkeypatch):
        seen = []
        add = Aggregation.add
        monkeypatch.setattr(
            Aggregation,
            "add",
            lambda self, visit, message, server: (seen.append(message), add(self, visit, message, server)),
        )
        run_helpers.train_run(tmp_path, "fedavg", SECURE, "federation.rounds=1")
        assert seen
        for message in seen:
            assert all(leaf.dtype == torch.int64 for _, leaf in trees.leaves(message["weights"]))


class TestRuns:
    @pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedsc"])
    def test_a_round_ends_where_the_plain_one_does(self, method, tmp_path):
        words = ("federation.rounds=1", "federation.participation=1")
        plain = run_helpers.train_run(tmp_path / "plain", method, *words)
        masked = run_helpers.train_run(tmp_path / "masked", method, *words, SECURE)
        gap = trees.subtract(masked.loop.server["weights"], plain.loop.server["weights"])
        assert max(float(leaf.abs().max()) for _, leaf in trees.leaves(gap)) < 2e-6
        assert not run_helpers.same(run_helpers.state(plain), run_helpers.state(masked))

    def test_the_record_names_them(self, tmp_path):
        record, _ = run_helpers.execute_run(tmp_path, "fedavg", "federation.rounds=1", SECURE)
        assert record["privacy"] == {"secure_sums": True}

    def test_clients_that_never_reply_are_taken_out(self, tmp_path):
        words = ("federation.rounds=3", "federation.participation=1", "federation.dropout=0.4")
        plain = run_helpers.train_run(tmp_path / "plain", "fedavg", *words)
        masked = run_helpers.train_run(tmp_path / "masked", "fedavg", *words, SECURE)
        assert any(line.get("lost") for line in masked.loop.history)
        gap = trees.subtract(masked.loop.server["weights"], plain.loop.server["weights"])
        assert max(float(leaf.abs().max()) for _, leaf in trees.leaves(gap)) < 1e-4

    def test_noise_is_added_to_the_opened_sum(self, tmp_path):
        words = ("privacy.mechanism=central", "privacy.clip=0.5", "privacy.noise_multiplier=0.1")
        rest = ("federation.batch_norm=local", "federation.rounds=1")
        plain = run_helpers.train_run(tmp_path / "plain", "fedavg", *words, *rest)
        masked = run_helpers.train_run(tmp_path / "masked", "fedavg", *words, *rest, SECURE)
        gap = trees.subtract(masked.loop.server["weights"], plain.loop.server["weights"])
        assert max(float(leaf.abs().max()) for _, leaf in trees.leaves(gap)) < 2e-6


MISTAKES = [
    ("fedavg", (SECURE, "compression.name=int8"), "one step for all clients"),
    ("fedu2", (SECURE,), "FedU2's server reads every client's 'delta' by itself"),
    ("ldawa", (SECURE, "federation.rounds=4"), "LDAWA's server weighs each client's 'weights' by itself"),
    ("flesd", (SECURE,), "no phase in which FLESD's clients train sends any"),
    ("fedavg", (SECURE, "privacy.range=0.5"), "privacy.range=0.5: give the largest number that a client sends"),
]


@pytest.mark.parametrize(("method", "words", "line"), MISTAKES)
def test_what_cannot_be_masked_is_refused_in_one_line(method, words, line, tmp_path):
    with pytest.raises((ConfigError, MethodError), match=line):
        run_helpers.build_run(tmp_path, method, *words)


def test_a_number_beyond_the_range_is_named():
    with pytest.raises(
        MethodError, match=r"sends 3.*in w of 'delta', and no number may be larger than privacy.range=1"
    ):
        cohort(range(2), largest=1.0).sent(visit(0), reply(0), FIT.uplink)


class Masked(InterfaceContract):
    """The contract under masks."""

    variant = True
    overrides = (SECURE,)


class TestFedAvg(Masked):
    method = "fedavg"

    def bill(self, run):
        return test_fedavg.TestFedAvg().bill(run) | {("fit", "up", "weights"): test_fedavg.WEIGHTS + 4}


class TestScaffold(Masked):
    method = "scaffold"

    def bill(self, run):
        plain = test_scaffold.TestScaffold().bill(run)
        return plain | {("fit", "up", "delta_w"): plain["fit", "up", "delta_w"] + 4}
