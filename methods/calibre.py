"""Calibre. Chen, Su, Li: Calibre, Towards Fair and Accurate Personalized Federated Learning with Self-Supervised
Learning (ICDCS 2024).

| symbol | name | equation |
|---|---|---|
| l + alpha (l_p + l_n) | the objective's loss, and `Prototypes` | authors' code |
| alpha | `contrast_weight`, `meta_weight` | authors' code |
| l_p, prototype-oriented contrast | `methods.maths.prototype_contrast`, `temperature` | authors' code |
| l_n, prototype-based meta loss | `methods.maths.prototype_classification` | authors' code |
| K prototypes | `clusters`, `methods.maths.k_means` of representations | authors' code |
| a client's divergence | `methods.maths.cluster_divergence`, note `divergence` | authors' code |
| the mean by inverse divergence | `by_divergence`, entry `weight` | authors' code |

Decisions
- Of the paper only abstract and summaries were available. Formulas and numbers follow the authors' code (Plato,
  `examples/ssl/calibre`), whose alpha is 0.3 for both terms, with K = 10. A summary of the paper has a further loss of
  the objective's kind, which the code has not: left out.
- In each step the representations h of both views are clustered together. l_p is NT-Xent between the cluster means of
  the two views' embeddings z. Its temperature is 0.5, the default of the library that the code calls. l_n is
  classification of the second view's h among the cluster means of the first view's, by distances of unit rows.
- k-means has 10 iterations from random rows; the code has scikit-learn's, with up to 200 iterations. A batch has at
  most as many clusters as images.
- A cluster without images in one of the views has no mean in that view: it is left out of l_p, and its images out of
  l_n. In the code such a mean was not a number; since commit 14dfc1a it leaves the cluster out of both terms, where
  here the first view's mean is among the prototypes of l_n.
- The divergence is measured after local training, by the client's own model on its images without augmentation: the
  mean distance to the centre of their cluster, over the clusters. Representations are normalised first; the code
  normalises centres alone. A client has at most half as many clusters as images, and a divergence of at least `LEAST`.
- A client's weight in the mean is its number of images divided by its divergence, and weights sum to 1. In the code
  they are normalised before they are multiplied with FedAvg's, so that a step shrinks by about the number of clients.
- The client keeps its trained networks from the training to the measurement; each round starts from the global ones.
- The paper's clients train a linear classifier each, on their labels. Here the protocol `clients/v2` scores clients by
  the suite's probe of the global encoder, where the data name the clients of test images.
"""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from methods.base import (
    Activity,
    AddOn,
    Batch,
    Cat,
    Each,
    Mail,
    Mean,
    Message,
    MethodParts,
    Objective,
    Outputs,
    Phase,
    Replies,
    RoundContext,
    Tree,
    Visit,
    check_number,
    check_pair,
    choose,
)
from methods.fedavg import FedAvg
from methods.maths import (
    cluster_divergence,
    cluster_means,
    k_means,
    one_hot,
    prototype_classification,
    prototype_contrast,
    upcast,
)

LEAST = 1e-3
"""Lower bound of a divergence, of unit rows: clusters of copies of one image have 0."""


class Prototypes(AddOn):
    """The two regularisers: contrast of the views' prototypes, and classification among them.

    Args:
        contrast_weight, meta_weight: weights of l_p and l_n; 0: without this term.
        clusters: K, prototypes of a batch.
        temperature: divides the cosines in l_p.
        iterations: of k-means.
    """

    name = "calibre"

    def __init__(
        self,
        *,
        contrast_weight: float = 0.3,
        meta_weight: float = 0.3,
        clusters: int = 10,
        temperature: float = 0.5,
        iterations: int = 10,
    ) -> None:
        super().__init__()
        self.contrast_weight = check_number("method.contrast_weight", contrast_weight, at_least=0)
        self.meta_weight = check_number("method.meta_weight", meta_weight, at_least=0)
        self.clusters = check_number("method.clusters", clusters, at_least=2)
        self.temperature = check_number("method.temperature", temperature, above=0)
        self.iterations = check_number("method.iterations", iterations, at_least=1)

    def build(self, objective: Objective) -> None:
        """Raises MethodError for an objective without the embeddings of two views."""
        check_pair(objective, "Calibre compares the clusters")

    def draw(self, batch: Batch, stream: torch.Generator) -> Tree:
        """Rows of both views at which k-means starts, `[k]`."""
        if not self.contrast_weight and not self.meta_weight:
            return {}
        images = len(batch.index)
        starts = torch.randperm(2 * images, generator=stream)[: min(self.clusters, images)]
        return {"starts": starts.to(batch.index.device, non_blocking=True)}

    def forward(self, out: Outputs, batch: Batch, method: MethodParts) -> Tensor:
        """The weighted sum of both terms."""
        total = out.embeddings[0].new_zeros(())
        if not self.contrast_weight and not self.meta_weight:
            return total
        assert batch.draws is not None
        h, z, starts = out.representations, out.embeddings, batch.draws[self.name]["starts"]
        _, nearest = k_means(torch.cat(h).detach(), len(starts), iterations=self.iterations, starts=starts)
        members = one_hot(nearest, len(starts), upcast(h[0]).dtype).split(len(h[0]))
        if self.contrast_weight:
            (first_means, first_valid), (second_means, second_valid) = map(cluster_means, z, members)
            term = prototype_contrast(first_means, second_means, first_valid & second_valid, self.temperature)
            total = total + self.contrast_weight * term
        if self.meta_weight:
            prototypes, valid = cluster_means(h[0], members[0])
            total = total + self.meta_weight * prototype_classification(h[1], prototypes, nearest[len(h[0]) :], valid)
        return total


