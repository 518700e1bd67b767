"""Builds an encoder from its section; a user's is tried on a blank batch, so that what does not fit is a line."""

import copy
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from benchmark.configuration.instantiate import SHIPPED, construct, said
from benchmark.configuration.keys import fits, keys
from benchmark.configuration.schema import EncoderKeys
from benchmark.errors import ConfigError, exit_code
from benchmark.experiment.adapters import adapt, check_merges
from benchmark.experiment.initial_weights import start_from_weights
from methods.core.freezing import freeze

OF_ENCODERS = tuple(each.name for each in keys(EncoderKeys))
"""Keys of every encoder's section, which are no arguments of its class."""


def build(
    architecture: Mapping[str, Any], where: str, shape: tuple[int, int, int], views: Mapping[str, Any]
) -> nn.Module:
    """An encoder, `[B, *shape]` float -> `[B, dim]`, with the weights it starts from.

    Args:
        architecture: its section, resolved. where: the section's name, for messages.
        shape: of a view, channels, height and width. views: the section of that name.

    Raises ConfigError: it cannot be built, or does not fit the images.
    Raises MethodError: see `freeze`.
    """
    built_from = {key: value for key, value in architecture.items() if key not in OF_ENCODERS}
    channels, size, _ = shape
    if built_from.get("image_size", size) != size and built_from["class"].startswith(SHIPPED):
        raise ConfigError(
            f"{where}.image_size={built_from['image_size']}: the run's images have a side of {size} pixels: leave "
            "it out, or set data.image_size"
        )
    encoder = construct(built_from, where, offered={"in_channels": channels, "image_size": size})
    name = f"{where}: {architecture['class']}"
    if not isinstance(encoder, nn.Module):
        raise ConfigError(f"{name} makes a {type(encoder).__name__}: give a torch.nn.Module, or what returns one")
    if isinstance(width := getattr(encoder, "dim", None), np.integer):
        with suppress(AttributeError):  # a property
            encoder.dim = width = int(width)  # type: ignore[assignment]
    if not isinstance(width, int):
        raise ConfigError(
            f"{name} makes a {type(encoder).__name__} without `dim`, an int, the width of its features: set it "
            "(self.dim = 64), or wrap the network in methods.networks.Encoder"
        )
    if (
        not built_from["class"].startswith(SHIPPED) or "in_channels" in built_from
    ):  # the suite's own fit what is filled in
        try_on(encoder, shape, name)
    start_from_weights(encoder, architecture, where, views)
    if architecture.get("adapter") is not None:
        if architecture.get("freeze"):
            raise ConfigError(f"{where}.freeze: all but {where}.adapter is frozen anyway: leave it out")
        adapt(encoder, architecture["adapter"], f"{where}.adapter")
        check_merges(encoder, shape, f"{where}.adapter")
    elif (chosen := architecture.get("freeze")) is not None:
        names = (
            [str(name) for name in chosen] if fits(chosen, list[str | int]) else chosen
        )  # `0` is a module's name too
        if names == "" or not fits(names, str | list[str]):
            raise ConfigError(f"{where}.freeze={chosen!r}: give all, or a list of names or globs of its tensors")
        freeze(encoder, names)
    return encoder


def try_on(encoder: nn.Module, shape: tuple[int, int, int], name: str) -> None:
    """Applies a copy of it to two blank images, without a change of the random streams.

    Lazy layers get their shapes by it, which no copy could have. name: for messages.

    Raises ConfigError: it fails, or returns no `[2, dim]`.
    """
    lazy = any(map(is_lazy, (*encoder.parameters(), *encoder.buffers())))
    images, training = torch.zeros(2, *shape), {module: module.training for module in encoder.modules()}
    trial = encoder if lazy else copy.deepcopy(encoder)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            features = trial.eval()(images)
    except Exception as error:
        if exit_code(error) is not None:
            raise
        raise ConfigError(
            f"{name} cannot read images {list(shape)}: {said(error)}: {_way_out(encoder, shape)}"
        ) from error
    finally:
        for module, mode in training.items():
            module.training = mode
    if not isinstance(features, torch.Tensor):
        raise ConfigError(f"{name} returns a {type(features).__name__}: return one tensor of features [N, dim]")
    if trial.dim != encoder.dim:
        raise ConfigError(f"{name} has dim={encoder.dim}, and {trial.dim} after a forward pass: set it once")
    if features.shape != (2, encoder.dim) or not features.is_floating_point():
        raise ConfigError(
            f"{name} returns {features.dtype} {list(features.shape)} for two images {list(shape)}: return floats "
            f"[N, dim], [2, {encoder.dim}] for its dim={encoder.dim}"
        )


def _way_out(encoder: nn.Module, shape: tuple[int, int, int]) -> str:
    """What to set for an encoder that does not take images of a shape."""
    first = next((layer for layer in encoder.modules() if isinstance(layer, nn.Conv2d)), None)
    if first is not None and first.in_channels != shape[0] and first.in_channels in (1, 3):
        return f"it reads {first.in_channels} channels: set data.channels={first.in_channels}"
    return (
        "set data.image_size and data.channels to what it reads, or give it arguments in_channels and image_size, "
        "which the run fills in"
    )
