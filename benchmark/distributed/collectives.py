"""How Fabric places clients on devices: ranks share the cohort, and gradients are never synchronised."""

import contextlib
import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch import Tensor, nn

from benchmark.distributed import heartbeat, launch
from methods import trees
from methods.base import Client
from methods.trees import Tree

T = TypeVar("T")

GATHERING, PATIENCE = timedelta(minutes=5), timedelta(days=7)
"""How long ranks wait for each other: at the start, and later, when `alive` knows better than a clock who is gone."""


class RankError(ValueError):
    """Ranks that do not find each other; one line for the user."""


class Ranks(DDPStrategy):
    """One process a device, all running the same program; a rank trains its share of the clients on its own."""

    def __init__(self) -> None:
        super().__init__(timeout=GATHERING)

    def setup_environment(self) -> None:
        """Finds the other ranks, and watches them from then on."""
        try:
            super().setup_environment()
            heartbeat.watch(self.global_rank, self.world_size)
        except (RuntimeError, OSError) as error:
            raise RankError(
                f"rank {self.global_rank} of {self.world_size} does not find the others: {str(error).splitlines()[0]}"
            ) from error
        assert dist.group.WORLD is not None
        dist.group.WORLD.set_timeout(PATIENCE)

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        """The module as it is: wrapped in DDP, ranks would average the gradients of different clients."""
        return module

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Waits for all ranks."""
        with heartbeat.exchange():
            super().barrier(*args, **kwargs)


def share(
    members: Sequence[Client], rank: int, world: int, cost: Callable[[Client], float] = attrgetter("examples")
) -> list[Client]:
    """A rank's part of the members: the costliest first, each to the rank with the least so far; every rank agrees."""
    loads = [0.0] * world
    mine = []
    for client in sorted(members, key=lambda client: (-cost(client), client.id)):
        lightest = loads.index(min(loads))
        loads[lightest] += cost(client)
        if lightest == rank:
            mine.append(client)
    return mine


def gather(fabric: Fabric, value: T) -> list[T]:
    """`value` of every rank, in the order of ranks, on every rank; any picklable value."""
    if fabric.world_size == 1:
        return [value]
    values: list[Any] = [None] * fabric.world_size
    with heartbeat.exchange():
        dist.all_gather_object(values, value)
    return values


def gathered(fabric: Fabric, work: Callable[[], T]) -> list[T]:
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
def together(fabric: Fabric) -> Iterator[None]:
    """What one rank raises within, every rank raises at the end."""
    failed: Exception | None = None
    try:
        yield
    except Exception as error:
        failed = error

    def outcome() -> None:
        if failed is not None:
            raise failed

    gathered(fabric, outcome)


def in_turn(fabric: Fabric, work: Callable[[], T]) -> T:
    """`work()` on the first rank, then on the first of every machine, then on the rest: a cache is filled only once."""
    done: list[T] = []
    for mine in (fabric.global_rank == 0, fabric.local_rank == 0, True):
        with together(fabric):
            if mine and not done:
                done.append(work())
    return done[0]


def by_first(fabric: Fabric, work: Callable[[], T], *, undisturbed: bool = True) -> T:
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


def part() -> None:
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

    shape = by_first(fabric, outline, undisturbed=False)
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
