"""Baseline: untrained initial weights. Probes score well above chance on them, and a method must score higher."""

from typing import ClassVar

from methods.base import FederatedMethod, Phase


class Untrained(FederatedMethod):
    """A method without phases: no messages and no training."""

    phases: ClassVar[tuple[Phase, ...]] = ()
