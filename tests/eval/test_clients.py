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
from eval.linear import Probe, linear_probe
from eval.protocol import EvalError, evaluate

PROBE = Probe(optimizer="adam", lr=0.01, epochs=200, batch_size=32)


def stream():
    return torch.Generator().manual_seed(0)


def subject(clients: list[int], names: tuple[str, ...]) -> Subject:
    """Two classes that a line separates; the test rows of client 1 have the wrong labels."""
    x = torch.randn(80, 4, generator=stream())
    y = (x[:, 0] > 0).long()
    owners = torch.tensor(clients)
    test_y = torch.where(owners == 1, 1 - y[: len(clients)], y[: len(clients)])
    features = Features(
        train_x=x, train_y=y, test_x=x[: len(clients)], test_y=test_y, num_classes=2, test_clients=owners
    )
    return Subject(features=features, client_names=names)


def rows_of(features: Features, rows: torch.Tensor) -> Features:
    """The features with some of the test rows."""
    return replace(
        features, test_x=features.test_x[rows], test_y=features.test_y[rows], test_clients=features.test_clients[rows]
    )


def test_each_client_counts_once_whatever_its_size():
    scores = by_client(subject([0] * 30 + [1] * 10, ("north", "south")), PROBE, stream())
    assert scores["accuracy of north"] > 90
    assert scores["accuracy of south"] < 10
    assert scores["accuracy"] == pytest.approx((scores["accuracy of north"] + scores["accuracy of south"]) / 2)
    assert scores["accuracy_worst_tenth"] == scores["accuracy of south"]
    assert scores["spread"] == pytest.approx((scores["accuracy of north"] - scores["accuracy of south"]) / 2)
    assert scores["clients"] == 2


def test_one_client_is_the_probe_itself():
    one = subject([0] * 40, ("all",))
    assert by_client(one, PROBE, stream())["accuracy"] == pytest.approx(
        linear_probe(one.features, PROBE, stream())["accuracy"]
    )


@settings(derandomize=True, deadline=None, max_examples=20)
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

    def streams(protocol):
        asked.append(protocol)
        return stream()

    evaluate(subject([0] * 20 + [1] * 20, ("north", "south")), ["clients/v1", "clients/v2", "linear/v1"], streams)
    assert asked == ["clients/v1", "linear/v1", "linear/v1"]


def test_of_many_clients_there_are_the_mean_and_the_worst_tenth():
    scores = by_client(subject(list(range(40)), tuple(map(str, range(40)))), PROBE, stream())
    assert set(scores) == {"accuracy", "accuracy_worst_tenth", "spread", "clients"}
    assert scores["accuracy_worst_tenth"] == 75  # of four clients of one image, one of which has the wrong label


@pytest.mark.parametrize(("clients", "worst"), [(1, 0.0), (10, 0.0), (11, 0.5), (20, 0.5), (21, 1.0)])
def test_the_worst_tenth_of_the_clients_is_rounded_up(clients, worst):
    assert summary({str(k): float(k) for k in range(clients)})["accuracy_worst_tenth"] == worst


def test_rows_of_no_client_and_clients_without_rows_are_left_out():
    scores = by_client(subject([0] * 20 + [-1] * 20, ("north", "south")), PROBE, stream())
    assert scores["clients"] == 1
    assert "accuracy of south" not in scores


def test_each_client_is_scored_by_its_own_encoder():
    common = subject([0] * 30 + [1] * 10, ("north", "south"))
    blind = Features(
        train_x=torch.zeros(80, 4), train_y=common.features.train_y, test_x=torch.zeros(30, 4),
        test_y=common.features.test_y[:30], num_classes=2,
    )  # fmt: skip
    good = rows_of(common.features, torch.arange(40) >= 30)
    good.test_y = 1 - good.test_y
    scores = by_client(replace(common, own_features={"north": lambda: blind, "south": lambda: good}), PROBE, stream())
    assert scores["accuracy of north"] < 70  # all of one class
    assert scores["accuracy of south"] > 90
    assert scores["clients"] == 2


def test_equal_encoders_of_their_own_score_as_a_common_one():
    common = subject([0] * 25 + [1] * 10 + [2] * 5, ("north", "south", "west"))

    def own(client):
        return rows_of(common.features, common.features.test_clients == client)

    functions = {name: partial(own, client) for client, name in enumerate(common.client_names)}
    assert by_client(replace(common, own_features=functions), PROBE, stream()) == by_client(common, PROBE, stream())


def test_without_test_images_of_its_own_a_client_has_no_score():
    assert by_client(replace(subject([0] * 40, ("north",)), own_features={}), PROBE, stream()) == {}


def test_features_that_name_no_clients_are_refused():
    with pytest.raises(EvalError, match="clients/v1 requires more than features: it scores clients or domains apart"):
        evaluate(subject([-1] * 20, ()), ["clients/v1"])
