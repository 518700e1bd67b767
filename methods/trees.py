"""Trees: nested dicts of tensors, the only thing that is stored or sent (weights, control variates, matrices)."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Tree = dict[Any, Any]
"""A nested dict whose leaves are tensors; keys are strings, or client ids where a Tree holds one subtree a client."""


def leaves(tree: Tree, path: tuple = ()) -> Iterator[tuple[tuple, Tensor]]:
    """Yields (path, tensor) in insertion order; a path is the tuple of keys from the root."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def map(function: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
    """Applies `function` leaf by leaf; `others` must hold at least the leaves of `tree`."""
    return {
        key: map(function, value, *(other[key] for other in others))
        if isinstance(value, dict)
        else function(value, *(other[key] for other in others))
        for key, value in tree.items()
    }


def clone(tree: Tree) -> Tree:
    """A detached copy that shares no memory with `tree`."""
    return map(lambda leaf: leaf.detach().clone(), tree)


def to(tree: Tree, device: torch.device | str) -> Tree:
    """The same Tree on `device`; leaves already there are not copied."""
    return map(lambda leaf: leaf.to(device), tree)


def zeros_like(tree: Tree) -> Tree:
    """A Tree of zeros with the shapes, dtypes and devices of `tree`."""
    return map(torch.zeros_like, tree)


def add(tree: Tree, change: Tree, scale: float = 1.0) -> Tree:
    """`tree + scale * change`; leaves `change` lacks stay as they are, so a change may speak of some parts only."""
    return {
        key: value
        if key not in change
        else (add(value, change[key], scale) if isinstance(value, dict) else value + scale * change[key])
        for key, value in tree.items()
    }


def subtract(tree: Tree, other: Tree) -> Tree:
    """`tree - other` over the leaves of `tree`."""
    return map(torch.sub, tree, other)


def overlay(tree: Tree, top: Tree) -> Tree:
    """The leaves of both; where both hold one, `top` wins. Neither argument is changed."""
    merged = dict(tree)
    for key, value in top.items():
        both = isinstance(value, dict) and isinstance(tree.get(key), dict)
        merged[key] = overlay(tree[key], value) if both else value
    return merged


def finite(tree: Tree) -> bool:
    """Whether no leaf holds an infinity or a NaN; one look at the device for the whole Tree."""
    flags = [leaf.isfinite().all() for _, leaf in leaves(tree)]
    return not flags or bool(torch.stack([flag.to(flags[0].device) for flag in flags]).all())


def nbytes(tree: Tree) -> int:
    """Bytes of all leaves as they would be serialised: elements times element size."""
    return sum(leaf.numel() * leaf.element_size() for _, leaf in leaves(tree))


def put(tree: Tree, path: tuple, leaf: Tensor) -> None:
    """Sets one leaf in place, making the dicts on the way to it."""
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = leaf
