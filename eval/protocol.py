"""The official protocols: fixed, versioned ways to turn a frozen encoder into scores; `protocols.yaml` has them all."""

import difflib
import importlib
import re
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
import yaml

from eval.factories import Protocol
from eval.features import EvalError, Features
from eval.inputs import Subject
from eval.knn import crowded
from eval.transfer import before_and_after, transfer

__all__ = ["PROTOCOLS", "EvalError", "Features", "Protocol", "Score", "Subject", "evaluate", "find"]


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
    on_start: Callable[[str], None] = lambda _: None,
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


TRANSFER = r"transfer-([\w.-]+)/v([12])"
"""Ids of the protocols on another data set; the groups are its name and the version."""


def find(name: str) -> Protocol:
    """Look up a protocol by id; there are a `transfer-<data set>/v1` and a `/v2` for every data set.

    Raises EvalError: an unknown id.
    """
    if name in PROTOCOLS:
        return PROTOCOLS[name]
    if match := re.fullmatch(TRANSFER, name):
        return _transfer(name, target=match[1], version=int(match[2]))
    close = difflib.get_close_matches(name, [*PROTOCOLS, "all", "papers"], n=1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    known = ", ".join([*PROTOCOLS, "transfer-<data set>/v1", "transfer-<data set>/v2"])
    raise EvalError(f"unknown protocol '{name}'{hint}: give any of {known}")


def _transfer(name: str, target: str, version: int) -> Protocol:
    """The protocol on another data set."""
    settings = {**PROTOCOLS["linear/v1"].settings, **PROTOCOLS["knn/v1"].settings}
    summary = (
        f"On {target}, which the encoder was not trained on: linear/v1, knn/v1 and effective rank of its test set."
    )

    def opened(subject: Subject) -> Features:
        features = subject.targets[target]()
        subject.note(crowded(settings["k"], len(features.train_x), target))
        return features

    if version == 1:
        return Protocol(
            name,
            lambda subject, generator, **settings: transfer(opened(subject), generator=generator, **settings),
            summary,
            settings,
            units={"effective_rank": "dimensions"},
            requires=f"target {target}",
            uses_labels=False,
        )
    return Protocol(
        name,
        lambda subject, generator, **settings: before_and_after(
            opened(subject), subject.projector, generator, **settings
        ),
        f"As v1, with the uniformity of at most 10,000 test rows, and all four of the projector's outputs on {target}.",
        {**settings, **PROTOCOLS["geometry/v1"].settings},
        units={
            f"{metric}{of}": unit
            for metric, unit in PROTOCOLS["projected/v1"].units.items()
            for of in ("", "_projected")
        },
        lower=("uniformity", "uniformity_projected"),
        requires=f"target {target}",
        uses_labels=False,
    )


def _typed(value: Any, hint: Any) -> Any:
    """A value of `protocols.yaml` for an argument of this type: an object of a class from its arguments, or a tuple."""
    if isinstance(value, dict):
        cls = next(each for each in (*get_args(hint), hint) if isinstance(each, type) and get_type_hints(each))
        return cls(**{name: _typed(item, get_type_hints(cls)[name]) for name, item in value.items()})
    return tuple(value) if isinstance(value, list) else value


def _load() -> dict[str, Protocol]:
    entries = yaml.safe_load(Path(__file__).with_name("protocols.yaml").read_text(encoding="utf-8"))
    made = {}
    for name, entry in entries.items():
        module, _, function = entry.pop("compute").rpartition(".")
        compute = getattr(importlib.import_module(module), function)
        hints, settings = get_type_hints(compute), entry.pop("settings", {})
        typed = {key: _typed(value, hints.get(key)) for key, value in settings.items()}
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        made[name] = Protocol(name, compute, settings=typed, **fields)
    return made


PROTOCOLS = _load()
