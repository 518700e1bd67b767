"""Orchestra. Lubana, Tang, Kawsar, Dick, Mathur: Orchestra: Unsupervised Federated Learning via Globally Consistent
Clustering (ICML 2022).

| symbol | name | equation |
|---|---|---|
| the local loss | `methods.objectives.clustering` | Algorithm 1 |
| mu^G, G | `centroids`, `clusters` of the objective | Algorithm 2 |
| the client's memory, its L centroids | `bank`, `local_clusters`, `methods.maths.equal_clusters` | Algorithm 2 |
| the server's clustering | `methods.maths.global_clusters` of all clients' centroids | Algorithm 2 |
| epsilon, delta of a release | `epsilon`, `delta`, `methods.maths.gaussian_sigma` | section D.4, Table 7 |

Decisions
- The projector ends in a BatchNorm without affine parameters, as in the code.
- tau = 0.1 in every assignment, as in the code; the paper's softmax has no temperature. The server's Sinkhorn takes
  cosines times 25, as in the code.
- The target's input is an augmented view, as in the code; `target_view: plain` is the paper's unaugmented image.
- The target is updated after each step; the code updates it before each batch, the first included
  (`objective.target_first`). They differ at the start and at the end of a visit.
- Before the first round every client clusters embeddings of its images by the untrained target; in the code only one
  round's cohort does. Batches are shuffled and BatchNorm normalises by the batch, as in training; its statistics are
  not changed. A random subset as large as `bank` is clustered; the code takes the first rows (`start_rows: first`). The
  first mu is normal; the code's has a linear layer's initialisation.
- A client clusters the embeddings in its bank. The code's bank starts with random rows of another norm, which remain
  where a client has fewer images than the bank has rows.
- The code's online pass over the first view is not used in its loss. It is made with `training.views: separate`, since
  it moves running statistics, and left out with joint views. The online encoder is evaluated, as in the code; Algorithm
  2 returns the target.
- K-anonymity: a centroid hides a row among the rows of its cluster. `anonymity`, in every round's line, is the size of
  the smallest cluster; `anonymity_claimed` is the paper's N / L, for a client of N images. They differ because only the
  bank is clustered, not N images, and because the code's ten scalings do not make clusters equal: the centroid of an
  empty cluster is a single row. `least` sets a minimum of rows for every cluster; 0 is the code.
- Anonymity counts rows, not images: a client with fewer images than bank rows has several rows of one image.
- Local differential privacy (Table 7): the paper uses the clustering of Chang et al. (2021), by hashed core-sets; the
  code has none. Ours is one step of private Lloyd clustering (Blum, Dwork, McSherry, Nissim 2005; Su et al. 2016) on
  the sphere: the server sends L global centroids, and the client returns the sum of the unit rows nearest to each, with
  Gaussian noise (Balle, Wang 2018). Directions need no counts. Where a sum is not longer than noise alone, the received
  centroid is returned.
- One image must change one row only. So the sums are over all images instead of the bank, before training instead of
  after it, in eval mode and with the received networks; `stateful` and BatchNorm `local` or `recalibrate` are refused.
  The first release is in the second round, by all clients: in the first round BatchNorm has no statistics, and mu is
  random.
- `above_noise`, in the round's line, is the fraction of centroids whose sum exceeds the noise.
- Epsilon is for one release. A client has one release a round; the record has the total. Weights are not protected.
- Targets have a mean of their own, separate from the online networks, as in the code; with `stateful: true` target and
  bank stay with the client instead (cross-silo).
- The mean of the weights is over examples; Algorithm 2 has equal weights, the code numbers of batches (`weighting`).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from methods import trees
from methods.base import (
    Activity,
    Batch,
    Cat,
    Client,
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
    check_number,
    choose,
)
from methods.fedavg import FedAvg
from methods.maths import cluster_sums, equal_clusters, gaussian_mechanism, gaussian_sigma, global_clusters
from methods.networks import batch_statistics
from methods.objectives.clustering import Clustering

SENSITIVITY = 2.0
"""L2 sensitivity of a client's sums of unit rows to the replacement of one image."""


