"""The official protocols: fixed, versioned ways to turn a frozen encoder into scores; `protocols.yaml` has them all.

Their functions are imported when they run, so that a list or a table needs no torch.
"""

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import yaml

from eval.errors import EvalError

if TYPE_CHECKING:
    import torch

    from eval.inputs import Subject


@dataclass(frozen=True)
class Protocol:
    """A versioned protocol.

    Args:
        id: "name/version".
        compute: the function or its import path; returns metrics by name. It gets the settings by name and, as far as
            it has them among its arguments, `subject`, the fields of a `Subject` and of its `Features`, `inputs` (the
            encoder and its images), `generator`, `note`, and `data`, the name of another data set, of which the
            features then are.
        summary: one line for tables and docs, differences from the paper included.
        settings: all its numbers, by argument of `compute`; of an import path as `protocols.yaml` has them.
        headline: the metric that represents the protocol in a table.
        units: by metric; others are in "%" if accuracies and "1" otherwise.
        lower, higher: metrics where less or more is better; for accuracies more is, for others neither.
        requires: "", "encoder_inputs", "held_out" or "members" (either and "encoder_inputs"), "local_models",
            "local_step", "client_replies", "tokens", "projector", "test_clients", "views" or "target NAME": the input
            besides features.
        uses_labels: whether it needs the labels of the data set that the encoder is evaluated on.
        uses_views: whether it reads the two views of `Features`, which it requires only where `requires` has them.
        long: whether it takes a paper's number of passes through the encoder, or of steps.
        draws_of: id of the protocol whose random numbers it draws, so that both share one probe, trained once; "": its
            own.
        replaced_by: id of the version to take instead; a replaced protocol is in no group of protocols.
    """

    id: str
    compute: Callable[..., dict[str, float]] | str
    summary: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    headline: str = "accuracy"
    units: Mapping[str, str] = field(default_factory=dict)
    lower: tuple[str, ...] = ()
    higher: tuple[str, ...] = ()
    requires: str = ""
    uses_views: bool = False
    uses_labels: bool = True
    long: bool = False
    draws_of: str = ""
    replaced_by: str = ""

    @cached_property
    def function(self) -> Callable[..., dict[str, float]]:
        """What `compute` is, or names."""
        if not isinstance(self.compute, str):
            return self.compute
        module, _, name = self.compute.rpartition(".")
        return getattr(importlib.import_module(module), name)

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """The settings as the function takes them."""
        if not isinstance(self.compute, str):
            return self.settings
        hints = get_type_hints(self.function)
        return {key: _typed(value, hints.get(key)) for key, value in self.settings.items()}

    def run(self, subject: "Subject", generator: "torch.Generator") -> dict[str, float]:
        """Metrics of an encoder by name."""
        _, _, data = self.requires.partition(" ")
        features = subject.targets[data]() if data else subject.features
        given = {**vars(subject), **vars(features), "subject": subject, "features": features, "data": data}
        given |= {"inputs": subject.encoder_inputs, "generator": generator, "note": subject.note}
        declared = inspect.signature(self.function).parameters
        return self.function(**{**{name: given[name] for name in declared if name in given}, **self.arguments})

    def leading(self, metrics: Iterable[str]) -> str:
        """The metric of these that comes first in a table; "" without any."""
        names = list(metrics)
        return self.headline if self.headline in names else next(iter(names), "")

    def better(self, metric: str) -> str:
        """ "higher" or "lower", the better direction of a metric; "" if neither."""
        if metric in self.lower:
            return "lower"
        return "higher" if metric.startswith("accuracy") or metric in self.higher else ""

    def unit(self, metric: str) -> str:
        """Unit of a metric."""
        return self.units.get(metric, "%" if metric.startswith("accuracy") else "1")


OF = "accuracy of "
"""Prefix of the metric of one client; its name follows."""

TRANSFER = r"transfer-([\w.-]+)/(v[12])"
"""Ids of the protocols on another data set; the groups are its name and the version."""


OWN = re.compile(r"(?P<path>[^\W\d]\w*(?:\.[^\W\d]\w*)+)(?P<settings>(?::\w+=[^:/]*)*)(?:/(?P<digits>[0-9a-f]{8}))?")
"""Words and ids of protocols of somebody's own, see `eval.own`."""
LOADED: dict[str, Protocol] = {}
"""Id -> those of them that this process has imported."""


def find(name: str) -> Protocol:
    """Look up a protocol by id; there are a `transfer-<data set>/v1` and a `/v2` for every data set.

    An own protocol's id is found too, for a table: one that this process has not imported has no function.

    Raises EvalError: an unknown id.
    """
    if name in PROTOCOLS:
        return PROTOCOLS[name]
    if (own := OWN.fullmatch(name)) and own["digits"]:
        return LOADED.get(name) or Protocol(name, dict, "a protocol of somebody's own", uses_labels=False)
    if match := re.fullmatch(TRANSFER, name):
        named = _TRANSFERS[f"transfer-{{data}}/{match[2]}"]
        return replace(
            named, **{key: getattr(named, key).format(data=match[1]) for key in ("id", "summary", "requires")}
        )
    if own:
        raise EvalError(f"protocol {name} was not imported: `eval.own.load` does so, and returns it with its id")
    close = difflib.get_close_matches(name, [*PROTOCOLS, "all", "papers"], n=1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    known = ", ".join([*PROTOCOLS, "transfer-<data set>/v1", "transfer-<data set>/v2"])
    raise EvalError(f"unknown protocol '{name}'{hint}: give any of {known}")


def _typed(value: Any, hint: Any = None) -> Any:
    """A value of `protocols.yaml` for an argument of this type: an object of a class from its arguments, or a tuple."""
    classes = [each for each in (*get_args(hint), hint) if isinstance(each, type) and get_type_hints(each)]
    if isinstance(value, dict) and classes:
        hints = get_type_hints(classes[0])
        return classes[0](**{name: _typed(item, hints[name]) for name, item in value.items()})
    return tuple(value) if isinstance(value, list) else value


_ENTRIES = yaml.safe_load(Path(__file__).with_name("protocols.yaml").read_text(encoding="utf-8"))
_ALL = {name: Protocol(name, **{key: _typed(value) for key, value in each.items()}) for name, each in _ENTRIES.items()}
_TRANSFERS = {name: protocol for name, protocol in _ALL.items() if "{data}" in name}
PROTOCOLS = {name: protocol for name, protocol in _ALL.items() if name not in _TRANSFERS}
