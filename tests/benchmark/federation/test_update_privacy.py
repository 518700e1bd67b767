"""Clipped and noisy updates: by hand, by identities with runs without them, and under the contract of every method."""

import math
import shlex
from collections import Counter

import pytest
import torch

from benchmark.errors import ConfigError
from benchmark.federation.accountant import Release, epsilon
from benchmark.federation.clipping import Clipping
from benchmark.federation.stages import Exchange, Reply
from benchmark.federation.update_privacy import UNDER_CLIP, UpdatePrivacy
from benchmark.rng import Streams
from benchmark.tracking.record import covers_encoder, headline
from methods import trees
from methods.base import Client, Each, Mean, MethodError, Phase, Replies, Sum, Visit
from tests import run_helpers
from tests.methods import test_fedavg, test_scaffold
from tests.methods.contract import STATISTICS, WEIGHTS, DurabilityContract, InterfaceContract

FIT = Phase("fit", uplink={"weights": Mean(), "delta": Sum()})
SENT = {"weights": {"encoder": {"w": torch.tensor([1.0, 1.0])}}}
REPLY = {"weights": {"encoder": {"w": torch.tensor([4.0, 1.0])}}, "delta": {"w": torch.tensor([0.0, 4.0])}}
CENTRAL, BY_CLIENTS = "privacy.mechanism=central", "privacy.mechanism=local"
LOCAL = "federation.batch_norm=local"
NOISY = ("privacy.clip=0.5", "privacy.noise_multiplier=0.2", LOCAL)
ONES = {"weights": {"w": torch.ones(3)}}


def visit(phase=FIT, message=SENT):
    return Visit(0, 3, phase, Client(0, 10), message, {}, torch.Generator())


def privacy(mechanism, clip, noise_multiplier, seed=0, name="flat", sampling=None, cohort=4):
    clipping = Clipping(name, clip, cohort=cohort)
    return UpdatePrivacy(mechanism, clipping, noise_multiplier, Streams(seed), sampling)


def exchange(phase, common, expected=4):
    return Exchange(phase, 0, range(4), common, expected=expected)


def behind(made, visit, message):
    """A reply behind the stage."""
    return made.client(Reply(visit, message), exchange(visit.phase, visit.message)).message


def on_server(made, phase, replies, common, expected):
    """The combined replies behind the stage."""
    return made.server(replies, exchange(phase, common, expected))


class TestClipping:
    @pytest.mark.parametrize(
        ("name", "delta", "weights", "clipped"), [("flat", 4.0, 1.6, 0.8), ("layers", 0.5, 1 + 0.5**0.5, 0.5)]
    )
    def test_a_reply_is_one_vector_or_each_tensor_is_cut_by_itself(self, name, delta, weights, clipped):
        """Of the update (3, 0) and (0, 4), of norm 5, remain (0.6, 0) and (0, 0.8).

        By layers, each of two tensors may have 1 / sqrt(2): (3, 0) is cut to it, (0, 0.5) is within it.
        """
        reply = {**REPLY, "delta": {"w": torch.tensor([0.0, delta])}}
        sent = behind(privacy("central", 1.0, 0.0, name=name), visit(), reply)
        torch.testing.assert_close(sent["weights"]["encoder"]["w"], torch.tensor([weights, 1.0]))
        torch.testing.assert_close(sent["delta"]["w"], torch.tensor([0.0, clipped]))

    def test_a_short_update_is_sent_as_it_is_one_of_nothing_stays_nothing_and_whole_numbers_are_refused(self):
        assert behind(privacy("central", 5.0, 1.0), visit(), REPLY) is REPLY
        still = {"weights": SENT["weights"], "delta": {"w": torch.zeros(2)}}
        sent = behind(privacy("local", 1.0, 1e-30), visit(), still)
        assert torch.equal(sent["weights"]["encoder"]["w"], SENT["weights"]["encoder"]["w"])
        with pytest.raises(MethodError, match="'delta' has whole numbers: send floats"):
            behind(privacy("central", 1.0, 1.0), visit(), {**REPLY, "delta": {"n": torch.tensor([3])}})

    def test_what_a_client_was_sent_alone_is_where_it_started(self):
        """A private entry replaces the common one in the client's message, and leaves that stay are not in a reply."""
        message = {"weights": {"encoder": {"w": torch.tensor([9.0, 0.0])}, "head": {"v": torch.ones(3)}}}
        reply = {"weights": {"encoder": {"w": torch.tensor([9.0, 2.0])}}, "delta": {}}
        sent = behind(privacy("central", 1.0, 0.0), visit(message=message), reply)
        torch.testing.assert_close(sent["weights"], {"encoder": {"w": torch.tensor([9.0, 1.0])}})
        assert sent["delta"] == {}

    def test_entries_of_other_kinds_and_phases_are_left_alone(self):
        made = privacy("local", 0.1, 1.0)
        assert list(made.multipliers(Phase("fit", uplink={"weights": Mean(), "rows": Each()}))) == ["weights by client"]
        server = Phase("s", where="server", uplink={"w": Sum()})
        for phase in (Phase("see", work="observe", uplink={"R": Mean()}), server):
            assert made.multipliers(phase) == {}
            assert made.reductions(phase, phase.uplink) == phase.uplink


