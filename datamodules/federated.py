"""Data of a federation: images of each client and batches of their views, for the federated loop and for Trainer."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from datamodules.compiled import apply_compiled
from datamodules.errors import PartitionError
from datamodules.mapped import rows_of
from datamodules.partition import refuse_small
from datamodules.parts import Parts
from datamodules.recipe import Recipe
from datamodules.sources import Source
from datamodules.views import apply, make_views, plain

CHUNK = 512
"""Images augmented in one call, in whole batches, which amortises its cost. The results of a seed depend on it."""

WHOLE = 1 << 28
"""Clients of at most these bytes, 256 MiB, are copied to the device whole; a larger client's images chunk by chunk."""

FEW, MAPPED = 100, 1 << 25
"""A client with less than a hundredth of a data set of more than 32 MiB leaves no page of its file in the memory."""

RESIDENT = 1 << 29
"""A data set of at most these bytes, 512 MiB, stays on a GPU whole: CIFAR has 150 MB."""


class Batch(NamedTuple):
    """Data of one step.

    views: float images `[B, C, H, W]`, one tensor a view; index: `[B]` positions in the client's own data.
    turns: `[B]` quarter turns of the `rotate` view, or None; labels: `[B]`, only where an objective requires them.
    draws: the random tensors the method drew for this batch; None before the draw.
    """

    views: tuple[Tensor, ...]
    index: Tensor  # type: ignore[assignment] # hides tuple.index, which is not used
    turns: Tensor | None = None
    labels: Tensor | None = None
    draws: Any = None


