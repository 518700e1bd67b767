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
- Embeddings come out of a BatchNorm without affine parameters, as in the code.
- tau = 0.1 in every assignment, as in the code; the paper writes the softmax without one. The server's Sinkhorn takes
  cosines times 25, as in the code.
- The target sees an augmented view, as in the code; `target_view: plain` is the paper's image as it is.
- The target moves after each step; the code moves it before the next one, which differs at a visit's end only.
- Before the first round every client, where the code asks one round's cohort, clusters what the untouched target makes
  of its images, in shuffled batches and with BatchNorm by the batch as in training; nothing of that stays. A random
  `bank` of these embeddings is clustered; the code has the last batches'. The first mu is normal, the code's a linear
  layer's.
- A client's clusters are of those embeddings that have been put into the bank. The code starts from random rows of
  another length, which remain where a client sees fewer images than the bank has room for.
- The code's online pass over the first view is computed and not used: left out. The online encoder is evaluated, as in
  the code; Algorithm 2 returns the target.
- K-anonymity: a centroid hides a row among those it is the mean of. `anonymity`, in every round's line, is the smallest
  cluster that was made; `anonymity_claimed` is the paper's N / L, for a client of N images. They part because only the
  bank is clustered, not N, and because the code's ten scalings do not make clusters equal: an empty one is one row, as
  it is. `least` asks for rows in every cluster and moves some; 0 is the code.
- Rows are counted, not images: a client with fewer images than its bank has rows has several rows of one.
- Local differential privacy (Table 7): the paper has the clustering of Chang et al. (2021), by hashed core-sets; the
  code leaves it out. Ours is one step of private Lloyd clustering (Blum, Dwork, McSherry, Nissim 2005; Su et al. 2016)
  on the sphere: from L global centroids that the server sends, the sums of the unit rows nearest to each, with Gaussian
  noise (Balle, Wang 2018). Directions need no counts. A sum no longer than noise alone leaves its start where it was.
- One image may move one row only: so it is over all images rather than the bank, before training rather than after, in
  eval mode and by networks as they were sent, and goes with neither `stateful` nor BatchNorm `local` or `recalibrate`.
  It begins in the second round, of everyone: in the first there are no statistics to embed by; training has random mu.
- `heard`, in the round's line, is the share of centroids that were told from noise; the others are starts sent back.
- Epsilon is of one release; a client has one a round, and the record says what they come to. Weights are not protected.
- The target is averaged apart from the online networks, as in the code; `stateful: true` keeps it and the bank with the
  client instead (cross-silo).
- Weights are averaged over examples; Algorithm 2 has all clients alike, the code the number of batches (`weighting`).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from methods.base import (
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
    Sum,
    Tree,
    Turn,
    Visit,
    check_number,
)
from methods.fedavg import FedAvg
from methods.maths import cluster_sums, equal_clusters, gaussian_mechanism, gaussian_sigma, global_clusters
from methods.networks import by_batch
from methods.objectives.clustering import Clustering

SENSITIVITY = 2.0
"""What exchanging one image can move in a client's sums of unit rows, in Euclidean norm."""


