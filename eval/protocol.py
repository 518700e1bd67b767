"""The official protocols: fixed, versioned ways to turn a frozen encoder into scores; `protocols.yaml` has them all."""

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
import yaml

from eval.features import EvalError, Features, ignore
from eval.inputs import Subject

__all__ = ["PROTOCOLS", "EvalError", "Features", "Protocol", "Score", "Subject", "evaluate", "find"]


@dataclass(frozen=True)
class Protocol:
    """A versioned protocol.

    Args:
        id: "name/version".
        compute: returns metrics by name. It gets the settings by name and, as far as it has them among its arguments,
            `subject`, the fields of a `Subject` and of its `Features`, `inputs` (the encoder and its images),
            `generator`, `note`, and `data`, the name of another data set, of which the features then are.
        summary: one line for tables and docs, differences from the paper included.
        settings: all its numbers, by argument of `compute`.
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
    compute: Callable[..., dict[str, float]]
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

    def run(self, subject: Subject, generator: torch.Generator) -> dict[str, float]:
        """Metrics of an encoder by name."""
        _, _, data = self.requires.partition(" ")
        features = subject.targets[data]() if data else subject.features
        given = {**vars(subject), **vars(features), "subject": subject, "features": features, "data": data}
        given |= {"inputs": subject.encoder_inputs, "generator": generator, "note": subject.note}
        declared = inspect.signature(self.compute).parameters
        return self.compute(**{**{name: given[name] for name in declared if name in given}, **self.settings})

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


@dataclass(frozen=True)
class Score:
    """One number: the protocol's id, the metric's name, its value and unit ("%", "nats", ...; "1" for a ratio)."""

    protocol: str
    metric: str
    value: float
    unit: str


def evaluate(
    subject: Subject | Features,
    ids: Iterable[str],
    stream: Callable[[str], torch.Generator] = lambda _: torch.Generator().manual_seed(0),
    on_start: Callable[[str], None] = ignore,
    failures: MutableMapping[str, str] | None = None,
) -> list[Score]:
    """Scores of every metric of the protocols, in the order of the ids.

    Args:
        subject: the encoder to evaluate; its features suffice for most protocols.
        stream: protocol id -> its generator, so that no protocol's score depends on which others run; a protocol that
            draws another one's numbers asks for that one's.
        on_start: called with the id of each protocol before it runs.
        failures: filled with protocol id -> reason for each protocol that cannot work with these features; the others
            still run. None: the first failure is raised.

    Raises:
        EvalError: an unknown id, or an input that a protocol requires is missing, before any protocol runs; or
            features a protocol cannot work with.
    """
    subject = Subject(features=subject) if isinstance(subject, Features) else subject
    protocols = [find(name) for name in ([ids] if isinstance(ids, str) else ids)]
    if absent := [each.id for each in protocols if each.compute is dict]:
        raise EvalError(
            f"{absent[0]} was not imported: give the id of `eval.own.load({absent[0].partition('/')[0]!r})`"
        )
    for protocol in protocols:
        subject.check(protocol.id, protocol.requires)
    scores: list[Score] = []
    for protocol in protocols:
        on_start(protocol.id)
        try:
            metrics = protocol.run(subject, stream(protocol.draws_of or protocol.id))
        except EvalError as error:
            if failures is None:
                raise
            failures[protocol.id] = str(error)
            continue
        scores += [Score(protocol.id, metric, value, protocol.unit(metric)) for metric, value in metrics.items()]
    return scores


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


def _protocol(name: str, compute: str, settings: Mapping[str, Any] | None = None, **fields: Any) -> Protocol:
    """A protocol from its entry."""
    module, _, function = compute.rpartition(".")
    computed = getattr(importlib.import_module(module), function)
    hints = get_type_hints(computed)
    typed = {key: _typed(value, hints.get(key)) for key, value in (settings or {}).items()}
    return Protocol(name, computed, settings=typed, **{key: _typed(value) for key, value in fields.items()})


_ENTRIES = yaml.safe_load(Path(__file__).with_name("protocols.yaml").read_text(encoding="utf-8"))
_ALL = {name: _protocol(name, **entry) for name, entry in _ENTRIES.items()}
_TRANSFERS = {name: protocol for name, protocol in _ALL.items() if "{data}" in name}
PROTOCOLS = {name: protocol for name, protocol in _ALL.items() if name not in _TRANSFERS}
