"""What objectives and methods are made of, whatever the architecture: the encoder's class, a head, a frozen copy."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from methods.core.freezing import keeps_statistics
from methods.core.validation import MethodError


class LibraryModel(NamedTuple):
    """A model of a library: what builds the same one, with its classifier, in plain torch.

    library: "torchvision" or "timm". options: keyword arguments of its constructor. classifier: the name of the module
    that was removed.
    """

    library: str
    name: str
    options: dict[str, Any]
    classifier: str


class Encoder(nn.Module):
    """A backbone with flat output of `dim` features an image.

    model: the library's model that the backbone is, without its classifier; None: it is none.
    """

    def __init__(self, backbone: nn.Module, dim: int, model: LibraryModel | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.dim = dim
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """`[B, C, H, W]` float -> `[B, dim]`."""
        return self.backbone(images)


class Frozen(nn.Module):
    """A teacher: copies of networks, applied one after another, always in eval mode and without gradient.

    It is no part of the method: neither sent nor stored, and at each visit what it was when it was made. So fill it in
    `receive`: `teacher.networks[0].load_state_dict(objective.encoder.state_dict())`.

    networks: the copies, a ModuleList in the order of the arguments.
    """

    def __init__(self, *networks: nn.Module) -> None:
        super().__init__()
        self.networks = nn.ModuleList(deepcopy(network) for network in networks)
        self.requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Stays in eval mode."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Images `[B, C, H, W]` -> the last network's output, e.g. `[B, width]` after a projector, without gradient."""
        for network in self.networks:
            images = network(images)
        return images


@contextmanager
def batch_statistics(module: nn.Module) -> Iterator[None]:
    """Context in which BatchNorm normalises by the batch, as in training, without a change of running statistics."""
    layers = [
        (layer, layer.training, layer.momentum)
        for layer in module.modules()
        if isinstance(layer, _BatchNorm) and not keeps_statistics(layer)
    ]
    for layer, _, _ in layers:
        layer.train()
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, training, momentum in layers:
            layer.train(training)
            layer.momentum = momentum


def mlp(widths: Sequence[int], *, norm: bool = True, last_norm: bool = False) -> nn.Sequential:
    """Multilayer perceptron with ReLU, for projectors and predictors.

    Args:
        widths: (input, hidden..., output) features.
        norm: BatchNorm1d before every ReLU, with no bias in the linear layer before it.
        last_norm: BatchNorm1d without affine parameters on the output (SimSiam's projector).

    >>> mlp([128, 64, 32])(torch.zeros(4, 128)).shape
    torch.Size([4, 32])
    """
    if min(widths, default=0) < 1:
        raise MethodError(
            f"a head of widths {list(widths)}: give whole numbers of at least 1 (heads.projector=[512,256])"
        )
    if len(widths) < 2:
        raise MethodError(f"a head of widths {list(widths)} has no layer: give at least one width after the input's")
    layers: list[nn.Module] = []
    linear = partial(nn.Linear, bias=not norm)
    for inputs, outputs in itertools.pairwise(widths[:-1]):
        layers += [linear(inputs, outputs), *([nn.BatchNorm1d(outputs)] if norm else []), nn.ReLU(inplace=True)]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=not last_norm))
    if last_norm:
        layers.append(nn.BatchNorm1d(widths[-1], affine=False))
    return nn.Sequential(*layers)
