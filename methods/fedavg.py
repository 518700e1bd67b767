"""FedAvg. McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data (AISTATS 2017).

| symbol | name | equation |
|---|---|---|
| n_k | a client's examples | Algorithm 1 |
| w <- sum_k n_k / n w_k | `Mean("examples")` | Algorithm 1 |

Decisions
- The weights are the clients' numbers of examples over the sampled clients. Several released codes of the field weigh
  by the number of batches, or all clients alike: `weighting: examples | batches | clients`.
- BatchNorm's running statistics are averaged like the weights under `federation.batch_norm: average`.
- The local optimiser starts afresh at each visit, as in every released code of the field.
"""

from dataclasses import replace
from typing import Any

from methods.base import FederatedMethod, Mean, Objective, Phase, choose


class FedAvg(FederatedMethod):
    """The clients' mean; every hook is the default.

    Args:
        weighting: of the mean over clients: "examples", "batches" or "clients".
    """

    def __init__(self, objective: Objective, *, weighting: str = "examples", **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        self.mean = Mean(choose("method.weighting", weighting, "examples", "batches", "clients"))

    def plan(self, round: int) -> tuple[Phase, ...]:
        """The default phases, with the round's mean of the weights."""
        mean = self.averaging(round)
        return tuple(
            replace(phase, uplink={**phase.uplink, "weights": mean}) if "weights" in phase.uplink else phase
            for phase in super().plan(round)
        )

    def averaging(self, round: int) -> Mean:
        """How a round's weights are averaged."""
        return self.mean
