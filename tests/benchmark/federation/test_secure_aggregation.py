"""Masked sums equal plain ones but for rounding, no masked message tells anything by itself; the way of a reply."""

import itertools

import pytest
import torch

from benchmark.errors import ConfigError, DivergedError
from benchmark.execution.base import VisitResult
from benchmark.federation.aggregation import Aggregation
from benchmark.federation.clipping import Clipping
from benchmark.federation.secure_aggregation import MODULUS, MaskedCohort, SecureAggregation
from benchmark.federation.stages import Exchange, Reply
from benchmark.federation.update_privacy import UNDER_CLIP, UpdatePrivacy
from benchmark.federation.uplink import Uplink
from benchmark.rng import Streams
from methods import trees
from methods.base import Cat, Client, Each, Mean, MethodError, Phase, Replies, Sum, Visit
from tests import run_helpers

SECURE = "privacy.secure_aggregation=true"
FIT = Phase("fit", uplink={"weights": Mean("examples"), "delta": Sum(), "rows": Each()})
N = 10_000


def reply(client):
    drawn = torch.Generator().manual_seed(client)
    return {name: {"w": torch.randn(N, generator=drawn)} for name in FIT.uplink}


def plain_sum(clients):
    return sum(reply(client)["delta"]["w"].double() for client in clients)


def visit(client, examples=None):
    return Visit(0, 3, FIT, Client(client, examples or 10 + client), {}, {}, torch.Generator())


def cohort(clients, largest=8.0, seed=0):
    weights = {"examples": 50, "batches": 5, "clients": 1}
    return SecureAggregation(largest, weights, torch.float32, Streams(seed)).cohort(FIT, 0, clients)


def sent(masked, visit, message, uplink=FIT.uplink):
    """What the server receives of a reply."""
    return masked.sums.client(Reply(visit, message), Exchange(FIT, 0, masked.clients, {}, reductions=uplink)).received


def combined(masked, replies, uplink=FIT.uplink):
    """The sums without masks."""
    return masked.sums.server(replies, Exchange(FIT, 0, masked.clients, {}, reductions=uplink))


def summed(masked, clients):
    """The combined replies of those of the cohort that reply, and what the server received of each."""
    received = {client: sent(masked, visit(client), reply(client)) for client in clients}
    total = {entry: trees.map(lambda leaf: leaf, received[clients[0]][entry]) for entry in ("weights", "delta")}
    for client in clients[1:]:
        total = {entry: trees.map(torch.add, tree, received[client][entry]) for entry, tree in total.items()}
    return combined(masked, Replies(total, clients)), received


