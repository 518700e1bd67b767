"""Clipped and noisy updates: by hand, by identities with runs without them, and under the contract of every method."""

import pytest
import torch
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent, rdp

from benchmark.errors import ConfigError
from benchmark.federation.accountant import ORDERS
from benchmark.federation.update_privacy import UpdatePrivacy
from benchmark.rng import Streams
from methods import trees
from methods.base import Client, Each, Mean, MethodError, Phase, Replies, Sum, Visit
from tests import run_helpers
from tests.methods import test_fedavg, test_scaffold
from tests.methods.contract import STATISTICS, WEIGHTS, MethodContract

FIT = Phase("fit", uplink={"weights": Mean(), "delta": Sum()})
SENT = {"weights": {"encoder": {"w": torch.tensor([1.0, 1.0])}}}
REPLY = {"weights": {"encoder": {"w": torch.tensor([4.0, 1.0])}}, "delta": {"w": torch.tensor([0.0, 4.0])}}
LOCAL = "federation.batch_norm=local"
NOISY = ("privacy.clip=0.5", "privacy.noise_multiplier=0.2", LOCAL)


def visit(phase=FIT, message=SENT):
    return Visit(0, 3, phase, Client(0, 10), message, {}, torch.Generator())


def privacy(mechanism, clip, noise_multiplier, seed=0):
    return UpdatePrivacy(mechanism, clip, noise_multiplier, Streams(seed))


class TestClipping:
    def test_all_entries_of_a_reply_are_one_vector(self):
        """The update is (3, 0) and (0, 4), of norm 5; clipped to 1 it is (0.6, 0) and (0, 0.8)."""
        sent = privacy("central", 1.0, 0.0).sent(visit(), REPLY)
        torch.testing.assert_close(sent["weights"]["encoder"]["w"], torch.tensor([1.6, 1.0]))
        torch.testing.assert_close(sent["delta"]["w"], torch.tensor([0.0, 0.8]))

    def test_a_short_update_is_sent_as_it_is(self):
        assert privacy("central", 5.0, 1.0).sent(visit(), REPLY) is REPLY

    def test_an_update_of_nothing_has_no_direction_and_stays_nothing(self):
        still = {"weights": SENT["weights"], "delta": {"w": torch.zeros(2)}}
        sent = privacy("local", 1.0, 1e-30).sent(visit(), still)
        assert torch.equal(sent["weights"]["encoder"]["w"], SENT["weights"]["encoder"]["w"])

    def test_what_a_client_was_sent_alone_is_where_it_started(self):
        """A private entry replaces the common one in the client's message, and leaves that stay are not in a reply."""
        message = {"weights": {"encoder": {"w": torch.tensor([9.0, 0.0])}, "head": {"v": torch.ones(3)}}}
        reply = {"weights": {"encoder": {"w": torch.tensor([9.0, 2.0])}}, "delta": {}}
        sent = privacy("central", 1.0, 0.0).sent(visit(message=message), reply)
        torch.testing.assert_close(sent["weights"], {"encoder": {"w": torch.tensor([9.0, 1.0])}})
        assert sent["delta"] == {}

    def test_whole_numbers_are_refused(self):
        reply = {**REPLY, "delta": {"n": torch.tensor([3])}}
        with pytest.raises(MethodError, match="'delta' has whole numbers, which no noise hides"):
            privacy("central", 1.0, 1.0).sent(visit(), reply)

    def test_entries_of_other_kinds_and_phases_are_left_alone(self):
        made = privacy("local", 0.1, 1.0)
        assert made.covered(Phase("fit", uplink={"weights": Mean(), "rows": Each()})) == ["weights"]
        for phase in (
            Phase("see", work="observe", uplink={"R": Mean()}),
            Phase("s", where="server", uplink={"w": Sum()}),
        ):
            assert made.covered(phase) == []
            assert made.releases(phase) == {}


class TestNoise:
    MANY = torch.zeros(10_000)

    @pytest.mark.parametrize(("how", "clients", "deviation"), [(Mean(), 4, 0.75 / 4), (Sum(), 4, 0.75)])
    def test_central_noise_of_a_sum_has_z_times_c_and_of_a_mean_that_over_its_clients(self, how, clients, deviation):
        phase, made = Phase("fit", uplink={"weights": how}), privacy("central", 1.5, 0.5)
        combined = made.combined(phase, Replies({"weights": {"w": self.MANY}}, range(clients)), 0)
        assert combined["weights"]["w"].std().item() == pytest.approx(deviation, rel=0.03)
        assert abs(combined["weights"]["w"].mean().item()) < 4 * deviation / 100
        assert combined.clients == tuple(range(clients))

    def test_local_noise_of_a_client_has_z_times_c(self):
        start = {"weights": {"w": self.MANY}}
        sent = privacy("local", 1.5, 0.5).sent(visit(message=start), start)
        assert sent["weights"]["w"].std().item() == pytest.approx(0.75, rel=0.03)
        again = privacy("local", 1.5, 0.5, seed=1).sent(visit(message=start), start)
        assert not torch.equal(sent["weights"]["w"], again["weights"]["w"])

    def test_each_mechanism_adds_noise_in_one_place(self):
        replies = Replies({"weights": {"w": self.MANY}}, [0])
        assert privacy("local", 1.0, 1.0).combined(FIT, replies, 0) is replies
        start = {"weights": {"w": self.MANY}}
        assert privacy("central", 1.0, 1.0).sent(visit(message=start), start) is start


