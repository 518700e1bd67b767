"""Cases: what of the suite is compared with what of a library, how exactly, and a planted fault that must be seen.

A case is a function that returns our values and theirs, under `@case`; the modules that list them are `MODULES`. Where
it has an argument, that is what the case names of the library. Values are float64. Where a library computes something
else, the function applies the formula of the difference to its values, and `note` gives it.
"""

import importlib
import inspect
import math
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy as np
import torch

MODULES = ("objectives", "optimisation", "evaluation", "federated", "privacy", "partitions")
EXACT = 1e-6
"""Largest relative difference of a case that sets none."""

Compute = Callable[..., tuple[Any, Any]]
"""Returns (ours, theirs): a number, an array or a tensor, or a list of them, of the same shapes on both sides."""


def relative(ours: Any, theirs: Any) -> float:
    """The largest difference of any value, over the largest value of its tensor; inf where shapes differ or one is nan.

    >>> relative([1.0, 2.0], [1.0, 4.0])
    0.5
    """
    if isinstance(theirs, list):
        return max(relative(a, b) for a, b in zip(ours, theirs, strict=True))
    a, b = (np.asarray(torch.as_tensor(side).detach().double()) for side in (ours, theirs))
    if a.shape != b.shape:
        return float("inf")
    size = float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-12))
    return float("inf") if math.isnan(size) else size


@dataclass(frozen=True)
class Case:
    """A comparison.

    title: what is compared. ours: import path of the suite's function. theirs: import path in the library.
    fault: a function of the suite, a text in its source, and what is planted instead of it.
    tolerance: of `measure`, largest allowed. note: why the library's values differ, with the formula; empty: they
    do not.
    """

    title: str
    ours: str
    theirs: str
    fault: tuple[Callable[..., Any], str, str]
    compute: Compute
    tolerance: float
    note: str
    measure: Callable[[Any, Any], float]

    @property
    def package(self) -> str:
        """The library's top package."""
        return self.theirs.partition(".")[0]


_cases: list[Case] = []


def case(
    theirs: str,
    ours: Callable[..., Any],
    old: str,
    new: str,
    *,
    within: Callable[..., Any] | None = None,
    tolerance: float = EXACT,
    note: str = "",
    measure: Callable[[Any, Any], float] = relative,
    title: str = "",
) -> Callable[[Compute], Compute]:
    """Registers a function as a case.

    old, new: the planted fault, in the source of `within`, or else of `ours`. title: its docstring, unless given.
    """
    path = f"{inspect.unwrap(ours).__module__}.{inspect.unwrap(ours).__qualname__}"

    def register(compute: Compute) -> Compute:
        said = title or (compute.__doc__ or "").strip().rstrip(".")
        _cases.append(Case(said, path, theirs, (within or ours, old, new), compute, tolerance, note, measure))
        return compute

    return register


def cases() -> list[Case]:
    """All cases, in the order of their modules."""
    for name in MODULES:
        importlib.import_module(f"{__package__}.{name}")
    return list(_cases)


def difference(of: Case) -> float:
    """How far the suite is from the library, in float64 and from the same random numbers each time."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if not inspect.signature(of.compute).parameters:
                return of.measure(*of.compute())
            module, _, name = of.theirs.rpartition(".")
            return of.measure(*of.compute(getattr(importlib.import_module(module), name)))
    finally:
        torch.set_default_dtype(before)


@contextmanager
def planted(function: Callable[..., Any], old: str, new: str) -> Iterator[None]:
    """Context in which a function has a text of its source replaced, for all who call it.

    Raises ValueError: the text does not stand in it exactly once.
    """
    inner: Any = inspect.unwrap(function)
    source = textwrap.dedent(inspect.getsource(inner))
    if (found := source.count(old)) != 1:
        raise ValueError(f"{old!r} stands {found} times in {inner.__qualname__}: name a text that stands there once")
    # inside a function of the variables that it closes over
    body = textwrap.indent(f"global {inner.__name__}\n{source.replace(old, new)}", " ")
    around = compile(f"def around({', '.join(inner.__code__.co_freevars)}):\n{body}", "<planted>", "exec")
    (outer,) = _codes(around, "around")
    (code,) = _codes(outer, inner.__name__)
    before, inner.__code__ = inner.__code__, code
    try:
        yield
    finally:
        inner.__code__ = before


def _codes(within: CodeType, name: str) -> list[CodeType]:
    """The functions of a name that are defined directly within compiled code."""
    return [each for each in within.co_consts if isinstance(each, CodeType) and each.co_name == name]
