"""FedMKD. Li et al.: Resource-Aware Federated Self-Supervised Learning with Global Class Representations (2024).

| symbol | name | source |
|---|---|---|
| the teachers' embeddings | `teach`, of the clients' encoders and projectors | authors' code |
| adaptive knowledge integration, K | `Integration`, `keys`; `methods.maths.attended` | authors' code |
| distillation, T | `methods.maths.info_nce`, `temperature`; negatives: `queue` | authors' code |
| 0.1 L_BYOL + 0.9 L_distil | `distil_weight` | authors' code |
| global knowledge anchored alignment | phases `anchor` and `align` | authors' code |

Reconstructed: of the paper only the abstract, captions and a summary of its settings could be read. Formulas follow
two copies of the authors' code that agree in them and with the summary; others have changed both in other places.

Decisions (D: without a source, decided here)
- The objective is BYOL, of clients and server, as in the code. Clients differ in their encoder (`federation.encoders`).
- The student's predictions of both views are queries of the attention and keys of the contrast, the teachers' mean is
  its query, and earlier predictions are the negatives. In the code the keys have no gradient, so that distillation
  reaches the student through the weights of the teachers alone, and with one teacher not at all
  (`predictions: fixed`). D: by default they have one; whether the code that was read made the paper's numbers is not
  known.
- The code's queue has as many columns as an embedding has numbers, half of them random for ever. D: `queue_size` rows,
  of which those that hold predictions are negatives.
- D: teachers are in eval mode; one copy has them in training mode, the other in eval mode.
- Alignment is BYOL's regression on public images, by the client's predictions of both views. D: of the global model's
  embedding of the image without augmentation, once for all clients; the code's are of the other view. So the global
  model may have another encoder than the client. The server computes it, as in the code.
- D: the client goes on from its aligned networks, and BYOL's target starts as their copy. In the code the aligned
  encoder becomes the target, and the online networks start every round at their initial weights, as processes train
  copies; that is taken for an error.
- D: on the server the optimiser is the clients', at a constant rate; the code's alignment follows their schedule.
- The student, its target, the integration and the queue stay on the server from round to round, as in the code.
- Evaluated is the global model, which has the default encoder.
- D: the client whose images are public does not train, where a config does not name another public set.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import normalize

from methods import trees
from methods.base import (
    Activity,
    Batch,
    Cat,
    Client,
    Each,
    FederatedMethod,
    Mail,
    Message,
    MethodError,
    Objective,
    Phase,
    Replies,
    RoundContext,
    Tree,
    Visit,
    check_number,
    choose,
)
from methods.maths import attended, byol_regression, info_nce, upcast
from methods.networks import Frozen, mlp
from methods.objective import fill
from methods.objectives.byol import BYOL


def values(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and floating-point buffers by name, live."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor.detach() for name, tensor in tensors if tensor.is_floating_point()}


class Integration(nn.Module):
    """The mean of the teachers' embeddings, by attention of the student's prediction; rows are reduced to K numbers.

    Args:
        width: of an embedding. hidden: of the reduction. keys: K.
    """

    def __init__(self, width: int, hidden: int, keys: int) -> None:
        super().__init__()
        self.reduce = mlp((width, hidden, keys))
        self.of_queries = nn.Parameter(torch.randn(keys, keys))
        self.of_keys = nn.Parameter(torch.randn(keys, keys))

    def forward(self, predictions: Tensor, teachers: Tensor) -> Tensor:
        """Predictions `[n, d]` and the embeddings `[n, N, d]` of N teachers -> `[n, d]`."""
        keys = torch.stack([self.reduce(rows) for rows in teachers.unbind(1)], dim=1)  # BatchNorm teacher by teacher
        return attended(teachers, self.reduce(predictions), keys, self.of_queries, self.of_keys)


class FedMKD(FederatedMethod):
    """The server distils the clients' networks, which may differ, into a global one, and aligns them to it.

    Args:
        distil_weight: of the distillation; the rest is the weight of BYOL's loss on public images.
        temperature: T, divides the cosines of the distillation.
        predictions: "trained" or "fixed", whether the student's predictions have a gradient as keys.
        keys: K, numbers to which an embedding is reduced for the attention.
        queue_size: earlier predictions that are negatives.
        distil_epochs, align_epochs: passes over the public images; 0 of the latter: no alignment.
    """

    mixes: ClassVar[bool] = True
    activity: ClassVar = {"student_moved": Activity("relative distance that the distillation moves the student", 0.001)}
    must_travel: Mapping[str, str] = dict.fromkeys(
        ("encoder", "projector", "predictor"), "the server runs and aligns the clients' networks"
    )
    phases: ClassVar[tuple[Phase, ...]] = (
        Phase("fit", uplink={"model": Each()}),
        Phase("distil", where="server", data="public", uplink={"student": Each()}),
        Phase(
            "anchor", where="server", work="observe", data="public", views=("plain",), gather={"rows": Cat()},
            uplink={"anchors": Cat()},
        ),
        Phase("align", where="server", data="public", uplink={"aligned": Each()}),
    )  # fmt: skip
    objective: BYOL
    queue: Tensor
    queue_filled: Tensor

    def __init__(
        self,
        objective: Objective,
        *,
        distil_weight: float = 0.9,
        temperature: float = 0.1,
        predictions: str = "trained",
        keys: int = 10,
        queue_size: int = 1024,
        distil_epochs: int = 5,
        align_epochs: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(objective, **kwargs)
        if self.batch_norm != "average":
            raise MethodError(
                f"federation.batch_norm={self.batch_norm}: FedMKD's server runs the clients' networks, for which it "
                "needs their running statistics: set federation.batch_norm=average"
            )
        if objective.stays:
            raise MethodError(
                f"FedMKD: {objective.stays[0]} starts each round as a copy of the aligned networks: "
                "set objective.stateful=false"
            )
        self.distil_weight = check_number("method.distil_weight", distil_weight, at_least=0, at_most=1)
        self.temperature = check_number("method.temperature", temperature, above=0)
        self.trains_predictions = choose("method.predictions", predictions, "trained", "fixed") == "trained"
        check_number("method.keys", keys, at_least=1)
        rows = check_number("method.queue_size", queue_size, at_least=1)
        self.distil_epochs = check_number("method.distil_epochs", distil_epochs, at_least=1)
        self.align_epochs = check_number("method.align_epochs", align_epochs, at_least=0)
        self.teacher = Frozen(objective.encoder, objective.projector)
        hidden = cast(nn.Linear, self.objective.predictor[0])  # as wide as in the code
        self.integration = Integration(objective.width, hidden.out_features, keys)
        self.register_buffer("queue", torch.zeros(rows, objective.width))
        self.register_buffer("queue_filled", torch.zeros((), dtype=torch.long))

    @classmethod
    def accepts(cls, objective: type[Objective]) -> None:
        """Raises MethodError for an objective other than BYOL."""
        if not issubclass(objective, BYOL):
            raise MethodError(
                f"FedMKD distils into BYOL's predictions, which {objective.__name__} has not: set objective=byol"
            )

    def plan(self, round: int) -> tuple[Phase, ...]:
        """Phases `fit`, `distil`, `anchor` and `align`, the last two where there is an alignment."""
        fit, distil, anchor, align = self.phases
        distil = replace(distil, epochs=self.distil_epochs)
        return (fit, distil, anchor, replace(align, epochs=self.align_epochs)) if self.align_epochs else (fit, distil)

    # --- the server

    def init_server(self, round_context: RoundContext) -> Tree:
        """The student with its target, integration and empty queue, and the initial weights of every architecture."""
        for name, other in self.others.items():
            if other.objective.width != self.objective.width:
                raise MethodError(
                    f"federation.encoders.{name} has embeddings of {other.objective.width} numbers, the global model "
                    f"of {self.objective.width}: set heads.projector, whose last width all of them have"
                )
        initial = {name: trees.clone(each.weights()) for name, each in self.architectures.items()}
        return {**trees.clone(self.student()), "initial": initial, "clients": {}}

    def student(self) -> Tree:
        """All that the server trains, live."""
        return {
            "weights": self.weights(),
            "target": {part: self.tensors(part) for part in self.objective.ema},
            "integration": values(self.integration),
            "queue": {"rows": self.queue, "filled": self.queue_filled},
        }

    def send_fit(self, server: Tree, round_context: RoundContext) -> Mail:
        """To each client its aligned networks; before its first visit the initial ones of its architecture."""
        own, initial, members = server["clients"], server["initial"], round_context.members
        return Mail(private={c.id: {"weights": own.get(c.id, initial[c.architecture])} for c in members})

    def update_fit(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The clients' networks, and those of this round by architecture."""
        trained: Tree = defaultdict(dict)
        for client in round_context.members:
            trained[client.architecture][client.id] = replies["model"][client.id]
        return {**server, "clients": {**server["clients"], **replies["model"]}, "trained": dict(trained)}

    def server_workers(self, server: Tree) -> tuple[Client, ...]:
        """Worker -1 for the student; once there are anchors, worker -2 - k for the network of client k."""
        if "anchors" not in server:
            return (Client(-1, 0),)
        return tuple(Client(-2 - k, 0, name) for name, models in server["trained"].items() for k in models)

    def send_distil(self, server: Tree, round_context: RoundContext) -> Mail:
        """The student, and the teachers by architecture."""
        teachers = {
            name: {
                index: {part: model.get(part, {}) for part in ("encoder", "projector")}  # {}: an empty projector
                for index, model in enumerate(models.values())
            }
            for name, models in server["trained"].items()
        }
        return Mail({**{entry: server[entry] for entry in self.student()}, "teachers": teachers})

    def reply_distil(self, visit: Visit) -> tuple[Message, Tree]:
        """The trained student."""
        return {"student": self.student()}, visit.memory

    def update_distil(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The trained student; without alignment the round is over."""
        (student,) = replies["student"].values()
        round_context.notes["student_moved"] = trees.apart(server["weights"], student["weights"], self.trainable())
        return {**(server if self.align_epochs else without(server, "trained")), **student}

    def observe_anchor(self, batch: Batch) -> Message:
        """The global model's embeddings `[B, d]` of public images."""
        return {"rows": {"z": upcast(self.objective.embed(batch.views[0])[1])}}

    def reply_anchor(self, visit: Visit) -> tuple[Message, Tree]:
        """Its embeddings `[N, d]` of all public images, in their order."""
        return {"anchors": visit.observed["rows"]}, visit.memory

    def update_anchor(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The anchors, for the next phase."""
        return {**server, "anchors": replies["anchors"]}

    def send_align(self, server: Tree, round_context: RoundContext) -> Mail:
        """The anchors to all, and to each worker the networks of its client."""
        models = {worker.id: {"weights": server["clients"][-2 - worker.id]} for worker in round_context.members}
        return Mail({"anchors": server["anchors"]}, models)

    def reply_align(self, visit: Visit) -> tuple[Message, Tree]:
        """The aligned networks."""
        return {"aligned": self.weights()}, visit.memory

    def update_align(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The aligned networks, for the clients' next visit; the round is over."""
        aligned = {-2 - worker: model for worker, model in replies["aligned"].items()}
        return {**without(server, "trained", "anchors"), "clients": {**server["clients"], **aligned}}

    # --- the client

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimiser of the objective's and the add-ons' networks."""
        trained = (*self.objective.parameters(), *self.addons.parameters())
        return self.make_optimizer(value for value in trained if value.requires_grad)

    def reply_fit(self, visit: Visit) -> tuple[Message, Tree]:
        """The trained networks."""
        return {"model": self.weights()}, visit.memory

    def protections(self) -> Mapping[str, str]:
        """Entry `model`: each client's networks by themselves."""
        return {"model": "none: the server runs and keeps the networks of each client"}

    # --- the distillation, by the student's worker

    @torch.no_grad()
    def start_visit(self, visit: Visit, stored: Tree | None = None) -> None:
        """The student's target goes on from the last round; others start as copies."""
        super().start_visit(visit, stored)
        if visit.phase.name == "distil":
            self.load(visit.message["target"])

    @torch.no_grad()
    def receive_distil(self, visit: Visit) -> None:
        """Loads the student, and finds the teachers for the loss."""
        message = visit.message
        self.load(message["weights"])
        trees.assign(values(self.integration), message["integration"])
        self.queue.copy_(message["queue"]["rows"])
        self.queue_filled.copy_(message["queue"]["filled"])
        self.context["teachers"] = message["teachers"]

    def configure_optimizers_distil(self) -> torch.optim.Optimizer:
        """The optimiser of student and integration."""
        trained = (*self.objective.parameters(), *self.integration.parameters())
        return self.make_optimizer(value for value in trained if value.requires_grad)

    def teach(self, images: Tensor) -> Tensor:
        """The teachers' embeddings `[B, N, d]` of images, without gradient."""
        rows = []
        for name, models in self.context["teachers"].items():
            network: Any = self.architectures[name].teacher
            for model in models.values():
                tensors = {
                    f"networks.{index}.{name}": tensor
                    for index, part in enumerate(("encoder", "projector"))
                    for name, tensor in model[part].items()
                }
                rows.append(functional_call(network, tensors, (images,)))
        return torch.stack(rows, dim=1)

    def training_step_distil(self, batch: Batch, batch_idx: int = 0) -> dict[str, Any]:
        """The weighted sum of BYOL's loss and of the contrast of the teachers' mean with the student's prediction."""
        out = self.objective(*batch.views)
        predictions = torch.cat(out.predictions)
        mean = self.integration(predictions, self.teach(torch.cat(batch.views[: len(out.predictions)])))
        rows = predictions if self.trains_predictions else predictions.detach()
        valid = torch.arange(len(self.queue), device=rows.device) < self.queue_filled
        distilled = info_nce(mean, rows, self.queue, valid, self.temperature)
        loss = (1 - self.distil_weight) * self.objective.loss(out, batch) + self.distil_weight * distilled
        return {"loss": loss, "push": {"rows": normalize(upcast(predictions.detach()), dim=1)}}

    @torch.no_grad()
    def on_train_batch_end_distil(self, outputs: Any, batch: Batch, batch_idx: int = 0) -> None:
        """The target follows the student, and the predictions enter the queue."""
        self.objective.move_targets()
        fill(self.queue, self.queue_filled, outputs["push"]["rows"])

    # --- the alignment, by the worker of a client's networks

    def training_step_align(self, batch: Batch, batch_idx: int = 0) -> dict[str, Any]:
        """The sum of both views' regressions of the anchors by the client's predictions."""
        objective, anchors = self.objective, self.context["anchors"]["z"][batch.index]
        predictions = objective.each_view(lambda view: objective.predictor(objective.embed(view)[1]), batch.views)
        views = len(predictions)
        return {"loss": views * byol_regression(torch.cat(predictions), anchors.repeat(views, 1)), "push": {}}

    def on_train_batch_end_align(self, outputs: Any, batch: Batch, batch_idx: int = 0) -> None:
        """Nothing follows: there is no target."""


def without(server: Tree, *entries: str) -> Tree:
    """The server's state without some of its entries."""
    return {entry: tree for entry, tree in server.items() if entry not in entries}
