"""Residual blocks without normalisation. Zhang, Dauphin, Ma: Fixup Initialization (2019)."""

import math

import torch
from torch import Tensor, nn


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
