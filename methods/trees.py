"""Trees: nested dicts of tensors, the only thing that is stored or sent (weights, control variates, matrices).

Leaves that lie side by side in one storage are copied, added and checked as one flat tensor. `clone` lays them out so,
and so does the resident model with its own; nothing else has to know.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

Tree = dict[Any, Any]
"""A nested dict whose leaves are tensors; keys are strings, or client ids where a Tree holds one subtree a client."""


class Span(NamedTuple):
    """A Tree whose leaves lie side by side.

    flat: one dimension over all leaves, and nothing else. layout: a leaf's path, offset in `flat`, shape and
    strides; two Trees of one layout agree number by number.
    """

    flat: Tensor
    layout: tuple[tuple[tuple, int, torch.Size, tuple[int, ...]], ...]

    def tree(self, flat: Tensor) -> Tree:
        """The same layout over another flat tensor, of any dtype: views, no copies."""
        result: Tree = {}
        for path, offset, shape, strides in self.layout:
            put(result, path, flat.as_strided(shape, strides, flat.storage_offset() + offset))
        return result


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


def span(tree: Tree) -> Span | None:
    """The leaves as one flat tensor, or None where they are of several storages or dtypes, or not side by side."""
    found = list(leaves(tree))
    if not found:
        return None
    first = found[0][1]
    storage, dtype, base = first.untyped_storage().data_ptr(), first.dtype, int(first.storage_offset())
    layout, end = [], 0
    for path, leaf in found:
        apart = leaf.untyped_storage().data_ptr() != storage or leaf.storage_offset() != base + end
        if apart or leaf.dtype != dtype or not dense(leaf):
            return None
        layout.append((path, end, leaf.shape, leaf.stride()))
        end += leaf.numel()
    return Span(first.detach().as_strided((end,), (1,), base), tuple(layout))


def alike(*trees: Tree) -> list[Span] | None:
    """The spans of Trees of one layout, so that their numbers can be worked on as one; None where that cannot be."""
    spans = [found for tree in trees if (found := span(tree)) is not None]
    return spans if len(spans) == len(trees) and all(one.layout == spans[0].layout for one in spans) else None


def flat(like: Iterable[tuple[tuple, Tensor]], device: torch.device | str | None = None) -> Span:
    """Zeros for leaves of these paths, shapes and strides, side by side; the dtype and device are the first one's."""
    layout, end, found = [], 0, list(like)
    for path, leaf in found:
        strides = leaf.stride() if dense(leaf) else torch.empty(leaf.shape, device="meta").stride()
        layout.append((path, end, leaf.shape, strides))
        end += leaf.numel()
    return Span(torch.zeros(end, dtype=found[0][1].dtype, device=device or found[0][1].device), tuple(layout))


def zeros(outline: Tree, device: torch.device | str) -> Tree:
    """Zeros for the leaves of an outline, side by side as far as they are of one dtype."""
    found = list(leaves(outline))
    if len({leaf.dtype for _, leaf in found}) == 1:
        fresh = flat(found, device)
        return overlay(outline, fresh.tree(fresh.flat))  # which has no branch without leaves
    return {
        key: zeros(value, device) if isinstance(value, dict) else torch.zeros_like(value, device=device)
        for key, value in outline.items()
    }


def dense(leaf: Tensor) -> bool:
    """Whether a leaf fills its stretch of memory, each number once, in whatever order of its dimensions."""
    if leaf.is_contiguous():
        return True
    order = sorted(range(leaf.ndim), key=lambda dim: leaf.stride(dim), reverse=True)
    return leaf.permute(order).is_contiguous()


def clone(tree: Tree) -> Tree:
    """A detached copy that shares no memory with `tree`; leaves of one dtype and device come to lie side by side."""
    if (packed := span(tree)) is not None:
        return packed.tree(packed.flat.clone())
    found = list(leaves(tree))
    if len({(leaf.dtype, leaf.device) for _, leaf in found}) != 1:
        return map(lambda leaf: leaf.detach().clone(), tree)
    fresh = flat(found)
    copy = fresh.tree(fresh.flat)
    assign(copy, tree)
    return copy


@torch.no_grad()
def assign(tree: Tree, values: Tree) -> None:
    """Copies every leaf of `values` into the leaf of `tree` at the same path; what `values` lacks stays."""
    if (both := alike(tree, values)) is not None:
        own, new = both
        own.flat.copy_(new.flat)
        return
    mine = dict(leaves(tree))
    for path, value in leaves(values):
        mine[path].copy_(value)


def to(tree: Tree, device: torch.device | str) -> Tree:
    """The same Tree on `device`; leaves already there are not copied."""
    return map(lambda leaf: leaf.to(device), tree)


def zeros_like(tree: Tree) -> Tree:
    """A Tree of zeros with the shapes, dtypes and devices of `tree`."""
    return elementwise(torch.zeros_like, tree)


def add(tree: Tree, change: Tree, scale: float = 1.0) -> Tree:
    """`tree + scale * change`; leaves `change` lacks stay as they are, so a change may speak of some parts only."""
    if (both := alike(tree, change)) is not None:
        own, new = both
        return own.tree(own.flat + scale * new.flat)
    return {
        key: value
        if key not in change
        else (add(value, change[key], scale) if isinstance(value, dict) else value + scale * change[key])
        for key, value in tree.items()
    }


def subtract(tree: Tree, other: Tree) -> Tree:
    """`tree - other` over the leaves of `tree`."""
    return elementwise(torch.sub, tree, other)


def elementwise(function: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
    """`map` for a function of single numbers: one call where the leaves of all Trees lie side by side alike."""
    if (spans := alike(tree, *others)) is None:
        return map(function, tree, *others)
    return spans[0].tree(function(*(one.flat for one in spans)))


def overlay(tree: Tree, top: Tree) -> Tree:
    """The leaves of both; where both hold one, `top` wins. Neither argument is changed."""
    merged = dict(tree)
    for key, value in top.items():
        both = isinstance(value, dict) and isinstance(tree.get(key), dict)
        merged[key] = overlay(tree[key], value) if both else value
    return merged


def finite(tree: Tree) -> bool:
    """Whether no leaf holds an infinity or a NaN; one look at the device for the whole Tree."""
    packed = span(tree)
    numbers = [packed.flat] if packed is not None else [leaf for _, leaf in leaves(tree)]
    numbers = [one for one in numbers if one.numel()]
    # a NaN is its own extreme, and an infinity is one: a pass without temporary tensors
    extremes = [bound.double().to(numbers[0].device) for leaf in numbers for bound in leaf.detach().aminmax()]
    return not extremes or bool(torch.stack(extremes).isfinite().all())


def nbytes(tree: Tree) -> int:
    """Bytes of all leaves as they would be serialised: elements times element size."""
    return sum(leaf.numel() * leaf.element_size() for _, leaf in leaves(tree))


def put(tree: Tree, path: tuple, leaf: Tensor) -> None:
    """Sets one leaf in place, making the dicts on the way to it."""
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = leaf
