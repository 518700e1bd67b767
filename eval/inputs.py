"""Inputs of the protocols: an encoder's features and, where a protocol requires more, the encoder and its images."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor, nn

from eval.features import EvalError, Features, Note, Prepare, Progress, Save, device_of, ignore
from eval.inversion import ObservedStep
from eval.shares import ObservedReplies
from eval.tokens import tokens_of


class Crop(NamedTuple):
    """A random resized crop and flip, the augmentation of the papers' probes.

    scale: of the area. ratio: width by height. flip: probability. interpolation: "bilinear" or "bicubic".
    """

    scale: tuple[float, float]
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    interpolation: str = "bilinear"


Augment = Callable[[Tensor, Crop, Generator], Tensor]
"""uint8 `[B, C, H, W]` -> the encoder's input, each image cropped and flipped at random."""


@dataclass(frozen=True, kw_only=True)
class EncoderInputs:
    """An encoder, its raw images, and the functions that turn images into its input.

    Args:
        encoder: in eval mode; protocols that train it train a copy.
        train, test: uint8 `[N, C, H, W]`, the images of `Features.train_x` and `test_x`, row by row.
        prepare: turns plain images into the encoder's input.
        augment: turns images into the encoder's input, cropped and flipped.
        on_device: `train` as a tensor on the encoder's device, so that a batch needs no copy; None: it is not there.
        view: turns images into the encoder's input, augmented as in training; None: unknown.
    """

    encoder: nn.Module
    train: np.ndarray
    test: np.ndarray
    prepare: Prepare
    augment: Augment
    on_device: Tensor | None = None
    view: Callable[[Tensor, Generator], Tensor] | None = None

    def batch(self, rows: Tensor, crop: Crop | None, generator: Generator) -> Tensor:
        """The encoder's input of the training images `rows`, `[B]` int64; crop: None: images as they are."""
        if self.on_device is not None:
            images = self.on_device[rows.to(self.on_device.device, non_blocking=True)]
        else:
            images = torch.from_numpy(self.train[rows.cpu().numpy()]).to(device_of(self.encoder))
        return self.prepare(images) if crop is None else self.augment(images, crop, generator)


class ModelComparison(NamedTuple):
    """Features `[n, d]` of the same test images by every client's model and by the global model aggregated from them.

    labels: `[n]` int64.
    """

    local_models: Sequence[Tensor]
    global_model: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An encoder to be evaluated.

    Args:
        features: of the data set it was trained on.
        encoder_inputs: the encoder and its images, for protocols that train it or augment; or None.
        targets: data set -> a function that extracts its features, for transfer.
        local_models: max_images -> features by clients' models and the global one, for drift; or None.
        client_names: of the clients that `Features.test_clients` numbers.
        trained: names of the clients whose images the encoder was trained on; None: not known.
        own_features: client -> a function that extracts features by that client's own encoder, with its own test images
            only; None: all clients have the encoder that is evaluated.
        local_step: returns a client's step and what the server sees of it, for inversion; or None.
        client_replies: returns replies of clients to the server and those of known clients, for class shares; or None.
        members: rows of the training images that the encoder was trained on, `[n]` int64; None: unknown.
        projector: maps features to the projector's outputs, in eval mode; or None.
        save_arrays: receives (name, arrays) for a figure.
        on_progress: called now and then with the fraction of the protocol's work that is done.
        on_note: called with what a reader of a protocol's scores has to know, in a line.
    """

    features: Features
    encoder_inputs: EncoderInputs | None = None
    targets: Mapping[str, Callable[[], Features]] = field(default_factory=dict)
    local_models: Callable[[int], ModelComparison] | None = None
    local_step: Callable[[], ObservedStep] | None = None
    client_replies: Callable[[], ObservedReplies] | None = None
    members: Tensor | None = None
    projector: nn.Module | None = None
    client_names: Sequence[str] = ()
    trained: Collection[str] | None = None
    own_features: Mapping[str, Callable[[], Features]] | None = None
    save_arrays: Save = lambda name, arrays: None
    on_progress: Progress = ignore
    on_note: Note = ignore

    def __post_init__(self) -> None:
        for split in ("train", "test") if self.encoder_inputs is not None else ():
            images, rows = getattr(self.encoder_inputs, split), len(getattr(self.features, f"{split}_x"))
            if len(images) != rows or images.dtype != np.uint8:
                raise EvalError(
                    f"EncoderInputs.{split} has {len(images)} images in {images.dtype} for {rows} rows of features: "
                    "give the same images, uint8"
                )

    def note(self, line: str) -> None:
        """Passes a line on to `on_note`; not an empty one."""
        if line:
            self.on_note(line)

    def check(self, protocol: str, requires: str) -> None:
        """Check that the input a protocol requires was given; requires: see `Protocol.requires`.

        Raises EvalError: it was not given.
        """
        kind, _, name = requires.partition(" ")
        features, inputs = self.features, self.encoder_inputs
        missing = {
            "": False,
            "members": self.members is None or inputs is None or inputs.view is None,
            "test_clients": not (features.test_clients >= 0).any(),
            "tokens": inputs is None or tokens_of(inputs.encoder) is None,
            "held_out": inputs is None or not len(features.held_out),
            "views": None in (features.view_a, features.view_b, features.view_clients),
            "target": name not in self.targets,
        }
        if missing[kind] if kind in missing else getattr(self, kind) is None:
            raise EvalError(f"{protocol} requires more than features: {REASONS[kind]}")


REASONS = {
    "encoder_inputs": "it trains the encoder or augments its images, give Subject.encoder_inputs",
    "local_models": "it compares clients' models with the global one, give Subject.local_models",
    "local_step": "it reconstructs images from a step of SGD of a client that sends weights of a global encoder, which "
    "the server sees: this run has no such step, or give Subject.local_step",
    "client_replies": "it reads class shares from replies that the server sees client by client: this run has none, or "
    "give Subject.client_replies",
    "members": "it looks for the images that the encoder was trained on, give Subject.members and EncoderInputs.view",
    "tokens": "it looks at what an encoder's features are pooled from, and this one shows neither tokens nor a map",
    "projector": "it scores the outputs of a projector, and there is none, or its BatchNorm has no statistics",
    "test_clients": "it scores clients or domains apart, and the test images name none: put them in folders "
    "test/<client>/<class>/, or give a table with a column `client`",
    "held_out": "it trains on labels of images that nobody trained on, and these are too few: hold a tenth out by "
    "public.share=0.1, with public.name equal to data.name, under a method that uses no public images",
    "views": "it compares two views client by client, give view_a, view_b and view_clients",
    "target": "it evaluates on another data set, give its features in Subject.targets",
}
"""Kind of required input -> why a protocol requires it and how to give it."""