class TestAdaptive:
    def test_clients_say_whether_their_updates_are_within_the_clip_which_moves_by_the_papers_rule(self):
        """The update has norm 5. Three of four within, quantile 0.5: C exp(-0.2 (0.75 - 0.5))."""
        for clip, said in ((4.9, -0.5), (5.1, 0.5)):
            assert behind(privacy("central", clip, 0.0, name="adaptive"), visit(), REPLY)[UNDER_CLIP]["n"] == said
        made = privacy("central", 2.0, 0.0, name="adaptive")
        replies = Replies({"weights": {"w": torch.zeros(3)}, UNDER_CLIP: {"n": torch.tensor(1.0)}}, range(4))
        combined = on_server(made, FIT, replies, {}, 4)
        assert made.clipping.norm == pytest.approx(2 * math.exp(-0.2 * 0.25))
        assert set(combined) == {"weights"}

    def test_it_finds_the_quantile(self):
        norms, clipping = torch.arange(1.0, 101.0), Clipping("adaptive", 0.1, 0.7, 100)
        for _ in range(200):
            within = (norms <= clipping.norm).float().sub(0.5).sum()
            clipping.update_norm(float(within), 100, 0.0)
        assert clipping.norm == pytest.approx(70, abs=3)

    def test_both_releases_cost_what_the_updates_would_whose_noise_is_larger_for_it(self):
        """1 / z^2 = 1 / z_updates^2 + 1 / (2 b)^2, as the sensitivity of a number that is 1/2 or -1/2 is 1/2."""
        updates = Clipping("adaptive", 1.0, cohort=100).noise_multiplier(1.1)
        assert updates > 1.1
        both = epsilon(((Release(updates), 1), (Release(5 / 0.5), 1)), 1e-5)
        assert both == pytest.approx(epsilon(((Release(1.1), 1),), 1e-5), rel=1e-9)
        replies = Replies({"weights": {"w": torch.zeros(10_000)}, UNDER_CLIP: {"n": torch.tensor(0.0)}}, range(4))
        made, phase = privacy("central", 1.0, 0.3, name="adaptive", cohort=4), Phase("fit", uplink={"weights": Sum()})
        noise = on_server(made, phase, replies, {}, 4)["weights"]["w"].std().item()
        assert noise == pytest.approx((0.3**-2 - 0.4**-2) ** -0.5, rel=0.03)


