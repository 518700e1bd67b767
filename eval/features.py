"""Features of a frozen encoder: extracted once, in eval mode, and shared by every protocol."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

Images = np.ndarray | Callable[[], Iterable[np.ndarray | Tensor]]
"""uint8 `[N, C, H, W]` (memory-mapped or not), or a function of nothing that yields such batches."""

Prepare = Callable[[Tensor], Tensor]
"""uint8 `[B, C, H, W]` -> the encoder's input: plain images for the probes, a view for alignment."""


class EvalError(ValueError):
    """Features or settings that a protocol cannot work with; one line says what was given and what is possible."""


@dataclass(kw_only=True)
class Features:
    """What the protocols see of an encoder: representations h (before the projector) and labels, on one device.

    Args:
        train_x: `[N, d]` float32; train_y: `[N]` int64 in [0, num_classes).
        train_clients: `[N]` int64, the client that holds each training row, -1 where unknown; none: all are.
        test_x: `[T, d]` float32; test_y: `[T]` int64. The whole test set.
        view_a, view_b: `[M, d]` float32, two augmented views of the same M training images, row by row; or None.
        view_clients: `[M]` int64, the client of each of those images, -1 where unknown; or None.
        num_classes: the number of classes.

    Raises:
        EvalError: the parts do not fit together, a label is out of range, or a feature is not finite.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    num_classes: int
    train_clients: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    view_a: Tensor | None = None
    view_b: Tensor | None = None
    view_clients: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("train_y", "test_y"):
            y = getattr(self, name)
            if not isinstance(y, Tensor) or y.dtype != torch.int64 or y.ndim != 1:
                raise EvalError(f"{name} is {getattr(y, 'dtype', type(y).__name__)}: give int64 labels, one a row")
        if not len(self.train_clients):
            self.train_clients = torch.full_like(self.train_y, -1)
        if (self.view_a is None) != (self.view_b is None):
            raise EvalError("one of view_a and view_b is missing: give both views of the images, or neither")
        for name in ("train_x", "test_x", "view_a", "view_b"):
            x = getattr(self, name)
            if x is None:
                continue
            if not isinstance(x, Tensor) or x.dtype not in (torch.float32, torch.float64):
                raise EvalError(f"{name} is {getattr(x, 'dtype', type(x).__name__)}: give a float32 tensor")
            if x.ndim != 2 or not len(x) or x.shape[1] != self.train_x.shape[1]:
                raise EvalError(f"{name} has shape {list(x.shape)}: give [rows, d], at least one row, one d for all")
            if not x.isfinite().all():
                raise EvalError(f"{name} holds values that are not finite: the encoder diverged; train it anew")
        for rows, name in (
            ("train_x", "train_y"),
            ("train_x", "train_clients"),
            ("test_x", "test_y"),
            ("view_a", "view_b"),
            ("view_a", "view_clients"),
        ):
            x, other = getattr(self, rows), getattr(self, name)
            if other is not None and (x is None or len(x) != len(other)):
                raise EvalError(f"{name} has {len(other)} rows, {rows} {0 if x is None else len(x)}: give one each")
        for name in ("train_y", "test_y"):
            low, high = (int(bound) for bound in getattr(self, name).aminmax())
            if low < 0 or high >= self.num_classes:
                raise EvalError(f"{name} holds labels {low}..{high}: give labels in 0..{self.num_classes - 1}")


@torch.no_grad()  # inference mode would yield tensors that no later gradient may touch
def extract(
    encoder: nn.Module,
    images: Images,
    prepare: Prepare,
    batch_size: int = 512,
    device: torch.device | str | None = None,
) -> Tensor:
    """Representations `[N, d]` float32 of all images, in their order, on the device.

    Args:
        encoder: in eval mode throughout; it is left as it was, BatchNorm statistics included.
        images: uint8; an array is read in slices, so a memory map never enters memory whole.
        prepare: applied to each uint8 batch on the device.
        device: None: where the encoder's first parameter is.

    Raises:
        EvalError: a module is in train mode, the images are not uint8 or none, or the output is not `[B, d]`.
    """
    for name, module in encoder.named_modules():
        if module.training:
            raise EvalError(
                f"the encoder's module '{name or type(module).__name__}' is in train mode: call encoder.eval() first"
            )
    parts = []
    for batch in _batches(images, prepare, batch_size, device or _device(encoder)):
        h = encoder(batch)
        if h.ndim != 2:
            raise EvalError(f"the encoder returns shape {list(h.shape)}: give one that returns [B, d]")
        parts.append(h.float())
    return torch.cat(parts)


def recalibrate(
    encoder: nn.Module,
    images: Images,
    prepare: Prepare,
    batch_size: int = 512,
    device: torch.device | str | None = None,
) -> None:
    """Estimate the running statistics of all BatchNorm layers afresh, as the mean over batches of plain images.

    For encoders whose averaged statistics describe no client. Parameters stay; the encoder is left in eval mode.

    Raises:
        EvalError: the images are not uint8 or none.
    """
    device = device or _device(encoder)
    update_bn(_batches(images, prepare, batch_size, device), encoder, device=torch.device(device))
    encoder.eval()


def holdout(labels: Tensor, fraction: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Split training rows, class by class, into those to fit on and those to make choices on.

    A class with one row keeps it for fitting; every other class gives at least one row and keeps at least one.

    Args:
        labels: `[N]` int64.
        fraction: of each class, held out; in (0, 1).
        seed: the same seed gives the same split on every device.

    Returns:
        fit_index, held_index: sorted int64 row numbers on the labels' device; disjoint, together all N.

    Raises:
        EvalError: the fraction is outside (0, 1), or no class has two rows.
    """
    if not 0 < fraction < 1:
        raise EvalError(f"a held-out fraction of {fraction} was given: give one between 0 and 1, both excluded")
    generator = torch.Generator().manual_seed(seed)
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        rows = (labels == label).nonzero()[:, 0].cpu()
        count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        held[rows[torch.randperm(len(rows), generator=generator)[:count]]] = True
    if not held.any():
        raise EvalError(f"{len(labels)} rows of {len(labels)} classes leave none to hold out: give two of some class")
    held = held.to(labels.device)
    return (~held).nonzero()[:, 0], held.nonzero()[:, 0]


