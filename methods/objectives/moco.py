"""MoCo. He, Fan, Wu, Xie, Girshick: Momentum Contrast (CVPR 2020); Chen et al.: Improved Baselines (2020), version 2.

| symbol | name | equation |
|---|---|---|
| f_q, f_k | `encoder` + `projector`, `key_encoder` + `key_projector` | section 3.2 |
| m | `momentum`, theta_k <- m theta_k + (1 - m) theta_q | eq. 2 |
| K | `queue_size`, rows of `queue` | section 3.2 |
| tau | `temperature`, 0.2 in version 2 | eq. 1, `methods.maths.info_nce` |

Decisions
- Both views are queries and keys (`symmetric`), and both views' keys are enqueued, as in EasyFL; MoCo's own
  pre-training has one direction. No paper of the field specifies it.
- The queue starts empty, and only rows that hold keys are negatives; MoCo starts with random unit rows as negatives.
- The key networks start at the received query networks at each visit, as in EasyFL. The queue stays with its client, so
  that a visit starts with the negatives of the last one; `keep_queue: false`: it is empty at the start of each visit.
- Batches are not shuffled among devices for BatchNorm: a client runs on one device, where a shuffle has no effect.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from methods.base import Batch, Outputs, Projected, check_number
from methods.maths import info_nce, upcast
from methods.networks import Encoder


class MoCo(Projected):
    """InfoNCE of each query with its key by momentum networks, and a queue of earlier keys as negatives.

    Args:
        encoder, projector, head_norm, last_norm: see `Projected`.
        queue_size: keys in the queue.
        momentum: weight of the key networks' previous values in their moving average.
        temperature: divides the cosines.
        symmetric: whether each view is query and key; False: the first is the query and the second the key.
        keep_queue: whether the queue stays with its client between visits.
    """

    queues = ("queue",)
    queue: Tensor
    queue_filled: Tensor

    def __init__(
        self,
        encoder: Encoder,
        *,
        queue_size: int = 4096,
        momentum: float = 0.99,
        temperature: float = 0.2,
        symmetric: bool = True,
        keep_queue: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, **kwargs)
        self.temperature = check_number("objective.temperature", temperature, above=0)
        self.symmetric = symmetric
        self.stays = self.queues if keep_queue else ()
        self.add_targets(momentum, "key")
        self.add_queue("queue", check_number("objective.queue_size", queue_size, at_least=1), self.width)

    def forward(self, *views: Tensor, extra: Sequence[Tensor] = ()) -> Outputs:
        """The query pass, and the key pass without gradient; the targets are keys of unit length."""
        out = super().forward(*views, extra=extra)
        keys = self.each_view(self.keys, views)
        return out._replace(targets=keys, push={"queue": torch.cat(keys) if self.symmetric else keys[1]})

    def keys(self, images: Tensor) -> Tensor:
        """Images `[B, C, H, W]` -> unit rows `[B, width]` by the key networks, without gradient."""
        return normalize(upcast(self.embed_targets(images)), dim=1)

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """InfoNCE of the first view's queries, or the sum over both views' queries."""
        (q_a, q_b), (k_a, k_b) = out.embeddings, out.targets
        if not self.symmetric:
            return self.contrast(q_a, k_b)
        return 2 * self.contrast(torch.cat([q_a, q_b]), torch.cat([k_b, k_a]))  # a mean over rows of both

    def contrast(self, q: Tensor, k: Tensor) -> Tensor:
        """InfoNCE of queries and keys `[B, d]`, with the queue's keys as negatives."""
        valid = torch.arange(len(self.queue), device=q.device) < self.queue_filled
        return info_nce(q, k, self.queue, valid, self.temperature)
