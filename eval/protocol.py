"""Scores of an encoder by the official protocols, which `eval.official` has."""

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass

import torch

from eval.errors import EvalError
from eval.features import Features, ignore
from eval.inputs import Subject
from eval.official import PROTOCOLS, Protocol, find

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
