import time
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


class TestOneRank:
    def test_nothing_is_sent(self):
        fabric, tree, flat = Fabric(accelerator="cpu", devices=1), {"w": torch.ones(2)}, torch.ones(3)
        assert broadcast(fabric, lambda: tree) is tree
        assert gather(fabric, 5) == [5]
        assert sum_over_ranks(fabric, flat).tolist() == [1, 1, 1]
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


def reduce_on_ranks(folder: Path, mine: tuple[tuple[int, ...], ...]) -> None:
    fabric = launched()
    rank = fabric.global_rank
    got = {"merged": combined(fabric, mine[rank], reply), "gathered": gather(fabric, {"rank": rank})}
    got["server"] = broadcast(fabric, lambda: SERVER)
    got["nothing"] = broadcast(fabric, dict)
    module = fabric.setup_module(torch.nn.Linear(2, 1))
    got["synchronised"] = any(isinstance(layer, DistributedDataParallel) for layer in module.modules())
    torch.save(got, folder / f"rank{rank}.pt")


def other_order(client):
    """Client 1 names the leaves of its reply in another order."""
    return {"mean": {"b": reply(1)["mean"]["b"], "a": reply(1)["mean"]["a"]}} if client else {"mean": reply(0)["mean"]}


def other_shape(client):
    """As many numbers for each client, in another shape."""
    return {"mean": {"w": torch.ones(6).view((2, 3) if client else (3, 2))}}


def mix_on_ranks(folder: Path) -> None:
    fabric = launched()
    got = {"order": combined(fabric, [fabric.global_rank], other_order)}
    try:
        combined(fabric, [fabric.global_rank], other_shape)
    except MethodError as error:
        got["shape"] = str(error)
    torch.save(got, folder / f"rank{fabric.global_rank}.pt")


class UnsendableError(Exception):
    """An error that cannot be unpickled: its constructor takes other arguments than `args` holds."""

    def __init__(self, what, why):
        super().__init__(f"{what}: {why}")


def fail_on_ranks(folder: Path, mine: tuple[Exception | str | None, ...]) -> None:
    fabric = launched()
    rank, got = fabric.global_rank, None
    try:
        with raise_on_all_ranks(fabric):
            if mine[rank] is not None:
                raise UnsendableError(mine[rank], rank) if isinstance(mine[rank], str) else mine[rank]
    except Exception as error:
        got = (type(error).__name__, str(error))
    torch.save({"caught": got, "still": gather(fabric, rank)}, folder / f"rank{rank}.pt")
    fabric.strategy.processes.close()


def fill_on_ranks(folder: Path) -> None:
    """Each rank reads a cache, and fills it if it does not exist."""
    fabric, cache = launched(), folder / "cache"

    def read():
        if not cache.exists():
            with (folder / "filled").open("a") as stream:
                stream.write(f"{fabric.global_rank} ")
            time.sleep(0.2)
            cache.touch()
        return fabric.global_rank

    def missing():
        raise ValueError(f"rank {fabric.global_rank} has no data")

    got = {"turn": rank_zero_first(fabric, read), "first": on_rank_zero(fabric, read), "caught": []}
    for how, fails in ((rank_zero_first, 1), (on_rank_zero, 0)):
        try:
            how(fabric, missing if fabric.global_rank == fails else read)
        except ValueError as error:
            got["caught"].append(str(error))
    torch.save(got, folder / f"rank{fabric.global_rank}.pt")
    fabric.strategy.processes.close()


def wait_on_ranks(folder: Path) -> None:
    """The second rank reaches the first collective later than the timeout for connecting."""
    strategy.CONNECT_TIMEOUT = timedelta(seconds=1)
    fabric = launched()
    time.sleep(2 * fabric.global_rank)
    torch.save(gather(fabric, fabric.global_rank), folder / f"rank{fabric.global_rank}.pt")
    fabric.strategy.processes.close()


def look_for_the_other(folder: Path) -> None:
    strategy.CONNECT_TIMEOUT = timedelta(seconds=1)
    with pytest.raises(RankError) as error:
        launched()
    (folder / "said").write_text(str(error.value))


def on_two_ranks(folder, function, *args):
    """What `function` saved on each of two ranks over gloo, as `run_helpers.on_two_ranks` starts them."""
    environments = by_hand({"LOCAL_RANK": "0"}, {"LOCAL_RANK": "1"})
    children = [run_helpers.in_child(function, folder, *args, environment=environment) for environment in environments]
    assert [run_helpers.finish(child, 60) for child in children] == [0, 0]
    return [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


@pytest.mark.ranks
class TestTwoRanks:
    @pytest.mark.parametrize("mine", [((3, 0), (1, 4, 2)), ((2, 1), ()), ((), (5,))])
    def test_every_reduction_equals_one_rank(self, tmp_path, mine):
        """The reductions are the same if one rank has no client."""
        clients = sorted(mine[0] + mine[1])
        alone = combined(Fabric(accelerator="cpu", devices=1), clients, reply)
        for got in on_two_ranks(tmp_path, reduce_on_ranks, mine):
            assert "nobody" not in alone
            assert same(got["merged"], alone)
            assert list(got["merged"]["each"]) == clients
            outlines = [[(x.dtype, x.shape) for _, x in trees.leaves(tree)] for tree in (got["server"], SERVER)]
            assert outlines[0] == outlines[1]
            assert same(got["server"], SERVER)
            assert got["gathered"] == [{"rank": 0}, {"rank": 1}]
            assert got["nothing"] == {}
            assert not got["synchronised"]

    def test_leaves_go_by_name_and_another_architecture_is_refused_wherever_it_was_trained(self, tmp_path):
        alone = Fabric(accelerator="cpu", devices=1)
        with pytest.raises(MethodError, match="shape"):
            combined(alone, [0, 1], other_shape)
        for got in on_two_ranks(tmp_path, mix_on_ranks):
            assert same(got["order"], combined(alone, [0, 1], other_order))
            assert "shape" in got["shape"]

    @pytest.mark.parametrize(
        ("mine", "caught"),
        [
            ((None, None), None),
            ((None, MethodError("b")), ("MethodError", "b")),
            ((MethodError("a"), None), ("MethodError", "a")),
            ((ValueError("a"), MethodError("b")), ("ValueError", "a")),
        ],
    )
    def test_what_one_raises_all_raise(self, tmp_path, mine, caught):
        """If several ranks fail, the first rank's error counts; collectives still work afterwards."""
        assert on_two_ranks(tmp_path, fail_on_ranks, mine) == [{"caught": caught, "still": [0, 1]}] * 2

    def test_an_error_that_cannot_travel_comes_as_its_traceback(self, tmp_path):
        first, second = on_two_ranks(tmp_path, fail_on_ranks, (None, "half"))
        assert second["caught"] == ("UnsendableError", "half: 1")
        assert first["caught"][0] == "RuntimeError"
        assert "UnsendableError: half: 1" in first["caught"][1]

    def test_they_wait_for_each_other_as_long_as_it_takes(self, tmp_path):
        assert on_two_ranks(tmp_path, wait_on_ranks) == [[0, 1], [0, 1]]

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
