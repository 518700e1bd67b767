"""Inputs of protocols for which clients are visited once more after the last round."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from benchmark.evaluation.drift import drift_unavailable, has_drift, revisit_clients, supports_drift
from benchmark.evaluation.evaluator import Evaluator
from benchmark.evaluation.inversion import observe_step, step_unavailable
from benchmark.evaluation.shares import observe_replies, replies_unavailable
from benchmark.federation.loop import FederatedLoop
from datamodules.federated import FederatedDataModule


class Revisit(NamedTuple):
    """One of these inputs.

    doing: what is shown meanwhile. unavailable: why a run of such a loop and data will not have it, in one line, or
    None. has: whether a run that ended so has it. observe: returns it, called by every rank; settings: the protocol's.
    """

    doing: str
    unavailable: Callable[[FederatedLoop, FederatedDataModule], str | None]
    has: Callable[[FederatedLoop, FederatedDataModule], bool]
    observe: Callable[[FederatedLoop, Evaluator, Mapping[str, Any]], Callable[..., Any]]


REVISITS: Mapping[str, Revisit] = {
    "local_models": Revisit(
        "visiting the clients once more",
        lambda loop, data: None if supports_drift(loop) else drift_unavailable(loop),
        lambda loop, data: has_drift(loop),
        lambda loop, evaluator, settings: partial(evaluator.compare, revisit_clients(loop)),
    ),
    "local_step": Revisit(
        "watching one step of a client",
        lambda loop, data: step_unavailable(loop),
        lambda loop, data: loop.round > 0 and step_unavailable(loop) is None,
        lambda loop, evaluator, settings: observe_step(loop, evaluator.data, settings["images"]),
    ),
    "client_replies": Revisit(
        "watching a round's replies",
        replies_unavailable,
        lambda loop, data: loop.round > 0 and replies_unavailable(loop, data) is None,
        lambda loop, evaluator, settings: observe_replies(loop, evaluator.data),
    ),
}
"""What a protocol requires (`eval.factories.Protocol.requires`) -> how a run gets it."""
