"""Server optimisers; the clients' mean is a gradient. FedAvgM (Hsu, Qi, Brown 2019); Reddi et al.: Adaptive Federated
Optimization (ICLR 2021), FedAdam and FedYogi.

| symbol | name | equation |
|---|---|---|
| Delta | mean - weights, over what is trained | Reddi, Algorithm 2 |
| eta | `lr` | Reddi, Algorithm 2 |
| beta, beta_1 | `momentum` | Hsu, section 4.2; Reddi, Algorithm 2 |
| beta_2, tau | `decay`, `adaptivity` | Reddi, Algorithm 2 |

Decisions
- BatchNorm's running statistics are not trained; they take the plain mean.
- No bias correction, and v starts at tau^2, as in Reddi et al.
- `server_optimizer` works with every method whose server takes the mean of the weights.
"""

import torch
from torch import Tensor

from methods import trees
from methods.core.validation import check_number
from methods.trees import Tree


class Momentum:
    """FedAvgM: v <- beta v + Delta, w <- w + eta v.

    Args:
        lr: eta; 1 with momentum 0 is FedAvg.
        momentum: beta, in [0, 1).
    """

    def __init__(self, *, lr: float = 1.0, momentum: float = 0.9) -> None:
        _check_settings(lr, momentum=momentum)
        self.lr, self.momentum = lr, momentum

    def init(self, weights: Tree) -> Tree:
        """The state before the first step."""
        return {"velocity": trees.zeros_like(weights)}

    def step(self, weights: Tree, mean: Tree, state: Tree) -> tuple[Tree, Tree]:
        """(new weights, new state)."""
        delta = trees.subtract(mean, weights)
        velocity = trees.add(delta, state["velocity"], self.momentum)
        return trees.add(weights, velocity, self.lr), {"velocity": velocity}


class Adam:
    """FedAdam: m <- beta_1 m + (1 - beta_1) Delta, v <- beta_2 v + (1 - beta_2) Delta^2, w += eta m / (sqrt v + tau).

    Args:
        lr: eta.
        momentum: beta_1, in [0, 1). decay: beta_2, in [0, 1).
        adaptivity: tau, > 0; the smaller it is, the more the rates of single weights differ.
    """

    def __init__(
        self, *, lr: float = 0.01, momentum: float = 0.9, decay: float = 0.99, adaptivity: float = 1e-3
    ) -> None:
        _check_settings(lr, momentum=momentum, decay=decay)
        self.lr, self.momentum, self.decay = lr, momentum, decay
        self.adaptivity = check_number("server_optimizer.adaptivity", adaptivity, above=0)

    def init(self, weights: Tree) -> Tree:
        """The state before the first step."""
        second = trees.map(lambda leaf: torch.full_like(leaf, self.adaptivity**2), weights)
        return {"m": trees.zeros_like(weights), "v": second}

    def step(self, weights: Tree, mean: Tree, state: Tree) -> tuple[Tree, Tree]:
        """(new weights, new state)."""
        delta = trees.subtract(mean, weights)
        m = trees.map(lambda old, new: self.momentum * old + (1 - self.momentum) * new, state["m"], delta)
        v = trees.map(self.second, state["v"], delta)
        weights = trees.map(lambda w, a, b: w + self.lr * a / (b.sqrt() + self.adaptivity), weights, m, v)
        return weights, {"m": m, "v": v}

    def second(self, v: Tensor, delta: Tensor) -> Tensor:
        """The running second moment after `delta`."""
        return self.decay * v + (1 - self.decay) * delta.square()


class Yogi(Adam):
    """FedYogi: as FedAdam, with v <- v - (1 - beta_2) Delta^2 sign(v - Delta^2).

    Args:
        lr, momentum, decay, adaptivity: see `Adam`.
    """

    def second(self, v: Tensor, delta: Tensor) -> Tensor:
        """The running second moment after `delta`."""
        squared = delta.square()
        return v - (1 - self.decay) * squared * (v - squared).sign()


ServerOptimizer = Momentum | Adam | Yogi
"""The shipped ones; another class may stand in for them if it has their `init` and `step`."""


def _check_settings(lr: float, **decays: float) -> None:
    check_number("server_optimizer.lr", lr, above=0)
    for name, value in decays.items():
        check_number(f"server_optimizer.{name}", value, at_least=0, below=1)