class FederatedDataModule(LightningDataModule):
    """Clients over one source of images.

    Args:
        source: the images, memory-mapped.
        parts: a client's indices into the training split, one array a client; its position is the client's id.
        recipe: how views are made.
        names: of the clients, where they have some. notes: what a reader of scores has to know of them, a line each.
        held_out: indices of training images that nobody may train on, nor measure statistics on; None: there are none.
        batch_size: images a step, and view_names: names of the views, for Trainer, which has no phases.
        labels: whether Trainer's batches include labels.
        public: indices of the public set, where a method requires one. public_images: `[N, C, H, W]` uint8, the images
            they index; None: the training images.
        channels_last: memory format of the views. dtype: theirs, in which they are computed unless compiled.
        drop_last: leave out the short last batch of a shuffled epoch. smallest: else, the fewest images it may have.
        compiled: apply augmentations by a compiled function, equal to the reference to 1e-5, not bit by bit: seconds to
            compile, then about twice as fast.
        seed: of Trainer's order and views; the federated loop passes its own generators.
    """

    def __init__(
        self,
        source: Source,
        parts: Sequence[np.ndarray],
        recipe: Recipe,
        *,
        names: Sequence[str] = (),
        notes: Sequence[str] = (),
        held_out: np.ndarray | None = None,
        batch_size: int = 64,
        view_names: Sequence[str] = ("augment", "augment"),
        labels: bool = False,
        public: np.ndarray | None = None,
        public_images: np.ndarray | None = None,
        channels_last: bool = False,
        dtype: torch.dtype = torch.float32,
        drop_last: bool = False,
        smallest: int = 2,
        compiled: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        refuse_small(
            parts, names, "lower partition.clients, raise partition.alpha, or set partition.name=dirichlet_min"
        )
        self.source, self.parts, self.recipe, self.public = source, Parts(parts, names), recipe, public
        self.public_images = source.train.images if public_images is None else public_images
        self.notes = tuple(notes)
        self.held_out = np.zeros(0, dtype=np.int64) if held_out is None else held_out
        self.batch_size, self.view_names, self.labels = batch_size, tuple(view_names), labels
        self.drop_last, self.smallest, self.dtype = drop_last, smallest, dtype
        self.residents: dict[int, tuple[np.ndarray, Tensor]] = {}  # id of a pool -> it, and its copy on the GPU
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self.apply_draws = apply_compiled if compiled else partial(apply, dtype=dtype)
        self.generator = torch.Generator().manual_seed(seed)

    def of_clients(self, source: Source, parts: Sequence[np.ndarray]) -> "FederatedDataModule":
        """A copy with other clients over other images, made into views likewise; parts: see the class."""
        other = copy(self)
        other.__dict__.pop("largest", None)
        other.source, other.parts = source, Parts(parts, ())
        return other

    def held_by(self, client: int | None) -> np.ndarray:
        """Training indices of a client; for None, indices of the public set into its images."""
        if client is not None:
            return self.parts[client]
        if self.public is None:
            raise PartitionError(
                "a phase requires public images, but this run has none: set public.name to client or to a dataset"
            )
        return self.public

    def pool(self, client: int | None) -> np.ndarray:
        """The images that the indices of `held_by` refer to."""
        return self.source.train.images if client is not None else self.public_images

    @property
    def examples(self) -> int:
        """Number of training images of all clients."""
        return len(self.parts.indices)

    @cached_property
    def largest(self) -> int:
        """Images of the client that has most."""
        return int(self.parts.sizes.max())

    def plain_batches(
        self,
        device: torch.device | str,
        *,
        held: np.ndarray | None = None,
        pool: np.ndarray | None = None,
        batch_size: int | None = None,
    ) -> Iterator[Batch]:
        """One pass over images without augmentation, in their order.

        held: indices into `pool`; None: those of all clients, as for Trainer. pool: None: the training images.
        batch_size: None: Trainer's.
        """
        held = np.sort(self.parts.indices) if held is None else held
        images = self._images(held, device, self.source.train.images if pool is None else pool)
        for positions in torch.arange(len(held)).split(batch_size or self.batch_size):
            view = self._laid_out(plain(images(positions), self.recipe, self.dtype))
            yield Batch((view,), positions.to(device, non_blocking=True))

    def batches(
        self,
        client: int | None,
        names: Sequence[str],
        batch_size: int,
        *,
        epochs: int = 1,
        steps: int | None = None,
        order: torch.Generator | None,
        views: torch.Generator,
        device: torch.device | str = "cpu",
        labels: bool = False,
        drop_last: bool | None = None,
    ) -> Iterator[Batch]:
        """Batches of some epochs over one client's images.

        Args:
            client: an id, or None for the public set.
            names: of the views.
            epochs: passes over the data. steps: if given, exactly that many batches, over as many passes as needed.
            order: shuffles each epoch, whose last batch may then be left out, see `batches_per_epoch`; None: the order
                of the data, every image once an epoch.
            views: draws the augmentations.
            drop_last: see `batches_per_epoch`.

        The view `other` has the images in a second order, drawn after the first in each epoch.
        """
        held = self.held_by(client)
        images = self._images(held, device, self.pool(client))
        labelled = labels and client is not None  # public images have no labels
        targets = torch.from_numpy(self.source.train.labels[held]).to(device) if labelled else None
        size = min(batch_size, len(held))
        count = -(-len(held) // size) if order is None else self.batches_per_epoch(client, size, drop_last=drop_last)
        chunk = max(1, CHUNK // size)  # batches
        remaining = steps if steps is not None else epochs * count
        while remaining > 0:
            index = torch.arange(len(held)) if order is None else torch.randperm(len(held), generator=order)
            batches = index.split(size)[: min(count, remaining)]
            others = torch.randperm(len(held), generator=order).split(size) if "other" in names else batches
            for start in range(0, len(batches), chunk):
                end = min(start + chunk, len(batches))
                yield from self._views(images, targets, batches[start:end], others[start:end], names, views)
            remaining -= len(batches)

    def batches_per_epoch(
        self, client: int | None, batch_size: int, *, smallest: int | None = None, drop_last: bool | None = None
    ) -> int:
        """Number of batches of a training epoch; a client with less than a batch has one of all its images.

        A short last batch is left out with `drop_last`, or where it has fewer than `smallest` images; both are the
        module's unless given.
        """
        examples = len(self.held_by(client))
        full, rest = divmod(examples, min(batch_size, examples))
        drop_last = self.drop_last if drop_last is None else drop_last
        return full + (rest >= (smallest or self.smallest) and not drop_last)

    def resident(self, pool: np.ndarray, device: torch.device | str) -> Tensor | None:
        """All images of a pool on a GPU, where they stay; None for a large pool, and on a CPU.

        The first call copies them and waits, so that every stream may read them.
        """
        if torch.device(device).type != "cuda" or pool.nbytes > RESIDENT:
            return None
        if id(pool) not in self.residents:
            self.residents[id(pool)] = pool, torch.from_numpy(np.array(pool)).to(device)
        return self.residents[id(pool)][1]

    def _images(self, held: np.ndarray, device: torch.device | str, pool: np.ndarray) -> Callable[[Tensor], Tensor]:
        """Function from positions in `held`, on the CPU, to those images of the pool, uint8, on the device."""
        if (everything := self.resident(pool, device)) is not None:
            rows = torch.from_numpy(held)
            return lambda positions: everything[rows[positions].to(device, non_blocking=True)]
        if len(held) * pool[0].nbytes > WHOLE:
            return lambda positions: torch.from_numpy(pool[held[positions.numpy()]]).to(device, non_blocking=True)
        # without the first, a run of many clients would come to have the whole file in its memory
        few = isinstance(pool, np.memmap) and pool.nbytes > MAPPED and len(held) * FEW < len(pool)
        images = torch.from_numpy(rows_of(pool, held) if few else np.asarray(pool[held])).to(device)
        return lambda positions: images[positions.to(device, non_blocking=True)]

    def _views(
        self,
        images: Callable[[Tensor], Tensor],
        targets: Tensor | None,
        batches: Sequence[Tensor],
        others: Sequence[Tensor],
        names: Sequence[str],
        generator: torch.Generator,
    ) -> Iterator[Batch]:
        """Augment the images of several batches in one call, then yield them batch by batch."""
        positions, sizes = torch.cat(list(batches)), list(map(len, batches))
        other_images = images(torch.cat(list(others))) if "other" in names else None
        views, turns = make_views(
            images(positions), names, self.recipe, generator, self.apply_draws, other_images, self.dtype
        )
        view_batches = [self._laid_out(view).split(sizes) for view in views]
        turn_batches = turns.split(sizes) if turns is not None else [None] * len(batches)
        for i, index in enumerate(positions.to(views[0].device, non_blocking=True).split(sizes)):
            labels = targets[index] if targets is not None else None
            yield Batch(tuple(view[i] for view in view_batches), index, turn_batches[i], labels)

    def train_dataloader(self) -> DataLoader:
        """For Trainer: the pooled images of all clients as uint8 batches; views are made after the transfer."""
        pooled = np.sort(self.parts.indices)

        def load(positions: list[int]) -> tuple[Tensor, Tensor, Tensor]:
            rows, train = pooled[positions], self.source.train
            return torch.from_numpy(train.images[rows]), torch.tensor(positions), torch.from_numpy(train.labels[rows])

        order = RandomSampler(pooled, generator=self.generator)
        is_short = len(pooled) % self.batch_size < self.smallest  # a whole one is none
        sampler = BatchSampler(order, self.batch_size, drop_last=self.drop_last or is_short)
        positions = range(len(pooled))
        return DataLoader(positions, batch_sampler=sampler, collate_fn=load)  # type: ignore[arg-type] # any sequence

    def on_after_batch_transfer(self, batch: tuple[Tensor, Tensor, Tensor], dataloader_idx: int) -> Batch:
        """For Trainer: views of the transferred images, made on the device."""
        images, index, labels = batch
        form = self.apply_draws, None, self.dtype
        views, turns = make_views(images, self.view_names, self.recipe, self.generator, *form)
        return Batch(tuple(map(self._laid_out, views)), index, turns, labels if self.labels else None)

    def _laid_out(self, view: Tensor) -> Tensor:
        return view.contiguous(memory_format=self.layout).to(self.dtype)
