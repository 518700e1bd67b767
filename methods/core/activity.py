"""How much a method's own idea moves what it acts on: numbers between 0, where the method is its base, and 1."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from methods import trees
from methods.core.types import Activity, Batch

SHARE = "gradient_share"
"""Name of the note on what a method adds to the objective's gradient."""
GRADIENT_SHARE: Mapping[str, Activity] = {
    SHARE: Activity("the norm of the gradient that is added to the objective's, over the sum of both norms")
}


def gradient_share(method: Any, batch: Batch) -> Tensor:
    """||added|| / (||added|| + ||own||), 0-d, of the gradients of the objective's networks on a batch; 0 if both are 0.

    Added is all that a step of the present phase has beyond the method's own loss: its add-ons, and where the method
    declares this activity what its `loss` and `adjust_gradients` do beyond the objective. Nothing of it changes.
    """
    objective, phase, declared = method.objective, method.phase, SHARE in method.activity
    parts: tuple[nn.Module, ...] = (objective, method.addons)
    parameters = [value for part in parts for value in part.parameters() if value.requires_grad]
    buffers = [(buffer, buffer.clone()) for buffer in method.buffers()]
    with _uncompiled(objective):
        out = method.step_outputs(batch)
    losses = method.step_losses(out, batch)
    own_loss = objective.loss(out, batch) if declared else losses["objective"]
    own = _gradients(own_loss, parameters, retain_graph=True)
    whole = _gradients(losses["loss"], parameters)
    with torch.no_grad():
        if declared and not method.is_default("adjust_gradients", phase):
            trained = method.trainable()
            adjusted = method.hook("adjust_gradients", phase)(trees.map(lambda leaf: whole[leaf], trained))
            whole |= dict(zip(_tensors(trained), _tensors(trees.select(adjusted, trained)), strict=True))
        for buffer, before in buffers:
            buffer.copy_(before)
        shared = [value for value in objective.parameters() if value.requires_grad]
        added = torch._foreach_sub([whole[value] for value in shared], [own[value] for value in shared])
        return _share(added, [own[value] for value in shared])


@contextmanager
def _uncompiled(module: nn.Module) -> Iterator[None]:
    """Within, a module is not compiled: a compiled pass cannot be run backward twice."""
    if (compiled := module._compiled_call_impl) is None:  # a new attribute would end what is recorded of its steps
        yield
        return
    module._compiled_call_impl = None
    try:
        yield
    finally:
        module._compiled_call_impl = compiled


def _gradients(loss: Tensor, parameters: Sequence[Tensor], retain_graph: bool = False) -> dict[Tensor, Tensor]:
    found = torch.autograd.grad(loss, parameters, retain_graph=retain_graph, allow_unused=True, materialize_grads=True)
    return dict(zip(parameters, found, strict=True))


def _share(added: Any, own: Any) -> Tensor:
    first, other = (torch.stack(torch._foreach_norm(each)).double().norm() for each in (added, own))
    return first / (first + other).clamp(min=torch.finfo(first.dtype).tiny)


def _tensors(tree: trees.Tree) -> list[Tensor]:
    return [leaf for _, leaf in trees.leaves(tree)]
