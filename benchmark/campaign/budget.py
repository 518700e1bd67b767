"""The time of a command that divides it over work which the same command resumes."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """Time from the start of a command until its work has to end.

    started: by `clock`. seconds: in all; infinite: until all is done. margin: of them at the end, after the last work.
    """

    started: float
    seconds: float = math.inf
    margin: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def left(self, kept: float = 0.0) -> float:
        """Seconds for work; kept: share of the time that is for other work."""
        return self.started + (1 - kept) * (self.seconds - self.margin) - self.clock()
