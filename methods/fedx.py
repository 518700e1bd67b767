"""FedX. Han, Park, Wu, Kim, Wu, Xie, Cha: FedX, Unsupervised Federated Learning with Cross Knowledge Distillation
(ECCV 2022).

| symbol | name | equation |
|---|---|---|
| L_c^local | the objective's loss | eqs. 2-5 |
| B_r | the view `other`: other images of the client | section 3.2 |
| L_r^local | `methods.maths.relational` of both embeddings and B_r's, `local_relation` | eqs. 6-7 |
| F | `teacher`: encoder and projector as they were received | section 3.3 |
| h^m | `predictor` | section 3.3 |
| L_c^global | `methods.maths.global_contrastive`, `global_contrast` | eq. 9 |
| L_r^global | `methods.maths.relational` of both predictions and F(B_r), `global_relation` | eqs. 10-11 |
| tau | `temperature`, one for all | section 4.1 |

Decisions
- `variant: code | paper`. The released code's relational loss is not the Jensen-Shannon divergence of eq. 7 (the
  arguments of its Kullback-Leibler terms are swapped), and its global contrast also has the global model's rows as
  anchors. The code produced the published SimCLR rows and is the default.
- In eq. 9 the sum over the other view excludes "i". It is read as in eq. 2, as an item of the first view, so that the
  positive stays in the denominator of an InfoNCE loss.
- The two views and B_r pass through the network together; the teacher runs in eval mode, as in the code.
- The code splits `batch_size` between two loaders, for the views and for B_r: `training.batch_size: 64` is its 128.
- Over BYOL, MoCo, ProtoCL and FedU only L_c^local changes; the global contrast stays, as in the text of the paper.
- Without relational terms B_r is not used, and without global terms there is neither predictor nor teacher: with all
  three weights 0 the method is its base.
- Under Lightning's Trainer B_r is the batch's own images in another order.
"""

from typing import Any

import torch
from torch import Tensor

from methods.base import (
    AddOn,
    Batch,
    MethodError,
    MethodParts,
    Objective,
    Outputs,
    Visit,
    check_number,
    check_pair,
    choose,
)
from methods.fedavg import FedAvg
from methods.maths import global_contrastive, relational
from methods.networks import Frozen, mlp


class CrossDistillation(AddOn):
    """FedX's three terms: local relational, global contrastive and global relational.

    Args:
        local_relation, global_contrast, global_relation: weights of the terms; 0: without this term.
        temperature: temperature of all three terms.
        variant: "code" or "paper".
    """

    name = "fedx"

    def __init__(
        self,
        *,
        local_relation: float = 1.0,
        global_contrast: float = 1.0,
        global_relation: float = 1.0,
        temperature: float = 0.1,
        variant: str = "code",
    ) -> None:
        super().__init__()
        self.local_relation = check_number("method.local_relation", local_relation, at_least=0)
        self.global_contrast = check_number("method.global_contrast", global_contrast, at_least=0)
        self.global_relation = check_number("method.global_relation", global_relation, at_least=0)
        self.temperature = check_number("method.temperature", temperature, above=0)
        self.variant = choose("method.variant", variant, "code", "paper")
        self.views = ("other",) if local_relation or global_relation else ()
        self.has_teacher = bool(global_contrast or global_relation)
        if self.has_teacher:
            self.must_travel = dict.fromkeys(("encoder", "projector"), "its teacher is the global model")

    def build(self, objective: Objective) -> None:
        """Creates the predictor, as wide as the embedding, and the teacher; neither without a global term."""
        check_pair(objective, "FedX compares the embeddings")
        if self.has_teacher:
            width = objective.width
            self.predictor = mlp((width, width, width), norm=False)
            self.teacher = Frozen(objective.encoder, objective.projector)

    def networks(self) -> torch.nn.Module | None:
        """The predictor, with a global term."""
        return self.predictor if self.has_teacher else None

    @torch.no_grad()
    def receive(self, visit: Visit, method: MethodParts) -> None:
        """Copies the received global model into the teacher; statistics that were not sent are the client's."""
        if not self.has_teacher:
            return
        sent = visit.message.get("weights", {})
        if method.tensors("encoder") and "encoder" not in sent:
            raise MethodError(
                f"FedX's teacher is the global model, but {type(method).__name__} sends no encoder: "
                "set global_contrast=0 and global_relation=0, or choose a method that sends it"
            )
        for part, network in zip(("encoder", "projector"), self.teacher.networks, strict=True):
            values = {**method.tensors(part), **sent.get(part, {})}
            for name, tensor in (*network.named_parameters(), *network.named_buffers()):
                if name in values:
                    tensor.copy_(values[name])

    def forward(self, out: Outputs, batch: Batch, method: MethodParts) -> Tensor:
        """The sum of the three weighted terms."""
        settings = {"temperature": self.temperature, "variant": self.variant}
        z = out.embeddings
        total = z[0].new_zeros(())
        if self.local_relation:
            total = total + self.local_relation * relational(*z, out.extra[0][1], **settings)
        if not self.has_teacher:
            return total
        p = self.predictor(torch.cat(z)).split(len(z[0]))
        targets = self.teacher(torch.cat(batch.views[1:])).split(len(z[0]))
        if self.global_contrast:
            total = total + self.global_contrast * global_contrastive(p[0], targets[0], **settings)
        if self.global_relation:
            total = total + self.global_relation * relational(*p, targets[1], **settings)
        return total


class FedX(FedAvg):
    """FedAvg with local and global knowledge distillation.

    Args:
        local_relation, global_contrast, global_relation, temperature, variant: see `CrossDistillation`.
    """

    def __init__(
        self,
        objective: Objective,
        *,
        local_relation: float = 1.0,
        global_contrast: float = 1.0,
        global_relation: float = 1.0,
        temperature: float = 0.1,
        variant: str = "code",
        addons: tuple[AddOn, ...] = (),
        **kwargs: Any,
    ) -> None:
        terms = CrossDistillation(
            local_relation=local_relation,
            global_contrast=global_contrast,
            global_relation=global_relation,
            temperature=temperature,
            variant=variant,
        )
        super().__init__(objective, addons=(*addons, terms), **kwargs)
