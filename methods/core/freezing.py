"""Frozen tensors of an encoder: nobody trains them, all clients have the same, and they are sent once.

A module keeps the names of its own frozen tensors in `frozen_tensors`, so that copies of it (targets, teachers, lanes)
have them too. `Parts.tensors` leaves them out, and with it all that is sent, averaged, perturbed, kept and saved.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from methods.core.validation import MethodError

ALL = "all"
RANGE = re.compile(r"(\d+)-(\d+)(?=\.|$)")
"""A range of numbered modules in a pattern, both ends included: `blocks.0-7`."""
LAYER = re.compile(r"\bencoder\.layers\.encoder_layer_(?=\d)")
"""What torchvision's transformers call their layers; patterns may say `blocks.`, as in timm's."""


def freeze(encoder: nn.Module, chosen: str | Sequence[str]) -> None:
    """Freezes tensors of an encoder; of a BatchNorm layer whose weights are frozen the statistics too.

    chosen: "all", or patterns of names of tensors or modules, each as the backbone has it: a glob, with ranges such as
    `blocks.0-7`.

    Raises MethodError: a pattern that no tensor has.
    """
    patterns = ["*"] if chosen == ALL else [chosen] if isinstance(chosen, str) else list(chosen)
    places = list(_places(encoder))
    for pattern in patterns:
        found = [(owner, key) for name, owner, key in places if _fits(name, pattern)]
        if not found:
            known = dict.fromkeys(name.partition(".")[0] if "." in name else name for name, _, _ in places)
            raise MethodError(
                f"encoder.freeze: the encoder has no tensor {pattern!r}: choose all, or names or globs of its "
                f"{', '.join(list(known)[:6])}{', ...' * (len(known) > 6)}"
            )
        for owner, key in found:
            freeze_tensor(owner, key)
    for layer in encoder.modules():
        weights = [name for name, _ in layer.named_parameters(recurse=False)]
        if isinstance(layer, _BatchNorm) and weights and all(is_frozen(layer, name) for name in weights):
            for name, _ in layer.named_buffers(recurse=False):
                freeze_tensor(layer, name)


def freeze_tensor(owner: nn.Module, key: str) -> None:
    """Freezes one tensor of a module's own."""
    owner.frozen_tensors = getattr(owner, "frozen_tensors", frozenset()) | {key}  # type: ignore[assignment]
    getattr(owner, key).requires_grad_(False)


def is_frozen(owner: nn.Module, key: str) -> bool:
    """Whether a tensor of a module's own is frozen."""
    return key in getattr(owner, "frozen_tensors", ())


def keeps_statistics(layer: nn.Module) -> bool:
    """Whether it is a BatchNorm layer whose running statistics are frozen: it normalises by them, in training too."""
    return isinstance(layer, _BatchNorm) and is_frozen(layer, "running_mean")


def frozen_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Name -> frozen tensor of a module, floating-point ones, live."""
    tensors = itertools.chain(module.named_parameters(), module.named_buffers())
    owners = ((name, tensor, *name.rpartition(".")[::2]) for name, tensor in tensors if tensor.is_floating_point())
    return {name: tensor.detach() for name, tensor, at, key in owners if is_frozen(module.get_submodule(at), key)}


def check_frozen(method: Any) -> None:
    """MethodError where a method needs what is frozen, or nothing is left to train."""
    if not frozen_tensors(method.objective.encoder):
        return
    for owner in (method, *method.terms):
        if owner.whole_encoder:
            raise MethodError(
                f"encoder.freeze, encoder.adapter: {type(owner).__name__} needs all weights of the encoder: "
                f"{owner.whole_encoder}; leave them out"
            )
    if method.whole_layers and getattr(method.objective.encoder, "trained_adapter", None) is not None:
        raise MethodError(f"encoder.adapter: {type(method).__name__} {method.whole_layers}; leave it out")
    if not any(parameter.requires_grad for parameter in method.parameters()):
        raise MethodError(
            f"encoder.freeze: {type(method.objective).__name__} has no other weights here that could be trained: give "
            "it a head (heads.projector), or freeze less"
        )


def _places(encoder: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """(name in patterns, module, key) of each tensor, buffers included."""
    for at, owner in encoder.named_modules():
        keys = (*owner._parameters.items(), *owner._buffers.items())
        for key in (key for key, tensor in keys if tensor is not None and tensor.is_floating_point()):
            yield LAYER.sub("blocks.", f"{at}.{key}".lstrip(".").removeprefix("backbone.")), owner, key


def _fits(name: str, pattern: str) -> bool:
    """Whether a pattern is of a tensor, or of a module that it is in."""
    pattern = LAYER.sub("blocks.", pattern)
    if found := RANGE.search(pattern):
        numbers = {int(n) for n in re.findall(r"\d+", name)}
        there = sorted(n for n in numbers if int(found[1]) <= n <= int(found[2]))
        return any(_fits(name, f"{pattern[: found.start()]}{n}{pattern[found.end() :]}") for n in there)
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
