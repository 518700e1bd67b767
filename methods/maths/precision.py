"""Precision of losses: never half, whatever the networks' precision."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


def upcast(x: Tensor) -> Tensor:
    """float32, or float64 where `x` is that already.

    >>> upcast(torch.ones(1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return x if x.dtype == torch.float64 else x.float()


def full_precision(function: Callable[..., Result]) -> Callable[..., Result]:
    """Decorator that disables autocast, so that matrix products of a loss stay in float32 under bf16-mixed."""

    @functools.wraps(function)
    def unrounded(z: Tensor, *args: Any, **kwargs: Any) -> Result:
        with torch.autocast(z.device.type, enabled=False):
            return function(z, *args, **kwargs)

    return unrounded
