"""What protocols are given of an encoder: its features, and where they ask for more, itself and the images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor, nn

from eval.features import EvalError, Features, Prepare


class Crop(NamedTuple):
    """A random resized crop and flip, the augmentation of the papers' probes.

    scale: of the area. ratio: width by height. flip: probability.
    """

    scale: tuple[float, float]
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5


Augment = Callable[[Tensor, Crop, Generator], Tensor]
"""uint8 `[B, C, H, W]` -> the encoder's input, each image cropped and flipped at random."""


@dataclass(frozen=True, kw_only=True)
class EncoderInputs:
    """An encoder, and images as they are shown to it.

    Args:
        encoder: in eval mode; protocols that train it train a copy.
        train, test: uint8 `[N, C, H, W]`, the images of `Features.train_x` and `test_x`, row by row.
        prepare: makes the encoder's input of plain images.
        augment: makes it of cropped and flipped ones.
    """

    encoder: nn.Module
    train: np.ndarray
    test: np.ndarray
    prepare: Prepare
    augment: Augment

    @property
    def device(self) -> torch.device:
        """Where the encoder is."""
        first = next(self.encoder.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def cropped(self, rows: Tensor, crop: Crop, generator: Generator) -> Tensor:
        """The encoder's input of some training images, cropped and flipped. rows: `[B]` int64."""
        images = torch.from_numpy(self.train[rows.cpu().numpy()])
        return self.augment(images.to(self.device), crop, generator)


class ModelComparison(NamedTuple):
    """Features `[n, d]` of the same test images by every client's network, and by the global one made of them.

    labels: `[n]` int64.
    """

    local: Sequence[Tensor]
    made: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An encoder to be scored.

    Args:
        features: of the data set it was trained on.
        shown: itself and its images, for protocols that train it or augment; or None.
        targets: data set -> a function that makes its features, for transfer.
        locals: a function that makes what drift compares, on so many test images at most; or None.
        keep: takes arrays that a figure can be drawn of, by name.
    """

    features: Features
    shown: EncoderInputs | None = None
    targets: Mapping[str, Callable[[], Features]] = field(default_factory=dict)
    locals: Callable[[int], ModelComparison] | None = None
    keep: Callable[[str, Mapping[str, Tensor]], None] = lambda name, arrays: None

    def __post_init__(self) -> None:
        if self.shown is not None:
            for name, images, rows in (
                ("train", self.shown.train, self.features.train_x),
                ("test", self.shown.test, self.features.test_x),
            ):
                if len(images) != len(rows) or images.dtype != np.uint8:
                    raise EvalError(
                        f"Shown.{name} has {len(images)} images in {images.dtype} for {len(rows)} rows of features: "
                        "give the same images, uint8"
                    )

    def check(self, protocol: str, requires: str) -> None:
        """Refuses a protocol that wants what there is not: "shown", "locals", "views", "target NAME".

        Raises:
            EvalError: this subject has not what is wanted.
        """
        kind, _, name = requires.partition(" ")
        features = self.features
        there = {
            "": True,
            "shown": self.shown is not None,
            "locals": self.locals is not None,
            "views": None not in (features.view_a, features.view_b, features.view_clients),
            "target": name in self.targets,
        }
        if not there[kind]:
            raise EvalError(f"{protocol} asks for more than features: {LACKING[kind]}")

    @property
    def seen(self) -> EncoderInputs:
        """The encoder and its images, which `check` has found."""
        assert self.shown is not None
        return self.shown

    def compared(self, images: int) -> ModelComparison:
        """Features by clients' networks and by the global one, where `check` has found a way to them."""
        assert self.locals is not None
        return self.locals(images)

    def target(self, name: str) -> Features:
        """Features of another data set, which `check` has found."""
        return self.targets[name]()


LACKING = {
    "shown": "it trains the encoder or shows it cropped images, give Subject.shown",
    "locals": "it compares clients' networks with the global one, give Subject.locals",
    "views": "it compares two views client by client, give view_a, view_b and view_clients",
    "target": "it is about another data set, give its features in Subject.targets",
}