class Calibre(FedAvg):
    """FedAvg with regularisers of local prototypes, and a mean by the divergence of the clients' clusters.

    Args:
        contrast_weight, meta_weight, clusters, temperature, iterations: see `Prototypes`; `clusters` also of a client.
        aggregation: "divergence", or "mean": FedAvg's.
    """

    activity: ClassVar = {
        "shares_apart": Activity("share of the mean that the divergences take from some clients for others")
    }
    phases: ClassVar[tuple[Phase, ...]] = (
        Phase("fit"),
        Phase(
            "measure", work="observe", views=("plain",), gather={"rows": Cat()},
            uplink={"weights": Mean("examples"), "weight": Each()},
        ),
    )  # fmt: skip

    def __init__(
        self,
        objective: Objective,
        *,
        contrast_weight: float = 0.3,
        meta_weight: float = 0.3,
        clusters: int = 10,
        temperature: float = 0.5,
        iterations: int = 10,
        aggregation: str = "divergence",
        addons: tuple[AddOn, ...] = (),
        **kwargs: Any,
    ) -> None:
        terms = Prototypes(
            contrast_weight=contrast_weight,
            meta_weight=meta_weight,
            clusters=clusters,
            temperature=temperature,
            iterations=iterations,
        )
        super().__init__(objective, addons=(*addons, terms), **kwargs)
        self.clusters, self.iterations = clusters, iterations
        self.measures = choose("method.aggregation", aggregation, "divergence", "mean") == "divergence"
        if self.measures:
            self.stays = self.travelling  # the client's own networks, from `fit` to `measure`

    def plan(self, round: int) -> tuple[Phase, ...]:
        """Phases `fit` and `measure`; FedAvg's `fit` alone with `aggregation: mean`."""
        if self.measures:
            return super().plan(round)
        return (replace(self.phases[0], uplink={"weights": self.mean}),)

    def averaging(self, round: int) -> Mean:
        """The mean by images and divergence."""
        return Mean(self.by_divergence)

    def by_divergence(self, server: Tree, message: Message) -> Tensor:
        """A client's weight in the mean."""
        return message["weight"]["w"]

    def send_measure(self, server: Tree, round_context: RoundContext) -> Mail:
        """Nothing: clients have their own networks."""
        return Mail()

    def receive_measure(self, visit: Visit) -> None:
        """Loads nothing: the client's networks have stayed with it since `fit`."""

    def observe_measure(self, batch: Batch) -> Message:
        """The representations `[B, encoder.dim]` of a batch."""
        return {"rows": {"h": normalize(upcast(self.objective.encoder(batch.views[0])), dim=1)}}

    def reply_measure(self, visit: Visit) -> tuple[Message, Tree]:
        """The trained weights, and the weight of the client: its images (or batches, or 1) over its divergence."""
        message, memory = self.reply(visit)
        rows = visit.observed["rows"]["h"]
        centres, nearest = k_means(
            rows, max(1, min(self.clusters, len(rows) // 2)), visit.stream, iterations=self.iterations
        )
        divergence = cluster_divergence(rows, centres, nearest).clamp(min=LEAST)
        visit.notes["divergence"] = divergence
        return {**message, "weight": {"w": visit.weight(str(self.mean.by)) / divergence}}, memory

    def update_measure(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The mean; notes how far the clients' shares are from those without divergences (of batches, about)."""
        weights = torch.stack([sent["w"] for sent in replies["weight"].values()])
        plain = weights.new_tensor(
            [1 if self.mean.by == "clients" else each.examples for each in round_context.members]
        )
        round_context.notes["shares_apart"] = (weights / weights.sum() - plain / plain.sum()).abs().sum() / 2
        return self.update(server, round_context, replies)
