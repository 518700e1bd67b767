"""Adapters of an encoder by the library peft: small tensors that train beside layers that are frozen.

| name | what trains beside a layer W | paper |
|---|---|---|
| lora | B A, of rank r, times alpha / r | Hu et al. 2022 |
| dora | B A and the length of each row of the sum | Liu et al. 2024 |
| ia3 | a factor of each output | Liu et al. 2022 |

Decisions
- All of the encoder but the adapter is frozen (`methods.core.freezing`), BatchNorm included.
- alpha is the rank unless it is given, so that the factor is 1.
- `average` says what becomes of LoRA's factors, as the mean of products is not the product of means. `factors`: each
  factor's mean. `freeze-a`: A stays as it was drawn, at the server and at all clients (FFA-LoRA, Sun et al. 2024), so
  that the two are equal. `product`: see `benchmark.federation.low_rank`.
- torchvision's transformers keep the matrices of their attention where no adapter reaches them: they get the layers
  `qkv` and `proj`, as timm's have. A merged encoder has the names of torchvision again.
- peft needs the package transformers, so neither is required without `encoder.adapter`.
"""

import copy
import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn
from torchvision.models import VisionTransformer

from benchmark.configuration.instantiate import check
from benchmark.configuration.keys import nearest
from benchmark.errors import ConfigError
from benchmark.federation.low_rank import Factors, adapted
from methods.core.freezing import freeze_tensor
from methods.networks import Encoder
from methods.networks.transformers import join_attention, split_attention

KEYS = {"name": str, "rank": int, "targets": list[str | int], "alpha": float, "average": str}
NAMES = ("lora", "dora", "ia3")
AVERAGES = ("factors", "product", "freeze-a")
PREFIX = "base_model.model."
"""What the names of tensors begin with in peft's files."""


class Adapter(NamedTuple):
    """A section `adapter` that was checked; its keys are those of the table on the page of encoders."""

    name: str
    rank: int
    targets: list[str]
    alpha: float
    average: str


def read(section: Any, where: str) -> Adapter:
    """The adapter that a section describes. where: its dotted key. Raises ConfigError: it describes none."""
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where}={section!r}: give a mapping, such as {{name: lora, rank: 8, targets: [qkv, proj]}}")
    check(section, KEYS, where, "an adapter")
    if (name := section.get("name")) not in NAMES:
        raise ConfigError(f"{where}.name={name!r}: choose {', '.join(NAMES)}{nearest(str(name), NAMES)}")
    if not section.get("targets"):
        raise ConfigError(f"{where}.targets: name the layers that it is for, e.g. [qkv, proj]")
    ranked = name != "ia3"
    for key in ("rank", "alpha", "average") if not ranked else ():
        if key in section:
            raise ConfigError(f"{where}.{key}: ia3 has factors of outputs, and no rank: leave it out")
    rank = section.get("rank", 0)
    if ranked and rank < 1:
        raise ConfigError(f"{where}.rank={section.get('rank')}: give a whole number of at least 1")
    alpha, average = section.get("alpha", rank), section.get("average", "factors")
    if ranked and not 0 < alpha < float("inf"):
        raise ConfigError(f"{where}.alpha={alpha}: give a number above 0")
    if average not in AVERAGES:
        raise ConfigError(f"{where}.average={average!r}: choose {', '.join(AVERAGES)}{nearest(str(average), AVERAGES)}")
    if average == "product" and name != "lora":
        raise ConfigError(f"{where}.average=product: a layer of {name} is no sum with a product: choose name: lora")
    return Adapter(name, rank, [str(target) for target in section["targets"]], alpha, average)


def adapt(encoder: nn.Module, section: Any, where: str) -> None:
    """Puts an adapter into an encoder, and freezes the rest.

    Args:
        section: of the adapter. where: its dotted key.

    Raises ConfigError: the section describes no adapter, the encoder has no such layers, or peft is missing.
    """
    chosen, network = read(section, where), _network(encoder)
    if isinstance(network, VisionTransformer):
        split_attention(network)
    _check_targets(network, chosen, where)
    peft = _import_peft(where)
    if chosen.name == "ia3":
        config = peft.IA3Config(target_modules=chosen.targets, feedforward_modules=[])
    else:
        options = {"r": chosen.rank, "lora_alpha": chosen.alpha, "use_dora": chosen.name == "dora"}
        config = peft.LoraConfig(target_modules=chosen.targets, **options)
    try:
        peft.inject_adapter_in_model(config, network)
    except (ValueError, NotImplementedError) as error:  # a layer that peft refuses
        raise ConfigError(f"{where}: {str(error).splitlines()[0]}") from error
    encoder.trained_adapter = chosen  # type: ignore[assignment]
    trains = {id(parameter) for parameter in encoder.parameters() if parameter.requires_grad}
    bases = [layer.base_layer for _, layer in adapted(encoder)] if chosen.average == "product" else []
    for at, owner in encoder.named_modules():
        for key, tensor in (*owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False)):
            first = chosen.average == "freeze-a" and ".lora_A" in at
            moved = owner in bases and key == "weight"
            if tensor.is_floating_point() and not moved and (first or id(tensor) not in trains):
                freeze_tensor(owner, key)


