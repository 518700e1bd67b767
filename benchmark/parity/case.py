"""A case: with which scenario, method and settings of the suite a parity file's run is made again.

A case takes from its file what was chosen for that run: sizes, lengths, rates, temperatures, widths, thresholds and
weights of terms. Everything else is the paper's scenario as the suite ships it, so that a setting which is not the
authors' shows as a departure.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from benchmark.parity.files import ParityFile
from benchmark.parity.inputs import DRAWS, GivenViews, ViewKey, generator
from methods.base import FederatedMethod, Phase

RATES = ("lr", "momentum", "weight_decay")


class Case:
    """One file's run.

    scenario: the shipped one that it is set in. aliases: part of the method -> its name in the file.
    settings: key of the suite -> where the file's setting has its value, or a function of `ParityFile.get` that gives
    it. fixed: key -> its value in every file.
    first_round: the file's number of the first round in which clients train.
    absent: the client that does not train.
    exact: largest relative difference in float64. first: of the first step's losses in float32.
    author_bugs: that the scenario's settings make too.
    default: settings of the authors that are not the suite's defaults -> the defaults.
    """

    scenario: str
    method: str = "fedavg"
    settings: Mapping[str, Any] = {}
    fixed: Mapping[str, Any] = {}
    aliases: Mapping[str, Any] = {}
    first_round: ClassVar[int] = 0
    absent: ClassVar[int | None] = None
    exact: ClassVar[float] = 1e-6
    first: ClassVar[float] = 1e-6
    author_bugs: str = ""
    default: Mapping[str, Any] = {}

    def __init__(self, file: ParityFile) -> None:
        self.file = file

    def overrides(self) -> dict[str, Any]:
        """The file's settings, by the suite's keys."""
        get = self.file.get
        return {
            "federation.rounds": get("rounds"),
            "federation.participation": 1.0,
            "training.epochs": get("epochs", "local_epochs", "local_epochs_argument"),
            "training.batch_size": get("batch_size"),
            **{f"optimizer.{key}": value for key, value in get("optimizer").items() if key in RATES},
            **self.fixed,
            **{key: get(of) if isinstance(of, str) else of(get) for key, of in self.settings.items()},
        }

    def draws(self, *key: int) -> np.random.Generator:
        """The file's generator of what methods draw."""
        return generator(self.file.seed, DRAWS, *key)

    def labels(self) -> list[Tensor]:
        """Labels of each client's images, where the loss needs them."""
        return []

    def view_key(self, phase: Phase, round: int) -> ViewKey:
        """Numbers in the keys of a phase's views."""
        return ViewKey(round + self.first_round)

    def prepare(self, method: FederatedMethod, data: GivenViews) -> None:
        """Replaces what the method draws by the file's numbers."""


def set_hooks(target: Any, **hooks: Callable[..., Any]) -> None:
    """Replaces hooks of one object."""
    for name, hook in hooks.items():
        setattr(target, name, hook)
