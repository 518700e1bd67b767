import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric
from torch.nn.parallel import DistributedDataParallel

from benchmark.distributed import strategy
from benchmark.distributed.collectives import (
    broadcast,
    gather,
    on_rank_zero,
    raise_on_all_ranks,
    rank_zero_first,
    sum_over_ranks,
)
from benchmark.distributed.strategy import IndependentRanks
from benchmark.errors import RankError
from benchmark.federation.aggregation import Aggregation
from methods import trees
from methods.base import Cat, Client, Each, Mean, MethodError, Phase, Sum, Visit
from tests import run_helpers
from tests.run_helpers import by_hand, same


def test_nothing_is_sent_by_one_rank():
    fabric, tree = Fabric(accelerator="cpu", devices=1), {"w": torch.ones(2)}
    assert broadcast(fabric, lambda: tree) is tree
    assert gather(fabric, 5) == [5]
    assert sum_over_ranks(fabric, torch.ones(3)).tolist() == [1, 1, 1]
    assert on_rank_zero(fabric, lambda: 5) == rank_zero_first(fabric, lambda: 5) == 5


UPLINK = {
    "mean": Mean("examples"), "layers": Mean(lambda server, message: message["weight"]), "weight": Sum(),
    "rows": Cat(), "each": Each(), "nobody": Mean(), "half": Mean("clients", over="clients"),
}  # fmt: skip


def reply(client):
    rng = torch.Generator().manual_seed(client)
    rows = torch.full((client + 1, 2), client)
    return {
        "mean": {"a": {"w": torch.randn(50, generator=rng)}, "b": torch.randn((), generator=rng)},
        "layers": {"u": torch.randn(3, generator=rng), "v": torch.randn(2, 2, generator=rng)},
        "weight": {"u": torch.rand((), generator=rng), "v": torch.rand((), generator=rng)},
        "rows": {"r": rows},
        "each": {"R": rows.float() / 3},
        "half": {"w": torch.randn(4, generator=rng).bfloat16()},
    }


SERVER = {
    "weights": {"w": torch.arange(6.0).view(3, 2), "n": torch.tensor(2.5)},
    "counts": {"k": torch.tensor([1, 2]), "on": torch.tensor([True, False])},
    "half": {"w": torch.ones(2, 2, dtype=torch.bfloat16), "empty": torch.zeros(0, 3)},
    "scales": {0: {"d": torch.ones(2)}, 7: {"d": torch.zeros(2)}},
}


def combined(fabric, clients, replies):
    totals = Aggregation(UPLINK)
    for client in clients:
        visit = Visit(0, 1, Phase("fit"), Client(client, 3 + client), {}, {}, torch.Generator())
        totals.add(visit, replies(client), {})
    merged = totals.merged(fabric, gather(fabric, totals.staged(fabric)))
    return {"clients": merged.clients, **merged}


def launched():
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=2, strategy=IndependentRanks())
    fabric.launch()
    return fabric


SHARES = [((3, 0), (1, 4, 2)), ((2, 1), ()), ((), (5,))]
"""Clients of both ranks."""


def reduce_on_ranks(fabric: Fabric, folder: Path) -> dict:
    module, rank = fabric.setup_module(torch.nn.Linear(2, 1)), fabric.global_rank
    with pytest.raises(MethodError, match="shape"):
        combined(fabric, [rank], other_shape)
    return {
        "order": combined(fabric, [rank], other_order),
        "merged": [combined(fabric, mine[rank], reply) for mine in SHARES],
        "gathered": gather(fabric, {"rank": rank}),
        "server": broadcast(fabric, lambda: SERVER),
        "nothing": broadcast(fabric, dict),
        "synchronised": any(isinstance(layer, DistributedDataParallel) for layer in module.modules()),
    }


def other_order(client):
    """Client 1 names the leaves of its reply in another order."""
    return {"mean": dict(sorted(reply(client)["mean"].items(), reverse=bool(client)))}


def other_shape(client):
    """As many numbers for each client, in another shape."""
    return {"mean": {"w": torch.ones(6).view((2, 3) if client else (3, 2))}}


class UnsendableError(Exception):
    """An error that cannot be unpickled: its constructor takes other arguments than `args` holds."""

    def __init__(self, what, why):
        super().__init__(f"{what}: {why}")


FAILURES = [  # the errors of both ranks
    (None, None), (None, MethodError("b")), (MethodError("a"), None), (ValueError("a"), MethodError("b")),
    (None, UnsendableError("half", 1)),
]  # fmt: skip


def fail_on_ranks(fabric: Fabric, folder: Path) -> list:
    """What each rank catches; collectives still work afterwards."""
    caught: list = []
    for mine in FAILURES:
        try:
            with raise_on_all_ranks(fabric):
                if mine[fabric.global_rank] is not None:
                    raise mine[fabric.global_rank]
            caught.append(None)
        except Exception as error:
            caught.append((error.on_all_ranks, type(error).__name__, str(error), *getattr(error, "__notes__", [])))
        assert gather(fabric, fabric.global_rank) == [0, 1]
    return caught


def fill_on_ranks(fabric: Fabric, folder: Path) -> dict:
    """Each rank reads a cache, and fills it if it does not exist."""

    def read():
        if not (folder / "cache").exists():
            with (folder / "filled").open("a") as stream:
                stream.write(f"{fabric.global_rank} ")
            time.sleep(0.2)
            (folder / "cache").touch()
        return fabric.global_rank

    def missing():
        raise ValueError(f"rank {fabric.global_rank} has no data")

    got = {"turn": rank_zero_first(fabric, read), "first": on_rank_zero(fabric, read), "caught": []}
    for how, fails in ((rank_zero_first, 1), (on_rank_zero, 0)):
        try:
            how(fabric, missing if fabric.global_rank == fails else read)
        except ValueError as error:
            got["caught"].append(str(error))
    return got


