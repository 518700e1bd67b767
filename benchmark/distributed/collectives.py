"""How Fabric places clients on devices: ranks share the cohort, and gradients are never synchronised."""

import contextlib
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from torch import Tensor

from benchmark.distributed import heartbeat, launch
from methods import trees
from methods.trees import Tree

T = TypeVar("T")


def gather(fabric: Fabric, value: T) -> list[T]:
    """`value` of every rank, in the order of ranks, on every rank; any picklable value."""
    if fabric.world_size == 1:
        return [value]
    values: list[Any] = [None] * fabric.world_size
    with heartbeat.exchange():
        dist.all_gather_object(values, value)
    return values


def run_and_gather(fabric: Fabric, work: Callable[[], T]) -> list[T]:
    """What `work()` gives on every rank, in the order of ranks, on every rank.

    What one rank raises, every rank raises: none waits for one that has given up.
    """
    if fabric.world_size == 1:
        return [work()]
    done, failed = _tried(work)
    told = gather(fabric, (done, _portable(failed)))
    for rank, (_, error) in enumerate(told):
        if error is not None:
            raise error if failed is None or rank != fabric.global_rank else failed
    return [cast(T, done) for done, _ in told]


@contextlib.contextmanager
def raise_on_all_ranks(fabric: Fabric) -> Iterator[None]:
    """What one rank raises within, every rank raises at the end."""
    failed: Exception | None = None
    try:
        yield
    except Exception as error:
        failed = error

    def outcome() -> None:
        if failed is not None:
            raise failed

    run_and_gather(fabric, outcome)


def rank_zero_first(fabric: Fabric, work: Callable[[], T]) -> T:
    """`work()` on the first rank, then on the first of every machine, then on the rest: a cache is filled only once."""
    done: list[T] = []
    for mine in (fabric.global_rank == 0, fabric.local_rank == 0, True):
        with raise_on_all_ranks(fabric):
            if mine and not done:
                done.append(work())
    return done[0]


def on_rank_zero(fabric: Fabric, work: Callable[[], T], *, undisturbed: bool = True) -> T:
    """What `work()` gives on the first rank, on every rank; the others wait, and raise what it raises.

    undisturbed: whether it has the waiting ranks' cores. What is part of training does without, as its bits are to be
    those of a run alone.
    """
    if fabric.world_size == 1:
        return work()
    said: list[Any] = [None]
    failed: Exception | None = None
    if fabric.global_rank == 0:
        with launch.undisturbed() if undisturbed else contextlib.nullcontext():
            done, failed = _tried(work)
        said = [(done, _portable(failed))]
    with heartbeat.exchange():
        dist.broadcast_object_list(said, src=0)
    ((done, error),) = said
    if error is not None:
        raise failed or error
    return done


def _tried(work: Callable[[], T]) -> tuple[T, None] | tuple[None, Exception]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _portable(error: Exception | None) -> Exception | None:
    """The error itself where it survives the way to another process, else its traceback as one."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


def destroy_process_group() -> None:
    """Ends this process's group, if it has one: threads that still wait for another rank would abort its exit."""
    heartbeat.unwatch()
    launch.end()
    if dist.is_initialized():
        dist.destroy_process_group()


def sum_over_ranks(fabric: Fabric, flat: Tensor) -> Tensor:
    """The sum of a flat tensor over ranks, in place."""
    if fabric.world_size > 1:
        with heartbeat.exchange():
            dist.all_reduce(flat)
    return flat


def broadcast(fabric: Fabric, make: Callable[[], Tree]) -> Tree:
    """The Tree that rank 0 makes, on every rank: its outline as an object, its numbers flat, dtype by dtype."""
    if fabric.world_size == 1:
        return make()
    made: list[Tree] = []

    def outline() -> Tree:
        made.append(make())
        return trees.map(lambda leaf: leaf.to("meta"), made[0])

    shape = on_rank_zero(fabric, outline, undisturbed=False)
    result = made[0] if made else trees.zeros(shape, fabric.device)
    leaves = [leaf for _, leaf in trees.leaves(result)]
    for dtype in sorted({leaf.dtype for leaf in leaves}, key=str):
        group = [leaf for leaf in leaves if leaf.dtype == dtype]
        flat = torch.cat([leaf.reshape(-1) for leaf in group])
        with heartbeat.exchange():
            dist.broadcast(flat, src=0)
        for leaf, piece in zip(group, flat.split([leaf.numel() for leaf in group]), strict=True):
            leaf.copy_(piece.view(leaf.shape))
    return result
