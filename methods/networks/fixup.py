"""A ResNet without normalisation, and its blocks. Zhang, Dauphin, Ma: Fixup Initialization (2019)."""

import math

import torch
from torch import Tensor, nn

from methods.core.modules import Encoder
from methods.core.validation import MethodError


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
