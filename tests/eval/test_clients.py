import statistics
import zlib
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eval import linear
from eval.clients import SHOWN, by_client, gini, served, summary
from eval.features import Features
from eval.inputs import Subject
from eval.linear import Probe, fit_linear, linear_probe
from eval.protocol import evaluate
from tests.eval.conftest import seeded

PROBE = Probe(optimizer="adam", lr=0.01, epochs=200, batch_size=32)


def streams(protocol: str) -> torch.Generator:
    """A generator for each protocol."""
    return seeded(zlib.crc32(protocol.encode()))


def subject(clients: list[int], names: tuple[str, ...]) -> Subject:
    """Two classes that a line separates; the test rows of client 1 have the wrong labels."""
    x = torch.randn(80, 4, generator=seeded())
    y, owners = (x[:, 0] > 0).long(), torch.tensor(clients)
    test_x, test_y = x[: len(clients)], torch.where(owners == 1, 1 - y[: len(clients)], y[: len(clients)])
    features = Features(train_x=x, train_y=y, test_x=test_x, test_y=test_y, num_classes=2, test_clients=owners)
    return Subject(features=features, client_names=names)


def test_each_client_counts_once_whatever_its_size():
    """Rows of no client and clients without rows are left out."""
    scores = by_client(subject([0] * 30 + [1] * 10 + [-1] * 7, ("north", "south", "west")), PROBE, seeded())
    north, south = scores["accuracy of north"], scores["accuracy of south"]
    assert north > 90
    assert south < 10
    assert scores == {
        "accuracy": pytest.approx((north + south) / 2), "accuracy_worst_tenth": south,
        "spread": pytest.approx((north - south) / 2), "clients": 2, "accuracy of north": north,
        "accuracy of south": south,
    }  # fmt: skip


@settings(max_examples=20)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4), seed=st.integers(0, 999))
def test_the_probe_is_that_of_the_linear_probe_split_by_client(sizes, seed):
    """However unequal the clients: their accuracies, weighted by images, are the probe's on all of them."""
    generator = torch.Generator().manual_seed(seed)
    owners = torch.tensor([client for client, size in enumerate(sizes) for _ in range(size)])
    x, test_x = (torch.randn(count, 3, generator=generator) for count in (30, len(owners)))
    y, test_y = (torch.randint(3, (len(each),), generator=generator) for each in (x, test_x))
    features = Features(train_x=x, train_y=y, test_x=test_x, test_y=test_y, num_classes=3, test_clients=owners)
    one = Subject(features=features, client_names=[f"c{client}" for client in range(len(sizes))])

    scored = evaluate(one, ["linear/v1", "clients/v2"], streams)
    scores = {(score.protocol, score.metric): score.value for score in scored}
    of_clients = [scores["clients/v2", f"accuracy of c{client}"] for client in range(len(sizes))]
    weighted = sum(size * value for size, value in zip(sizes, of_clients, strict=True)) / sum(sizes)
    assert weighted == pytest.approx(scores["linear/v1", "accuracy"], abs=1e-4)


def test_the_first_version_draws_numbers_of_its_own():
    asked = []
    given = subject([0] * 20 + [1] * 20, ("north", "south"))
    evaluate(given, ["clients/v1", "clients/v2", "linear/v1"], lambda name: asked.append(name) or seeded())
    assert asked == ["clients/v1", "linear/v1", "linear/v1"]


def test_of_many_clients_there_are_the_mean_and_the_worst_tenth_rounded_up():
    scores = by_client(subject(list(range(40)), tuple(map(str, range(40)))), PROBE, seeded())
    assert set(scores) == {"accuracy", "accuracy_worst_tenth", "spread", "clients"}
    assert scores["accuracy_worst_tenth"] == 75  # of four clients of one image, one of which has the wrong label
    for clients, worst in ((1, 0.0), (10, 0.0), (11, 0.5), (20, 0.5), (21, 1.0)):
        scores = summary({str(k): float(k) for k in range(clients)})
        assert (scores["accuracy_worst_tenth"], "accuracy of 0" in scores) == (worst, clients <= 20)


