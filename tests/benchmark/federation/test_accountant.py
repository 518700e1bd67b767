import math
from collections import Counter

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from benchmark.errors import ConfigError
from benchmark.federation.accountant import PrivacyAccountant, Release, epsilon, noise_multiplier
from benchmark.federation.clipping import Clipping
from benchmark.federation.update_privacy import UpdatePrivacy
from benchmark.rng import Streams
from methods.base import Client, Mean, MethodError, Phase
from methods.fedsc import FedSC
from tests import run_helpers

NOISY = ("method.sigma=0.5",)
ALL = (*NOISY, "federation.participation=1")


class Releasing:
    """Releases one entry in one phase, with a noise multiplier in proportion to the client's images."""

    def noise(self, phase, client):
        return {"R": 0.2 * client.examples} if phase.name == "release" else {}


RELEASE, OTHER = Phase("release", uplink={"R": Mean()}), Phase("other")
SMALL, LARGE = Client(1, 5), Client(0, 10)


def gaussian_epsilon(multiplier, releases, delta):
    """Exact: T releases are one with multiplier / sqrt(T); its delta is that of Balle and Wang 2018, Theorem 8."""
    mu = math.sqrt(releases) / multiplier
    gap = lambda e: norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu) - delta  # noqa: E731
    return brentq(gap, 0, 100)


PFL = [  # (probability, multiplier, releases), and epsilon at 1e-5 by pfl-research 0.6.0: its PLD and RDP accountants
    (0.01, 1.0, 200, 0.9124759644484604, 1.3401113372689504),
    (0.1, 2.0, 50, 1.6525022602160715, 1.843951861015158),
    (1.0, 4.0, 20, 4.983306481069716, 5.377728336819822),
]


class TestEpsilon:
    @pytest.mark.parametrize(("multiplier", "releases"), [(1.3, 1), (1.3, 20), (0.7, 3), (8.0, 50), (900.0, 5)])
    def test_without_sampling_it_is_the_closed_form(self, multiplier, releases):
        exact, released = gaussian_epsilon(multiplier, releases, 1e-5), ((Release(multiplier), releases),)
        assert exact - 1e-6 <= epsilon(released, 1e-5, "pld") <= exact * 1.001 + 1e-3
        assert exact < epsilon(released, 1e-5, "rdp") < exact * 1.25 + 0.02

    @pytest.mark.parametrize(("sampling", "multiplier", "releases", "pld", "rdp"), PFL)
    def test_it_is_that_of_pfl_research(self, sampling, multiplier, releases, pld, rdp):
        released = ((Release(multiplier, sampling), releases),)
        assert epsilon(released, 1e-5, "pld") == pytest.approx(pld, abs=1e-6)
        assert epsilon(released, 1e-5, "rdp") == pytest.approx(rdp, abs=1e-6)

    @pytest.mark.parametrize(
        ("by", "target", "sampling", "count"), [("rdp", 1.0, 0.1, 20), ("pld", 0.5, 0.1, 20), ("rdp", 8.0, 1.0, 5)]
    )
    @pytest.mark.usefixtures("few_orders")
    def test_noise_is_solved_for_an_epsilon_that_it_never_exceeds(self, by, target, sampling, count):
        multiplier = noise_multiplier(target, 1e-5, lambda z: Release(z / 2, sampling), count, by)
        assert target - 1e-3 < epsilon(((Release(multiplier / 2, sampling), count),), 1e-5, by) <= target

    @pytest.mark.usefixtures("few_orders")
    def test_losses_too_large_to_be_counted_out_have_the_bound_by_renyi_divergences(self):
        released = ((Release(0.01), 100),)
        assert epsilon(released, 1e-5, "pld") == epsilon(released, 1e-5, "rdp") > 100
        assert len({noise_multiplier(101.0, 1e-5, Release, 1, by) for by in ("rdp", "pld")}) == 1

    def test_releases_with_half_the_noise_cost_four_times_as_many_and_none_cost_nothing(self):
        mixed, one = ((Release(1.0), 1), (Release(2.0), 4)), ((Release(1.0), 2),)
        assert epsilon(mixed, 1e-5) == pytest.approx(epsilon(one, 1e-5), rel=1e-6)
        assert epsilon((), 1e-5) == 0


def updates(norm):
    return UpdatePrivacy("central", Clipping("adaptive", norm), 2.0, Streams(0), sampling=0.1)


