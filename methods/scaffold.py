"""SCAFFOLD. Karimireddy et al.: Stochastic Controlled Averaging for Federated Learning (ICML 2020).

| symbol | name | equation |
|---|---|---|
| c, c_i | server entry `c`, memory `c` | Algorithm 1 |
| g - c_i + c | `adjust_gradients` | line 10 |
| c_i - c + (x - y_i) / (K eta_l) | `reply`, option II | line 12 |
| eta_g | `server_rate` | line 16 |
| N | `round_context.clients` | line 17 |

Decisions
- Control variates cover the trainable weights that travel; changes of BatchNorm statistics take the plain mean.
- Option II divides by the sum of the learning rates of the visit's steps. Under momentum beta that sum is replaced by
  eta (K - beta (1 - beta^K) / (1 - beta)) / (1 - beta), the weight of K equal gradients in y - x; this requires one
  rate for the whole visit (`schedule.per: round`). Optimisers other than SGD are refused.
- The mean over clients is unweighted, as in the paper.
"""

import math
from typing import Any

import torch

from methods import trees
from methods.base import (
    GRADIENT_SHARE,
    FederatedMethod,
    Mail,
    Mean,
    Message,
    MethodError,
    Objective,
    Phase,
    Replies,
    RoundContext,
    Sum,
    Tree,
    Visit,
)


def effective_steps(momentum: float, steps: int) -> float:
    """Total weight of a constant gradient in the change of the weights after `steps` of momentum SGD at rate 1."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


class Scaffold(FederatedMethod):
    """Correction of client drift in each gradient by control variates.

    Args:
        server_rate: eta_g, the server's rate on the mean change of the weights.
    """

    activity = GRADIENT_SHARE
    phases = (Phase("fit", uplink={"delta_w": Mean("clients"), "delta_c": Sum()}),)

    def __init__(self, objective: Objective, *, server_rate: float = 1.0, **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        self.server_rate = server_rate

    def init_server(self, round_context: RoundContext) -> Tree:
        """The weights, and a control variate of zeros."""
        return {**super().init_server(round_context), "c": trees.zeros_like(self.trainable())}

    def send(self, server: Tree, round_context: RoundContext) -> Mail:
        """Weights and server control variate."""
        return Mail(common={"weights": server["weights"], "c": server["c"]})

    def init_client(self, visit: Visit) -> Tree:
        """A control variate of zeros."""
        return {"c": trees.zeros_like(self.trainable())}

    def receive(self, visit: Visit) -> None:
        """Loads the weights and sets the gradient correction c - c_i of this visit."""
        super().receive(visit)
        self.context["correction"] = trees.subtract(visit.message["c"], visit.memory["c"])

    def adjust_gradients(self, gradients: Tree) -> Tree:
        """g - c_i + c."""
        return trees.add(gradients, self.context["correction"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The configured SGD; control variates are not defined for other optimisers."""
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
        """(changes of the weights and of c_i, the new c_i)."""
        c_i = visit.memory["c"]
        delta_w = trees.subtract(self.weights(), visit.message["weights"])
        momentum, last_rate = self.settings["momentum"], self.settings["lr"]
        if momentum and not math.isclose(visit.lr_sum, visit.steps * last_rate, rel_tol=1e-9):
            raise MethodError(
                "SCAFFOLD under momentum needs one learning rate within a visit: set schedule.per=round or "
                "optimizer.momentum=0"
            )
        if not visit.lr_sum and self.settings["initial_lr"]:
            raise MethodError(
                "SCAFFOLD divides by the sum of a visit's learning rates, which is 0 at the start of a warm-up: train "
                "more steps a visit, or set schedule.per=round"
            )
        divisor = visit.lr_sum / visit.steps * effective_steps(momentum, visit.steps)
        # c_i+ - c_i = -c + (x - y) / divisor, and delta_w is y - x
        delta_c = trees.map(lambda c, change: -c - change / divisor, visit.message["c"], trees.select(delta_w, c_i))
        return {"delta_w": delta_w, "delta_c": delta_c}, {"c": trees.add(c_i, delta_c)}

    def local_weights(self, message: Message, server: Tree) -> Tree:
        """The received weights plus their change."""
        return trees.add(server["weights"], message["delta_w"])

    def update(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """x <- x + eta_g mean delta_w; c <- c + sum delta_c / N."""
        trained = trees.select(replies["delta_w"], server["c"])
        weights = trees.add(server["weights"], replies["delta_w"])
        return {
            "weights": trees.add(weights, trained, self.server_rate - 1),  # eta_g excludes BatchNorm's statistics
            "c": trees.add(server["c"], replies["delta_c"], 1 / len(round_context.clients)),
        }
