"""Encoders of single clients, for the protocols that score each client by its own.

A client has an encoder of its own where the encoder stays with it, and where BatchNorm's running statistics do
(`federation.batch_norm: local`): the global encoder with the client's statistics.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from benchmark.evaluation.evaluator import Evaluator
from benchmark.federation.loop import FederatedLoop
from eval.features import Features
from methods import trees
from methods.base import Tree
from methods.core.recalibration import has_batch_norm


def own_models(loop: FederatedLoop, exported: Mapping[str, Tree], name: str) -> dict[int, Callable[[], Tree]]:
    """Client id -> a function that reads the weights of its own encoder, of clients that were visited.

    exported: by `loop.export`. name: of one of them; the clients are those that it stands for. Empty: clients share it.
    """
    method, states = loop.method, loop.client_state
    if method.has_personal_encoders:
        return {} if (owner := owner_of(loop, name)) is None else {owner: partial(exported.__getitem__, name)}
    if method.batch_norm != "local" or list(exported) != ["global"] or not has_batch_norm(method.part("encoder")):
        return {}
    shared = exported["global"]

    def with_statistics(client: int) -> Tree:
        return trees.overlay(shared, states[client].get("statistics", {}))

    return {client: partial(with_statistics, client) for client in states}


def owner_of(loop: FederatedLoop, name: str) -> int | None:
    """The client whose own an exported encoder is; None: clients share it."""
    owned = (client for client in loop.client_state if name == f"client{client}")
    return next(owned, None) if loop.method.has_personal_encoders else None


def own_features(
    evaluator: Evaluator, loop: FederatedLoop, exported: Mapping[str, Tree], name: str
) -> Mapping[str, Callable[[], Features]] | None:
    """Client name -> a function that extracts features by the client's own encoder; its test rows are the client's own.

    exported, name: as for `own_models`. None: clients share the encoder, or the test images name none of them.
    """
    names, test = evaluator.data.parts.names, evaluator.images.test
    models = own_models(loop, exported, name)
    if not models or not names or test.clients is None or set(names).isdisjoint(test.clients.tolist()):
        return None

    def extract(client: int) -> Features:
        assert test.clients is not None
        source = replace(evaluator.images, test=test[test.clients == names[client]])
        return evaluator.features(evaluator.encoder(models[client](), recalibrated=False), source)

    tested = set(test.clients.tolist())
    return {names[client]: partial(extract, client) for client in models if names[client] in tested}
