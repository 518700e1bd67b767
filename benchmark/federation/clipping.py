"""Clipping: a client's update is scaled down to a norm, for all tensors together or for each of them, by a bound that
is fixed or follows the clients.

| name | what is bounded |
|---|---|
| flat | the norm of all tensors together, by C |
| layers | the norm of each of L tensors, by C / sqrt(L): together by C (McMahan et al. 2018) |
| adaptive | as flat; after each phase C moves towards a quantile of the clients' norms (Andrew et al. 2021) |

Under `adaptive` a client also sends whether its norm was within C, as +1/2 or -1/2. The server adds noise of deviation
b, one twentieth of a cohort, to the sum, and multiplies C by exp(-0.2 (share within C - quantile)). Both releases
together cost what the updates alone would with the noise multiplier z, so the updates get (z^-2 - (2 b)^-2)^(-1/2).
"""

import math
from collections.abc import Mapping

from torch import Tensor

from methods import trees
from methods.base import Tree

RATE = 0.2
"""Learning rate of an adaptive clip, eta_C of Andrew et al."""
SPREAD = 1 / 20
"""Deviation of the noise on the number of clients within an adaptive clip, over a cohort; theirs too."""


class Clipping:
    """The bound on clients' updates.

    Args:
        name: "flat", "layers" or "adaptive".
        norm: C > 0; under `adaptive` that of the first phase.
        quantile: share of the clients whose updates an adaptive clip is to leave as they are. cohort: clients a round,
            or their mean number.
    """

    def __init__(self, name: str, norm: float, quantile: float = 0.5, cohort: float = 1) -> None:
        self.name, self.norm, self.quantile, self.deviation = name, norm, quantile, SPREAD * cohort

    @property
    def adaptive(self) -> bool:
        """Whether C moves."""
        return self.name == "adaptive"

    def clipped(self, updates: Mapping[str, Tree]) -> tuple[Mapping[str, Tree], bool]:
        """A client's update by entry, scaled down where it is longer than the bound; and whether it was within it.

        An update that is within the bound is returned itself.
        """
        norms = {entry: trees.map(_norm, tree) for entry, tree in updates.items()}
        leaves = [leaf for tree in norms.values() for _, leaf in trees.leaves(tree)]
        total = math.sqrt(sum(float(norm) ** 2 for norm in leaves))
        if self.name == "layers":
            bound = self.norm / math.sqrt(max(1, len(leaves)))
        else:
            bound = self.norm
            norms = {entry: trees.map(lambda norm: norm.new_tensor(total), tree) for entry, tree in norms.items()}
        if all(float(norm) <= bound for tree in norms.values() for _, norm in trees.leaves(tree)):
            return updates, total <= self.norm
        scaled = {
            entry: trees.map(lambda leaf, norm: leaf * (bound / norm).clamp(max=1).to(leaf), tree, norms[entry])
            for entry, tree in updates.items()
        }
        return scaled, total <= self.norm

    def noise_multiplier(self, multiplier: float) -> float:
        """The multiplier of the updates' noise, where `multiplier` < 2 b is that of all that a client sends."""
        if not self.adaptive or multiplier == 0:
            return multiplier
        return (multiplier**-2 - (2 * self.deviation) ** -2) ** -0.5

    def update_norm(self, within: float, clients: float, noise: float) -> None:
        """Moves an adaptive clip. within: sum of the clients' +1/2 and -1/2. noise: a standard normal number."""
        share = (within + self.deviation * noise) / clients + 0.5
        self.norm *= math.exp(-RATE * (share - self.quantile))


def _norm(leaf: Tensor) -> Tensor:
    return leaf.double().square().sum().sqrt()
