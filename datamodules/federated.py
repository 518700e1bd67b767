"""Who holds which images, and the batches of views made from them: one data module for the loop and for Trainer."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from datamodules.compiled import apply_compiled
from datamodules.partition import PartitionError, Parts
from datamodules.recipe import Recipe
from datamodules.sources import Source
from datamodules.views import apply, make_views

CHUNK = 512
"""Images augmented in one call, in whole batches: small batches share the cost of a call. Part of what a seed means."""

WHOLE = 1 << 28
"""Bytes of a client's images that go to the device whole, 256 MiB; of a larger client's, a chunk when it comes."""


class Batch(NamedTuple):
    """One step's data.

    views: float images `[B, C, H, W]`, one tensor a view; index: `[B]` positions in the client's own data.
    turns: `[B]` quarter turns of the `rotate` view, or None; labels: `[B]`, only where an objective asks for them.
    draws: the random tensors the method drew for this batch; None where nobody has drawn yet.
    """

    views: tuple[Tensor, ...]
    index: Tensor  # type: ignore[assignment] # a tuple has a method of that name; nobody looks a batch up
    turns: Tensor | None = None
    labels: Tensor | None = None
    draws: Any = None


class FederatedDataModule(LightningDataModule):
    """Clients over one source of images.

    Args:
        source: the images, memory-mapped.
        parts: one index array into the training split a client; its position is the client's id.
        recipe: how views are made.
        batch_size: images a step.
        view_names: recipe names for Trainer, which knows no phase.
        labels: whether Trainer's batches carry labels.
        public: indices of the public set, where a method wants one. public_images: `[N, C, H, W]` uint8, what they
            are indices of; None: the training images.
        channels_last: hand out views in that memory format.
        compiled: make views by a compiled function, equal to the other to 1e-5, not bit by bit: seconds to compile,
            then about twice as fast.
        seed: of Trainer's order and views; the loop brings its own generators.
    """

    def __init__(
        self,
        source: Source,
        parts: Sequence[np.ndarray],
        recipe: Recipe,
        *,
        batch_size: int = 64,
        view_names: Sequence[str] = ("augment", "augment"),
        labels: bool = False,
        public: np.ndarray | None = None,
        public_images: np.ndarray | None = None,
        channels_last: bool = False,
        compiled: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for client, part in enumerate(parts):
            if len(part) < 2:
                raise PartitionError(
                    f"client {client} holds {len(part)} image(s), but training needs two: "
                    "lower partition.clients, raise partition.alpha, or set partition.name=dirichlet_min"
                )
        self.source, self.parts, self.recipe, self.public = source, Parts(parts), recipe, public
        self.public_images = source.train.images if public_images is None else public_images
        self.batch_size, self.view_names, self.labels = batch_size, tuple(view_names), labels
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self.make = apply_compiled if compiled else apply
        self.generator = torch.Generator().manual_seed(seed)

    def held_by(self, client: int | None) -> np.ndarray:
        """Training indices of a client; where `client` is None, of the public set in its images."""
        if client is not None:
            return self.parts[client]
        if self.public is None:
            raise PartitionError(
                "a phase asks for public images, but this run has none: set public.name to client or to a dataset"
            )
        return self.public

    def pool(self, client: int | None) -> np.ndarray:
        """The images that `held_by` gives indices of."""
        return self.source.train.images if client is not None else self.public_images

    @property
    def examples(self) -> int:
        """Training images of all clients together."""
        return len(self.parts.indices)

    def look(
        self,
        device: torch.device | str,
        *,
        held: np.ndarray | None = None,
        pool: np.ndarray | None = None,
        batch_size: int | None = None,
    ) -> Iterator[Batch]:
        """Passes over images as they are, in their order.

        held: indices of `pool`; None: those of all clients, as Trainer sees them. pool: None: the training images.
        batch_size: None: Trainer's.
        """
        held = np.sort(self.parts.indices) if held is None else held
        images = self._images(held, device, self.source.train.images if pool is None else pool)
        for piece in torch.arange(len(held)).split(batch_size or self.batch_size):
            views, _ = make_views(images(piece), ("plain",), self.recipe, self.generator, self.make)
            yield Batch((views[0].contiguous(memory_format=self.layout),), piece.to(device, non_blocking=True))

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
    ) -> Iterator[Batch]:
        """Yields the batches of some epochs over one client's images.

        Args:
            client: an id, or None for the public set.
            names: recipe names of the views.
            epochs: passes over the data. steps: where given, exactly that many batches, over as many passes as needed.
            order: shuffles each epoch, and a last batch of one image is then left out; None: the order of the data,
                every image once an epoch.
            views: draws the augmentations.

        The view `other` shows images of an epoch's second order, drawn after the first.
        """
        held = self.held_by(client)
        images = self._images(held, device, self.pool(client))
        known = labels and client is not None  # nobody has labelled what is public
        targets = torch.from_numpy(self.source.train.labels[held]).to(device) if known else None
        size = min(batch_size, len(held))
        count = number_of_batches(len(held), size) if order is not None else -(-len(held) // size)
        whole = max(1, CHUNK // size)
        made, wanted = 0, steps if steps is not None else epochs * count
        while made < wanted:
            index = torch.arange(len(held)) if order is None else torch.randperm(len(held), generator=order)
            pieces = list(index.split(size))[: min(count, wanted - made)]
            others = torch.randperm(len(held), generator=order).split(size) if "other" in names else pieces
            for start in range(0, len(pieces), whole):
                end = min(start + whole, len(pieces))
                yield from self._views(images, targets, pieces[start:end], others[start:end], names, views)
            made += len(pieces)

    def _images(self, held: np.ndarray, device: torch.device | str, every: np.ndarray) -> Callable[[Tensor], Tensor]:
        """Positions among the held ones of all images, on the CPU -> those images, uint8, on the device."""
        if len(held) * every[0].nbytes > WHOLE:
            return lambda chosen: torch.from_numpy(every[held[chosen.numpy()]]).to(device, non_blocking=True)
        images = torch.from_numpy(np.asarray(every[held])).to(device)
        return lambda chosen: images[chosen.to(device, non_blocking=True)]

    def _views(
        self,
        images: Callable[[Tensor], Tensor],
        targets: Tensor | None,
        group: Sequence[Tensor],
        others: Sequence[Tensor],
        names: Sequence[str],
        generator: torch.Generator,
    ) -> Iterator[Batch]:
        """Augments the images of several batches in one call and hands them out batch by batch."""
        chosen, sizes = torch.cat(list(group)), [len(piece) for piece in group]
        shown = images(chosen)
        different = images(torch.cat(list(others))) if "other" in names else None
        views, turns = make_views(shown, names, self.recipe, generator, self.make, different)
        pieces = [view.contiguous(memory_format=self.layout).split(sizes) for view in views]
        angles = turns.split(sizes) if turns is not None else [None] * len(group)
        for i, piece in enumerate(chosen.to(views[0].device, non_blocking=True).split(sizes)):
            labels = targets[piece] if targets is not None else None
            yield Batch(tuple(view[i] for view in pieces), piece, angles[i], labels)

    def train_dataloader(self) -> DataLoader:
        """Trainer only: the pooled images of all clients, as uint8 batches; views are made after the transfer."""
        pooled = _Pooled(self.source, np.sort(self.parts.indices))
        order = RandomSampler(pooled, generator=self.generator)
        short = len(pooled) % self.batch_size == 1
        return DataLoader(pooled, sampler=BatchSampler(order, self.batch_size, drop_last=short), batch_size=None)

    def on_after_batch_transfer(self, batch: tuple[Tensor, Tensor, Tensor], dataloader_idx: int) -> Batch:
        """Trainer only: makes the views on the device."""
        images, index, labels = batch
        views, turns = make_views(images, self.view_names, self.recipe, self.generator, self.make)
        laid_out = tuple(view.contiguous(memory_format=self.layout) for view in views)
        return Batch(laid_out, index, turns, labels if self.labels else None)


def number_of_batches(examples: int, batch_size: int) -> int:
    """Batches of a training epoch: the last short one counts unless it has fewer than two images."""
    full, rest = divmod(examples, batch_size)
    return full + (rest >= 2)


class _Pooled(Dataset):
    """Training images by lists of positions: (uint8 images, positions, labels)."""

    def __init__(self, source: Source, index: np.ndarray) -> None:
        self.source, self.index = source, index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, positions: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        rows = self.index[positions]
        images, labels = self.source.train.images[rows], self.source.train.labels[rows]
        return torch.from_numpy(images), torch.tensor(positions), torch.from_numpy(labels)