class Orchestra(FedAvg):
    """Clients cluster what they see, the server clusters their clusters, and everyone learns to agree with the result.

    Args:
        local_clusters: L, centroids of a client; None: its whole bank, which hides nobody ("Reps" of Table 2).
        least: rows that every local cluster holds at least; a client with fewer rows makes fewer clusters.
        server_steps, server_lr: of the server's clustering, by SGD with momentum.
        stateful: target and bank stay with their client.
        epsilon, delta: of a client's centroids each time it sends some; None: no noise, and clusters as in the paper.
    """

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
        epsilon: float | None = None,
        delta: float = 1e-3,
        **kwargs: Any,
    ) -> None:
        super().__init__(objective, **kwargs)
        assert isinstance(objective, Clustering)  # `accepts` has seen to it
        self.local_clusters = local_clusters
        if local_clusters is not None:
            most = math.inf if epsilon is not None else len(objective.bank)  # noisy sums are over all images
            check_number("method.local_clusters", local_clusters, at_least=1, at_most=most)
        elif least > 1:
            raise MethodError(
                f"method.least={least} means nothing with method.local_clusters=null, which sends rows: leave it out"
            )
        self.least = check_number("method.least", least, at_least=0, at_most=len(objective.bank))
        self.server_steps = check_number("method.server_steps", server_steps, at_least=0)
        self.server_lr = check_number("method.server_lr", server_lr, above=0)
        self.epsilon, self.sigma = epsilon, 0.0
        self.delta = check_number("method.delta", delta, above=0, below=1)
        if epsilon is not None:
            self.check_private(stateful)
            self.sigma = SENSITIVITY * gaussian_sigma(
                check_number("method.epsilon", epsilon, above=0, below=math.inf), delta
            )
        if stateful:
            self.travels = tuple(part for part in objective.travels if part not in objective.ema)
            self.stays = (*objective.ema, *objective.queues)

    @classmethod
    def accepts(cls, objective: type[Objective]) -> None:
        """Its own loss alone."""
        if not issubclass(objective, Clustering):
            raise MethodError(
                f"{cls.__name__} has a loss of its own and {objective.__name__} is another: set objective=orchestra"
            )

    def check_private(self, stateful: bool) -> None:
        """Refuses what would make an epsilon untrue, and what means nothing beside one."""
        clusters = len(self.objective.centroids)
        wrong = {
            "method.stateful=true: a target that stays has learnt from all images": stateful,
            "federation.batch_norm=local: statistics that stay are of all images": self.batch_norm == "local",
            "federation.batch_norm=recalibrate: the target's statistics are not measured": self.batch_norm
            == "recalibrate",
            "method.local_clusters=null: rows of single images are sent": self.local_clusters is None,
            f"method.local_clusters above objective.clusters={clusters}": (self.local_clusters or 0) > clusters,
            "method.least: noise hides an image in a cluster of any size": self.least > 0,
        }
        if found := [says for says, applies in wrong.items() if applies]:
            raise MethodError(f"method.epsilon does not go with {found[0]}")

    def plan(self, round: int) -> tuple[Phase, ...]:
        """Everyone's first centroids, then training that sends the next ones; or noisy ones before each training.

        Noisy ones are first asked for in the second round, of everyone: before, BatchNorm has no statistics to go by.
        """
        seen = self.objective.views[:1]  # what the target sees
        phases = {phase.name: phase for phase in super().plan(round)}
        cluster, fit = replace(phases.pop("cluster"), views=seen), phases["fit"]
        if self.epsilon is None:
            return (*(replace(phase, views=seen) for phase in phases.values() if phase.name == "initialise"), fit)
        fit = replace(fit, uplink={"weights": fit.uplink["weights"]})
        return (fit,) if round == 0 else (replace(cluster, cohort="all" if round == 1 else "sampled"), fit)

    def noise(self, phase: Phase, client: Client) -> Mapping[str, float]:
        """Of the sums that a client's centroids are made of."""
        return {"centroids": self.sigma / SENSITIVITY} if self.sigma and phase.name == "cluster" else {}

    def guards(self) -> Mapping[str, str]:
        """What a centroid is made of."""
        if self.epsilon is not None:
            cost = f"epsilon {self.epsilon:g} at delta {self.delta:g} a release"
            words = f"sums of unit rows, Gaussian noise of {self.sigma:.3g} on every entry: {cost}"
        elif self.local_clusters is None:
            words = "none: rows of the bank as they are"
        else:
            size = (
                f"at least {self.least} rows each, or all it has"
                if self.least
                else "about equal size, not enforced (method.least)"
            )
            words = f"means of clusters of the bank's rows, of {size}"
        return {"centroids": words}

    def init_server(self, turn: Turn) -> Tree:
        """The networks, and global centroids anywhere on the sphere."""
        anywhere = torch.randn(self.objective.centroids.shape, generator=turn.stream)
        return {**super().init_server(turn), "centroids": {"mu": normalize(anywhere, dim=1)}}

    def send_cluster(self, server: Tree, turn: Turn) -> Mail:
        """The networks, and to each client some of the global centroids to start its own from."""
        mu = server["centroids"]["mu"]
        some = {k.id: torch.randperm(len(mu), generator=turn.stream)[: self.local_clusters] for k in turn.members}
        starts = {client: {"starts": {"mu": mu[rows.to(mu.device)]}} for client, rows in some.items()}
        return Mail({"weights": server["weights"]}, starts)

    def send_fit(self, server: Tree, turn: Turn) -> Mail:
        """The global centroids, and the networks where no phase of the round has sent them."""
        networks = {"weights": server["weights"]} if self.epsilon is None or turn.round == 0 else {}
        return Mail({**networks, "centroids": server["centroids"]})

    def receive(self, visit: Visit) -> None:
        """Weights, and the global centroids where there are some; a target that stays starts at its first training."""
        super().receive(visit)
        if "centroids" in self.context:
            self.objective.centroids.copy_(self.context["centroids"]["mu"])
        if self.stays and "trained" not in visit.memory:
            self.start_targets()

    def observe_initialise(self, batch: Batch) -> Message:
        """The target's embeddings `[B, d]` of a batch, normalised by the batch."""
        with by_batch(self.objective):
            return {"rows": {"z": self.objective.goals(batch.views[0])}}

    def reply_initialise(self, visit: Visit) -> tuple[Message, Tree]:
        """Centroids `[L, d]` of some of the client's images."""
        rows = visit.observed["rows"]["z"]
        some = torch.randperm(len(rows), generator=visit.stream)[: len(self.objective.bank)]
        return self.clustered(visit, rows[some.to(rows.device)]), visit.memory

    def observe_cluster(self, batch: Batch) -> Message:
        """Sums `[L, d]` of the unit rows nearest to each start."""
        return {"sums": {"z": cluster_sums(self.objective.goals(batch.views[0]), self.context["starts"]["mu"])}}

    def reply_cluster(self, visit: Visit) -> tuple[Message, Tree]:
        """Centroids `[L, d]`: directions of the noisy sums, and the start where noise alone might be as long."""
        sums = gaussian_mechanism(visit.observed["sums"]["z"], math.inf, self.sigma, visit.stream)
        # the length of noise alone is about sqrt(d) sigma, give or take sigma / sqrt(2): three times that is far
        heard = sums.norm(dim=1, keepdim=True) > self.sigma * (math.sqrt(sums.shape[1]) + 3 / math.sqrt(2))
        rows = torch.where(heard, normalize(sums, dim=1), visit.message["starts"]["mu"])
        visit.notes["heard"] = float(heard.float().mean())  # of noisy sums: it tells no more than they do
        return {"centroids": {"rows": rows}}, visit.memory

    def reply_fit(self, visit: Visit) -> tuple[Message, Tree]:
        """The networks, and centroids `[L, d]` of the bank where none have been sent before training."""
        message, memory = self.reply(visit)
        if self.stays:
            memory = {**memory, "trained": torch.tensor(True)}
        if "centroids" not in visit.phase.uplink:
            return message, memory
        rows = self.objective.bank[: int(self.objective.bank_filled)]
        return {**message, **self.clustered(visit, rows)}, memory

    def clustered(self, visit: Visit, rows: Tensor) -> Message:
        """The centroids of rows `[n, d]`; the visit notes among how many rows each is hidden, and the paper's claim."""
        if self.local_clusters is None:
            visit.notes |= {"anonymity": 1, "anonymity_claimed": 1}
            return {"centroids": {"rows": rows}}
        clusters = max(1, min(self.local_clusters, len(rows) // max(1, self.least)))
        centroids, nearest = equal_clusters(rows, clusters, visit.stream, least=min(self.least, len(rows)))
        sizes = torch.bincount(nearest, minlength=clusters).clamp(min=1)  # the centroid of an empty one is one row
        visit.notes |= {"anonymity": int(sizes.min()), "anonymity_claimed": visit.client.examples / clusters}
        return {"centroids": {"rows": centroids}}

    def update_fit(self, server: Tree, turn: Turn, replies: Replies) -> Tree:
        """The mean weights, and the centroids moved to what the cohort sent."""
        return self.regrouped(self.update(server, turn, replies), turn, replies)

    def regrouped(self, server: Tree, turn: Turn, replies: Replies) -> Tree:
        """The server with its global centroids `[G, d]` moved to the clients' centroids, where any were sent."""
        if "centroids" not in replies:
            return server
        rows, start, temperature = replies["centroids"]["rows"], server["centroids"]["mu"], self.objective.temperature
        mu = global_clusters(rows, start, steps=self.server_steps, lr=self.server_lr, temperature=temperature)
        return {**server, "centroids": {"mu": mu}}

    update_initialise = update_cluster = regrouped
