"""SSD. Fang et al.: Soft Separation and Distillation: Toward Global Uniformity in Federated Unsupervised Learning
(ICCV 2025).

| symbol | name | equation |
|---|---|---|
| d_k, S_k, alpha | memory `scale`; `alpha` on the client's own floor(d/K) dimensions, 1 elsewhere | section 3 |
| L_DSR, gamma | `methods.maths.dimension_scaling`, `dsr_weight` | section 3 |
| L_PD, delta | `methods.maths.projector_distillation`, `pd_weight` | section 3 |
| L = L_align + beta L_unif + gamma L_DSR + delta L_PD | `loss` over `methods.objectives.align_uniform` | section 3 |

Decisions
- `variant: code | paper` chooses both terms' form, as `methods.maths` writes them out; the released code made the
  published numbers and is the default. gamma does not carry over between the two: their gradients differ some 20 times.
- `basis: qr | axis`: the code stretches along a random orthonormal basis that all clients share, the paper along axes.
  The basis travels once with the scale, and both are kept: a client asks for neither again.
- Subspaces belong to clients by id. The code gives them by position in the round's list, so that under partial
  participation they change hands every round; that is not reproduced here.
- Weights are means over examples, as FedAvg has it; the code weighs by batches (`weighting: batches`), which at equal
  sizes is the same.
- `separation: hard` is the paper's HSD ablation, whose code is not released: the objective sees a client's embeddings
  through its own dimensions alone, and there is nothing to stretch. Its row has no distillation: `pd_weight: 0`.
- With more clients than dimensions floor(d/K) is 0 and DSR has nothing to stretch: refused.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from methods.base import (
    Batch,
    Mail,
    Message,
    MethodError,
    Objective,
    Outputs,
    Phase,
    Tree,
    Turn,
    Visit,
    check_number,
    choose,
)
from methods.fedavg import FedAvg
from methods.maths import dimension_scaling, projector_distillation, scaled


class SSD(FedAvg):
    """Each client is drawn softly towards dimensions of its own, and the encoder learns from its projector.

    Args:
        alpha: stretch of a client's own dimensions; 1 leaves them alone.
        dsr_weight, pd_weight: gamma and delta.
        variant: "code" or "paper".
        basis: "qr" or "axis"; None: the variant's own.
        separation: "soft", or "hard": each client confined to its own dimensions.
    """

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
        h, z = objective.encoder.dim, objective.width
        if h != z:
            raise MethodError(
                f"SSD distils embeddings into representations, so both need one width; the encoder has {h} features "
                f"and the embeddings {z}: set heads.projector or objective.projector to end in {h}"
            )
        self.width = z
        self.alpha = check_number("method.alpha", alpha, at_least=0)
        self.dsr_weight = check_number("method.dsr_weight", dsr_weight, at_least=0)
        self.pd_weight = check_number("method.pd_weight", pd_weight, at_least=0)
        self.variant = choose("method.variant", variant, "code", "paper")
        self.basis = choose("method.basis", basis, "qr", "axis")
        self.separation = choose("method.separation", separation, "soft", "hard")

    def init_server(self, turn: Turn) -> Tree:
        """The weights, everyone's scale vector, and the shared basis where there is one."""
        size = self.width // len(turn.clients)
        if size == 0:
            raise MethodError(
                f"SSD shares {self.width} dimensions among {len(turn.clients)} clients: none is left for each; "
                "use a wider projector or fewer clients"
            )
        order = torch.randperm(self.width, generator=turn.stream)
        own, others = (self.alpha, 1.0) if self.separation == "soft" else (1.0, 0.0)
        scales = {}
        for client in turn.clients:
            scales[client.id] = torch.full((self.width,), others)
            scales[client.id][order[client.id * size : (client.id + 1) * size]] = own
        server = {**super().init_server(turn), "scales": scales}
        if self.basis == "qr":
            random = torch.randn(self.width, self.width, generator=turn.stream)
            server["basis"] = {"Q": torch.linalg.qr(random).Q}
        return server

    def send_assign(self, server: Tree, turn: Turn) -> Mail:
        """Its scale to each client, and the basis to all."""
        common = {"basis": server["basis"]} if "basis" in server else {}
        return Mail(common, {k.id: {"scale": {"d": server["scales"][k.id]}} for k in turn.members})

    def reply_assign(self, visit: Visit) -> tuple[Message, Tree]:
        """Nothing to say; what was received is kept."""
        return {}, {entry: visit.message[entry] for entry in ("scale", "basis") if entry in visit.message}

    def receive_assign(self, visit: Visit) -> None:
        """Nothing to load: no weights are sent yet."""

    def receive(self, visit: Visit) -> None:
        """The stretch of this client, from its memory: `[d]`, or `[d, d]` in a rotated basis."""
        super().receive(visit)
        self.stretch = visit.memory["scale"]["d"]
        if "basis" in visit.memory:
            Q = visit.memory["basis"]["Q"]
            self.stretch = (Q * self.stretch) @ Q.T

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """Alignment and uniformity, plus both terms averaged over the views; a weight of 0 leaves its term out."""
        if self.separation == "hard":
            total = self.objective.loss(out._replace(z=tuple(scaled(z, self.stretch) for z in out.z)), batch)
        else:
            total = self.objective.loss(out, batch)
        for h, z in zip(out.h, out.z, strict=True):
            if self.dsr_weight and self.separation == "soft":
                unit = torch.nn.functional.normalize(z.float(), dim=1)
                total = total + self.dsr_weight / len(out.z) * dimension_scaling(unit, self.stretch, self.variant)
            if self.pd_weight:
                total = total + self.pd_weight / len(out.z) * projector_distillation(h, z, self.variant)
        return total
