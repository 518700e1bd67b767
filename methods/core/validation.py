"""Checks of arguments, and the error they raise."""

import math
import operator
from typing import TypeVar

Number = TypeVar("Number", bound=float)


class MethodError(ValueError):
    """A method that is built or used in a way that cannot work; the message is one line for the user."""

    exit_code = 2


def choose(key: str, value: str, *allowed: str) -> str:
    """Returns the value; MethodError unless it is one of `allowed`. key: its name in the config."""
    if value not in allowed:
        raise MethodError(f"{key}={value!r}: choose {' or '.join(allowed)}")
    return value


_BOUNDS = {
    "above": (operator.gt, "above {}"),
    "at_least": (operator.ge, "of at least {}"),
    "at_most": (operator.le, "at most {}"),
    "below": (operator.lt, "below {}"),
}


def check_number(key: str, value: Number, *, infinite: bool = False, **bounds: float) -> Number:
    """Returns the value; MethodError where it is outside its bounds: above, at_least, at_most, below.

    infinite: whether it may be infinite.
    """
    if not infinite and math.isinf(value):
        raise MethodError(f"{key}={value}: give a finite number")
    if not all(_BOUNDS[name][0](value, bound) for name, bound in bounds.items()):
        range_text = " and ".join(_BOUNDS[name][1].format(bound) for name, bound in bounds.items())
        raise MethodError(f"{key}={value}: give a number {range_text}")
    return value
