"""Features of a frozen encoder: extracted once, in eval mode, and shared by every protocol."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from eval.errors import EvalError

Images = np.ndarray | Callable[[], Iterable[np.ndarray | Tensor]]
"""uint8 `[N, C, H, W]` (memory-mapped or not), or a function without arguments that yields batches of such images."""

Prepare = Callable[[Tensor], Tensor]
"""uint8 `[B, C, H, W]` -> the encoder's input: plain images for the probes, a view for alignment."""

Device = torch.device | str

Progress = Callable[[float], None]
"""Called now and then with the fraction of the work that is done."""

Note = Callable[[str], None]
"""Called with what a reader of scores has to know, in a line; or with an empty one."""

Save = Callable[[str, Mapping[str, Tensor]], None]
"""Called with the name of a figure and the arrays for it."""


def ignore(_: object) -> None:
    """Of progress or notes that nobody asks for."""


@contextmanager
def needs_scikit_learn() -> Iterator[None]:
    """Of an import: EvalError where scikit-learn, which the suite does without otherwise, is not installed."""
    try:
        yield
    except ImportError as error:
        raise EvalError("this protocol needs scikit-learn: pip install 'fulcrum-ful[clusters]'") from error


@dataclass(kw_only=True)
class Features:
    """Inputs of the protocols: representations h (before the projector) and labels, on one device.

    Args:
        train_x: `[N, d]` float32; train_y: `[N]` int64 in [0, num_classes).
        train_clients: `[N]` int64, the client that holds each training row, -1 where unknown; empty: all unknown.
        test_x: `[T, d]` float32; test_y: `[T]` int64. The whole test set.
        test_clients: `[T]` int64, the client that each test row is of, -1 where unknown; empty: all unknown.
        view_a, view_b: `[M, d]` float32, two augmented views of the same M training images, row by row; or None.
        view_clients: `[M]` int64, the client of each of those images, -1 where unknown; or None.
        num_classes: the number of classes.

    Raises EvalError: lengths or widths disagree, a label is out of range, or a feature is not finite.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    num_classes: int
    train_clients: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    test_clients: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    view_a: Tensor | None = None
    view_b: Tensor | None = None
    view_clients: Tensor | None = None

    @property
    def held_out(self) -> Tensor:
        """Sorted training rows that no client holds, `[n]` int64; none where the clients are unknown."""
        unheld = self.train_clients < 0
        return (unheld if not unheld.all() else torch.zeros_like(unheld)).nonzero()[:, 0]

    @cached_property
    def computed(self) -> dict[Any, Any]:
        """What a protocol has computed of these rows and others compute too: a probe's predictions, neighbours."""
        return {}

    def __post_init__(self) -> None:
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
        for split in ("train", "test"):
            if not len(getattr(self, f"{split}_clients")):
                x = getattr(self, f"{split}_x")
                setattr(self, f"{split}_clients", torch.full((len(x),), -1, device=x.device))
        for rows, names in (
            ("train_x", ("train_y", "train_clients")),
            ("test_x", ("test_y", "test_clients")),
            ("view_a", ("view_b", "view_clients")),
        ):
            expected = 0 if (x := getattr(self, rows)) is None else len(x)
            for name in names:
                if (values := getattr(self, name)) is not None and len(values) != expected:
                    raise EvalError(f"{name} has {len(values)} rows, {rows} {expected}: give one each")
        for name in ("train_y", "test_y"):
            y = getattr(self, name)
            if not isinstance(y, Tensor) or y.dtype != torch.int64 or y.ndim != 1:
                found = f"{y.dtype} of shape {list(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
                raise EvalError(f"{name} is {found}: give int64 labels, one a row, [N]")
            low, high = y.aminmax()
            if low < 0 or high >= self.num_classes:
                raise EvalError(f"{name} holds labels {low}..{high}: give labels in 0..{self.num_classes - 1}")


@torch.no_grad()  # inference mode would yield tensors that no later gradient may touch
def extract(
    encoder: nn.Module,
    images: Images,
    prepare: Prepare,
    batch_size: int = 512,
    device: Device | None = None,
    on_batch: Callable[[int], None] = ignore,
) -> Tensor:
    """Representations `[N, d]` float32 of all images, in their order, on the device.

    Args:
        encoder: in eval mode throughout; it is not changed, BatchNorm statistics included.
        images: uint8; an array is read in slices, so a memory map never enters memory whole.
        prepare: applied to each uint8 batch on the device.
        device: None: where the encoder's first parameter is.
        on_batch: called after each batch with its number of images.

    Raises EvalError: a module is in train mode, the images are not uint8 or none, or the output is not `[B, d]`.
    """
    for name, module in encoder.named_modules():
        if module.training:
            raise EvalError(
                f"the encoder's module '{name or type(module).__name__}' is in train mode: call encoder.eval() first"
            )
    outputs = []
    for batch in _batches(images, prepare, batch_size, device or device_of(encoder)):
        h = encoder(batch)
        if h.ndim != 2:
            raise EvalError(f"the encoder returns shape {list(h.shape)}: give one that returns [B, d]")
        outputs.append(h.float())
        on_batch(len(h))
    return torch.cat(outputs)