def wait_on_ranks(fabric: Fabric, folder: Path) -> list[int]:
    """The second rank reaches the first collective later than the timeout for connecting."""
    time.sleep(2 * fabric.global_rank)
    return gather(fabric, fabric.global_rank)


def work_on_rank(folder: Path, function: Callable, connect: float | None) -> None:
    if connect is not None:
        strategy.CONNECT_TIMEOUT = timedelta(seconds=connect)
    fabric = launched()
    torch.save(function(fabric, folder), folder / f"rank{fabric.global_rank}.pt")
    fabric.strategy.processes.close()  # in order: a slower rank would take this one for dead


def look_for_the_other(folder: Path) -> None:
    strategy.CONNECT_TIMEOUT = timedelta(seconds=1)
    with pytest.raises(RankError) as error:
        launched()
    (folder / "said").write_text(str(error.value))


def on_two_ranks(folder, function, connect=None):
    """What `function` returned on each of two ranks over gloo, which have `connect` seconds to find each other."""
    environments = by_hand({"LOCAL_RANK": "0"}, {"LOCAL_RANK": "1"})
    work = (work_on_rank, folder, function, connect)
    children = [run_helpers.in_child(*work, environment=environment) for environment in environments]
    assert [run_helpers.finish(child, 60) for child in children] == [0, 0]
    return [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


@pytest.mark.ranks
class TestTwoRanks:
    def test_every_reduction_equals_one_rank(self, tmp_path):
        """Also if one rank has no client. Leaves go by name; another shape is refused wherever it was trained."""
        fabric = Fabric(accelerator="cpu", devices=1)
        with pytest.raises(MethodError, match="shape"):
            combined(fabric, [0, 1], other_shape)
        for got in on_two_ranks(tmp_path, reduce_on_ranks):
            assert same(got["order"], combined(fabric, [0, 1], other_order))
            for merged, mine in zip(got["merged"], SHARES, strict=True):
                clients = sorted(mine[0] + mine[1])
                assert same(merged, combined(fabric, clients, reply))
                assert list(merged["each"]) == clients
                assert "nobody" not in merged
            outlines = [[(x.dtype, x.shape) for _, x in trees.leaves(tree)] for tree in (got["server"], SERVER)]
            assert outlines[0] == outlines[1]
            assert same(got["server"], SERVER)
            assert (got["gathered"], got["nothing"], got["synchronised"]) == ([{"rank": 0}, {"rank": 1}], {}, False)

    def test_what_one_raises_all_raise(self, tmp_path):
        """If several ranks fail, the first rank's error counts; others than its rank are told where it was raised."""
        errors = [("MethodError", "b"), ("MethodError", "a"), ("ValueError", "a"), ("UnsendableError", "half: 1")]
        raisers = [1, 0, 0, 1]
        for rank, (nothing, *caught) in enumerate(on_two_ranks(tmp_path, fail_on_ranks)):
            assert nothing is None
            for (kind, said), raiser, (shared, name, message, *notes) in zip(errors, raisers, caught, strict=True):
                expected = (
                    (kind, said) if kind != "UnsendableError" or rank == raiser else ("RuntimeError", f"{kind}: {said}")
                )
                assert (shared, name, message) == (True, *expected)
                assert len(notes) == (rank != raiser)
                for note in notes:
                    assert note.startswith(f"raised on rank {raiser}:\nTraceback")
                    assert note.endswith(f"{kind}: {said}")
                    assert "raise mine[fabric.global_rank]" in note

    def test_they_wait_for_each_other_as_long_as_it_takes(self, tmp_path):
        assert on_two_ranks(tmp_path, wait_on_ranks, connect=1) == [[0, 1], [0, 1]]

    def test_one_that_does_not_come_is_missed(self, tmp_path):
        (environment, _) = by_hand({"LOCAL_RANK": "0"}, {})
        assert run_helpers.finish(run_helpers.in_child(look_for_the_other, tmp_path, environment=environment), 60) == 0
        line = (tmp_path / "said").read_text()
        assert line.startswith("rank 0 of 2 does not find the others: ")
        assert "\n" not in line

    def test_a_cache_is_filled_once_and_the_first_rank_works_for_all(self, tmp_path):
        for rank, got in enumerate(on_two_ranks(tmp_path, fill_on_ranks)):
            assert got == {"turn": rank, "first": 0, "caught": ["rank 1 has no data", "rank 0 has no data"]}
        assert (tmp_path / "filled").read_text() == "0 "

    @pytest.mark.parametrize("method", ["fedavg", "ssd"])
    @pytest.mark.parametrize("policy", ["average", "recalibrate"])
    def test_a_rank_without_a_client_plays_on(self, tmp_path, method, policy):
        """One client per round on two ranks."""
        overrides = ("federation.participation=0.25", f"federation.batch_norm={policy}")
        run_helpers.on_two_ranks(tmp_path / "two", method, *overrides)
        both = run_helpers.build_run(tmp_path / "two", method, *overrides)
        both.loop.restore()
        alone = run_helpers.train_run(tmp_path / "one", method, *overrides)
        assert alone.loop.ledger.visits[1] == 1
        assert both.loop.round == 3
        assert same(run_helpers.state(both), run_helpers.state(alone))