class TestPoisson:
    SAMPLED = (CENTRAL, "privacy.clip=1", "privacy.sampling=poisson", LOCAL)

    def test_a_mean_divides_by_the_expected_number_and_a_round_of_nobody_is_noise_of_the_same_size(self):
        """Two replied where four were expected: half of the mean update of 2."""
        phase = Phase("fit", uplink={"weights": Mean()})
        replies = Replies({"weights": {"w": torch.full((3,), 3.0)}}, range(2))
        combined = on_server(privacy("central", 10.0, 0.0, sampling=0.5), phase, replies, ONES, 4.0)
        assert torch.equal(combined["weights"]["w"], torch.full((3,), 2.0))
        common = {"weights": {"w": torch.zeros(10_000)}}
        nobody = on_server(privacy("central", 1.0, 2.0, sampling=0.5), phase, Replies({}, []), common, 4.0)
        assert nobody["weights"]["w"].std().item() == pytest.approx(2 / 4, rel=0.03)

    def test_an_update_without_a_common_start_and_what_is_no_mean_of_a_sample_are_refused(self):
        made = privacy("central", 1.0, 1.0, sampling=0.5)
        made.check(exchange(Phase("fit", uplink={"weights": Mean()}), ONES))
        with pytest.raises(MethodError, match="delta of phase 'fit' is not sent to all clients alike"):
            made.check(exchange(FIT, ONES))
        for how, cohort, why in ((Sum(), "sampled", "weights is a sum"), (Mean(), "all", "it has all clients")):
            with pytest.raises(MethodError, match=rf"phase 'fit' averages no sample \({why}\): use sampling=fixed"):
                made.check(exchange(Phase("fit", uplink={"weights": how}, cohort=cohort), ONES))

    @pytest.mark.usefixtures("few_orders")
    def test_a_run_charges_every_client_in_every_round_whoever_is_drawn_and_if_nobody_is(self, tmp_path):
        words = ("privacy.noise_multiplier=2", "federation.participation=0.05")
        record, run = run_helpers.execute_run(tmp_path, "fedavg", *self.SAMPLED, *words)
        assert any(not run.loop.cohort(round) for round in range(3))
        assert record["rounds"]["done"] == 3
        cost = epsilon(((Release(2.0, 0.05), 3),), 1e-5)
        assert record["privacy"]["clients"] == pytest.approx(dict.fromkeys("0123", cost))
        assert cost < epsilon(((Release(2.0), 1),), 1e-5)


class TestNoise:
    MANY = {"weights": {"w": torch.zeros(10_000)}}  # noqa: RUF012

    @pytest.mark.parametrize(("how", "deviation"), [(Mean(), 0.75 / 4), (Sum(), 0.75)])
    def test_central_noise_of_a_sum_has_z_times_c_and_of_a_mean_that_over_its_clients(self, how, deviation):
        phase, made = Phase("fit", uplink={"weights": how}), privacy("central", 1.5, 0.5)
        combined = on_server(made, phase, Replies(self.MANY, range(4)), {}, 4)
        assert combined["weights"]["w"].std().item() == pytest.approx(deviation, rel=0.03)
        assert abs(combined["weights"]["w"].mean().item()) < 4 * deviation / 100
        assert combined.clients == tuple(range(4))

    def test_local_noise_of_a_client_has_z_times_c_and_each_mechanism_adds_noise_in_one_place(self):
        phase = Phase("fit", uplink={"weights": Mean()})
        sent, again = (
            behind(privacy("local", 1.5, 0.5, seed=seed), visit(phase, self.MANY), self.MANY)["weights"]["w"]
            for seed in (0, 1)
        )
        assert sent.std().item() == pytest.approx(0.75, rel=0.03)
        assert not torch.equal(sent, again)
        replies = Replies(self.MANY, [0])
        assert on_server(privacy("local", 1.0, 1.0), FIT, replies, {}, 1) is replies
        assert behind(privacy("central", 1.0, 1.0), visit(phase, self.MANY), self.MANY) is self.MANY