class TestSums:
    @pytest.mark.parametrize("replying", [range(4), [0, 2, 3], [1]], ids=["all", "one-is-absent", "one-replies"])
    def test_they_are_the_plain_ones_to_half_a_step_a_client(self, replying):
        masked, clients = cohort(range(4)), list(replying)
        opened, _ = summed(masked, clients)
        assert (opened["delta"]["w"] - plain_sum(clients)).abs().max() <= masked.step * len(clients) / 2 + 1e-6
        weights = [10 + client for client in clients]
        mean = sum(w * reply(k)["weights"]["w"].double() for w, k in zip(weights, clients, strict=True)) / sum(weights)
        share = sum(weights) / 50
        assert (opened["weights"]["w"] - mean).abs().max() <= 5 * masked.step * len(clients) / 2 / share + 1e-6

    def test_large_cohorts_share_masks_with_few(self):
        masked, clients = cohort(range(30)), [client for client in range(30) if client not in (3, 4, 17)]
        assert all(len(masked._neighbours(client)) == 10 for client in range(30))
        assert all(a in masked._neighbours(b) for a in range(30) for b in masked._neighbours(a))
        opened, _ = summed(masked, clients)
        assert (opened["delta"]["w"] - plain_sum(clients)).abs().max() <= masked.step * len(clients) / 2 + 1e-5

    def opened(self, masked, uplink, replies):
        """What is combined of one entry's replies of clients 0, 1, ..."""
        (entry,) = uplink
        received = [sent(masked, visit(client), {entry: tree}, uplink)[entry] for client, tree in enumerate(replies)]
        total = trees.map(lambda *leaves: sum(leaves), *received)
        return combined(masked, Replies({entry: total}, range(len(replies))), uplink)[entry]

    def test_the_largest_numbers_of_all_clients_do_not_overflow(self):
        for clients in (1, 2, 3, 4, 7, 10):
            full, half = ([{"w": torch.tensor(values)}] * clients for values in ([2.0, -2.0], [0.5, -0.25]))
            combined = self.opened(cohort(range(clients), largest=2.0), {"delta": Sum()}, full)
            assert combined["w"].tolist() == pytest.approx([2.0 * clients, -2.0 * clients])
            mean = self.opened(cohort(range(clients), largest=1.0), {"weights": Mean("clients")}, half)
            assert mean["w"].tolist() == pytest.approx([0.5, -0.25])  # of equal weights at their limit

    def test_masks_do_not_depend_on_how_a_reply_was_put_together(self):
        trained = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}
        combined = self.opened(cohort(range(2)), {"delta": Sum()}, [trained, dict(reversed(trained.items()))])
        assert [*combined["a"].tolist(), *combined["b"].tolist()] == pytest.approx([2.0, 4.0, 6.0])

    @pytest.mark.parametrize(
        ("error", "examples", "message", "line"),
        [
            (DivergedError, 10, {"delta": [1.0, float("nan")]}, "'delta' is not finite in round 1"),
            (DivergedError, 10, {"delta": [1.0, float("inf")]}, "'delta' is not finite in round 1"),
            (MethodError, 51, {"weights": [0.0]}, "weighs more in 'weights' than was agreed on"),
            (MethodError, 10, {"delta": [0.0, -9.0]}, "9 in w of 'delta', and no number may be larger than .*range=8"),
        ],
    )
    def test_what_no_mask_can_hide_is_refused(self, error, examples, message, line):
        reply = {entry: {"w": torch.tensor(values)} for entry, values in message.items()}
        with pytest.raises(error, match=line):
            sent(cohort(range(2)), visit(0, examples), reply, {entry: FIT.uplink[entry] for entry in reply})

    def test_what_is_needed_one_by_one_is_sent_as_it_is(self):
        received = sent(cohort(range(4)), visit(0), reply(0))
        assert torch.equal(received["rows"]["w"], reply(0)["rows"]["w"])
        single = {"a": Mean(lambda server, message: 1.0), "b": Mean(over="clients"), "c": Cat()}
        summed = {"d": Sum(), "e": Sum()}
        assert cohort([0]).sums.reductions(FIT, {**single, "d": Sum(), "e": Mean()}) == {**single, **summed}