def check_merges(encoder: nn.Module, shape: tuple[int, int, int], where: str) -> None:
    """Refuses an adapter that is not what its merged weights compute, tried with two images on a copy.

    So it is where a layer's owner reads its weights and does not call it, or where a layer changes its weights itself.
    """
    trial = copy.deepcopy(encoder).eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for parameter in (each for each in trial.parameters() if each.requires_grad):
            parameter.add_(0.1 * torch.randn_like(parameter))
        images = torch.randn(2, *shape)
        beside = trial(images)
        merge(trial)
        merged = trial(images)
    if not torch.allclose(beside, merged, rtol=0, atol=1e-3 * float(merged.abs().max())):
        raise ConfigError(
            f"{where}.targets: merged into these layers' weights the adapter computes other features, as one is not "
            "called by the encoder, or changes its weights: choose others"
        )


def factors(encoder: nn.Module) -> list[Factors]:
    """The factors of an adapter whose products are averaged; empty for any other encoder."""
    chosen = getattr(encoder, "trained_adapter", None)
    if chosen is None or chosen.average != "product":
        return []

    def paths(name: str, layer: Any) -> Factors:
        base, a, b = (("encoder", f"{name}.{of}.weight") for of in ("base_layer", "lora_A.default", "lora_B.default"))
        return Factors(base, a, b, layer.scaling["default"])

    return [paths(name, layer) for name, layer in adapted(encoder)]


def merge(encoder: nn.Module) -> None:
    """Adds an adapter to the weights of the layers it is for: the encoder is as it was built, and has no adapter."""
    for name, layer in list(adapted(encoder)):
        layer.merge()
        encoder.set_submodule(name, layer.get_base_layer())
    network = _network(encoder)
    if isinstance(network, VisionTransformer):
        join_attention(network)


def write(encoder: nn.Module, folder: Path, file: Path) -> None:
    """Writes an adapter as peft's `PeftModel.from_pretrained` reads it, over the encoder without it.

    folder: gets the adapter's config. file: gets its tensors.

    Raises ConfigError: the encoder has no adapter, or its other weights have moved too.
    """
    chosen = getattr(encoder, "trained_adapter", None)
    if chosen is None:
        raise ConfigError("format=peft is for an encoder with an adapter (encoder.adapter): choose another format")
    if chosen.average == "product":
        raise ConfigError("format=peft: under average: product the layers' own weights move too: choose another format")
    peft = _import_peft("format=peft")
    network: Any = _network(encoder)
    from safetensors.torch import save

    state = peft.get_peft_model_state_dict(network)
    file.write_bytes(save({f"{PREFIX}{name}": value.detach().contiguous() for name, value in state.items()}))
    network.peft_config["default"].save_pretrained(folder)


def _network(encoder: nn.Module) -> nn.Module:
    """What an adapter's names are those of: the backbone, where there is one."""
    return encoder.backbone if isinstance(encoder, Encoder) else encoder


def _check_targets(network: nn.Module, chosen: Adapter, where: str) -> None:
    """ConfigError where no layer has the name of a target, or one has no such rank."""
    layers = {name: each for name, each in network.named_modules() if isinstance(each, nn.Linear | nn.Conv2d)}
    for target in chosen.targets:
        found = [name for name in layers if name == target or name.endswith(f".{target}")]
        if not found:
            known = list(dict.fromkeys(name.rpartition(".")[2] for name in layers))
            raise ConfigError(
                f"{where}.targets: the encoder has no linear or convolutional layer {target!r}"
                f"{nearest(target, known)}: choose among {', '.join(known[:8])}{', ...' * (len(known) > 8)}"
            )
        for name in found:
            width = min(layers[name].weight.flatten(1).shape)
            if chosen.rank > width:
                raise ConfigError(f"{where}.rank={chosen.rank}: {name} has a matrix of rank {width}: give at most that")
            if chosen.average == "product" and getattr(layers[name], "groups", 1) > 1:
                raise ConfigError(f"{where}.average=product: {name} is a convolution of groups: choose another target")


def _import_peft(where: str) -> ModuleType:
    """The package peft, which is an optional requirement; ConfigError where it is missing."""
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        raise ConfigError(
            f"{where} needs the package peft ({error}): install the extra: pip install 'fulcrum-ful[peft]'"
        ) from error
