"""The arguments of classes and functions that a config names by import path."""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple, get_type_hints

ROOTS = (("builtins", "object"), ("torch.nn.modules.module", "Module"), ("torch.utils.data.dataset", "Dataset"))
"""Module and name of classes whose constructors pass nothing on."""


class Signature(NamedTuple):
    """Arguments that can be given by name, with their annotations as types.

    passes_on: whether it takes others too, for something that is not known here.
    """

    named: Mapping[str, inspect.Parameter]
    passes_on: bool


def signature_of(target: Any, filled: int = 0) -> Signature:
    """What a class or a function takes; of a class that takes `**keywords`, also what its base classes take.

    filled: how many of its first arguments the caller gives by position.
    """
    if not inspect.isclass(target):
        return _of_function(target, filled)
    named: dict[str, inspect.Parameter] = {}
    passes_on = False
    for cls in target.__mro__:
        constructor = vars(cls).get("__init__", vars(cls).get("__new__"))
        constructor = getattr(constructor, "__func__", constructor)
        of_protocol = getattr(constructor, "__module__", None) == "typing"  # which takes nothing
        if constructor is None or (cls.__module__, cls.__qualname__) in ROOTS or of_protocol:
            continue
        own = _of_function(constructor, filled + 1)
        named, passes_on = {**own.named, **named}, own.passes_on
        if not passes_on:
            break
    return Signature(named, passes_on)


def _of_function(function: Any, filled: int) -> Signature:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # of C code, which checks its arguments itself
        return Signature({}, True)
    try:
        hints = get_type_hints(function)
    except Exception:  # an annotation of a name that is imported for type checkers only, or none of Python's
        hints = {}
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = [p.name for p in parameters if p.kind in by_place][:filled]
    named = {
        p.name: p.replace(annotation=hints.get(p.name, Any))
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in given
    }
    return Signature(named, any(p.kind is p.VAR_KEYWORD for p in parameters))
