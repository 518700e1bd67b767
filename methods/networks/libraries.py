"""Models of torchvision and timm by name, without their classifiers.

Decisions
- The classifier is the last linear or convolutional layer; a dropout directly before it is removed with it. Whatever
  else a library puts before its classifier stays (mobilenet_v3's hidden layer, those of VGG). timm removes its
  classifiers itself (`num_classes=0`).
- A config can neither fetch weights nor name a file here: `encoder.weights` is the only way to load some.
"""

import difflib
import importlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlparse

import torch
from torch import nn
from torchvision import models

from methods.core.modules import Encoder, LibraryModel
from methods.core.validation import MethodError, choose

LOADING = (
    "weights",
    "pretrained",
    "checkpoint",
    "cache_dir",
    "progress",
    "url",
    "file",
    "features_only",
    "out_indices",
)
"""Beginnings of arguments that fetch or read files, or return other things than features."""
HEAD = ("num_classes", "in_chans")
"""Arguments that this module sets itself."""
SIZED = {"vit_": "image_size", "maxvit_": "input_size"}
"""Beginning of the torchvision models that are built for one image size -> the argument for it."""


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


def mobilenet_v3(*, size: str = "small", in_channels: int = 3, image_size: int = 32, **options: Any) -> Encoder:
    """MobileNetV3 (Howard et al. 2019), torchvision's; size: "small" (1,024 features) or "large" (1,280)."""
    name = f"mobilenet_v3_{choose('encoder.size', size, 'small', 'large')}"
    return torchvision(name=name, in_channels=in_channels, image_size=image_size, **options)


def convnext_tiny(*, in_channels: int = 3, image_size: int = 32, stochastic_depth_prob: float = 0.0) -> Encoder:
    """ConvNeXt-Tiny (Liu et al. 2022), torchvision's, 768 features; without stochastic depth unless it is given."""
    options = {"stochastic_depth_prob": stochastic_depth_prob}
    return torchvision(name="convnext_tiny", in_channels=in_channels, image_size=image_size, **options)


def torchvision_model(
    name: str, in_channels: int, image_size: int, options: Mapping[str, Any]
) -> tuple[nn.Module, LibraryModel]:
    """A torchvision model whose classifier is an identity, and its description.

    Raises MethodError: no model has this name, it takes no such options, or it reads other images.
    """
    _check_name("torchvision", name, models.list_models(module=models))
    options = _checked("torchvision", name, options)
    if in_channels != 3:
        raise MethodError(
            f"encoder.name={name}: torchvision's models read 3 channels, the images have {in_channels}: set "
            "data.channels=3, or choose methods.networks.timm or resnet18, which take any number"
        )
    for family, argument in SIZED.items():
        if name.startswith(family):
            options.setdefault(argument, image_size if argument == "image_size" else [image_size] * 2)
    network = _build("torchvision", name, lambda: models.get_model(name, weights=None, **options), options)
    if getattr(network, "aux_logits", False):
        raise MethodError(f"encoder.name={name}: it returns several outputs in training: set encoder.aux_logits=false")
    return network, LibraryModel("torchvision", name, options, remove_classifier(network))


def timm_model(
    name: str, in_channels: int, image_size: int, options: Mapping[str, Any]
) -> tuple[nn.Module, LibraryModel]:
    """A timm model without classifier, and its description; one built for a single image size is built for the run's.

    Raises MethodError: timm is not installed, has no such model, or the model takes no such options.
    """
    timm = import_timm()
    _check_name("timm", name, timm.list_models())
    options = _checked("timm", name, options)
    if (side := options.pop("img_size", image_size)) != image_size:
        raise MethodError(
            f"encoder.img_size={side}: the run's images have a side of {image_size} pixels: leave it out, or set "
            "data.image_size"
        )
    described = timm.get_pretrained_cfg(name)
    if getattr(described, "fixed_input_size", False):
        options["img_size"] = image_size
    if in_channels != 3:
        options["in_chans"] = in_channels
    network = _build("timm", name, lambda: timm.create_model(name, pretrained=False, num_classes=0, **options), options)
    classifier = network.pretrained_cfg.get("classifier") or ""
    return network, LibraryModel("timm", name, options, classifier if isinstance(classifier, str) else classifier[0])


