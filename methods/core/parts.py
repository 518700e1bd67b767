"""The networks of a method by the names of their parts, as Trees: sent, stored or trained."""

from collections.abc import Callable, Iterable
from typing import Any, Self, cast

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from methods import trees
from methods.core.freezing import frozen_tensors, is_frozen, keeps_statistics
from methods.core.objective import AddOn, Objective
from methods.trees import Tree

Places = list[tuple[str, dict[str, Any], str]]
"""Name of each tensor of a part, the module dict that holds it, and its key there."""


class Parts(LightningModule):
    """A LightningModule over an objective and add-ons whose parts are read and written as Trees.

    A part is a submodule or a queue of the objective, or the networks of an add-on; the Trees hold live tensors.

    travels: parts that make up the entry "weights"; None: the objective's and the add-ons' networks.
    stays: parts that stay with the client and are restored at its next visit.
    personal: parts that do not travel but stay, by the setting `method.stays`.
    places: cache of `tensors`, by part and `statistics`; modules do not change after construction.
    """

    travels: tuple[str, ...] | None = None
    stays: tuple[str, ...] = ()
    personal: tuple[str, ...] = ()
    objective: Objective
    addons: nn.ModuleDict
    batch_norm: str
    places: dict[tuple[str, bool], Places]

    @property  # type: ignore[misc] # Lightning's own can be set, and may be a string
    def dtype(self) -> torch.dtype:
        """Type of the networks' numbers."""
        return next(self.objective.parameters()).dtype

    @property
    def terms(self) -> list[AddOn]:
        """The add-ons, in the order they were given."""
        return list(cast(Iterable[AddOn], self.addons.values()))

    @property
    def travelling(self) -> tuple[str, ...]:
        """Names of the parts that make up the entry "weights"."""
        networks = (addon.name for addon in self.terms if addon.networks() is not None)
        names = (*self.objective.travels, *networks) if self.travels is None else self.travels
        return tuple(name for name in names if name not in self.personal)

    @property
    def staying(self) -> tuple[str, ...]:
        """Names of the parts that stay with the client: the objective's, the method's, then those of the setting."""
        return tuple(dict.fromkeys((*self.objective.stays, *self.stays, *self.personal)))

    @property
    def has_personal_encoders(self) -> bool:
        """Whether each client has an encoder of its own: the encoder stays and does not travel."""
        return "encoder" in self.staying and "encoder" not in self.travelling

    def part(self, name: str) -> nn.Module:
        """A part by name: a submodule of the objective, or the networks of the add-on of that name."""
        for addon in self.terms:
            if addon.name == name and (networks := addon.networks()) is not None:
                return networks
        return getattr(self.objective, name)

    def tensors(self, name: str, statistics: bool = True) -> dict[str, Tensor]:
        """Parameters and floating-point buffers of a part, live; `statistics=False`: without BatchNorm's running ones.

        Integer counters are not included: they are neither stored nor sent, as their average has no meaning. Frozen
        tensors are not either: what is sent, combined, kept by clients and saved takes its tensors from here.
        """
        if name in self.objective.queues:
            return {key: getattr(self.objective, key) for key in (name, f"{name}_filled")}
        if (name, statistics) not in self.places:
            self.places[name, statistics] = _places(self.part(name), statistics)
        return {path: holder[key].detach() for path, holder, key in self.places[name, statistics]}

    def frozen(self) -> Tree:
        """{"encoder": {name: tensor}} of the frozen tensors, live, which a client is sent once; empty without any."""
        tensors = frozen_tensors(self.objective.encoder)
        return {"encoder": tensors} if tensors else {}

    def train(self, mode: bool = True) -> Self:
        """As any module's; a frozen BatchNorm layer stays in eval mode."""
        super().train(mode)
        for layer in filter(keeps_statistics, self.modules()):
            layer.eval()
        return self

    def weights(self, statistics: bool | None = None) -> Tree:
        """{part: {name: tensor}} of the parts that travel, live; a part without tensors is left out.

        statistics: whether BatchNorm's running statistics are included; None: by `batch_norm`.
        """
        running = self.batch_norm == "average" if statistics is None else statistics
        return self._by_part(lambda part: self.tensors(part, running))

    def statistics(self) -> Tree:
        """{part: {name: tensor}} of BatchNorm's running statistics in the parts that travel, live."""

        def select(part: str) -> dict[str, Tensor]:
            names = _running_statistics(self.part(part))
            return {name: tensor for name, tensor in self.tensors(part).items() if name in names}

        return self._by_part(select)

    def trainable(self) -> Tree:
        """{part: {name: parameter}} of the parts that travel, where a gradient is required."""
        return self._by_part(
            lambda part: {name: value for name, value in self.part(part).named_parameters() if value.requires_grad}
        )

    def _by_part(self, select: Callable[[str], dict[str, Tensor]]) -> Tree:
        """{part: tensors that `select` returns} of the parts that travel; a part without tensors is left out."""
        return {part: tensors for part in self.travelling if (tensors := select(part))}

    @torch.no_grad()
    def load(self, weights: Tree) -> None:
        """Copies {part: {name: tensor}} into the networks; all other tensors are unchanged."""
        trees.assign(trees.select({part: self.tensors(part) for part in weights}, weights), weights)

    @torch.no_grad()
    def start_targets(self, known: Iterable[str] = ()) -> None:
        """Copies the source, buffers included, into each target that neither travels nor is among `known` parts."""
        for target, source in self.objective.ema.items():
            if target not in self.travelling and target not in known:
                values = self.tensors(source)
                for name, tensor in self.tensors(target).items():
                    tensor.copy_(values[name])


def _places(module: nn.Module, statistics: bool) -> Places:
    """The places of the parameters, then of the floating-point buffers, without what is frozen."""
    excluded = set() if statistics else _running_statistics(module)
    places: Places = []
    for names, holder in (("named_parameters", "_parameters"), ("named_buffers", "_buffers")):
        for path, value in getattr(module, names)():
            at, _, key = path.rpartition(".")
            owner = module.get_submodule(at)
            if value.is_floating_point() and path not in excluded and not is_frozen(owner, key):
                places.append((path, getattr(owner, holder), key))
    return places


def _running_statistics(module: nn.Module) -> set[str]:
    """Names of BatchNorm's running means and variances in a module."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, layer in module.named_modules()
        if isinstance(layer, _BatchNorm)
        for name in ("running_mean", "running_var")
    }