class Orchestra(FedAvg):
    """Hierarchical clustering: of embeddings at the clients, of the clients' centroids at the server.

    Args:
        local_clusters: L, centroids of a client; None: all rows of the bank, without anonymity ("Reps" of Table 2).
        least: minimum of rows in every local cluster; a client with fewer rows has fewer clusters.
        server_steps, server_lr: steps and rate of the server's clustering, by SGD with momentum.
        stateful: whether target and bank stay with their client.
        start_rows: rows that a client clusters before the first round: "random", or the "first" of its batches.
        epsilon, delta: privacy of each release of a client's centroids; None: no noise, clusters as in the paper.
    """

    must_travel: Mapping[str, str] = dict.fromkeys(
        ("encoder", "projector"), "the global centroids are of embeddings by the global networks"
    ) | dict.fromkeys(("target_encoder", "target_projector"), "targets stay together, by method.stateful=true")
    activity: ClassVar = {"centroids_moved": Activity("relative distance that the global centroids move")}
    warmup: ClassVar[tuple[Phase, ...]] = (
        Phase(
            "initialise", work="observe", uplink={"centroids": Cat()}, gather={"rows": Cat()}, cohort="all",
            shuffled=True,
        ),
    )  # fmt: skip
    phases: ClassVar[tuple[Phase, ...]] = (
        Phase("cluster", work="observe", uplink={"centroids": Cat()}, gather={"sums": Sum()}),
        Phase("fit", uplink={"weights": Mean("examples"), "centroids": Cat()}),
    )
    objective: Clustering

    def __init__(
        self,
        objective: Objective,
        *,
        local_clusters: int | None = 16,
        least: int = 0,
        server_steps: int = 500,
        server_lr: float = 0.01,
        stateful: bool = False,
        start_rows: str = "random",
        epsilon: float | None = None,
        delta: float = 1e-3,
        **kwargs: Any,
    ) -> None:
        super().__init__(objective, **kwargs)
        assert isinstance(objective, Clustering)  # by `accepts`
        self.local_clusters = local_clusters
        if local_clusters is not None:
            limit = math.inf if epsilon is not None else len(objective.bank)  # noisy sums are over all images
            check_number("method.local_clusters", local_clusters, at_least=1, at_most=limit)
        elif least > 1:
            raise MethodError(
                f"method.least={least} has no effect with method.local_clusters=null, which sends rows: leave it out"
            )
        self.least = check_number("method.least", least, at_least=0, at_most=len(objective.bank))
        self.server_steps = check_number("method.server_steps", server_steps, at_least=0)
        self.server_lr = check_number("method.server_lr", server_lr, above=0)
        self.start_rows = choose("method.start_rows", start_rows, "random", "first")
        self.epsilon, self.sigma = epsilon, 0.0
        self.delta = check_number("method.delta", delta, above=0, below=1)
        if epsilon is not None:
            self.check_private(stateful)
            self.sigma = SENSITIVITY * gaussian_sigma(check_number("method.epsilon", epsilon, above=0), delta)
        if stateful:
            self.travels = tuple(part for part in objective.travels if part not in objective.ema)
            self.stays = (*objective.ema, *objective.queues)

    @classmethod
    def accepts(cls, objective: type[Objective]) -> None:
        """Raises MethodError for any objective but Orchestra's."""
        if not issubclass(objective, Clustering):
            raise MethodError(
                f"{cls.__name__} works with its own objective only, not {objective.__name__}: set objective=orchestra"
            )

    def check_private(self, stateful: bool) -> None:
        """Raises MethodError for settings that make epsilon wrong or that have no effect beside it."""
        clusters, policy = len(self.objective.centroids), self.batch_norm
        conflicts = {
            "method.stateful=true: a target that stays has learnt from all images": stateful,
            "federation.batch_norm=local: statistics that stay are of all images": policy == "local",
            "federation.batch_norm=recalibrate: the target's statistics are not measured": policy == "recalibrate",
            "method.local_clusters=null: rows of single images are sent": self.local_clusters is None,
            f"method.local_clusters above objective.clusters={clusters}": (self.local_clusters or 0) > clusters,
            "method.least: noise hides an image in a cluster of any size": self.least > 0,
        }
        if reasons := [reason for reason, applies in conflicts.items() if applies]:
            raise MethodError(f"method.epsilon does not go with {reasons[0]}")

    def plan(self, round: int) -> tuple[Phase, ...]:
        """Without epsilon: once `initialise`, then `fit`, whose replies hold centroids. With epsilon: `cluster`, `fit`.

        Phase `cluster` starts in the second round, for all clients: before it BatchNorm has no statistics.
        """
        target_views = self.objective.views[:1]
        phases = {phase.name: phase for phase in super().plan(round)}
        cluster, fit = replace(phases.pop("cluster"), views=target_views), phases.pop("fit")
        if self.epsilon is None:
            return (*(replace(phase, views=target_views) for phase in phases.values()), fit)
        fit = replace(fit, uplink={"weights": fit.uplink["weights"]})
        return (fit,) if round == 0 else (replace(cluster, cohort="all" if round == 1 else "sampled"), fit)

    def noise(self, phase: Phase, client: Client) -> Mapping[str, float]:
        """The multiplier of the sums from which a client's centroids are computed."""
        return {"centroids": self.sigma / SENSITIVITY} if self.sigma and phase.name == "cluster" else {}

    def protections(self) -> Mapping[str, str]:
        """Entry `centroids`: how they are computed."""
        if self.epsilon is not None:
            cost = f"epsilon {self.epsilon:g} at delta {self.delta:g} a release"
            return {"centroids": f"sums of unit rows, Gaussian noise of {self.sigma:.3g} on every entry: {cost}"}
        if self.local_clusters is None:
            return {"centroids": "none: rows of the bank as they are"}
        equal = "about equal size, not enforced (method.least)"
        size = f"at least {self.least} rows each, or all it has" if self.least else equal
        return {"centroids": f"means of clusters of the bank's rows, of {size}"}

    def init_server(self, round_context: RoundContext) -> Tree:
        """The networks, and random global centroids on the sphere."""
        mu = torch.randn(self.objective.centroids.shape, generator=round_context.stream)
        return {**super().init_server(round_context), "centroids": {"mu": normalize(mu, dim=1)}}

    def send_cluster(self, server: Tree, round_context: RoundContext) -> Mail:
        """The networks to all, and to each client a random subset of the global centroids as its starts."""
        mu = server["centroids"]["mu"]
        starts = {}
        for client in round_context.members:
            rows = torch.randperm(len(mu), generator=round_context.stream)[: self.local_clusters]
            starts[client.id] = {"starts": {"mu": mu[rows.to(mu.device)]}}
        return Mail({"weights": server["weights"]}, starts)

    def send_fit(self, server: Tree, round_context: RoundContext) -> Mail:
        """The global centroids, and the networks unless `cluster` has sent them."""
        networks = {"weights": server["weights"]} if self.epsilon is None or round_context.round == 0 else {}
        return Mail({**networks, "centroids": server["centroids"]})

    def receive(self, visit: Visit) -> None:
        """Loads the weights and any global centroids; a target that stays is initialised at its first training."""
        super().receive(visit)
        if "centroids" in self.context:
            self.objective.centroids.copy_(self.context["centroids"]["mu"])
        if self.stays and "trained" not in visit.memory:
            self.start_targets()

    def observe_initialise(self, batch: Batch) -> Message:
        """The target's embeddings `[B, d]` of a batch, with BatchNorm by the batch."""
        with batch_statistics(self.objective):
            return {"rows": {"z": self.objective.target_embeddings(batch.views[0])}}

    def reply_initialise(self, visit: Visit) -> tuple[Message, Tree]:
        """Centroids `[L, d]` of as many of the client's images as the bank has rows."""
        rows, limit = visit.observed["rows"]["z"], len(self.objective.bank)
        if self.start_rows == "first":
            return self.local_centroids(visit, rows[:limit]), visit.memory
        subset = torch.randperm(len(rows), generator=visit.stream)[:limit]
        return self.local_centroids(visit, rows[subset.to(rows.device, non_blocking=True)]), visit.memory

    def observe_cluster(self, batch: Batch) -> Message:
        """Sums `[L, d]` of the unit rows nearest to each start."""
        return {
            "sums": {"z": cluster_sums(self.objective.target_embeddings(batch.views[0]), self.context["starts"]["mu"])}
        }

    def reply_cluster(self, visit: Visit) -> tuple[Message, Tree]:
        """Centroids `[L, d]`: directions of the noisy sums, or the start where noise alone could have that norm."""
        sums = gaussian_mechanism(visit.observed["sums"]["z"], math.inf, self.sigma, visit.stream)
        # noise alone has norm sqrt(d) sigma with deviation sigma / sqrt(2), about: the threshold adds three deviations
        exceeds = sums.norm(dim=1, keepdim=True) > self.sigma * (math.sqrt(sums.shape[1]) + 3 / math.sqrt(2))
        rows = torch.where(exceeds, normalize(sums, dim=1), visit.message["starts"]["mu"])
        visit.notes["above_noise"] = exceeds.float().mean()  # a function of the noisy sums: no further privacy cost
        return {"centroids": {"rows": rows}}, visit.memory

    def reply_fit(self, visit: Visit) -> tuple[Message, Tree]:
        """The networks, and centroids `[L, d]` of the bank unless `cluster` has sent centroids."""
        message, memory = self.reply(visit)
        if self.stays:
            memory = {**memory, "trained": torch.tensor(True)}
        if "centroids" not in visit.phase.uplink:
            return message, memory
        rows = self.objective.bank[: int(self.objective.bank_filled)]
        return {**message, **self.local_centroids(visit, rows)}, memory

    def local_centroids(self, visit: Visit, rows: Tensor) -> Message:
        """The centroids of rows `[n, d]`; adds the smallest cluster's size and the paper's claim to the notes."""
        if self.local_clusters is None:
            visit.notes |= {"anonymity": 1, "anonymity_claimed": 1}
            return {"centroids": {"rows": rows}}
        clusters = max(1, min(self.local_clusters, len(rows) // max(1, self.least)))
        centroids, nearest = self.cluster(visit, rows, clusters)
        sizes = one_hot(nearest, clusters).sum(0).clamp(min=1)  # the centroid of an empty cluster is one row
        visit.notes |= {"anonymity": sizes.min(), "anonymity_claimed": visit.client.examples / clusters}
        return {"centroids": {"rows": centroids}}

    def cluster(self, visit: Visit, rows: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
        """Centroids `[clusters, d]` of rows `[n, d]`, and each row's cluster `[n]`."""
        return equal_clusters(rows, clusters, visit.stream, min_size=min(self.least, len(rows)))

    def update_fit(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The mean weights and new global centroids."""
        return self.move_centroids(self.update(server, round_context, replies), round_context, replies)

    def move_centroids(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The server with new global centroids `[G, d]`: clusters of the clients' centroids, where any were sent."""
        if "centroids" not in replies:
            return server
        rows, start, temperature = replies["centroids"]["rows"], server["centroids"]["mu"], self.objective.temperature
        mu = global_clusters(rows, start, steps=self.server_steps, lr=self.server_lr, temperature=temperature)
        round_context.notes["centroids_moved"] = trees.apart(server["centroids"], {"mu": mu})
        return {**server, "centroids": {"mu": mu}}

    update_initialise = update_cluster = move_centroids
