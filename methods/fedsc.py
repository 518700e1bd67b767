"""FedSC. Jing, Yu, Zhang, Zhang: Provable Federated Self-supervised Learning with Spectral Contrastive Objective over
Non-i.i.d. Data (ICML 2024).

| symbol | name | equation |
|---|---|---|
| R_j | entry `R`, `methods.maths.correlation` of client j's clipped embeddings | section 4 |
| mean of R_i over i != j | entry `others` | Algorithm 1 |
| alpha_t | `alpha`, from `alpha_start` to `alpha_end`, linear over rounds | authors' code |
| L = -2 mean z1.z2 + alpha ||R||^2 + 2 (1 - alpha) tr(R sg(others)) | `loss` | section 4 |
| sigma, the noise on R | `sigma`, `methods.maths.gaussian_mechanism` | Algorithm 2 (DP-CalR) |

Decisions
- The objective is the spectral loss in FedSC's batch form (`objective.negatives: correlation`); the method adds
  (1 - alpha) (2 tr(R others) - ||R||^2) to it, so that without others it is that objective exactly.
- alpha falls from 1 to 0.2 whatever the number of clients, as in the code; the paper's decomposition of the pooled loss
  asks for 1/K at equal sizes: `alpha_end`.
- R is measured in eval mode over `passes` passes with fresh views, as in the code.
- The noise is on every entry and R is not made symmetric again, as in the code: the trace with a symmetric matrix does
  not see the difference. Its cost follows from the sensitivity of R to the exchange of one image: a mean of N positive
  semidefinite matrices of trace mu at most moves by sqrt(2) mu / N. The paper's own Proposition 6.6 was not at hand.
- Noise protects R alone, given the weights and statistics it is measured with, which leave as they are, as in the
  paper; statistics that never leave would let an image move R further, so sigma and `batch_norm: local` are refused.
- The server keeps the latest R of every client, absent ones too; all clients send theirs in the first round.
- The weights are averaged uniformly, as in the code.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from methods.base import (
    Batch,
    Client,
    Each,
    FederatedMethod,
    Mail,
    Mean,
    Message,
    MethodError,
    Objective,
    Outputs,
    Phase,
    Replies,
    Sum,
    Tree,
    Turn,
    Visit,
    check_number,
)
from methods.maths import correlation, gaussian_mechanism


class FedSC(FederatedMethod):
    """Clients share the correlation matrices of their embeddings, so that each is pushed from all others' images too.

    Args:
        alpha_start, alpha_end: weight of the client's own correlation at the first round and after the last.
        passes: over a client's data when R is measured.
        sigma: standard deviation of the noise on every entry of R; 0: none.
    """

    phases: ClassVar[tuple[Phase, ...]] = (
        Phase("correlate", work="observe", uplink={"R": Each()}, gather={"rows": Sum(), "products": Sum()}),
        Phase("fit", uplink={"weights": Mean("clients")}),
    )

    def __init__(
        self,
        objective: Objective,
        *,
        alpha_start: float = 1.0,
        alpha_end: float = 0.2,
        passes: int = 5,
        sigma: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(objective, **kwargs)
        if getattr(objective, "negatives", None) != "correlation":
            raise MethodError(
                "FedSC shares correlation matrices of the spectral loss: set objective=spectral and "
                "objective.negatives=correlation"
            )
        self.alpha_start = check_number("method.alpha_start", alpha_start, at_least=0, at_most=1)
        self.alpha_end = check_number("method.alpha_end", alpha_end, at_least=0, at_most=1)
        self.passes = check_number("method.passes", passes, at_least=1)
        self.sigma = check_number("method.sigma", sigma, at_least=0, below=math.inf)
        if sigma and self.batch_norm == "local":
            raise MethodError(
                "method.sigma does not go with federation.batch_norm=local: statistics that stay are of all images, so "
                "one image may move R by more than the noise is made for"
            )
        self.mu: float = objective.mu  # type: ignore[assignment] # of `Spectral`, as just made sure

    def plan(self, round: int) -> tuple[Phase, ...]:
        """Correlate, then fit; in the first round everyone correlates, so that no client's matrix is missing later."""
        correlate, fit = self.phases
        return replace(correlate, epochs=self.passes, cohort="all" if round == 0 else "sampled"), fit

    def init_server(self, turn: Turn) -> Tree:
        """The weights, and no matrix yet."""
        return {**super().init_server(turn), "R": {}}

    def send_fit(self, server: Tree, turn: Turn) -> Mail:
        """To each client the mean of the others' matrices; the weights it has from the first phase."""
        if len(server["R"]) < 2:
            return Mail()
        total = torch.stack([tree["R"] for tree in server["R"].values()]).sum(dim=0)
        shared = len(server["R"]) - 1
        return Mail(private={k.id: {"others": {"R": (total - server["R"][k.id]["R"]) / shared}} for k in turn.members})

    def observe(self, batch: Batch) -> Message:
        """Z^T Z and the number of rows of both views of a batch."""
        z = torch.cat(self.objective(*batch.views).z)
        return {"rows": {"n": torch.tensor(float(len(z)), device=z.device)}, "products": {"R": correlation(z) * len(z)}}

    def reply_correlate(self, visit: Visit) -> tuple[Message, Tree]:
        """The client's correlation matrix `[d, d]`, with noise."""
        R = visit.observed["products"]["R"] / visit.observed["rows"]["n"]
        return {"R": {"R": gaussian_mechanism(R, self.mu, self.sigma, visit.stream)}}, visit.memory

    def noise(self, phase: Phase, client: Client) -> Mapping[str, float]:
        """Sigma over what one image can move in R, at every correlation."""
        if phase.name != "correlate" or not self.sigma:
            return {}
        return {"R": self.sigma * client.examples / (math.sqrt(2) * self.mu)}

    def guards(self) -> Mapping[str, str]:
        """R is a mean over all images of a client, rows clipped; with sigma, noise on top."""
        noise = f", Gaussian noise of {self.sigma:g} on every entry" if self.sigma else ", no noise unless method.sigma"
        return {"R": f"mean over the client's images, rows clipped to norm {math.sqrt(self.mu):g}{noise}"}

    def update_correlate(self, server: Tree, turn: Turn, replies: Replies) -> Tree:
        """The latest matrix of every client."""
        return {**server, "R": {**server["R"], **replies["R"]}}

    def receive(self, visit: Visit) -> None:
        """Weights, others, and this round's alpha."""
        super().receive(visit)
        progress = visit.round / visit.rounds
        self.alpha = self.alpha_start + (self.alpha_end - self.alpha_start) * progress

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The spectral loss, its quadratic term shared between the client's own correlation and the others'."""
        own = self.objective.loss(out, batch)
        if "others" not in self.context:
            return own
        R = correlation(torch.cat(out.z))
        return own + (1 - self.alpha) * (2 * (R * self.context["others"]["R"]).sum() - R.square().sum())
