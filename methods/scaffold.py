"""SCAFFOLD. Karimireddy et al.: Stochastic Controlled Averaging for Federated Learning (ICML 2020).

| symbol | name | equation |
|---|---|---|
| c, c_i | server entry `c`, memory `c` | Algorithm 1 |
| g - c_i + c | `adjust_gradients` | line 10 |
| c_i - c + (x - y_i) / (K eta_l) | `reply`, option II | line 12 |
| eta_g | `server_rate` | line 16 |
| N | `turn.clients` | line 17 |

Decisions
- Control variates live on the trainable weights that travel; BatchNorm statistics are averaged plainly with the deltas.
- Option II divides by the sum of the learning rates of the visit's steps. Under momentum beta that sum is replaced by
  eta (K - beta (1 - beta^K) / (1 - beta)) / (1 - beta), the weight of K equal gradients in y - x; this needs one rate
  within the visit (`schedule.per: round`). Optimisers other than SGD are refused.
- The mean over clients is unweighted, as in the paper.
"""

import math
from typing import Any

import torch

from methods import trees
from methods.base import (
    FederatedMethod,
    Mail,
    Mean,
    Message,
    MethodError,
    Objective,
    Phase,
    Replies,
    Sum,
    Tree,
    Turn,
    Visit,
)


def effective_steps(momentum: float, steps: int) -> float:
    """How often the same gradient counts in the weights after `steps` steps of SGD with momentum at rate 1."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


class Scaffold(FederatedMethod):
    """Client drift is taken out of each gradient by control variates.

    Args:
        server_rate: eta_g, the server's step on the mean change of the weights.
    """

    phases = (Phase("fit", uplink={"delta_w": Mean("clients"), "delta_c": Sum()}),)

    def __init__(self, objective: Objective, *, server_rate: float = 1.0, **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        self.server_rate = server_rate

    def init_server(self, turn: Turn) -> Tree:
        """The weights, and a control variate of zeros."""
        return {**super().init_server(turn), "c": trees.zeros_like(self.trainable())}

    def send(self, server: Tree, turn: Turn) -> Mail:
        """Weights and server control variate."""
        return Mail(common={"weights": server["weights"], "c": server["c"]})

    def init_client(self, visit: Visit) -> Tree:
        """A control variate of zeros."""
        return {"c": trees.zeros_like(self.trainable())}

    def receive(self, visit: Visit) -> None:
        """The gradient correction c - c_i of this visit."""
        super().receive(visit)
        self.context["correction"] = trees.subtract(visit.message["c"], visit.memory["c"])

    def adjust_gradients(self, gradients: Tree) -> Tree:
        """g - c_i + c."""
        return trees.add(gradients, self.context["correction"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD; the client's control variate is only defined for it."""
        optimizer = super().configure_optimizers()
        if self.clip_norm is not None:
            raise MethodError(
                "SCAFFOLD's control variates are means of unclipped gradients: set training.clip_norm=null"
            )
        self.settings = optimizer.param_groups[0]
        if self.settings.get("momentum", 0) >= 1:
            raise MethodError(f"optimizer.momentum={self.settings['momentum']}: SCAFFOLD needs it below 1")
        if not isinstance(optimizer, torch.optim.SGD) or self.settings["nesterov"] or self.settings["dampening"]:
            raise MethodError(
                f"SCAFFOLD's control variates are defined for SGD, not {type(optimizer).__name__} as configured: "
                "set optimizer.class=torch.optim.SGD, without nesterov and dampening"
            )
        return optimizer

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        """(change of the weights and of c_i, the new c_i)."""
        received, kept = visit.message["weights"], visit.memory["c"]
        delta_w = trees.subtract(self.weights(), received)
        momentum, last_rate = self.settings["momentum"], self.settings["lr"]
        if momentum and not math.isclose(visit.lr_sum, visit.steps * last_rate, rel_tol=1e-9):
            raise MethodError(
                "SCAFFOLD under momentum needs one learning rate within a visit: set schedule.per=round or "
                "optimizer.momentum=0"
            )
        divisor = visit.lr_sum / visit.steps * effective_steps(momentum, visit.steps)
        moved = {part: {name: delta_w[part][name] for name in names} for part, names in kept.items()}
        # c_i+ - c_i = -c + (x - y) / divisor, and delta_w is y - x
        delta_c = trees.map(lambda c, change: -c - change / divisor, visit.message["c"], moved)
        return {"delta_w": delta_w, "delta_c": delta_c}, {"c": trees.add(kept, delta_c)}

    def local_weights(self, message: Message, server: Tree) -> Tree:
        """What was received and its change."""
        return trees.add(server["weights"], message["delta_w"])

    def update(self, server: Tree, turn: Turn, replies: Replies) -> Tree:
        """x <- x + eta_g mean delta_w; c <- c + sum delta_c / N."""
        change = replies["delta_w"]
        trained = {part: {name: change[part][name] for name in names} for part, names in server["c"].items()}
        weights = trees.add(server["weights"], change)
        return {
            "weights": trees.add(weights, trained, self.server_rate - 1),  # eta_g is not for BatchNorm's statistics
            "c": trees.add(server["c"], replies["delta_c"], 1 / len(turn.clients)),
        }
