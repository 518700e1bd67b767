"""Trees: nested dicts of tensors, the only data that is stored or sent (weights, control variates, matrices).

Leaves that are contiguous in one storage are copied, added and checked as one flat tensor. `clone` and the resident
model create Trees in this layout; other code need not know about it.
"""

from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

Tree = dict[Any, Any]
"""A nested dict whose leaves are tensors; keys are strings, or client ids where a Tree holds one subtree a client."""


class Span(NamedTuple):
    """A Tree whose leaves are contiguous in one storage, in any order.

    flat: all leaves as one tensor of one dimension. layout: each leaf's path, offset in `flat`, shape and strides, in
    the order of offsets; Trees of one layout agree element by element.
    """

    flat: Tensor
    layout: tuple[tuple[tuple, int, torch.Size, tuple[int, ...]], ...]

    def tree(self, flat: Tensor) -> Tree:
        """A Tree of this layout over another flat tensor, of any dtype: views, no copies."""
        result: Tree = {}
        for path, offset, shape, strides in self.layout:
            put(result, path, flat.as_strided(shape, strides, flat.storage_offset() + offset))
        return result


def leaves(tree: Tree, path: tuple = ()) -> Iterator[tuple[tuple, Tensor]]:
    """Yields (path, tensor) in insertion order; a path is the tuple of keys from the root.

    >>> [path for path, _ in leaves({"encoder": {"weight": torch.ones(2)}, "scale": torch.ones(1)})]
    [('encoder', 'weight'), ('scale',)]
    """
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def map(function: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
    """Applies `function` leaf by leaf; `others` must hold at least the leaves of `tree`.

    >>> map(torch.add, {"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])})
    {'w': tensor([3.])}
    """
    return {
        key: map(function, value, *(other[key] for other in others))
        if isinstance(value, dict)
        else function(value, *(other[key] for other in others))
        for key, value in tree.items()
    }


def in_order(tree: Tree) -> list[tuple[tuple, Tensor]]:
    """The (path, tensor) of `leaves`, sorted by their paths, whatever order the Tree was put together in."""
    return sorted(leaves(tree), key=lambda item: [str(key) for key in item[0]])


def map_in_order(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """As `map`, calling `function` in the order of the paths, so that what it draws depends on the paths alone.

    >>> numbers = iter([1.0, 2.0])
    >>> map_in_order(lambda leaf: leaf * next(numbers), {"w": torch.tensor([1.0]), "b": torch.tensor([1.0])})
    {'w': tensor([2.]), 'b': tensor([1.])}
    """
    values = {path: function(leaf) for path, leaf in in_order(tree)}
    result: Tree = {}
    for path, _ in leaves(tree):
        put(result, path, values[path])
    return result


def select(tree: Tree, outline: Tree) -> Tree:
    """The leaves of `tree` at the paths of `outline`.

    >>> select({"w": torch.tensor([1.0]), "b": torch.tensor([2.0])}, {"b": torch.empty(1)})
    {'b': tensor([2.])}
    """
    return map(lambda _, leaf: leaf, outline, tree)


def span(tree: Tree) -> Span | None:
    """The leaves as one flat tensor; None where storage or dtype differ, or the leaves are not contiguous."""
    items = sorted(
        ((leaf.storage_offset(), leaf.numel(), path, leaf) for path, leaf in leaves(tree)), key=itemgetter(0, 1)
    )
    if not items:
        return None
    base, _, _, first = items[0]
    storage, dtype = first.untyped_storage().data_ptr(), first.dtype
    layout, end = [], 0
    for offset, size, path, leaf in items:
        apart = leaf.untyped_storage().data_ptr() != storage or offset != base + end
        if apart or leaf.dtype != dtype or not dense(leaf):
            return None
        layout.append((path, end, leaf.shape, leaf.stride()))
        end += size
    return Span(first.detach().as_strided((end,), (1,), base), tuple(layout))


def alike(*trees: Tree) -> list[Span] | None:
    """The spans of Trees that share one layout; None where a Tree has no span or another layout."""
    spans = [packed for tree in trees if (packed := span(tree)) is not None]
    return spans if len(spans) == len(trees) and all(packed.layout == spans[0].layout for packed in spans) else None


def flat(outline: Iterable[tuple[tuple, Tensor]], device: torch.device | str | None = None) -> Span:
    """Contiguous zeros of these paths, shapes and, if dense, strides; dtype and default device of the first leaf."""
    layout, end, items = [], 0, list(outline)
    for path, leaf in items:
        strides = leaf.stride() if dense(leaf) else torch.empty(leaf.shape, device="meta").stride()
        layout.append((path, end, leaf.shape, strides))
        end += leaf.numel()
    return Span(torch.zeros(end, dtype=items[0][1].dtype, device=device or items[0][1].device), tuple(layout))


def in_memory_order(items: Iterable[tuple[tuple, Tensor]]) -> list[tuple[tuple, Tensor]]:
    """The leaves with those of one element last: between others they would move these off 16-byte boundaries."""
    return sorted(items, key=lambda item: item[1].numel() == 1)


def zeros(outline: Tree, device: torch.device | str) -> Tree:
    """Zeros in the shapes of an outline's leaves, with the contiguous branches of `clone`."""
    copy = clone(map(lambda leaf: torch.zeros_like(leaf, device=device), outline))
    return overlay(outline, copy)  # over `outline`, whose branches may have no leaves


def dense(leaf: Tensor) -> bool:
    """Whether a leaf's elements fill one stretch of memory without gap or overlap, in any order of dimensions."""
    if leaf.is_contiguous():
        return True
    order = sorted(range(leaf.ndim), key=lambda dim: leaf.stride(dim), reverse=True)
    return leaf.permute(order).is_contiguous()


def clone(tree: Tree) -> Tree:
    """A detached copy, sharing no memory with `tree`; contiguous in each branch of leaves of one dtype and device."""
    if (packed := span(tree)) is not None:
        return packed.tree(packed.flat.clone())
    items = list(leaves(tree))
    if len({(leaf.dtype, leaf.device) for _, leaf in items}) != 1:
        return {key: clone(value) if isinstance(value, dict) else value.detach().clone() for key, value in tree.items()}
    packed = flat(in_memory_order(items))
    copy = packed.tree(packed.flat)
    assign(copy, tree)
    return copy


@torch.no_grad()
def assign(tree: Tree, values: Tree) -> None:
    """Copies every leaf of `values` into the leaf of `tree` at the same path; all other leaves are unchanged."""
    if (spans := alike(tree, values)) is not None:
        spans[0].flat.copy_(spans[1].flat)
        return
    targets = dict(leaves(tree))
    for path, value in leaves(values):
        targets[path].copy_(value)


def to(tree: Tree, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Tree:
    """The same Tree on `device`, its floating-point leaves as `dtype`; other leaves are not copied."""
    return map(lambda leaf: leaf.to(device, dtype if leaf.is_floating_point() else None), tree)


def move(tree: Tree, device: torch.device | str) -> Tree:
    """The Tree on a device: a copy, sent as one tensor for each dtype, or itself where it is there already."""
    device = torch.device(device)
    if all(leaf.device == device for _, leaf in leaves(tree)):
        return tree
    groups: dict[Any, Tree] = {}
    for path, leaf in leaves(tree):
        put(groups.setdefault((leaf.dtype, leaf.device), {}), path, leaf)
    moved: dict[tuple, Tensor] = {}
    for group in groups.values():
        packed = span(clone(group))
        assert packed is not None  # one dtype and device
        moved |= leaves(packed.tree(packed.flat.to(device, non_blocking=device.type != "cpu")))
    result: Tree = {}
    for path, _ in leaves(tree):
        put(result, path, moved[path])
    return overlay(tree, result)  # over `tree`, whose branches may have no leaves


def zeros_like(tree: Tree) -> Tree:
    """A Tree of zeros with the shapes, dtypes and devices of `tree`."""
    return elementwise(torch.zeros_like, tree)


def add(tree: Tree, change: Tree, scale: float = 1.0) -> Tree:
    """`tree + scale * change`; leaves of `tree` that `change` lacks are unchanged.

    >>> add({"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}, scale=0.5)
    {'w': tensor([2.])}
    """
    if (spans := alike(tree, change)) is not None:
        return spans[0].tree(spans[0].flat + scale * spans[1].flat)
    values, changes = dict(leaves(tree)), dict(leaves(change))
    if not (paths := [path for path in values if path in changes]):
        return overlay(tree, {})
    changed: Any = [changes[path] for path in paths]
    if scale != 1:
        changed = torch._foreach_mul(changed, scale)
    sums = torch._foreach_add([values[path] for path in paths], changed)  # one kernel on a GPU, for all leaves
    result: Tree = {}
    for path, leaf in zip(paths, sums, strict=True):
        put(result, path, leaf)
    return overlay(tree, result)


def subtract(tree: Tree, other: Tree) -> Tree:
    """`tree - other` over the leaves of `tree`.

    >>> subtract({"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])})
    {'w': tensor([-1.])}
    """
    return elementwise(torch.sub, tree, other)


def elementwise(function: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
    """`map` for a function that acts on each element: one call where all Trees are contiguous and of one layout."""
    if (spans := alike(tree, *others)) is None:
        return map(function, tree, *others)
    return spans[0].tree(function(*(packed.flat for packed in spans)))


def squared_norm(tree: Tree) -> Tensor:
    """The sum of the squares of all leaves, 0-d.

    >>> squared_norm({"w": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    tensor(25.)
    """
    return torch.stack([leaf.square().sum() for _, leaf in leaves(tree)]).sum()


def apart(first: Tree, second: Tree, outline: Tree | None = None) -> Tensor:
    """Relative distance, ||first - second|| / (||first|| + ||second||), 0-d, from 0 to 1; 0 of two of zeros.

    outline: with the paths that count; None: those of `first`.

    >>> apart({"w": torch.tensor([3.0])}, {"w": torch.tensor([1.0])})
    tensor(0.5000)
    """
    one, other = (select(tree, first if outline is None else outline) for tree in (first, second))
    difference, first_length, second_length = (squared_norm(tree).sqrt() for tree in (subtract(one, other), one, other))
    return difference / (first_length + second_length).clamp(min=torch.finfo(difference.dtype).tiny)


def overlay(tree: Tree, top: Tree) -> Tree:
    """The leaves of both Trees; `top` replaces leaves at the same path. The arguments are unchanged.

    >>> overlay({"w": torch.tensor([1.0]), "b": torch.tensor([2.0])}, {"b": torch.tensor([5.0])})
    {'w': tensor([1.]), 'b': tensor([5.])}
    """
    merged = dict(tree)
    for key, value in top.items():
        nested = isinstance(value, dict) and isinstance(tree.get(key), dict)
        merged[key] = overlay(tree[key], value) if nested else value
    return merged


def finite(tree: Tree) -> bool:
    """Whether all leaves are free of infinity and NaN; the device is read once for the whole Tree.

    >>> finite({"w": torch.tensor([1.0, float("nan")])})
    False
    """
    packed = span(tree)
    every = [packed.flat] if packed is not None else [leaf for _, leaf in leaves(tree)]
    tensors = [leaf for leaf in every if leaf.numel() and leaf.is_floating_point()]
    # minimum and maximum are not finite if any element is not; no temporary tensors
    extremes = [bound.double().to(tensors[0].device) for leaf in tensors for bound in leaf.detach().aminmax()]
    return not extremes or bool(torch.stack(extremes).isfinite().all())


def nbytes(tree: Tree) -> int:
    """Bytes of all leaves when serialised: elements times element size.

    >>> nbytes({"w": torch.ones(10)})
    40
    """
    return sum(leaf.numel() * leaf.element_size() for _, leaf in leaves(tree))


def put(tree: Tree, path: tuple, leaf: Tensor) -> None:
    """Sets one leaf in place and creates the missing dicts on its path."""
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = leaf
