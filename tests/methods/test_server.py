"""Server optimisers against FedAvg, each other and the papers' formulas, by hand and in a run."""

import pytest
import torch

from methods import trees
from methods.base import MethodError
from methods.server import Adam, Momentum, Yogi
from tests.run_helpers import build_run, difference, run_until_killed, same, state, train_run, trained

SGD = "server_optimizer.class=methods.server.Momentum"


def tree(*values: float):
    return {"encoder": {"w": torch.tensor(values)}}


def test_momentum_by_hand() -> None:
    server = Momentum(lr=0.5, momentum=0.9)
    weights, velocity = server.step(tree(1.0, 2.0), tree(2.0, 2.0), server.init(tree(1.0, 2.0)))
    torch.testing.assert_close(weights, tree(1.5, 2.0))
    weights, velocity = server.step(weights, tree(1.5, 3.0), velocity)
    torch.testing.assert_close(velocity["velocity"], tree(0.9, 1.0))
    torch.testing.assert_close(weights, tree(1.95, 2.5))


@pytest.mark.parametrize("kind", [Adam, Yogi])
def test_adaptive_steps_by_hand(kind) -> None:
    lr, b1, b2, tau = 0.1, 0.8, 0.9, 0.01
    server = kind(lr=lr, momentum=b1, decay=b2, adaptivity=tau)
    w, m, v = 1.0, 0.0, tau**2
    weights, moments = tree(w), server.init(tree(w))
    for delta in (0.5, -0.2, 1e-3, 0.0):
        weights, moments = server.step(weights, trees.add(weights, tree(delta)), moments)
        m = b1 * m + (1 - b1) * delta
        sign = (v > delta**2) - (v < delta**2)
        v = b2 * v + (1 - b2) * delta**2 if kind is Adam else v - (1 - b2) * delta**2 * sign
        w += lr * m / (v**0.5 + tau)
        assert weights["encoder"]["w"].item() == pytest.approx(w, rel=1e-4)
        assert moments["v"]["encoder"]["w"].item() == pytest.approx(v, rel=1e-3)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "ssd", "fedsc", "fedema", "ldawa"])
def test_momentum_of_zero_is_the_mean(method) -> None:
    words = (method, "federation.rounds=2", *(("method.passes=1",) if method == "fedsc" else ()))
    plain, none = (trained(*words, *own).loop.server for own in ((), (SGD, "server_optimizer.momentum=0")))
    assert difference({key: value for key, value in none.items() if key != "optimizer"}, plain) < 1e-5


@pytest.mark.parametrize("kind", ["Momentum", "Adam", "Yogi"])
def test_a_run_is_resumed_to_the_same_bits_and_sends_nothing_more(kind, tmp_path) -> None:
    words = ("fedavg", f"server_optimizer.class=methods.server.{kind}")
    whole, plain = trained(*words), trained("fedavg").loop
    assert difference(whole.loop.server["weights"], plain.server["weights"]) > 1e-6
    assert whole.loop.ledger.lines == plain.ledger.lines
    run_until_killed(tmp_path, "fedavg", "written", 1, "fit", *words[1:])
    assert same(state(train_run(tmp_path, *words)), state(whole))


def test_running_statistics_take_the_mean() -> None:
    words = ("fedavg", "federation.rounds=1")
    plain, own = (trained(*words, *more).loop.server["weights"] for more in ((), (SGD, "server_optimizer.lr=0.25")))
    for (path, expected), (_, actual) in zip(trees.leaves(plain), trees.leaves(own), strict=True):
        assert torch.equal(expected, actual) == ("running" in path[-1])


@pytest.mark.parametrize(("override", "message"), [("lr=0", "above 0"), ("momentum=1", "at least 0 and below 1")])
def test_what_cannot_be_is_refused(override, message, tmp_path) -> None:
    with pytest.raises(MethodError, match=message):
        build_run(tmp_path, "fedavg", SGD, f"server_optimizer.{override}")
