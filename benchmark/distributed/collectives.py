"""Exchange of values and errors between ranks: gather, broadcast, sum, and work on the first rank."""

import contextlib
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from torch import Tensor

from benchmark.distributed.launch import RankProcesses
from benchmark.distributed.strategy import IndependentRanks
from methods import trees
from methods.trees import Tree

T = TypeVar("T")


def _processes(fabric: Fabric) -> RankProcesses:
    assert isinstance(fabric.strategy, IndependentRanks)
    return fabric.strategy.processes


def gather(fabric: Fabric, value: T) -> list[T]:
    """`value` of every rank, in the order of ranks, on every rank; any picklable value."""
    if fabric.world_size == 1:
        return [value]
    values: list[Any] = [None] * fabric.world_size
    with _processes(fabric).collective():
        dist.all_gather_object(values, value)
    return values


def run_and_gather(fabric: Fabric, work: Callable[[], T]) -> list[T]:
    """`work()` of every rank, in the order of ranks, on every rank.

    An error on one rank is raised on every rank, so that none waits for a rank that has given up. There it has the
    attribute `on_all_ranks`, for one of them to print it.
    """
    if fabric.world_size == 1:
        return [work()]
    result, failure = None, None
    try:
        result = work()
    except Exception as error:
        failure = error
    outcomes = gather(fabric, (result, failure and _sent(failure, fabric.global_rank)))
    for rank, (_, sent) in enumerate(outcomes):
        if sent is not None:
            raised = failure if failure is not None and rank == fabric.global_rank else sent
            vars(raised)["on_all_ranks"] = True
            raise raised
    return [cast(T, result) for result, _ in outcomes]


@contextlib.contextmanager
def raise_on_all_ranks(fabric: Fabric) -> Iterator[None]:
    """Raises at the end, on every rank, what any rank raises within."""
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error

    def outcome() -> None:
        if failure is not None:
            raise failure

    run_and_gather(fabric, outcome)


def rank_zero_first(fabric: Fabric, work: Callable[[], T]) -> T:
    """`work()` on the first rank, then on the first of every machine, then on the rest: a cache is filled only once."""
    results: list[T] = []
    for is_turn in (fabric.global_rank == 0, fabric.local_rank == 0, True):
        with raise_on_all_ranks(fabric):
            if is_turn and not results:
                results.append(work())
    return results[0]


def on_rank_zero(fabric: Fabric, work: Callable[[], T], *, all_cores: bool = True) -> T:
    """A copy of the first rank's `work()`, on every rank; the others wait, and raise what it raises.

    all_cores: whether the first rank may use the waiting ranks' cores. Training does without: its results are bitwise
    those of a run on one rank.
    """
    if fabric.world_size == 1:
        return work()

    def work_on_first() -> T | None:
        if fabric.global_rank != 0:
            return None
        with _processes(fabric).all_cores() if all_cores else contextlib.nullcontext():
            return work()

    return cast(T, run_and_gather(fabric, work_on_first)[0])


def _sent(error: Exception, rank: int) -> Exception:
    """An error as other ranks raise it, with a note of where it was raised; one that cannot be pickled by its name."""
    try:
        sent = cast(Exception, pickle.loads(pickle.dumps(error)))
    except Exception:
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note(f"raised on rank {rank}:\n{''.join(traceback.format_exception(error)).rstrip()}")
    return sent


def sum_over_ranks(fabric: Fabric, flat: Tensor) -> Tensor:
    """The sum of a flat tensor over ranks, in place."""
    if fabric.world_size > 1:
        with _processes(fabric).collective():
            dist.all_reduce(flat)
    return flat


def broadcast(fabric: Fabric, make: Callable[[], Tree]) -> Tree:
    """The Tree that rank 0 makes, on every rank: its outline as an object, its values flat, dtype by dtype."""
    if fabric.world_size == 1:
        return make()
    made: list[Tree] = []

    def outline() -> Tree:
        made.append(make())
        return trees.map(lambda leaf: leaf.to("meta"), made[0])

    shape = on_rank_zero(fabric, outline, all_cores=False)
    result = made[0] if made else trees.zeros(shape, fabric.device)
    leaves = [leaf for _, leaf in trees.leaves(result)]
    for dtype in sorted({leaf.dtype for leaf in leaves}, key=str):
        group = [leaf for leaf in leaves if leaf.dtype == dtype]
        flat = torch.cat([leaf.reshape(-1) for leaf in group])
        with _processes(fabric).collective():
            dist.broadcast(flat, src=0)
        for leaf, values in zip(group, flat.split([leaf.numel() for leaf in group]), strict=True):
            leaf.copy_(values.view(leaf.shape))
    return result


def broadcast_with_notes(
    fabric: Fabric, update: Callable[[], Tree], notes: Mapping[str, Any]
) -> tuple[Tree, dict[str, float]]:
    """What rank 0's `update` returns, and the numbers or 0-d tensors that are in its `notes` by then, on every rank."""

    def make() -> Tree:
        server = update()
        numbers = {key: torch.as_tensor(note, dtype=torch.float64, device=fabric.device) for key, note in notes.items()}
        return {"server": server, "notes": numbers}

    made = broadcast(fabric, make)
    return made["server"], {name: float(number) for name, number in made["notes"].items()}