def import_timm() -> ModuleType:
    """The package timm, which is an optional requirement; MethodError where it is missing."""
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        raise MethodError(
            f"methods.networks.timm needs the package timm ({error}): pip install timm, or install this suite with its "
            "extra: pip install 'fulcrum-ful[timm]'"
        ) from error


def remove_classifier(network: nn.Module) -> str:
    """Replaces the last linear or convolutional layer, and a dropout directly before it, by identities; its name."""
    layers = [(name, layer) for name, layer in network.named_modules() if next(layer.children(), None) is None]
    last = max(index for index, (_, layer) in enumerate(layers) if isinstance(layer, nn.Linear | nn.Conv2d))
    for name, layer in layers[last - 1 : last + 1]:
        if layer is layers[last][1] or isinstance(layer, nn.Dropout):
            network.set_submodule(name, nn.Identity())
    return layers[last][0]


def measured_width(network: nn.Module, name: str, in_channels: int, image_size: int) -> int:
    """Number of features of an image, by a forward pass that changes neither the network nor a random generator.

    Raises MethodError: the network cannot read such images, or returns no `[B, dim]`.
    """
    training = {module: module.training for module in network.modules()}
    images = torch.zeros(1, in_channels, image_size, image_size)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            features = network.eval()(images)
    except Exception as error:  # a library's models refuse images by errors of all types
        raise MethodError(
            f"encoder.name={name} cannot read images of {in_channels} x {image_size} x {image_size}: "
            f"{_first_line(error)}: set data.image_size to a size that it reads, or choose another model"
        ) from error
    finally:
        for module, mode in training.items():
            module.training = mode
    if not isinstance(features, torch.Tensor) or features.ndim != 2:
        shape = list(features.shape) if isinstance(features, torch.Tensor) else type(features).__name__
        raise MethodError(f"encoder.name={name} returns {shape} for one image: give options that return [1, features]")
    return features.shape[1]


def torchvision_weights(name: str, weights: str) -> Any:
    """The entry of torchvision's enumeration of a model's weights; MethodError where there is none of that name."""
    _check_name("torchvision", name, models.list_models(module=models))
    entries = {entry.name: entry for entry in models.get_model_weights(name)}  # without the alias DEFAULT, which moves
    if weights not in entries:
        raise MethodError(
            f"encoder.weights={weights}: torchvision has no such weights of {name}; choose "
            f"{', '.join(entries) or 'a file'}"
        )
    return entries[weights]


def hub_file(entry: Any) -> Path:
    """Where torch keeps the file of one of torchvision's weights, whether it is there or not."""
    return Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(entry.url).path).name


def _check_name(library: str, name: str, known: Collection[str]) -> None:
    """MethodError where a library has no model of exactly this name; nothing else is ever looked up by it."""
    if name not in known:
        close = difflib.get_close_matches(str(name), known, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"give one of its {len(known)} models"
        raise MethodError(f"encoder.name={name!r}: {library} has no model of this name: {hint}")


def _checked(library: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the options; MethodError for one that could load something, or that this module sets."""
    for key, value in options.items():
        if key in HEAD:
            raise MethodError(f"encoder.{key}: {library}'s {name} is built without classifier: leave it out")
        if key.startswith(LOADING):
            raise MethodError(
                f"encoder.{key}: {library}'s {name} is built without weights: leave it out; encoder.weights loads some"
            )
        if not _is_plain(value):
            raise MethodError(f"encoder.{key}={value!r}: give numbers, true, false or names, no address and no path")
    return dict(options)


def _is_plain(value: Any) -> bool:
    """Whether a value consists of numbers and names, which can be neither an address nor a path."""
    if isinstance(value, str):
        return re.fullmatch(r"[\w-]*", value) is not None
    if isinstance(value, Mapping):
        return all(_is_plain(item) and not str(key).startswith(LOADING) for key, item in value.items())
    if isinstance(value, Sequence):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | None)


def _build(library: str, name: str, build: Callable[[], Any], options: Mapping[str, Any]) -> Any:
    """What a library's constructor returns; MethodError where it refuses the options, by an error of any type."""
    try:
        return build()
    except Exception as error:
        given = ", ".join(f"{key}={value}" for key, value in options.items()) or "no options"
        raise MethodError(
            f"encoder.name={name} cannot be built by {library} with {given}: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(". ")
