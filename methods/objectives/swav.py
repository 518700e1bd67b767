"""SwAV. Caron, Misra, Mairal, Goyal, Bojanowski, Joulin: Unsupervised Learning of Visual Features by Contrasting
Cluster Assignments (NeurIPS 2020).

| symbol | name | equation |
|---|---|---|
| C, K | `prototypes`, a linear layer without bias, of unit rows | section 3.1 |
| z^T c | `scores` | eq. 2 |
| tau | `temperature`, 0.1 | eq. 2 |
| q, epsilon | `codes`, `methods.maths.sinkhorn` with `epsilon` 0.05 and `iterations` 3 | eqs. 3-5 |
| L | `methods.maths.swav` | eqs. 1-2 |

Decisions
- The loss is the mean of both predictions, as in the authors' code; eq. 1 is their sum, twice as large.
- Two views of full size; without the smaller crops (multi-crop). The code of a view is assigned among the first two
  views, and `methods.maths.swav` lets any number of views predict it, so a subclass with more views has little to add.
- Prototypes are normalised where they are used, in every pass. The authors' code overwrites the weights with unit rows
  before each step, without a projection of the gradient. As a function of the weights the loss depends on a prototype's
  direction only, so the mean of the clients' prototypes needs no further rule: its direction is used, whatever its
  length. A shorter row turns further in a step; rows start at length 1, as in the code.
- Prototypes travel and are averaged like the encoder. All clients start a round at the same prototypes, so that the
  k-th one has one meaning.
- Prototypes are trained from the first step; the code keeps them fixed in the first 313 steps (one epoch of ImageNet).
- 300 prototypes are our choice; the paper's 3,000 are for ImageNet.
- The queue is off by default, as in the code. With one (`queue_size`), the last embeddings of each view take part in
  that view's assignment, from the first step on and as many as there are; the code starts the queue in epoch 15 and
  uses it once it is full, which few clients' would ever be. It stays with its client, as MoCo's does here.
- Codes are computed in float64, by scalings in the order of the code. They are for one client's batch: clients share no
  assignment.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from methods.base import Batch, MethodError, Outputs, Projected, check_number
from methods.maths import cosines, sinkhorn, swav, upcast
from methods.networks import Encoder


class SwAV(Projected):
    """Each view predicts the other view's assignment to prototypes; in a batch every prototype is used equally.

    Args:
        encoder, projector, head_norm, last_norm: see `Projected`.
        prototypes: their number.
        temperature: divides the cosines of the prediction.
        epsilon: of the assignment's entropy; a smaller value gives a harder assignment.
        iterations: pairs of scalings of the assignment.
        queue_size: earlier embeddings of each view that take part in the assignment; 0: none.
        keep_queue: whether the queues stay with their client between visits.
    """

    travels = ("encoder", "projector", "prototypes")
    contrastive = True

    def __init__(
        self,
        encoder: Encoder,
        *,
        prototypes: int = 300,
        temperature: float = 0.1,
        epsilon: float = 0.05,
        iterations: int = 3,
        queue_size: int = 0,
        keep_queue: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, **kwargs)
        self.temperature = check_number("objective.temperature", temperature, above=0)
        self.epsilon = check_number("objective.epsilon", epsilon, above=0)
        self.iterations = check_number("objective.iterations", iterations, at_least=1)
        count = check_number("objective.prototypes", prototypes, at_least=2)
        self.prototypes = nn.Linear(self.width, count, bias=False)
        with torch.no_grad():
            self.prototypes.weight.copy_(normalize(self.prototypes.weight, dim=1))
        if check_number("objective.queue_size", queue_size, at_least=0):
            self.queues = ("queue_a", "queue_b")  # one for each view
            self.stays = self.queues if keep_queue else ()
        elif not keep_queue:
            raise MethodError(
                "objective.keep_queue=false: there is no queue: set objective.queue_size, or leave it out"
            )
        for name in self.queues:
            self.add_queue(name, queue_size, self.width)

    def scores(self, z: Tensor) -> Tensor:
        """Cosines `[B, K]` of embeddings `[B, width]` and prototypes."""
        return cosines(z, self.prototypes.weight)

    def forward(self, *views: Tensor, extra: Sequence[Tensor] = ()) -> Outputs:
        """The online pass with scores `[B, K]` as predictions, and the first two views' codes `[B, K]` as targets."""
        out = super().forward(*views, extra=extra)
        scores = self.scores(torch.cat(out.embeddings)).split([len(z) for z in out.embeddings])
        codes = tuple(self.codes(scores[view], view) for view in range(2))
        rows = zip(self.queues, out.embeddings, strict=False)
        push = {name: normalize(upcast(z.detach()), dim=1) for name, z in rows}
        return out._replace(predictions=scores, targets=codes, push=push)

    @torch.no_grad()
    def codes(self, scores: Tensor, view: int) -> Tensor:
        """Assignments `[B, K]`, rows of sum 1, of a view with these scores; its queue's rows take part."""
        settings = {"epsilon": self.epsilon, "iterations": self.iterations, "weighted": True}
        if not self.queues:
            return sinkhorn(scores, **settings)
        queue, filled = (getattr(self, self.queues[view] + suffix) for suffix in ("", "_filled"))
        earlier = torch.arange(len(queue), device=queue.device) < filled
        valid = torch.cat([torch.ones(len(scores), dtype=torch.bool, device=queue.device), earlier])
        return sinkhorn(torch.cat([scores, self.scores(queue)]), **settings, valid=valid)[: len(scores)]

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The mean cross-entropy of the views' predictions with the other view's code."""
        return swav(torch.stack(out.predictions), torch.stack(out.targets), self.temperature)
