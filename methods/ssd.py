"""SSD. Fang et al.: Soft Separation and Distillation: Toward Global Uniformity in Federated Unsupervised Learning
(ICCV 2025).

| symbol | name | equation |
|---|---|---|
| d_k, S_k, alpha | memory `scale`; `alpha` on the client's own floor(d/K) dimensions, 1 elsewhere | section 3 |
| L_DSR, gamma | `methods.maths.dimension_scaling`, `dsr_weight` | section 3 |
| L_PD, delta | `methods.maths.projector_distillation`, `pd_weight` | section 3 |
| L = L_align + beta L_unif + gamma L_DSR + delta L_PD | `loss` over `methods.objectives.align_uniform` | section 3 |

Decisions
- `variant: code | paper` sets the form of both terms, with formulas in `methods.maths`. The released code produced the
  published numbers and is the default. The two need different gamma: their gradients differ by a factor of about 20.
- `basis: qr | axis`: the code stretches along a random orthonormal basis shared by all clients, the paper along axes.
  The basis is sent once, with the scale, and the client keeps both.
- Subspaces belong to client ids. The code assigns them by position in the round's list, so that under partial
  participation they change every round; this is not reproduced.
- The mean of the weights is over examples, as in FedAvg; the code weighs by batches (`weighting: batches`), which is
  the same for clients of equal size.
- `separation: hard` is the paper's HSD ablation, whose code is not released: the objective receives only the client's
  own dimensions of the embeddings, without a stretch. Its row has no distillation: `pd_weight: 0`.
- With more clients than dimensions floor(d/K) is 0 and DSR has no dimension to stretch: refused.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from methods.base import (
    GRADIENT_SHARE,
    Batch,
    Mail,
    Message,
    MethodError,
    Objective,
    Outputs,
    Phase,
    RoundContext,
    Tree,
    Visit,
    check_number,
    choose,
)
from methods.fedavg import FedAvg
from methods.maths import dimension_scaling, projector_distillation, scaled, upcast


class SSD(FedAvg):
    """Soft separation of clients by embedding dimensions, and distillation from the projector to the encoder.

    Args:
        alpha: stretch of a client's own dimensions; 1: no stretch.
        dsr_weight, pd_weight: gamma and delta.
        variant: "code" or "paper".
        basis: "qr" or "axis"; None: the basis of the variant.
        separation: "soft", or "hard": each client uses only its own dimensions.
    """

    must_travel: Mapping[str, str] = dict.fromkeys(
        ("encoder", "projector"), "clients divide the dimensions of one embedding, that of the global networks"
    )
    activity = GRADIENT_SHARE
    warmup: ClassVar[tuple[Phase, ...]] = (Phase("assign", work="none", cohort="all"),)

    def __init__(
        self,
        objective: Objective,
        *,
        alpha: float = 10.0,
        dsr_weight: float = 1.0,
        pd_weight: float = 0.1,
        variant: str = "code",
        basis: str | None = None,
        separation: str = "soft",
        **kwargs: Any,
    ) -> None:
        super().__init__(objective, **kwargs)
        basis = basis or ("qr" if variant == "code" else "axis")
        features, self.width = objective.encoder.dim, objective.width
        self.pd_weight = check_number("method.pd_weight", pd_weight, at_least=0)
        if pd_weight and features != self.width:
            raise MethodError(
                f"SSD distils embeddings into representations, so both need the same width; encoder: {features}, "
                f"embeddings: {self.width}; set heads.projector or objective.projector to end in {features}, or leave "
                "the distillation out with method.pd_weight=0"
            )
        self.alpha = check_number("method.alpha", alpha, at_least=0)
        self.dsr_weight = check_number("method.dsr_weight", dsr_weight, at_least=0)
        self.variant = choose("method.variant", variant, "code", "paper")
        self.basis = choose("method.basis", basis, "qr", "axis")
        self.separation = choose("method.separation", separation, "soft", "hard")
        if separation == "hard" and type(objective).forward is not Objective.forward:
            raise MethodError(
                f"method.separation=hard leaves dimensions of embeddings out, and {type(objective).__name__}'s loss "
                "reads other outputs too: choose an objective of embeddings alone, e.g. objective=align_uniform"
            )

    def init_server(self, round_context: RoundContext) -> Tree:
        """The weights, a scale vector for each client, and the shared basis with `basis: qr`."""
        size = self.width // len(round_context.clients)
        if size == 0:
            raise MethodError(
                f"SSD divides {self.width} dimensions among {len(round_context.clients)} clients: fewer than one for "
                "each; use a wider projector or fewer clients"
            )
        order = torch.randperm(self.width, generator=round_context.stream)
        inside, outside = (self.alpha, 1.0) if self.separation == "soft" else (1.0, 0.0)
        scales = {}
        for client in round_context.clients:
            scales[client.id] = torch.full((self.width,), outside)
            scales[client.id][order[client.id * size : (client.id + 1) * size]] = inside
        server = {**super().init_server(round_context), "scales": scales}
        if self.basis == "qr":
            random = torch.randn(self.width, self.width, generator=round_context.stream)
            server["basis"] = {"Q": torch.linalg.qr(random.to(self.dtype)).Q}
        return server

    def send_assign(self, server: Tree, round_context: RoundContext) -> Mail:
        """To each client its scale, and the basis to all."""
        common = {"basis": server["basis"]} if "basis" in server else {}
        return Mail(
            common, {client.id: {"scale": {"d": server["scales"][client.id]}} for client in round_context.members}
        )

    def reply_assign(self, visit: Visit) -> tuple[Message, Tree]:
        """An empty reply; the memory holds the received scale and basis."""
        return {}, {entry: visit.message[entry] for entry in ("scale", "basis") if entry in visit.message}

    def receive_assign(self, visit: Visit) -> None:
        """Loads nothing: this phase sends no weights."""

    def receive(self, visit: Visit) -> None:
        """Loads the weights and sets this client's stretch from its memory: `[d]`, or `[d, d]` in a rotated basis."""
        super().receive(visit)
        self.stretch = visit.memory["scale"]["d"]
        if "basis" in visit.memory:
            Q = visit.memory["basis"]["Q"]
            self.stretch = (Q * self.stretch) @ Q.T

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The objective's loss plus both terms averaged over the views; a term of weight 0 is not computed."""
        hard, views = self.separation == "hard", len(out.embeddings)
        inputs = out._replace(embeddings=tuple(scaled(z, self.stretch) for z in out.embeddings)) if hard else out
        total = self.objective.loss(inputs, batch)
        h, z = torch.cat(out.representations), torch.cat(out.embeddings)
        if self.dsr_weight and not hard:
            for unit in torch.nn.functional.normalize(upcast(z), dim=1).split(len(batch.index)):
                total = total + self.dsr_weight / views * dimension_scaling(unit, self.stretch, self.variant)
        if self.pd_weight:  # a mean over rows, and so over the views
            total = total + self.pd_weight * projector_distillation(h, z, self.variant)
        return total
