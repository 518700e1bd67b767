"""MoCo. He, Fan, Wu, Xie, Girshick: Momentum Contrast (CVPR 2020); Chen et al.: Improved Baselines (2020), version 2.

| symbol | name | equation |
|---|---|---|
| f_q, f_k | `encoder` + `projector`, `key_encoder` + `key_projector` | section 3.2 |
| m | `momentum`, theta_k <- m theta_k + (1 - m) theta_q | eq. 2 |
| K | `queue_size`, rows of `queue` | section 3.2 |
| tau | `temperature`, 0.2 in version 2 | eq. 1, `methods.maths.info_nce` |

Decisions
- Both views are queries and keys (`symmetric`), and both views' keys are enqueued, as in EasyFL; MoCo's own
  pre-training has one direction. No paper of the field says which it means.
- The queue starts empty and its rows count once they are keys; MoCo starts with random unit rows as negatives.
- The key networks start at the received query networks at each visit, as in EasyFL. The queue stays with its client
  (`keep_queue`), so that a visit starts with last visit's negatives, or is emptied at each.
- Batches are not shuffled among devices for BatchNorm: a client is on one device, where a shuffle changes nothing.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from methods.base import Batch, Outputs, Projected, check_number
from methods.maths import info_nce
from methods.networks import Encoder


class MoCo(Projected):
    """Each query is told from a queue of earlier keys by its own key, which momentum networks make.

    Args:
        encoder, projector, head_norm, last_norm: see `Projected`.
        queue_size: keys in the queue.
        momentum: weight of the key networks' own past in their moving average.
        temperature: divides the cosines.
        symmetric: whether each view is query and key, or the first the query and the second the key.
        keep_queue: whether the queue stays with its client between visits.
    """

    ema: Mapping[str, str] = {"key_encoder": "encoder", "key_projector": "projector"}
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
        self.momentum = check_number("objective.momentum", momentum, at_least=0, at_most=1)
        self.temperature = check_number("objective.temperature", temperature, above=0)
        self.symmetric = symmetric
        self.stays = self.queues if keep_queue else ()
        self.key_encoder = deepcopy(encoder).requires_grad_(False)
        self.key_projector = deepcopy(self.projector).requires_grad_(False)
        self.add_queue("queue", check_number("objective.queue_size", queue_size, at_least=1), self.width)

    def forward(self, *views: Tensor, extra: Sequence[Tensor] = ()) -> Outputs:
        """The query pass, and the key pass without gradient; keys `t` are of unit length."""
        out = super().forward(*views, extra=extra)
        with torch.no_grad():
            keys = self.keys(torch.cat(views)).split([len(view) for view in views])
        return out._replace(t=keys, push={"queue": torch.cat(keys) if self.symmetric else keys[1]})

    def keys(self, images: Tensor) -> Tensor:
        """Images `[B, C, H, W]` -> unit rows `[B, width]` of the key networks."""
        return normalize(self.key_projector(self.key_encoder(images)).float(), dim=1)

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """InfoNCE of the first view's queries, or of both views' added."""
        one = self.contrast(out.z[0], out.t[1])
        return one + self.contrast(out.z[1], out.t[0]) if self.symmetric else one

    def contrast(self, q: Tensor, k: Tensor) -> Tensor:
        """InfoNCE `[B, d]` against `[B, d]`, with the queue's keys as negatives."""
        valid = torch.arange(len(self.queue), device=q.device) < self.queue_filled
        return info_nce(q, k, self.queue, valid, self.temperature)
