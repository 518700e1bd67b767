"""A small convolutional network, and the normalisation that convolutional networks choose."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models

from methods.core.modules import Encoder, LibraryModel
from methods.core.validation import MethodError, choose


def normalisation(kind: str) -> Callable[[int], nn.Module]:
    """A constructor channels -> layer for "batch" (BatchNorm2d) or "group" (GroupNorm)."""
    choose("encoder.norm", kind, "batch", "group")
    return nn.BatchNorm2d if kind == "batch" else _group_norm


def _group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm with the largest number of equal groups, at most 32 and of at least four channels each."""
    limit = min(32, max(1, channels // 4))
    return nn.GroupNorm(max(groups for groups in range(1, limit + 1) if channels % groups == 0), channels)


def convnet(
    *,
    widths: Sequence[int] = (32, 64, 128, 256),
    strides: Sequence[int] = (2, 2, 2, 1),
    norm: str = "batch",
    in_channels: int = 3,
) -> Encoder:
    """Blocks of 3x3 convolution, normalisation and ReLU, then global average pooling: an encoder for CPUs.

    Args:
        widths: output channels of each block; the last is the number of features.
        strides: stride of each block.
        norm: "batch" or "group".
        in_channels: channels of the images.

    >>> encoder = convnet(widths=[8, 16], strides=[2, 2])
    >>> encoder(torch.zeros(4, 3, 32, 32)).shape, encoder.dim
    (torch.Size([4, 16]), 16)
    """
    if len(widths) != len(strides):
        raise MethodError(
            f"encoder.widths has {len(widths)} entries, encoder.strides {len(strides)}: give one stride a block"
        )
    if not widths or min(*widths, *strides) < 1:
        raise MethodError(
            f"encoder.widths={list(widths)}, encoder.strides={list(strides)}: give whole numbers of at least 1"
        )
    layer = normalisation(norm)
    blocks: list[nn.Module] = []
    for channels, width, stride in zip((in_channels, *widths), widths, strides, strict=False):
        blocks += [nn.Conv2d(channels, width, 3, stride, padding=1, bias=False), layer(width), nn.ReLU(inplace=True)]
    return Encoder(nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()), widths[-1])


def _resnet(build: Callable[..., nn.Module], stem: str, norm: str, init: str, in_channels: int) -> Encoder:
    choose("encoder.init", init, "torchvision", "default")
    network: Any = build(weights=None, norm_layer=normalisation(norm))
    dim, network.fc = network.fc.in_features, nn.Identity()
    is_torchvisions = stem == "imagenet" and norm == "batch" and in_channels == 3
    model = LibraryModel("torchvision", build.__name__, {}, "fc") if is_torchvisions else None
    if stem == "cifar":
        # small images: no stride and no pooling before the first block
        network.conv1 = nn.Conv2d(in_channels, 64, 3, stride=1, padding=1, bias=False)
        network.maxpool = nn.Identity()
    elif stem == "imagenet":
        if in_channels != 3:
            network.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
    else:
        raise MethodError(f"encoder.stem={stem!r}: choose cifar (3x3, no max-pool) or imagenet (torchvision's own)")
    if init == "default":
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d):
                layer.reset_parameters()
    elif stem == "cifar" or in_channels != 3:
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    return Encoder(network, dim, model)


def resnet18(*, stem: str = "cifar", norm: str = "batch", init: str = "torchvision", in_channels: int = 3) -> Encoder:
    """ResNet-18 (He et al. 2016), 512 features.

    Args:
        stem: "cifar" (3x3, no max-pool) or "imagenet" (torchvision's).
        norm: "batch" or "group".
        init: of the convolutions: "torchvision" (Kaiming normal, fan-out) or "default" (PyTorch's own, about half as
            large).
        in_channels: channels of the images.

    >>> resnet18().dim, resnet18(stem="imagenet")(torch.zeros(2, 3, 64, 64)).shape
    (512, torch.Size([2, 512]))
    """
    return _resnet(models.resnet18, stem, norm, init, in_channels)


def resnet34(*, stem: str = "cifar", norm: str = "batch", init: str = "torchvision", in_channels: int = 3) -> Encoder:
    """ResNet-34 (He et al. 2016), 512 features; arguments as for `resnet18`."""
    return _resnet(models.resnet34, stem, norm, init, in_channels)


def resnet50(*, stem: str = "cifar", norm: str = "batch", init: str = "torchvision", in_channels: int = 3) -> Encoder:
    """ResNet-50 (He et al. 2016), 2048 features; arguments as for `resnet18`."""
    return _resnet(models.resnet50, stem, norm, init, in_channels)


class Shift(nn.Module):
    """Adds one learned scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return x + self.bias


class FixupBlock(nn.Module):
    """Shifts before and after layers, one scale.

    Where the stride is 2, the shortcut takes every second shifted pixel and pads its channels with zeros.
    """

    def __init__(self, channels: int, width: int, stride: int, blocks: int) -> None:
        super().__init__()
        first = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        last = nn.Conv2d(width, width, 3, padding=1, bias=False)
        nn.init.normal_(first.weight, std=math.sqrt(2 / (width * 9)) * blocks**-0.5)
        nn.init.zeros_(last.weight)
        self.residual = nn.Sequential(Shift(), first, Shift(), nn.ReLU(), Shift(), last)
        self.scale = nn.Parameter(torch.ones(1))
        self.shift = Shift()
        self.stride, self.padding = stride, width - channels

    def forward(self, x: Tensor) -> Tensor:
        """`[B, channels, H, W]` -> `[B, width, H / stride, W / stride]`."""
        short = x if self.stride == 1 else self.residual[0](x)[:, :, :: self.stride, :: self.stride]
        short = nn.functional.pad(short, (0, 0, 0, 0, 0, self.padding))
        return torch.relu(self.shift(self.residual(x) * self.scale) + short)


def fixup_resnet20(*, width: int = 8, in_channels: int = 3) -> Encoder:
    """ResNet-20 with Fixup initialisation, without BatchNorm, `width` times as wide; FedSC's encoder is at width 8.

    The number of features is 64 times `width`. They depend on the image alone, in training too.
    """
    if width < 1:
        raise MethodError(f"encoder.width={width}: give a whole number of at least 1")
    widths = [16 * width, 32 * width, 64 * width]
    stem = nn.Conv2d(in_channels, widths[0], 3, padding=1, bias=False)
    blocks: list[nn.Module] = [stem, Shift(), nn.ReLU()]
    channels = widths[0]
    for stage, features in enumerate(widths):
        for index in range(3):
            blocks.append(FixupBlock(channels, features, 2 if stage and not index else 1, 9))
            channels = features
    return Encoder(nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), Shift()), widths[-1])