def recalibrate(
    encoder: nn.Module,
    images: Images,
    prepare: Prepare,
    batch_size: int = 512,
    device: Device | None = None,
    kept: Sequence[nn.Module] = (),
) -> None:
    """Estimate the running statistics of all BatchNorm layers anew, as the mean over batches of plain images.

    For encoders whose averaged statistics fit no client. Parameters stay; the encoder ends in eval mode.

    kept: layers that keep their statistics, and normalise by them.

    Raises EvalError: the images are not uint8 or none.
    """
    device = device or device_of(encoder)
    before = [(layer, {name: value.clone() for name, value in layer.state_dict().items()}) for layer in kept]

    def batches() -> Iterator[Tensor]:
        for layer, state in before:  # by now `update_bn` has reset all layers and set them to train
            layer.load_state_dict(state)
            layer.eval()
        yield from _batches(images, prepare, batch_size, torch.device(device))

    update_bn(batches(), encoder, device=torch.device(device))
    encoder.eval()


def holdout(labels: Tensor, fraction: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Split training rows, class by class, into those to fit on and those to make choices on.

    A class with one row keeps it for fitting; every other class gives at least one row and keeps at least one.

    Args:
        labels: `[N]` int64.
        fraction: of each class, held out; in (0, 1).
        seed: the same seed gives the same split on every device.

    Returns:
        fit_index, held_out_index: sorted int64 row numbers on the labels' device; disjoint, N in total.

    Raises EvalError: the fraction is outside (0, 1), or no class has two rows.

    >>> fit, held_out = holdout(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), fraction=0.25)
    >>> len(fit), len(held_out)  # one row of each class is held out
    (6, 2)
    """
    if not 0 < fraction < 1:
        raise EvalError(f"a held-out fraction of {fraction} was given: give one between 0 and 1, both excluded")
    if not len(labels):
        raise EvalError("there are no rows, of which none can be held out")
    generator = torch.Generator().manual_seed(seed)
    held_out = sample_classes(labels, lambda size: min(max(1, round(fraction * size)), size - 1), generator)
    if not len(held_out):
        raise EvalError(f"{len(labels)} rows of as many classes leave none to hold out: give two of some class")
    fit = torch.ones(len(labels), dtype=torch.bool)
    fit[held_out] = False
    return fit.nonzero()[:, 0].to(labels.device), held_out.to(labels.device)


def class_subset(features: Features, per_class: int, generator: torch.Generator) -> Features:
    """The features with at most `per_class` random training rows of each class; without views.

    generator: on the CPU.

    Raises EvalError: `per_class` is below 1.
    """
    if per_class < 1:
        raise EvalError(f"{per_class} training rows of each class were asked for: give at least 1")
    rows = sample_classes(features.train_y, lambda size: min(size, per_class), generator).to(features.train_x.device)
    return training_rows(features, rows)


def training_rows(features: Features, rows: Tensor) -> Features:
    """The features with some of the training rows, by number or `[N]` bool; without views."""
    training = {name: getattr(features, name)[rows] for name in ("train_x", "train_y", "train_clients")}
    return replace(features, **training, view_a=None, view_b=None, view_clients=None)


def sample_classes(labels: Tensor, count: Callable[[int], int], generator: torch.Generator) -> Tensor:
    """Sorted rows, `count(size)` random ones of each class with `size` rows: int64 on the CPU."""
    chosen = []
    for label in labels.unique():
        rows = (labels == label).nonzero()[:, 0].cpu()
        chosen.append(rows[torch.randperm(len(rows), generator=generator)[: count(len(rows))]])
    return torch.cat(chosen).sort().values


def sample(rows: int, max_rows: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """At most `max_rows` of `rows` row numbers in random order: int64 on the device."""
    order = torch.randperm(rows, generator=generator, device=generator.device)[:max_rows]
    return order.to(device, non_blocking=device.type != "cpu")


def seed_of(generator: torch.Generator) -> int:
    """A random seed, for libraries that take no generator."""
    return int(torch.randint(2**31, (), generator=generator, device=generator.device))


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """Percent of rows whose predicted class is their label, over all rows.

    >>> accuracy(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 2]))
    75.0
    """
    return 100 * int((predicted == labels).sum()) / len(labels)


def device_of(module: nn.Module) -> torch.device:
    """Device of the module's first parameter; the CPU if it has none."""
    parameter = next(module.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _batches(images: Images, prepare: Prepare, batch_size: int, device: Device) -> Iterator[Tensor]:
    empty = True
    if callable(images):
        slices = iter(images())
    else:  # equal to within one: a short last batch would weigh too much in BatchNorm
        n, count = len(images), -(-len(images) // batch_size)
        slices = (images[n * i // count : n * (i + 1) // count] for i in range(count))
    for images_slice in slices:
        # a copy, because a memory map is read-only
        batch = images_slice if isinstance(images_slice, Tensor) else torch.from_numpy(np.array(images_slice))
        if batch.dtype != torch.uint8:
            raise EvalError(f"the images are {batch.dtype}: give uint8 [N, C, H, W]; `prepare` turns them into floats")
        yield prepare(batch.to(device))
        empty = False
    if empty:
        raise EvalError("there are no images to extract features from: give at least one")
