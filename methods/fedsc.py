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
- The objective is the spectral loss in FedSC's batch form (`objective.negatives: correlation`). The method adds
  (1 - alpha) (2 tr(R others) - ||R||^2) to it; without other clients' matrices the loss is exactly the objective's.
- alpha falls from 1 to 0.2 for any number of clients, as in the code; the paper's decomposition of the pooled loss
  gives 1/K for clients of equal size: `alpha_end`.
- R is measured in eval mode over `passes` passes with new views, as in the code.
- The noise is on every entry, and R is not symmetrised afterwards, as in the code: its trace with a symmetric matrix is
  the same. The privacy cost follows from the sensitivity of R to the replacement of one image: a mean of N positive
  semidefinite matrices of trace at most mu changes by at most sqrt(2) mu / N. Proposition 6.6 of the paper was not
  available.
- The noise protects R alone. The weights and statistics with which R is measured are sent without noise, as in the
  paper. Statistics that stay with the client would increase the sensitivity of R, so sigma with `batch_norm: local` is
  refused.
- The server keeps the latest R of every client, also of absent ones; all clients send theirs in the first round.
- The mean of the weights is uniform, as in the code.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from methods.base import (
    GRADIENT_SHARE,
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
    RoundContext,
    Sum,
    Tree,
    Visit,
    check_number,
)
from methods.maths import correlation, gaussian_mechanism


class FedSC(FederatedMethod):
    """Clients share correlation matrices of embeddings, so that the negatives include the other clients' images.

    Args:
        alpha_start, alpha_end: weight of the client's own correlation in the first round and after the last.
        passes: passes over a client's data to measure R.
        sigma: standard deviation of the noise on every entry of R; 0: no noise.
    """

    must_travel: Mapping[str, str] = dict.fromkeys(
        ("encoder", "projector"), "correlations of clients are comparable only if one network embeds all images"
    )
    activity = GRADIENT_SHARE
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
        self.sigma = check_number("method.sigma", sigma, at_least=0)
        if sigma and self.batch_norm == "local":
            raise MethodError(
                "method.sigma does not go with federation.batch_norm=local: statistics that stay with a client depend "
                "on all its images, so one image may change R by more than the noise covers"
            )
        self.mu: float = objective.mu  # type: ignore[assignment] # of `Spectral`, by the check above

    def plan(self, round: int) -> tuple[Phase, ...]:
        """Phase `correlate`, in the first round for all clients so that no matrix is missing later, then `fit`."""
        correlate, fit = self.phases
        return replace(correlate, epochs=self.passes, cohort="all" if round == 0 else "sampled"), fit

    def init_server(self, round_context: RoundContext) -> Tree:
        """The weights, and no matrices."""
        return {**super().init_server(round_context), "R": {}}

    def send_fit(self, server: Tree, round_context: RoundContext) -> Mail:
        """To each client the mean of the others' matrices; it received the weights in phase `correlate`."""
        if len(server["R"]) < 2:
            return Mail()
        total = torch.stack([tree["R"] for tree in server["R"].values()]).sum(dim=0)
        others = len(server["R"]) - 1
        means = {client.id: (total - server["R"][client.id]["R"]) / others for client in round_context.members}
        return Mail(private={client: {"others": {"R": mean}} for client, mean in means.items()})

    def observe(self, batch: Batch) -> Message:
        """Z^T Z and the number of rows, over both views of a batch."""
        z = torch.cat(self.objective(*batch.views).embeddings)
        rows = torch.full((), float(len(z)), device=z.device)
        return {"rows": {"n": rows}, "products": {"R": correlation(z) * len(z)}}

    def reply_correlate(self, visit: Visit) -> tuple[Message, Tree]:
        """The client's correlation matrix `[d, d]`, with noise."""
        R = visit.observed["products"]["R"] / visit.observed["rows"]["n"]
        return {"R": {"R": gaussian_mechanism(R, self.mu, self.sigma, visit.stream)}}, visit.memory

    def noise(self, phase: Phase, client: Client) -> Mapping[str, float]:
        """Sigma over the sensitivity of R, in each `correlate` phase."""
        if phase.name != "correlate" or not self.sigma:
            return {}
        return {"R": self.sigma * client.examples / (math.sqrt(2) * self.mu)}

    def protections(self) -> Mapping[str, str]:
        """Entry R: a mean over all images of a client with clipped rows; with sigma, plus noise."""
        noise = f", Gaussian noise of {self.sigma:g} on every entry" if self.sigma else ", no noise unless method.sigma"
        return {"R": f"mean over the client's images, rows clipped to norm {math.sqrt(self.mu):g}{noise}"}

    def update_correlate(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The latest matrix of every client."""
        return {**server, "R": {**server["R"], **replies["R"]}}

    def receive(self, visit: Visit) -> None:
        """Loads the weights, and stores the others' mean and this round's 1 - alpha, as a tensor for recorded steps."""
        super().receive(visit)
        alpha = self.alpha_start + (self.alpha_end - self.alpha_start) * visit.round / visit.rounds
        self.context["cross"] = {"weight": torch.full((), 1 - alpha, dtype=self.dtype, device=self.device)}

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The spectral loss, with its quadratic term split between the client's correlation and the others'."""
        loss = self.objective.loss(out, batch)
        if "others" not in self.context:
            return loss
        R = correlation(torch.cat(out.embeddings))
        return loss + self.context["cross"]["weight"] * (2 * (R * self.context["others"]["R"]).sum() - R.square().sum())
