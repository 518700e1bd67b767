"""Every method under noise, secure aggregation, compression and clients that never reply.

Killed, and resumed with the cohort in another order and side by side, or on two ranks, it is the unbroken run, whose
bytes are counted by hand. `make test` has one run of each method with all that compose; `make long` has each measure by
itself.
"""

import importlib
import inspect
from pathlib import Path

import pytest

from benchmark.configuration.files import available
from benchmark.errors import ConfigError
from benchmark.execution.parallel import ParallelExecutor
from benchmark.federation import loop
from benchmark.federation.updates import combined_entries
from methods import trees
from methods.base import MethodError
from tests.methods.contract import InterfaceContract
from tests.run_helpers import build_run, collect_visits, on_two_ranks, run_until_killed, same, state

MEASURES = {
    "central": (
        *("privacy.mechanism=central", "privacy.clip=0.5", "privacy.noise_multiplier=0.001"),
        "federation.batch_norm=local",
    ),
    "secure": ("privacy.secure_aggregation=true",),
    "int8": ("compression.name=int8",),
    "dropouts": ("federation.dropout=0.3", "federation.participation=1", "federation.rounds=2", "seed=4"),
}
NO_UPDATES = {"calibre", "fedca", "fedmkd", "flesd", "flesd-cc", "flesd-two", "local", "untrained"}
"""Methods whose clients send no mean or sum as they train."""
REFUSED = {
    "central": NO_UPDATES | {"fedu2", "ldawa"},
    "secure": NO_UPDATES | {"fedu2", "ldawa"},
    "int8": NO_UPDATES | {"fedu2"},
    "dropouts": set(),
}
"""Measure -> the methods that refuse it."""


def contracts():
    """Method -> the overrides with which its own contract, or that of its base, is tested."""
    found = {}
    for file in sorted(set(Path(__file__).parent.glob("test_*.py")) - {Path(__file__)}):
        for _, made in inspect.getmembers(importlib.import_module(f"tests.methods.{file.stem}"), inspect.isclass):
            if issubclass(made, InterfaceContract) and hasattr(made, "method") and not made.variant:
                found.setdefault(made.method, made.overrides)
    return {method: found.get(method, found.get(method.partition("-")[0], ())) for method in available("method")}


OVERRIDES = contracts()
TRAINED = sorted(set(OVERRIDES) - {"untrained", "flesd-cc", "flesd-two"})  # the last two are FLESD with other settings


def case(method, *measures, long=False):
    marks = (pytest.mark.long,) if long else ()
    return pytest.param(method, measures, id="-".join((method, *measures)), marks=marks)


LIKE_OTHERS = ("centralized", "fedavg", "feddecorr", "fedprox-fedx", "fedu-fedx", "scaffold-fedx")
"""FedAvg, with a term of embeddings or for one client, and two methods at once: in `make long` of a grid over all."""
GRID = [pytest.param(m, marks=pytest.mark.long) if m in LIKE_OTHERS else m for m in TRAINED]
CASES = [
    *(case(m, *(k for k in MEASURES if m not in REFUSED[k] and k != "int8")) for m in TRAINED),
    *(case(m, measure, long=True) for m in TRAINED for measure in MEASURES if m not in REFUSED[measure]),
]


@pytest.mark.parametrize(
    ("measure", "method"), [(k, method) for k, refused in REFUSED.items() for method in sorted(refused)]
)
def test_what_does_not_compose_is_refused_in_one_line(measure, method, tmp_path):
    with pytest.raises((ConfigError, MethodError)) as error:
        build_run(tmp_path, method, *OVERRIDES[method], *MEASURES[measure]).loop.fit()  # FedU2 as it sends
    assert "\n" not in str(error.value)


@pytest.mark.ranks
@pytest.mark.parametrize(("method", "measures"), CASES)
def test_killed_and_resumed_or_on_two_ranks_it_is_the_unbroken_run(method, measures, tmp_path, monkeypatch):
    words = (*OVERRIDES[method], *(word for measure in measures for word in MEASURES[measure]))
    unbroken = build_run(tmp_path / "unbroken", method, *words)
    sizes = collect_visits(unbroken, size_by_hand(unbroken, "int8" in measures))
    unbroken.loop.fit()
    expected = state(unbroken)
    phase = unbroken.loop.method.plan(1)[-1]
    if phase.where == "clients":
        run_until_killed(tmp_path / "killed", method, "visit", 1, phase.name, *words)
        resumed = build_run(tmp_path / "killed", method, *words)
        if not resumed.loop.method.others:  # networks of several architectures are visited one by one
            resumed.loop.executor = ParallelExecutor(resumed.loop.executor, lanes=3, recorder=None)
        with monkeypatch.context() as patch:
            assign_clients = loop.assign_clients
            patch.setattr(loop, "assign_clients", lambda *args: assign_clients(*args)[::-1])
            resumed.loop.fit()
        assert same(state(resumed), expected)
    on_two_ranks(tmp_path / "ranks", method, *words)
    ranks = build_run(tmp_path / "ranks", method, *words)
    ranks.loop.restore()
    assert same(state(ranks), expected)
    sent = sum(size for (_, _, direction, _), size in unbroken.loop.ledger.lines.items() if direction == "up")
    assert sent == sum(sizes)
    if "dropouts" in measures and len(unbroken.loop.clients) > 1 and sent:
        assert any(line.get("lost") for line in unbroken.loop.history)


def size_by_hand(run, int8):
    """Bytes of a visit's reply: elements times their size, of int8 updates one byte and four for a tensor's step."""
    statistics = {path for path, _ in trees.leaves(run.loop.method.statistics())}

    def size(done):
        phase, total = done.visit.phase, 0
        if phase.where == "server":
            return 0
        for entry, tree in done.message.items():
            shrinks = int8 and entry in combined_entries(phase)
            for path, leaf in trees.leaves(tree):
                small = shrinks and leaf.is_floating_point() and path not in statistics
                total += leaf.numel() + 4 if small else leaf.numel() * leaf.element_size()
            mean = hasattr(run.loop.uplink.reductions(phase)[entry], "by")
            total += 4 * (mean and run.loop.uplink.masks(phase, entry))  # the weight of a mean
        return total

    return size
