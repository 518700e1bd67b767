"""FedAvg. McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data (AISTATS 2017).

| symbol | name | equation |
|---|---|---|
| n_k | a client's examples | Algorithm 1 |
| w <- sum_k n_k / n w_k | `Mean("examples")` | Algorithm 1 |

Decisions
- Weights of the mean are numbers of examples, normalised over the sampled clients. Several released codes of the field
  use numbers of batches or equal weights: `weighting: examples | batches | clients`.
- BatchNorm's running statistics are averaged like the weights under `federation.batch_norm: average`.
- The local optimiser is new at each visit, as in every released code of the field.
"""

from dataclasses import replace
from typing import Any

from methods.base import FederatedMethod, Mean, Objective, Phase, choose


def mean_by(weighting: str) -> Mean:
    """The mean with `method.weighting`: "examples", "batches" or "clients"."""
    return Mean(choose("method.weighting", weighting, "examples", "batches", "clients"))


class FedAvg(FederatedMethod):
    """Mean of the clients' weights by `weighting`, in the plan; every other hook is the default.

    A subclass whose phases combine the weights in another way than by `Mean("examples")` keeps its own.

    Args:
        weighting: weights of the mean: "examples", "batches" or "clients".
    """

    def __init__(self, objective: Objective, *, weighting: str = "examples", **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        self.mean = mean_by(weighting)

    def plan(self, round: int) -> tuple[Phase, ...]:
        """The default phases; where they declare the plain mean of the weights, it is the round's."""
        mean = self.averaging(round)
        return tuple(
            replace(phase, uplink={**phase.uplink, "weights": mean}) if phase.uplink.get("weights") == Mean() else phase
            for phase in super().plan(round)
        )

    def averaging(self, round: int) -> Mean:
        """The mean over clients that a round uses."""
        return self.mean