class TestRuns:
    def test_of_no_rounds_may_have_noise_masks_or_compression(self, tmp_path):
        for words in ((CENTRAL, *NOISY), ("privacy.secure_aggregation=true",), ("compression.name=int8",)):
            run_helpers.build_run(tmp_path / words[0], "fedavg", "federation.rounds=0", *words)

    def test_a_bound_that_nothing_reaches_is_the_plain_mean_over_clients_and_a_small_one_bounds_a_round(self, tmp_path):
        plain = run_helpers.train_run(tmp_path / "plain", "fedavg", "method.weighting=clients", LOCAL)
        words = (CENTRAL, "privacy.noise_multiplier=0", LOCAL)
        private = run_helpers.train_run(tmp_path / "private", "fedavg", "privacy.clip=1e9", *words)
        assert run_helpers.same(run_helpers.state(private), run_helpers.state(plain))
        run = run_helpers.build_run(tmp_path / "small", "fedavg", "privacy.clip=0.01", "federation.rounds=1", *words)
        run.loop.restore()
        before = trees.clone(run.loop.server["weights"])
        run.loop.fit()
        moved = trees.subtract(run.loop.server["weights"], before)
        assert 0.001 < float(trees.squared_norm(moved)) ** 0.5 <= 0.01 * (1 + 1e-4)

    @pytest.mark.parametrize(("mechanism", "multiplier"), [("central", 1.5), ("local", 0.75)])
    def test_epsilon_is_that_of_the_rounds_a_client_was_drawn_for(self, mechanism, multiplier, tmp_path):
        words = (f"privacy.mechanism={mechanism}", "privacy.clip=1", "privacy.noise_multiplier=1.5", LOCAL)
        record, run = run_helpers.execute_run(tmp_path, "fedavg", *words)
        drawn = Counter(client for round in range(3) for client in run.loop.streams.cohort(round, 4, 0.5))
        costs = {str(client): epsilon(((Release(multiplier), count),), 1e-5) for client, count in drawn.items()}
        assert costs.items() <= record["privacy"]["clients"].items()
        assert record["privacy"]["covers"] == ["weights by client"]

    @pytest.mark.usefixtures("few_orders")
    @pytest.mark.parametrize(
        ("target", "word"),
        [(8, "privacy.sampling=poisson"), (2, "privacy.accountant=pld"), (300, "privacy.clipping=adaptive")],
    )
    def test_noise_is_solved_for_the_budget_of_all_rounds(self, target, word, tmp_path):
        words = (CENTRAL, "privacy.clip=0.01", f"privacy.epsilon={target}", "privacy.delta=1e-3")
        record, run = run_helpers.execute_run(tmp_path, "fedavg", *words, word, LOCAL)
        assert record["rounds"]["done"] == 3
        assert max(target - 1, 0.99 * target) < record["epsilon"] <= target
        assert record["privacy"]["noise_multiplier"] == run.loop.uplink.updates.noise_multiplier
        assert (record["privacy"]["clip"] == 0.01) == (word != "privacy.clipping=adaptive")

    @pytest.mark.parametrize(
        ("words", "uncovered"), [((LOCAL,), True), (("encoder.norm=group", "heads.head_norm=false"), False)]
    )
    def test_a_budget_ends_the_run_and_the_record_tells_whether_it_covers_the_encoder(self, words, uncovered, tmp_path):
        words += (CENTRAL, "privacy.clip=0.5", "privacy.noise_multiplier=1.5", "privacy.epsilon=6")
        everyone = ("federation.rounds=4", "federation.participation=1")
        record, run = run_helpers.execute_run(tmp_path, "fedavg", *words, *everyone)
        assert 0 < run.loop.round < 4
        assert max(run.loop.accountant.epsilon(client) for client in range(4)) <= 6
        assert headline(record).startswith(f"after {run.loop.round} of 4 rounds: knn/v1 ")
        said = "not the evaluated encoder's BatchNorm statistics" in headline(record)
        assert (not covers_encoder(record), said) == (uncovered, uncovered)

    def test_scaffolds_two_entries_are_one_release(self, tmp_path):
        account = run_helpers.train_run(tmp_path, "scaffold", CENTRAL, *NOISY).loop.accountant
        assert account.covers == {"delta_w and delta_c by client"}
        assert all(set(counted) == {Release(0.2)} for counted in account.releases.values())


