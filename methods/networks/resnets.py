"""torchvision's ResNets (He et al. 2016), with a stem for small images."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torchvision import models

from methods.core.modules import Encoder, LibraryModel
from methods.core.validation import MethodError, choose
from methods.networks.convolutional import normalisation


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