def correlation(received, plain):
    """Of two arrays; masked numbers are compared by what they would be without a mask."""
    signed = (received.double() + MODULUS // 2) % MODULUS - MODULUS // 2
    return float(torch.corrcoef(torch.stack([signed, plain.double()]))[0, 1])


class TestSecrecy:
    """Chance has a deviation of 1 / sqrt(N) = 0.01."""

    def correlations(self, received):
        pairs = itertools.product(range(4), range(4), ("weights", "delta"))
        return [correlation(received[k][entry]["sum"]["w"], reply(other)[entry]["w"]) for k, other, entry in pairs]

    def test_received_arrays_are_uniform_and_correlate_with_no_clients_reply_as_they_do_unmasked(self, monkeypatch):
        """Nor can two clients that pool their masks open a third: those of 2 with 3 remain."""
        masked = cohort(range(4))
        _, received = summed(masked, list(range(4)))
        assert max(map(abs, self.correlations(received))) < 0.045
        counts = torch.bincount(received[1]["delta"]["sum"]["w"] * 16 // MODULUS, minlength=16)
        assert float(((counts - N / 16) ** 2 / (N / 16)).sum()) < 44  # 15 degrees of freedom: 1 in 10,000
        content = received[2]["delta"]
        opened = trees.subtract(content, masked._masks("delta", 2, [0, 1], content))
        assert abs(correlation(opened["sum"]["w"] % MODULUS, reply(2)["delta"]["w"])) < 0.045
        bare = lambda self, entry, client, others, like: trees.map(lambda leaf: torch.zeros_like(leaf).long(), like)  # noqa: E731
        monkeypatch.setattr(MaskedCohort, "_masks", bare)
        _, received = summed(cohort(range(4)), list(range(4)))
        assert sum(value > 0.99 for value in self.correlations(received)) == 8

    def test_the_server_of_a_run_receives_masked_updates_only(self, tmp_path, monkeypatch):
        seen, add = [], Aggregation.add
        monkeypatch.setattr(Aggregation, "add", lambda *given: (seen.append(given[2]), add(*given))[1])
        run_helpers.train_run(tmp_path, "fedavg", SECURE, "federation.rounds=1")
        assert seen
        assert {leaf.dtype for message in seen for _, leaf in trees.leaves(message["weights"])} == {torch.int64}


class TestRuns:
    @pytest.mark.parametrize(
        ("method", "words", "bound"),
        [
            *((name, ("federation.rounds=1",), 2e-6) for name in ("fedavg", "scaffold", "fedsc")),
            ("fedavg", ("federation.rounds=3", "federation.dropout=0.4"), 1e-4),
            ("fedavg", ("federation.rounds=1", "federation.batch_norm=local", "privacy.mechanism=central",
                        "privacy.clip=0.5", "privacy.noise_multiplier=0.1"), 2e-6),
        ],
        ids=["fedavg", "scaffold", "fedsc", "clients-that-never-reply-are-taken-out", "noise-of-the-opened-sum"],
    )  # fmt: skip
    def test_it_ends_where_the_plain_one_does(self, method, words, bound, tmp_path):
        words = ("federation.participation=1", *words)
        plain = run_helpers.train_run(tmp_path / "plain", method, *words)
        record, masked = run_helpers.execute_run(tmp_path / "masked", method, *words, SECURE)
        assert run_helpers.difference(masked.loop.server["weights"], plain.loop.server["weights"]) < bound
        assert not run_helpers.same(run_helpers.state(plain), run_helpers.state(masked))
        assert any(line.get("lost") for line in masked.loop.history) == ("federation.dropout=0.4" in words)
        assert record["privacy"]["secure_aggregation"]


@pytest.mark.parametrize(
    ("method", "words", "line"),
    [
        ("fedavg", ["compression.name=int8"], "one step for all clients"),
        ("fedu2", [], "FedU2's server reads every client's 'delta' by itself"),
        ("ldawa", ["federation.rounds=4"], "LDAWA's server weighs each client's 'weights' by itself"),
        ("flesd", [], "no phase in which FLESD's clients train sends any"),
        ("fedavg", ["privacy.range=0.5"], "privacy.range=0.5: give the largest number that a client sends"),
    ],
)
def test_what_cannot_be_masked_is_refused_in_one_line(method, words, line, tmp_path):
    with pytest.raises((ConfigError, MethodError), match=line):
        run_helpers.build_run(tmp_path, method, SECURE, *words)


class TestUplink:
    """Noise is added by its client before the reply is masked, a clip bounds it, and nothing is missing."""

    MASKS = SecureAggregation(8.0, {"clients": 1}, torch.float32, Streams(0))

    def sent(self, updates, masks=None, message=None):
        phase, client = Phase("fit", uplink={"weights": Mean("clients")}), Client(0, 10)
        start, reply = ({"weights": {"w": torch.tensor(values)}} for values in ([0.0, 0.0], [3.0, 4.0]))
        visit = Visit(0, 3, phase, client, start, {}, torch.Generator())
        result = VisitResult(visit, reply if message is None else message, {}, 1.0, 8, 0.1)
        return Uplink(updates, None, masks).of_phase(phase, 0, [client], start, {}, 1).sent(result)

    def updates(self, mechanism, clipping="flat", noise=1.0):
        return UpdatePrivacy(mechanism, Clipping(clipping, 1.0), noise, Streams(0))

    def test_a_client_clips_its_reply_and_adds_its_own_noise(self):
        given = [self.updates("central"), self.updates("local"), self.updates("local", noise=0.0)]
        clipped, noisy, silent = (self.sent(made).received["weights"]["w"] for made in given)
        torch.testing.assert_close(clipped, torch.tensor([0.6, 0.8]))
        torch.testing.assert_close(silent, clipped)
        assert (noisy - clipped).abs().min() > 0.01

    def test_a_reply_without_what_all_are_counted_for_is_refused(self):
        for updates, masks, key in (
            (self.updates("central"), None, "mechanism"),
            (None, self.MASKS, "secure_aggregation"),
        ):
            with pytest.raises(MethodError, match=f"privacy.{key}: client 0 sends no weights in phase 'fit'"):
                self.sent(updates, masks, message={})

    def test_an_adaptive_clip_is_masked_and_billed_too(self):
        way = self.sent(self.updates("central", "adaptive"), self.MASKS)
        assert way.nbytes == {"weights": 2 * 4 + 4, UNDER_CLIP: 4}
        assert set(way.message) == set(way.received) == {"weights", UNDER_CLIP}
        assert way.received["weights"]["sum"]["w"].dtype == torch.int64
