"""How much a method's own idea moves: numbers by hand, the two ends, and that measuring them changes nothing."""

import pytest
import torch

from benchmark.execution.sequential import SequentialExecutor
from benchmark.tracking.record import activity
from methods import trees
from methods.base import AddOn, FederatedMethod
from methods.core.activity import SHARE, gradient_share
from tests.methods.toys import EVERYONE, shift, shown, train_run, visit_of
from tests.run_helpers import build_run, same, state, trained


def noted(run, name):
    """The means of a note, of the rounds that have it."""
    return [row["notes"][name]["mean"] for row in run.loop.history if name in row.get("notes", {})]


def far_from_received(folder, mu, distance=0.5):
    """FedProx whose weights are all this far from the received ones, in training mode, and a batch of a client."""
    run = build_run(folder, "fedprox", f"method.mu={mu}")
    method = run.loop.method.train()
    visit = visit_of(method.phases[0])
    method.phase = visit.phase
    method.addons["proximal"].receive(visit, method)
    shift(method, distance)
    return method, shown(run, "augment", "augment", client=0)


class TestShareOfTheGradient:
    def test_by_hand_for_a_proximal_term_and_nothing_changes(self, tmp_path):
        method, batch = far_from_received(tmp_path, mu=0.3)
        before = trees.clone(dict(method.state_dict()))
        share = gradient_share(method, batch)
        assert same(dict(method.state_dict()), before)  # BatchNorm's statistics and counters among it
        assert all(value.grad is None for value in method.parameters())
        method.objective.loss(method.objective(*batch.views), batch).backward()
        trained = [value for value in method.objective.parameters() if value.requires_grad]
        own = float(torch.cat([value.grad.flatten() for value in trained]).norm())
        added = 0.3 * 0.5 * sum(value.numel() for value in trained) ** 0.5
        assert float(share) == pytest.approx(added / (added + own), rel=1e-4)

    def test_from_0_without_the_term_to_1_where_it_is_all(self, tmp_path):
        ends = [gradient_share(*far_from_received(tmp_path, mu)) for mu in (0, 1e6)]
        assert (float(ends[0]), float(ends[1]) > 0.999) == (0, True)
        assert noted(trained("fedprox", "method.mu=0"), SHARE) == [0, 0, 0]
        assert min(noted(trained("fedprox"), SHARE)) > 0

    def test_a_compiled_network_is_measured_too(self, tmp_path):
        method, batch = far_from_received(tmp_path, mu=0.3)
        plain = gradient_share(method, batch)
        method.objective.compile(backend="aot_eager")
        compiled = method.objective._compiled_call_impl
        assert gradient_share(method, batch) == plain
        assert method.objective._compiled_call_impl is compiled

    def test_of_one_client_a_round_each_in_turn_and_no_other_bit_changes(self, tmp_path, monkeypatch):
        probe, probed = SequentialExecutor._probe, []

        def spied(executor, visit, batch):
            probed.append(visit.client.id)
            probe(executor, visit, batch)

        states = []
        for measure in (spied, lambda *_: None):
            monkeypatch.setattr(SequentialExecutor, "_probe", measure)
            run = build_run(tmp_path / str(len(states)), "fedx", EVERYONE)
            run.loop.fit()
            states.append(state(run, activity=False))
        assert probed == [0, 1, 2]
        assert not noted(run, SHARE)
        assert same(*states)

    def test_of_a_method_that_declares_none_it_is_what_add_ons_have(self, tmp_path):
        doubled, plain = (
            noted(train_run(tmp_path / method.__name__, method, addons=[Tenfold]), SHARE)
            for method in (Doubled, FederatedMethod)
        )
        assert plain == pytest.approx([10 / 11] * 3, rel=1e-5)  # ten times the objective's gradient is added
        assert doubled == pytest.approx([10 / 12] * 3, rel=1e-5)
        assert not noted(train_run(tmp_path / "alone", Doubled), SHARE)


class Doubled(FederatedMethod):
    """Twice the objective's loss."""

    def loss(self, out, batch):
        return 2 * super().loss(out, batch)


class Tenfold(AddOn):
    """Ten times the objective's loss."""

    name = "tenfold"

    def forward(self, out, batch, method):
        return 10 * method.objective.loss(out, batch)


@pytest.mark.parametrize(
    ("words", "name", "expected"),
    [
        ("fedu method.threshold=0", "predictor_kept", [1, 1]),
        ("fedu method.threshold=.inf", "predictor_kept", [0, 0]),
        ("fedema method.scale=0", "local_weight", [0, 0, 0]),
        ("fedema method.scale=.inf", "local_weight", [0, 1, 1]),
        ("ldawa", "cosines_apart", [0, 0, 0]),  # FedAvg's rounds
        ("ldawa method.start=0 optimizer.lr=0", "cosines_apart", [0, 0, 0]),  # equal weights
        ("scaffold federation.rounds=1", SHARE, [0]),  # controls of zeros
        ("feddecorr method.weight=0", SHARE, [0, 0, 0]),
    ],
)
def test_the_ends(words, name, expected):
    assert noted(trained(*words.split(), EVERYONE), name) == pytest.approx(expected, abs=1e-6)


def test_the_distance_of_two_trees():
    a, b, nothing = {"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([-6.0, -8.0])}, {"w": torch.zeros(2)}
    assert [float(trees.apart(*pair)) for pair in ((a, a), (a, b), (a, nothing), (nothing, nothing))] == [0, 1, 1, 0]


def test_a_record_has_the_mean_over_the_rounds_that_have_it_with_its_bound():
    loop = trained("fedu", EVERYONE, "method.threshold=0").loop
    declared = loop.method.activity["predictor_kept"]
    assert activity(loop) == {"predictor_kept": {"mean": 1, "bound": 0.01, "measures": declared.measures}}
    assert activity(trained("fedavg").loop) == {}