def test_each_client_is_scored_by_its_own_encoder():
    """Equal encoders of their own score as a common one; without test images of its own a client has no score."""
    common = subject([0] * 25 + [1] * 10 + [2] * 5, ("north", "south", "west"))
    whole = common.features

    def own(client):
        rows = whole.test_clients == client
        return replace(whole, test_x=whole.test_x[rows], test_y=whole.test_y[rows], test_clients=torch.empty(0))

    functions = {name: partial(own, client) for client, name in enumerate(common.client_names)}
    short = replace(PROBE, epochs=1)  # which depends on the numbers drawn
    assert by_client(replace(common, own_features=functions), short, seeded()) == by_client(common, short, seeded())
    scores = by_client(common, PROBE, seeded())
    blind = replace(own(0), train_x=torch.zeros(80, 4), test_x=torch.zeros(25, 4))
    others = by_client(replace(common, own_features=functions | {"north": lambda: blind}), PROBE, seeded())
    assert others.pop("accuracy of north") < 70  # all of one class
    assert others.items() >= {name: scores[name] for name in ("accuracy of south", "accuracy of west")}.items()
    assert by_client(replace(common, own_features={}), PROBE, seeded()) == {}


SHORT = replace(PROBE, epochs=10)
SHARING = ("linear/v1", "clients/v2", "by-client/v1")


@pytest.mark.parametrize("ids", [SHARING, SHARING[::-1], ("by-client/v1", "linear/v1", "clients/v1", "clients/v2")])
def test_protocols_that_share_a_probe_train_it_once_and_score_what_they_score_alone(ids, monkeypatch):
    """clients/v1 has random numbers of its own, and the probe of the members' labels has rows of its own."""
    one, trained = TestServed.natural([20] * 4, [0], shift=1.0), []

    def fit(x, *args, **kwargs):
        trained.append(len(x))
        return fit_linear(x, *args, **kwargs)

    monkeypatch.setattr(linear, "fit_linear", fit)
    alone = {}
    for name in ids:
        fresh = replace(one, features=replace(one.features))
        alone |= {score: score.value for score in evaluate(fresh, [name], streams)}
    assert len(trained) == len(ids) + 1
    trained.clear()
    assert {score: score.value for score in evaluate(one, ids, streams)} == alone
    assert sorted(trained) == [36, 48] + [48] * ("clients/v1" in ids)


def test_a_probe_that_is_not_trained_again_leaves_the_generator_as_if_it_were():
    features, generators = subject([0] * 40, ("north",)).features, (seeded(), seeded())
    first, second = (linear.linear_predictions(features, SHORT, generator) for generator in generators)
    assert first is second
    assert torch.equal(generators[0].get_state(), generators[1].get_state())
    others = (replace(SHORT, epochs=11), seeded()), (SHORT, seeded(1)), (SHORT, generators[0])
    assert all(linear.linear_predictions(features, *other) is not first for other in others)


