"""Encoders and heads as plain constructors; an encoder maps images `[B, C, H, W]` to features `[B, encoder.dim]`."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from inspect import isfunction
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision import models

from methods.fixup import FixupBlock, Shift
from methods.libraries import LibraryModel, measured_width, timm_model, torchvision_model
from methods.validation import MethodError, choose
from methods.vit import VisionTransformer


def normalisation(kind: str) -> Callable[[int], nn.Module]:
    """A constructor channels -> layer for "batch" (BatchNorm2d) or "group" (GroupNorm)."""
    choose("encoder.norm", kind, "batch", "group")
    return nn.BatchNorm2d if kind == "batch" else _group_norm


def _group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm with the largest number of equal groups, at most 32 and of at least four channels each."""
    limit = min(32, max(1, channels // 4))
    return nn.GroupNorm(max(groups for groups in range(1, limit + 1) if channels % groups == 0), channels)


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
    """A teacher: copies of networks, applied one after another, always in eval mode and without gradient."""

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
        """The last network's output, without gradient."""
        for network in self.networks:
            images = network(images)
        return images


@contextmanager
def batch_statistics(module: nn.Module) -> Iterator[None]:
    """Context in which BatchNorm normalises by the batch, as in training, without a change of running statistics."""
    layers = [(layer, layer.training, layer.momentum) for layer in module.modules() if isinstance(layer, _BatchNorm)]
    for layer, _, _ in layers:
        layer.train()
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, training, momentum in layers:
            layer.train(training)
            layer.momentum = momentum


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


def torchvision(*, name: str, in_channels: int = 3, image_size: int = 224, **options: Any) -> Encoder:
    """A classification model of torchvision without its classifier, with its own random initial weights.

    Args:
        name: as `torchvision.models.list_models()` has it.
        in_channels: channels of the images, 3. image_size: their side in pixels, by which the width is measured.
        options: keyword arguments of the model's constructor, such as `width_mult` of mobilenet_v3_small.
    """
    network, model = torchvision_model(name, in_channels, image_size, options)
    return Encoder(network, measured_width(network, name, in_channels, image_size), model)


def timm(*, name: str, in_channels: int = 3, image_size: int = 224, **options: Any) -> Encoder:
    """A model of timm (an optional requirement) without classifier, with its own random initial weights.

    Args:
        name: as `timm.list_models()` has it.
        in_channels: channels of the images. image_size: their side in pixels; a model built for one size is built for
            it, and the width is measured by it.
        options: keyword arguments of `timm.create_model`, such as `drop_path_rate`.
    """
    network, model = timm_model(name, in_channels, image_size, options)
    return Encoder(network, measured_width(network, name, in_channels, image_size), model)


def vit(
    *,
    width: int,
    depth: int,
    heads: int,
    patch_size: int = 4,
    features: str = "class",
    in_channels: int = 3,
    image_size: int = 32,
) -> Encoder:
    """A vision transformer (Dosovitskiy et al. 2021) of any size.

    Args:
        width: number of features, a multiple of `heads`. depth: number of layers. heads: of each layer's attention.
        patch_size: side of a patch in pixels; 16 for images of 224.
        features: "class" (the class token) or "mean" (of the patches' tokens).
        in_channels: channels of the images. image_size: their side in pixels.

    >>> vit(width=96, depth=4, heads=3).dim
    96
    """
    shape = {"width": width, "depth": depth, "heads": heads, "in_channels": in_channels}
    return Encoder(VisionTransformer(image_size=image_size, patch_size=patch_size, features=features, **shape), width)


def _deit(width: int, heads: int, patch_size: int, features: str, in_channels: int, image_size: int) -> Encoder:
    shape = {"width": width, "depth": 12, "heads": heads, "in_channels": in_channels}
    return vit(patch_size=patch_size, features=features, image_size=image_size, **shape)


def vit_tiny(*, patch_size: int = 4, features: str = "class", in_channels: int = 3, image_size: int = 32) -> Encoder:
    """ViT-Tiny (Touvron et al. 2021): 12 layers, 3 heads, 192 features; other arguments as for `vit`.

    >>> vit_tiny(patch_size=8).dim
    192
    """
    return _deit(192, 3, patch_size, features, in_channels, image_size)


def vit_small(*, patch_size: int = 4, features: str = "class", in_channels: int = 3, image_size: int = 32) -> Encoder:
    """ViT-Small (Touvron et al. 2021): 12 layers, 6 heads, 384 features; other arguments as for `vit`."""
    return _deit(384, 6, patch_size, features, in_channels, image_size)


def mobilenet_v3(*, size: str = "small", in_channels: int = 3, image_size: int = 32, **options: Any) -> Encoder:
    """MobileNetV3 (Howard et al. 2019), torchvision's; size: "small" (1,024 features) or "large" (1,280)."""
    name = f"mobilenet_v3_{choose('encoder.size', size, 'small', 'large')}"
    return torchvision(name=name, in_channels=in_channels, image_size=image_size, **options)


def convnext_tiny(*, in_channels: int = 3, image_size: int = 32, stochastic_depth_prob: float = 0.0) -> Encoder:
    """ConvNeXt-Tiny (Liu et al. 2022), torchvision's, 768 features; without stochastic depth unless it is given."""
    options = {"stochastic_depth_prob": stochastic_depth_prob}
    return torchvision(name="convnext_tiny", in_channels=in_channels, image_size=image_size, **options)


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


def constructors() -> list[Callable[..., Encoder]]:
    """The constructors of encoders of this module, by which `encoder.class` names them."""
    public = [value for name, value in globals().items() if isfunction(value) and not name.startswith("_")]
    return [function for function in public if function.__annotations__.get("return") is Encoder]