class TestRuns:
    def test_a_bound_that_nothing_reaches_and_no_noise_is_the_plain_mean_over_clients(self, tmp_path):
        plain = run_helpers.train_run(tmp_path / "plain", "fedavg", "method.weighting=clients", LOCAL)
        words = ("privacy.mechanism=central", "privacy.clip=1e9", "privacy.noise_multiplier=0", LOCAL)
        private = run_helpers.train_run(tmp_path / "private", "fedavg", *words)
        assert run_helpers.same(run_helpers.state(private), run_helpers.state(plain))

    def test_one_round_moves_the_weights_by_no_more_than_the_bound(self, tmp_path):
        words = ("privacy.mechanism=central", "privacy.clip=0.01", "privacy.noise_multiplier=0", "federation.rounds=1")
        run = run_helpers.build_run(tmp_path, "fedavg", *words, LOCAL)
        run.loop.restore()
        before = trees.clone(run.loop.server["weights"])
        run.loop.fit()
        moved = trees.subtract(run.loop.server["weights"], before)
        assert 0.001 < float(trees.squared_norm(moved)) ** 0.5 <= 0.01 * (1 + 1e-4)

    @pytest.mark.parametrize(("mechanism", "multiplier"), [("central", 1.5), ("local", 0.75)])
    def test_epsilon_is_that_of_the_rounds_a_client_was_drawn_for(self, mechanism, multiplier, tmp_path):
        words = (f"privacy.mechanism={mechanism}", "privacy.clip=1", "privacy.noise_multiplier=1.5", LOCAL)
        record, run = run_helpers.execute_run(tmp_path, "fedavg", *words)
        drawn = [client for round in range(3) for client in run.loop.streams.cohort(round, 4, 0.5)]
        for client in set(drawn):
            other = rdp.RdpAccountant(orders=ORDERS)
            other.compose(SelfComposedDpEvent(GaussianDpEvent(multiplier), drawn.count(client)))
            assert record["privacy"]["clients"][str(client)] == pytest.approx(other.get_epsilon(1e-5), rel=0.01)
        assert record["privacy"]["covers"] == ["weights by client"]

    def test_a_budget_ends_the_run(self, tmp_path):
        words = ("privacy.mechanism=central", "privacy.clip=1", "privacy.noise_multiplier=1.5", "federation.rounds=20")
        run = run_helpers.train_run(
            tmp_path, "fedavg", *words, LOCAL, "privacy.epsilon=6", "federation.participation=1"
        )
        assert 0 < run.loop.round < 20
        assert max(run.loop.accountant.epsilon(client) for client in range(4)) <= 6

    def test_scaffolds_two_entries_are_one_release(self, tmp_path):
        run = run_helpers.train_run(tmp_path, "scaffold", "privacy.mechanism=central", *NOISY)
        assert run.loop.accountant.covers == {"delta_w and delta_c by client"}
        assert all(set(counted) == {0.2} for counted in run.loop.accountant.releases.values())


MISTAKES = [
    ("fedavg", ("privacy.mechanism=middle", *NOISY), "privacy.mechanism='middle': choose central or local"),
    ("fedavg", ("privacy.mechanism=central",), "privacy.clip=None: give the largest norm"),
    ("fedavg", ("privacy.mechanism=central", "privacy.clip=0"), "privacy.clip=0.*above 0"),
    ("fedavg", ("privacy.mechanism=local", "privacy.clip=1"), "privacy.noise_multiplier=None: give the noise"),
    ("fedavg", NOISY, "need privacy.mechanism=central or local"),
    ("flesd", ("privacy.mechanism=central", *NOISY), "no phase in which FLESD's clients train sends any"),
    ("fedu2", ("privacy.mechanism=central", *NOISY), "FedU2's server reads every client's 'delta' by itself"),
    (
        "ldawa",
        ("privacy.mechanism=central", *NOISY, "federation.rounds=4"),
        "LDAWA's server weighs each client's 'weights' by itself",
    ),
    ("untrained", ("privacy.mechanism=local", *NOISY), "no phase in which Untrained's clients train sends any"),
    (
        "fedsc",
        ("privacy.mechanism=local", *NOISY[:2], "method.sigma=0.5"),
        "FedSC releases entries with noise of its own",
    ),
    (
        "fedavg",
        ("privacy.mechanism=local", *NOISY[:2], "federation.batch_norm=recalibrate"),
        "set federation.batch_norm=local",
    ),
    ("fedavg", ("privacy.mechanism=central", *NOISY[:2]), "running statistics would be"),
    ("fedca", ("privacy.mechanism=central", *NOISY), "no phase in which FedCA's clients train sends any"),
]


@pytest.mark.parametrize(("method", "words", "line"), MISTAKES)
def test_what_is_not_covered_is_refused_in_one_line(method, words, line, tmp_path):
    with pytest.raises((ConfigError, MethodError), match=line):
        run_helpers.build_run(tmp_path, method, *words)


class Noisy(MethodContract):
    """The contract under noise; other policies than `local` are refused, see MISTAKES."""

    variant = True
    overrides = ("privacy.clip=0.5", "privacy.noise_multiplier=0.001", "federation.batch_norm=local")
    test_batch_norm_policies = None


class TestCentral(Noisy):
    method = "fedavg"
    overrides = ("privacy.mechanism=central", *Noisy.overrides)

    def bill(self, run):
        return dict.fromkeys(test_fedavg.TestFedAvg().bill(run), WEIGHTS - 4 * STATISTICS)


class TestLocal(Noisy):
    method = "scaffold"
    overrides = ("privacy.mechanism=local", *Noisy.overrides)

    def bill(self, run):
        return dict.fromkeys(test_scaffold.TestScaffold().bill(run), WEIGHTS - 4 * STATISTICS)
