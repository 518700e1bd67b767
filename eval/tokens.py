"""Tokens of an encoder: what its features are pooled from.

Those of a transformer are its last ones, the class token among them; those of a convolutional network are the positions
of the map that its last adaptive pooling averages.
"""

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn
from torchvision.models import VisionTransformer

Tokens = Callable[[Tensor], Tensor]
"""The encoder's input `[B, C, H, W]` -> tokens `[B, n, d]`."""


def tokens_of(encoder: nn.Module) -> Tokens | None:
    """What gives an encoder's tokens; None where it shows none."""
    network: Any = getattr(encoder, "backbone", encoder)
    if hasattr(network, "tokens"):
        return cast(Tokens, network.tokens)
    if isinstance(network, VisionTransformer):
        return lambda images: _seen(network, network.encoder, images, lambda given, out: out)
    if hasattr(network, "forward_features"):
        last = getattr(network, "num_features", None)  # some of timm's have the channels of a map last
        return lambda images: _rows(network.forward_features(images), last)
    pools = [layer for layer in network.modules() if isinstance(layer, nn.AdaptiveAvgPool2d)]
    if not pools:
        return None
    return lambda images: _rows(_seen(network, pools[-1], images, lambda given, out: given[0]))


def _seen(network: nn.Module, layer: nn.Module, images: Tensor, of: Callable[[tuple, Tensor], Tensor]) -> Tensor:
    """What a layer is given or returns in a pass of the network."""
    seen: list[Tensor] = []
    handle = layer.register_forward_hook(lambda _, given, out: seen.append(of(given, out)))
    try:
        network(images)
    finally:
        handle.remove()
    return seen[-1]


def _rows(maps: Tensor, width: int | None = None) -> Tensor:
    """Tokens `[B, n, d]` as they are; a map `[B, d, h, w]`, or with channels of this width last, by its positions."""
    if maps.ndim == 4 and maps.shape[1] != width == maps.shape[3]:
        return maps.flatten(1, 2)
    return maps.flatten(2).transpose(1, 2) if maps.ndim == 4 else maps
