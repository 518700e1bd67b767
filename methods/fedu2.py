"""FedU2. Liao et al.: Rethinking the Representation in Federated Unsupervised Learning with Non-IID Data (CVPR 2024).

| symbol | name | equation |
|---|---|---|
| FUR | `UniformRegulariser`, `methods.maths.sliced_wasserstein` to points drawn uniformly on the sphere | section 4 |
| lambda | `weight`, 0.01 | authors' code |
| EUA | `update`, `methods.maths.min_norm` of the clients' updates | section 4 |
| eta_s | `server_rate` | authors' code |

Decisions
- Only the abstract of the paper was available; both parts follow the released code, which does not run unchanged.
- FUR: the paper's term is unbalanced optimal transport, the code's a sliced Wasserstein distance in the tangent spaces
  of as many random points as the batch has images, with six directions each. The code sums over tangent points and
  divides by six, so the term grows with the batch: `variant: code`, for which weight 0.01 was chosen. `variant: mean`
  is the mean. Embeddings are normalised first; the code does not normalise BYOL's before the sphere's logarithm.
- EUA: the point of smallest norm in the convex hull of the normalised updates, solved exactly. The code's solver
  starts at the clients' weights, ends near that point, and for two clients returns its start: `solver: descent`.
  `length: mean` steps by the mean length of the updates, so that
  equal updates give that update; `length: unit` steps by 2 for updates of any length, as in the code.
- The code draws points, tangent points and directions anew for each view: `draws: view`.
- Running statistics are means over examples; the code weighs by batches (`weighting: batches`).
- The server holds every update of a round at once, and a second copy while it computes their inner products.
- The rotation loss of the released run (`use_deg`) is in neither description and is left out.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from methods import trees
from methods.base import (
    Activity,
    AddOn,
    Batch,
    Each,
    FederatedMethod,
    Mean,
    Message,
    MethodParts,
    Objective,
    Outputs,
    Phase,
    Reduction,
    Replies,
    RoundContext,
    Tree,
    Visit,
    check_number,
    choose,
)
from methods.fedavg import mean_by
from methods.maths import min_norm, min_norm_descent, sliced_wasserstein

CHUNK = 1 << 19
"""Elements of each update that are converted to float64 at a time."""

DIRECTIONS = 6
"""Directions in each tangent space, as in the code."""


class UniformRegulariser(AddOn):
    """FUR: distance of each view's embeddings to points drawn uniformly on the sphere.

    Args:
        weight: 0: no term.
        variant: "code" or "mean".
        draws: "batch", the same for all views, or "view".
    """

    name = "fedu2"

    def __init__(self, *, weight: float = 0.01, variant: str = "code", draws: str = "batch") -> None:
        super().__init__()
        self.draws = choose("method.draws", draws, "batch", "view")
        self.weight = check_number("method.weight", weight, at_least=0)
        self.variant = choose("method.variant", variant, "code", "mean")
        self.width, self.sets = 0, 1

    def build(self, objective: Objective) -> None:
        """Stores the embeddings' width, and how many sets of draws a batch has."""
        self.width, self.sets = objective.width, len(objective.views) if self.draws == "view" else 1

    def draw(self, batch: Batch, stream: torch.Generator) -> Tree:
        """Samples and tangent points, `[sets, B, d]` each, and directions `[sets, B, 6, d]`."""
        if not self.weight:
            return {}
        n, device = len(batch.index), batch.index.device
        points = (self.sets, n, self.width)
        shapes = {"samples": points, "tangents": points, "directions": (self.sets, n, DIRECTIONS, self.width)}
        return {
            name: torch.randn(shape, generator=stream).to(device, non_blocking=True) for name, shape in shapes.items()
        }

    def forward(self, out: Outputs, batch: Batch, method: MethodParts) -> Tensor:
        """The sum over the views, times the weight."""
        if not self.weight:
            return out.embeddings[0].new_zeros(())
        assert batch.draws is not None
        random = batch.draws[self.name]
        factor = len(batch.index) / DIRECTIONS if self.variant == "code" else 1.0
        terms = [
            sliced_wasserstein(z, *(random[name][view % self.sets] for name in ("samples", "tangents", "directions")))
            for view, z in enumerate(out.embeddings)
        ]
        return self.weight * factor * torch.stack(terms).sum()