CLIP = "privacy.clip=0.5 privacy.noise_multiplier=0.2"
NOISE = f"{CLIP} {LOCAL}"
MISTAKES = {
    f"privacy.mechanism=middle {NOISE}": "privacy.mechanism='middle': choose none or central or local",
    CENTRAL: "privacy.clip=None: give the largest norm",
    f"{CENTRAL} privacy.clip=0": "privacy.clip=0.*above 0",
    f"{BY_CLIENTS} privacy.clip=1": "give the noise's deviation over privacy.clip as",
    "privacy.clipping=layers": "privacy.clipping needs privacy.mechanism=central or local",
    f"{CENTRAL} privacy.clipping=tensors {NOISE}": "choose flat or layers or adaptive",
    f"{BY_CLIENTS} privacy.clipping=adaptive {NOISE}": "adaptive trusts the server",
    f"{BY_CLIENTS} privacy.sampling=poisson {NOISE}": "poisson trusts the server",
    f"{CENTRAL} privacy.accountant=moments {NOISE}": "choose rdp or pld",
    f"{CENTRAL} privacy.quantile=1 {NOISE}": r"privacy.quantile=1.*in \(0, 1\)",
    f"{CENTRAL} privacy.clipping=adaptive privacy.clip=1 privacy.noise_multiplier=1 {LOCAL}": "below 0.2, and it is 1",
    NOISE: "need privacy.mechanism=central or local",
    f"flesd {CENTRAL} {NOISE}": "no phase in which FLESD's clients train sends any",
    f"fedu2 {CENTRAL} {NOISE}": "FedU2's server reads every client's 'delta' by itself",
    f"ldawa {CENTRAL} {NOISE} federation.rounds=4": "LDAWA's server weighs each client's 'weights' by itself",
    f"untrained {BY_CLIENTS} {NOISE}": "no phase in which Untrained's clients train sends any",
    f"fedca {CENTRAL} {NOISE}": "no phase in which FedCA's clients train sends any",
    f"fedsc {BY_CLIENTS} {CLIP} method.sigma=0.5": "FedSC releases entries with noise of its own",
    f"{BY_CLIENTS} {CLIP} federation.batch_norm=recalibrate": "federation.batch_norm=local, whose evaluated encoder",
    f"{CENTRAL} {CLIP}": r"\(encoder, projector\) .*: set encoder.norm=group and set heads.head_norm=false, or",
    f"orchestra {CENTRAL} {CLIP} encoder.norm=group heads.head_norm=false": ": set heads.last_norm=false, or",
    f"orchestra {CENTRAL} {CLIP} heads.head_norm=false heads.last_norm=false": ": set encoder.norm=group, or",
    f"{CENTRAL} {CLIP} encoder.norm=group objective.head_norm=true": "set objective.head_norm=false, or",
    f"{CENTRAL} {CLIP} objective=simsiam": "set encoder.norm=group and choose an objective whose heads have none, or",
    f"{CENTRAL} {CLIP} encoder='{{class: methods.networks.torchvision, name: resnet18}}'": (
        "choose an encoder without BatchNorm and set heads.head_norm=false, or"
    ),
    f"{CENTRAL} {NOISE} method.weighting=batches": "all clients count alike: set method.weighting=clients",
    f"{CENTRAL} {NOISE} privacy.epsilon=.inf": "privacy.epsilon=inf: give a number",
    f"{CENTRAL} privacy.clip=0.5 {LOCAL} privacy.epsilon=8 federation.rounds=0": "nothing is sent in 0 rounds",
    f"{CENTRAL} {NOISE} privacy.quantile=0.9": "needs privacy.clipping=adaptive",
    "privacy.range=3": "privacy.range needs privacy.secure_aggregation=true",
}
"""Words, the first of which may be a method other than FedAvg -> what the error says."""


@pytest.mark.parametrize("words", MISTAKES)
def test_what_is_not_covered_is_refused_in_one_line(words, tmp_path):
    given = shlex.split(words if "=" not in words.split()[0] else f"fedavg {words}")
    with pytest.raises((ConfigError, MethodError), match=MISTAKES[words]):
        run_helpers.build_run(tmp_path, *given)


class Noisy(InterfaceContract):
    """The contract under noise; other policies than `local` are refused, see MISTAKES."""

    variant = True
    overrides = ("privacy.clip=0.5", "privacy.noise_multiplier=0.001", "federation.batch_norm=local")
    test_batch_norm_policies = None


class TestPoissonAndAdaptive(Noisy, DurabilityContract):
    """The clip moves with the rounds; a round may be of nobody."""

    method = "fedavg"
    overrides = (CENTRAL, "privacy.sampling=poisson", "privacy.clipping=adaptive", *Noisy.overrides)

    def bill(self, run):
        bill = dict.fromkeys(test_fedavg.TestFedAvg().bill(run), WEIGHTS - 4 * STATISTICS)
        return bill | {("fit", "up", UNDER_CLIP): 4}


class TestLocal(Noisy):
    method = "scaffold"
    overrides = (BY_CLIENTS, *Noisy.overrides)

    def bill(self, run):
        return dict.fromkeys(test_scaffold.TestScaffold().bill(run), WEIGHTS - 4 * STATISTICS)