def sample(rows: int, most: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """At most so many of `rows` row numbers, in an order that the generator draws: int64 on the device."""
    return torch.randperm(rows, generator=generator, device=generator.device)[:most].to(device)


def seed_of(generator: torch.Generator) -> int:
    """A seed for what takes no generator, drawn by one."""
    return int(torch.randint(2**31, (), generator=generator, device=generator.device))


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """Percent of rows whose predicted class is their label, over all rows."""
    return 100 * int((predicted == labels).sum()) / len(labels)


def _device(encoder: nn.Module) -> torch.device:
    first = next(encoder.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _batches(images: Images, prepare: Prepare, batch_size: int, device: torch.device | str) -> Iterator[Tensor]:
    empty = True
    for part in images() if callable(images) else _slices(images, batch_size):
        # a copy, since a memory map is read-only
        batch = part if isinstance(part, Tensor) else torch.from_numpy(np.array(part))
        if batch.dtype != torch.uint8:
            raise EvalError(f"the images are {batch.dtype}: give uint8 [N, C, H, W]; `prepare` turns them into floats")
        yield prepare(batch.to(device))
        empty = False
    if empty:
        raise EvalError("there are no images to extract features from: give at least one")


def _slices(images: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Batches of at most `batch_size`, equal to within one: a short last batch would weigh too much in BatchNorm."""
    count = -(-len(images) // batch_size)
    bounds = [len(images) * i // count for i in range(count + 1)] if count else [0]
    for start, stop in pairwise(bounds):
        yield images[start:stop]