class TestAccount:
    def account(self, **settings):
        return PrivacyAccountant(Releasing(), [LARGE, SMALL], **{"delta": 1e-5, "budget": None, **settings})

    def test_it_grows_with_releases_only(self):
        account = self.account()
        assert (account.record_releases(OTHER, [SMALL]), account.epsilon(SMALL.id)) == (set(), 0)
        assert account.record_releases(RELEASE, [SMALL]) == {SMALL.id}
        account.record_releases(RELEASE, [LARGE])
        for client, multiplier in ((SMALL, 1.0), (LARGE, 2.0)):
            assert account.epsilon(client.id) == epsilon(((Release(multiplier), 1),), 1e-5)
        account.record_releases(RELEASE, [SMALL])
        assert account.epsilon(SMALL.id) == epsilon(((Release(1.0), 2),), 1e-5)
        assert account.covers == {"R"}

    def test_a_budget_refuses_the_round_that_would_exceed_it(self):
        account = self.account(budget=epsilon(((Release(1.0), 2),), 1e-5) + 1e-6)
        both = (RELEASE, [SMALL, LARGE])
        for _ in range(2):
            assert account.over_budget_reason([both]) is None
            account.record_releases(*both)
        assert account.over_budget_reason([(RELEASE, [LARGE]), (OTHER, [SMALL])]) is None
        assert "client 0 would spend" in account.over_budget_reason([(RELEASE, [LARGE])] * 40)
        for rounds in (1, 40):  # the client that would spend most
            assert "client 1 would spend" in account.over_budget_reason([both] * rounds)

    def test_its_state_and_a_clip_that_has_moved_come_back(self):
        account, other = (self.account(updates=updates(norm)) for norm in (3.0, 1.0))
        account.record_releases(RELEASE, [SMALL, LARGE])
        account.record_releases(RELEASE, [SMALL])
        other.load({"releases": [[1, 1.0, 2]], "covers": ["R"]})  # as versions without sampling and clips wrote it
        assert (other.releases, other.updates.clipping.norm) == ({1: {Release(1.0, 1.0): 2}}, 1.0)
        other.load(account.state())
        assert (other.releases, other.covers) == (account.releases, account.covers)
        assert other.updates.clipping.norm == 3.0

    @pytest.mark.parametrize(("cohort", "sampling"), [("sampled", 0.1), ("all", 1.0)])
    def test_an_update_is_sampled_unless_all_clients_send_it(self, cohort, sampling):
        planned = self.account(updates=updates(1.0)).planned(Phase("fit", uplink={"w": Mean()}, cohort=cohort), [SMALL])
        assert planned == {k: {"w by client": Release(2.0, sampling)} for k in (SMALL.id, LARGE.id)}

    def test_a_method_that_misspells_its_noise_is_not_believed(self, monkeypatch):
        misspelt = "names 'momentz', which phase 'release' does not send: it sends R"
        cases = [({"R": value}, f"multiplier of {value}: give a number above 0") for value in (-3.0, 0.0, math.inf)]
        for noise, message in [({"momentz": 1.0}, misspelt), *cases]:
            monkeypatch.setattr(Releasing, "noise", lambda self, phase, client, noise=noise: noise)
            with pytest.raises(MethodError, match=message):
                self.account().record_releases(RELEASE, [SMALL])


class TestRuns:
    def test_epsilon_of_every_client_is_in_every_rounds_line_and_in_the_record(self, tmp_path):
        record, run = run_helpers.execute_run(tmp_path, "fedsc", *NOISY)
        seen = Counter()
        for round, row in enumerate(run.loop.history):
            present = range(4) if round == 0 else run.loop.streams.cohort(round, 4, 0.5)
            seen.update(present)
            releases = {k: Release(0.5 * len(run.data.parts[k]) / (math.sqrt(2) * 4)) for k in present}
            by_hand = {str(k): epsilon(((release, seen[k]),), 1e-5) for k, release in releases.items()}
            assert row["epsilon"] == pytest.approx(by_hand)
        assert record["epsilon"] == max(record["privacy"]["clients"].values())
        assert (record["privacy"]["covers"], record["privacy"]["delta"]) == (["R"], 1e-5)
        assert len(record["privacy"]["clients"]) == 4

    def test_a_budget_ends_the_run_before_it_is_exceeded(self, tmp_path):
        free = run_helpers.train_run(tmp_path / "free", "fedsc", *ALL).loop
        first, second = (max(free.history[k]["epsilon"].values()) for k in (0, 1))
        budget = f"privacy.epsilon={(first + second) / 2}"
        record, _ = run_helpers.execute_run(tmp_path / "kept", "fedsc", *ALL, budget)
        assert (record["rounds"]["done"], "budget" in record["rounds"]["ended"]) == (1, True)
        assert second > first == pytest.approx(record["epsilon"])
        assert run_helpers.build_experiment(tmp_path / "kept", "fedsc", *ALL, budget).execute() == record

    def test_without_noise_there_is_no_epsilon_and_misspelt_noise_is_found_before_anybody_trains(
        self, tmp_path, monkeypatch
    ):
        record = run_helpers.execute_run(tmp_path, "fedsc")[0]
        assert (record["epsilon"], record["privacy"]) == (None, {})
        monkeypatch.setattr(FedSC, "noise", lambda self, phase, client: {"momentz": 1.0})
        with pytest.raises(MethodError, match="names 'momentz'"):
            run_helpers.build_run(tmp_path / "other", "fedsc")

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            (["privacy.epsilon=8"], "nothing with noise"),
            *(([*NOISY, word], word.partition("=")[0]) for word in ("privacy.delta=1", "privacy.epsilon=0")),
            ([*NOISY, "privacy.epsilon=much"], "privacy.epsilon"),
        ],
    )
    def test_what_no_account_can_be_is_refused(self, words, line, tmp_path):
        with pytest.raises(ConfigError, match=line):
            run_helpers.build_run(tmp_path, "fedsc", *words)
