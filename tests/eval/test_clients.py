import zlib
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.clients import by_client, summary
from eval.features import Features
from eval.inputs import Subject
from eval.linear import Probe
from eval.protocol import evaluate
from tests.eval.conftest import seeded

PROBE = Probe(optimizer="adam", lr=0.01, epochs=200, batch_size=32)


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
        "accuracy": pytest.approx((north + south) / 2),
        "accuracy_worst_tenth": south,
        "spread": pytest.approx((north - south) / 2),
        "clients": 2,
        "accuracy of north": north,
        "accuracy of south": south,
    }


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

    def streams(protocol):
        return torch.Generator().manual_seed(zlib.crc32(protocol.encode()))

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
