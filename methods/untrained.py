"""The floor: initial weights, never trained. Any probe gets well above chance on them, and a method must beat that."""

from typing import ClassVar

from methods.base import FederatedMethod, Phase


class Untrained(FederatedMethod):
    """A method of no phases: rounds pass, nothing is sent, nobody trains."""

    phases: ClassVar[tuple[Phase, ...]] = ()
