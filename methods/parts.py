"""The networks of a method by the names of their parts, as Trees: what travels, what stays, what learns."""

from collections.abc import Iterable
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from methods import trees
from methods.objective import AddOn, Objective
from methods.trees import Tree


class Parts(LightningModule):
    """A LightningModule over an objective and add-ons whose parts can be read and written as Trees.

    A part is a submodule or a queue of the objective, or the networks of an add-on; tensors handed out are live.

    travels: parts that make up the entry "weights"; None: the objective's and the add-ons' networks.
    stays: parts that stay with the client and are there again at its next visit.
    """

    travels: tuple[str, ...] | None = None
    stays: tuple[str, ...] = ()
    objective: Objective
    addons: nn.ModuleDict
    batch_norm: str
    places: dict[
        tuple[str, bool], list[tuple[str, dict[str, Any], str]]
    ]  # where `tensors` finds them; networks keep still

    @property
    def terms(self) -> list[AddOn]:
        """The add-ons, in the order they were given."""
        return list(cast(Iterable[AddOn], self.addons.values()))

    @property
    def travelling(self) -> tuple[str, ...]:
        """Names of the parts that make up the entry "weights"."""
        if self.travels is not None:
            return self.travels
        own = tuple(addon.name for addon in self.terms if addon.networks() is not None)
        return (*self.objective.travels, *own)

    @property
    def staying(self) -> tuple[str, ...]:
        """Names of the parts that stay with the client: the objective's, and the method's."""
        return tuple(dict.fromkeys((*self.objective.stays, *self.stays)))

    def part(self, name: str) -> nn.Module:
        """A part by name: a submodule of the objective, or the networks of the add-on of that name."""
        for addon in self.terms:
            if addon.name == name and (networks := addon.networks()) is not None:
                return networks
        return getattr(self.objective, name)

    def tensors(self, name: str, statistics: bool = True) -> dict[str, Tensor]:
        """Parameters and floating-point buffers of a part, live; `statistics=False`: without BatchNorm's running ones.

        Integer counters are never stored or sent: an average of them means nothing.
        """
        if name in self.objective.queues:
            return {key: getattr(self.objective, key) for key in (name, f"{name}_filled")}
        if (name, statistics) not in self.places:
            self.places[name, statistics] = _places(self.part(name), statistics)
        return {key: holder[own].detach() for key, holder, own in self.places[name, statistics]}

    def weights(self, statistics: bool | None = None) -> Tree:
        """{part: {name: tensor}} of what travels, live; a part without tensors is left out.

        statistics: whether BatchNorm's running ones are among them; None: by `batch_norm`.
        """
        running = self.batch_norm == "average" if statistics is None else statistics
        return {name: found for name in self.travelling if (found := self.tensors(name, running))}

    def statistics(self) -> Tree:
        """{part: {name: tensor}} of BatchNorm's running statistics in the parts that travel, live."""
        found = {
            name: {
                key: value for key, value in self.tensors(name).items() if key in _running_statistics(self.part(name))
            }
            for name in self.travelling
        }
        return {name: tensors for name, tensors in found.items() if tensors}

    def trainable(self) -> Tree:
        """{part: {name: parameter}} of what travels and requires a gradient."""
        found = {
            name: {key: value for key, value in self.part(name).named_parameters() if value.requires_grad}
            for name in self.travelling
        }
        return {name: parameters for name, parameters in found.items() if parameters}

    @torch.no_grad()
    def load(self, weights: Tree) -> None:
        """Copies {part: {name: tensor}} into the networks; what it does not name stays."""
        own = {name: self.tensors(name) for name in weights}
        trees.assign({name: {key: own[name][key] for key in weights[name]} for name in weights}, weights)

    @torch.no_grad()
    def start_targets(self, known: Iterable[str] = ()) -> None:
        """A target that neither travels nor stayed (is not in `known`) starts at its source, buffers included."""
        for target, source in self.objective.ema.items():
            if target not in self.travelling and target not in known:
                own, lead = self.tensors(target), self.tensors(source)
                for key, value in own.items():
                    value.copy_(lead[key])


def _places(module: nn.Module, statistics: bool) -> list[tuple[str, dict[str, Any], str]]:
    """Name, holder and the holder's key of each parameter, then of each floating-point buffer."""
    left_out = set() if statistics else _running_statistics(module)
    found: list[tuple[str, dict[str, Any], str]] = []
    for names, holder in (("named_parameters", "_parameters"), ("named_buffers", "_buffers")):
        for key, value in getattr(module, names)():
            owner, _, own = key.rpartition(".")
            if value.is_floating_point() and key not in left_out:
                found.append((key, getattr(module.get_submodule(owner), holder), own))
    return found


def _running_statistics(module: nn.Module) -> set[str]:
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, layer in module.named_modules()
        if isinstance(layer, _BatchNorm)
        for name in ("running_mean", "running_var")
    }