def unified(updates: list[Tensor], length: str = "mean", start: Tensor | None = None) -> Tensor:
    """EUA: one update `[n]` in conflict with no client's, from the clients' flat updates `[n]`; zeros if they cancel.

    length: "mean": the mean length of the updates if they agree; "unit": at most 2.
    start: weights of the updates at which the code's solver starts; None: the exact solution.
    """
    blocks = [torch.stack(block) for block in zip(*(update.split(CHUNK) for update in updates), strict=True)]
    gram = torch.stack([block.double() @ block.double().T for block in blocks]).sum(dim=0)
    lengths = gram.diagonal().clamp(min=0).sqrt()
    nonzero = lengths > 0
    if not nonzero.any():
        return torch.zeros_like(updates[0])
    scale = torch.where(nonzero, 1 / lengths.clamp(min=1e-300), 0.0)
    weights = torch.zeros_like(lengths)
    unit_gram = (gram * scale[:, None] * scale)[nonzero][:, nonzero]
    if start is None:
        solution = min_norm(unit_gram)
    else:
        start = start[nonzero.to(start.device)]
        solution = min_norm_descent(unit_gram, start / start.sum())
    weights[nonzero] = solution.to(weights.device)
    step = float(lengths[nonzero].mean()) if length == "mean" else 2.0
    factors = step * weights * scale
    return torch.cat([(factors @ block.double()).to(block.dtype) for block in blocks])


class FedU2(FederatedMethod):
    """A uniform regulariser on the client, a unified aggregator on the server.

    Args:
        weight, variant, draws: see `UniformRegulariser`.
        server_rate: eta_s, the server's step.
        weighting: the clients' weights: "examples", "batches" or "clients", in the mean of running statistics and at
            the solver's start.
        solver: of the update: "exact", or "descent", the code's.
        length: "mean" or "unit", see `unified`.
    """

    activity: ClassVar = {"update_apart": Activity("relative distance of the unified update from the mean one")}
    phases = (Phase("fit", uplink={"delta": Each(), "running": Mean()}),)

    def __init__(
        self,
        objective: Objective,
        *,
        weight: float = 0.01,
        variant: str = "code",
        draws: str = "batch",
        server_rate: float = 1.0,
        length: str = "mean",
        weighting: str = "examples",
        solver: str = "exact",
        addons: tuple[AddOn, ...] = (),
        **kwargs: Any,
    ) -> None:
        term = UniformRegulariser(weight=weight, variant=variant, draws=draws)
        super().__init__(objective, addons=(*addons, term), **kwargs)
        self.mean = mean_by(weighting)
        self.server_rate = check_number("method.server_rate", server_rate, above=0)
        self.descends = choose("method.solver", solver, "exact", "descent") == "descent"
        self.length = choose("method.length", length, "mean", "unit")

    def plan(self, round: int) -> tuple[Phase, ...]:
        """One phase; without the entry `running` where no running statistics travel."""
        uplink: dict[str, Reduction] = {"delta": Each()}
        if self.running():
            uplink["running"] = self.mean
        if self.descends:
            uplink["mean_weight"] = Each()
        return (Phase("fit", uplink=uplink),)

    def running(self) -> Tree:
        """Running statistics that travel, live; empty if there are none."""
        return self.statistics() if self.batch_norm == "average" else {}

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        """The change of the trainable weights, and the running statistics; `mean_weight`: the weight of the client."""
        message: Message = {"delta": trees.map(torch.sub, self.trainable(), visit.message["weights"])}
        if running := self.running():
            message["running"] = running
        if self.descends:
            message["mean_weight"] = {"n": torch.tensor(float(visit.weight(str(self.mean.by))), dtype=self.dtype)}
        return message, visit.memory

    def local_weights(self, message: Message, server: Tree) -> Tree:
        """The received weights plus their change, with the client's own statistics."""
        return trees.add(trees.overlay(server["weights"], message.get("running", {})), message["delta"])

    def update(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """A step along the unified update, and the mean statistics."""
        deltas = list(replies["delta"].values())
        # a clone is contiguous; a Tree from another rank may not be
        spans = trees.alike(*(delta if trees.span(delta) is not None else trees.clone(delta) for delta in deltas))
        assert spans is not None
        start = None
        if self.descends:
            client_weights = torch.stack([sent["n"] for sent in replies["mean_weight"].values()]).double()
            start = client_weights / client_weights.sum()
        flat = self.server_rate * unified([delta.flat for delta in spans], self.length, start)
        mean = sum(delta.flat for delta in spans) / len(spans)
        round_context.notes["update_apart"] = trees.apart({"all": mean}, {"all": flat})
        step = spans[0].tree(flat)
        weights = trees.overlay(server["weights"], replies.get("running", {}))
        return {**server, "weights": trees.add(weights, step)}