class TestServed:
    """`by-client/v1` against a slow retelling: one client, one test row and one pair of clients after another."""

    @staticmethod
    def natural(sizes: list[int], held: list[int], shift: float = 0.0, seed: int = 0) -> Subject:
        """Clients of so many test rows, of whom `held` never trained; theirs are shifted."""
        generator = torch.Generator().manual_seed(seed)
        count = len(sizes)
        owners = torch.tensor([client for client, size in enumerate(sizes) for _ in range(size)])
        holders = torch.arange(12 * count) % count
        never = torch.tensor(held, dtype=torch.int64)
        x, test_x = (
            torch.randn(len(each), 3, generator=generator) + shift * torch.isin(each, never)[:, None]
            for each in (holders, owners)
        )
        y, test_y = ((each.sum(dim=1) + torch.randn(len(each), generator=generator) > 0).long() for each in (x, test_x))
        holders[torch.isin(holders, never)] = -1
        features = Features(
            train_x=x,
            train_y=y,
            train_clients=holders,
            test_x=test_x,
            test_y=test_y,
            num_classes=2,
            test_clients=owners,
        )
        names = [f"c{client:03}" for client in range(count)]
        return Subject(features=features, client_names=names, trained={n for k, n in enumerate(names) if k not in held})

    @staticmethod
    def retold(given: Subject, rows: list[int]) -> dict[str, list[float]]:
        """Accuracies of the clients that trained and of the others, by a probe on some of the training rows."""
        kept = given.features
        kept = replace(kept, train_x=kept.train_x[rows], train_y=kept.train_y[rows], train_clients=torch.empty(0))
        told: dict[str, list[float]] = {"": [], "_unseen": []}
        for number, name in enumerate(given.client_names):
            mine = [row for row, client in enumerate(kept.test_clients.tolist()) if client == number]
            if mine:
                alone = replace(kept, test_x=kept.test_x[mine], test_y=kept.test_y[mine], test_clients=torch.empty(0))
                told["" if name in given.trained else "_unseen"].append(
                    linear_probe(alone, SHORT, seeded())["accuracy"]
                )
        return told

    @settings(max_examples=12, deadline=None)
    @given(
        sizes=st.lists(st.integers(1, 5), min_size=2, max_size=13), share=st.floats(0, 0.9), seed=st.integers(0, 999)
    )
    def test_it_is_what_a_slow_retelling_says(self, sizes, share, seed):
        held = list(range(int(share * (len(sizes) - 1))))
        given_ = self.natural(sizes, held, shift=1.0, seed=seed)
        every = list(range(len(given_.features.train_y)))
        members = [row for row in every if given_.features.train_clients[row] >= 0]
        scores = served(given_, SHORT, seeded())
        expected = {}
        for labels, rows in (("", every), ("_member_labels", members)):
            if labels and not held:
                continue
            for kind, values in self.retold(given_, rows).items():
                if not values:
                    continue
                worst = sorted(values)[: max(1, -(-len(values) // 10))]
                pairs = [abs(one - other) for one in values for other in values]
                mean = statistics.fmean(values)
                expected |= {
                    f"accuracy{kind}{labels}": mean,
                    f"accuracy_worst_tenth{kind}{labels}": statistics.fmean(worst),
                    f"spread{kind}{labels}": statistics.pstdev(values),
                    f"gini{kind}{labels}": statistics.fmean(pairs) / (2 * mean) if mean else 0.0,
                } | ({} if labels else {f"clients{kind}": len(values)})
        assert {name: value for name, value in scores.items() if not name.startswith("accuracy of ")} == {
            name: pytest.approx(value, abs=1e-4) for name, value in expected.items()
        }

    def test_who_is_served_worst_is_told_by_name_of_either_kind_and_all_are_saved(self):
        given_ = self.natural([4] * 60, list(range(25)))
        saved = {}
        scores = served(replace(given_, save_arrays=saved.__setitem__), PROBE, seeded())
        drawn = saved["by-client"]
        each = dict(zip(drawn["clients"].tolist(), drawn["accuracy"].tolist(), strict=True))
        assert (list(each), drawn["unseen"].tolist()) == (list(range(60)), [k < 25 for k in range(60)])
        named = {int(name[-3:]): value for name, value in scores.items() if name.startswith("accuracy of ")}
        assert named.items() <= {k: pytest.approx(value) for k, value in each.items()}.items()
        for kind in (range(25), range(25, 60)):
            ordered = sorted(kind, key=lambda k: (each[k], k))
            assert [k for k in named if k in kind] == ordered[:SHOWN]

    def test_where_it_is_not_known_who_trained_there_is_one_group(self):
        given_ = replace(self.natural([3] * 4, []), trained=None)
        names = {name for name in served(given_, PROBE, seeded()) if not name.startswith("accuracy of ")}
        assert names == {"accuracy", "accuracy_worst_tenth", "spread", "gini", "clients"}

    def test_labels_of_clients_that_never_trained_count_for_the_first_probe_alone(self):
        given_ = self.natural([20] * 4, [0], shift=4.0)
        wrong = given_.features
        wrong = replace(wrong, train_y=torch.where(wrong.train_clients < 0, 1 - wrong.train_y, wrong.train_y))
        one, other = (served(replace(given_, features=each), PROBE, seeded()) for each in (given_.features, wrong))
        assert one["accuracy_unseen"] > other["accuracy_unseen"]
        names = [name for name in one if name.endswith("_member_labels")]
        assert len(names) == 8
        assert [one[name] for name in names] == [other[name] for name in names]

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.floats(1, 100), min_size=1, max_size=9))
    def test_gini_is_half_the_mean_difference_over_the_mean(self, values):
        mean = statistics.fmean(values)
        pairs = statistics.fmean(abs(one - other) for one in values for other in values)
        assert gini(values) == pytest.approx(pairs / (2 * mean), abs=1e-9)
