"""A small convolutional network, and the normalisation that convolutional networks choose."""

from collections.abc import Callable, Sequence

from torch import nn

from methods.core.modules import Encoder
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
