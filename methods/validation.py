"""Checks of arguments that a user sets."""

import operator
from typing import TypeVar

from methods.types import MethodError

Number = TypeVar("Number", bound=float)


def choose(key: str, value: str, *possible: str) -> str:
    """The value itself; MethodError where it is none of the possible ones. key: as a user sets it."""
    if value not in possible:
        raise MethodError(f"{key}={value!r}: choose {' or '.join(possible)}")
    return value


_BOUNDS = {
    "above": (operator.gt, "above {}"),
    "at_least": (operator.ge, "of at least {}"),
    "at_most": (operator.le, "at most {}"),
    "below": (operator.lt, "below {}"),
}


def check_number(key: str, value: Number, **bounds: float) -> Number:
    """The value itself; MethodError where it is outside its bounds: above, at_least, at_most, below."""
    if not all(_BOUNDS[name][0](value, bound) for name, bound in bounds.items()):
        words = " and ".join(_BOUNDS[name][1].format(bound) for name, bound in bounds.items())
        raise MethodError(f"{key}={value}: give a number {words}")
    return value
