"""FLESD. Shi et al.: Federated Self-supervised Contrastive Learning via Ensemble Similarity Distillation (2021).

| symbol | name | equation |
|---|---|---|
| M_k = R_k^T R_k | entry `similarity`, `methods.maths.similarity` of the public images | eq. 4 |
| top n % of each row | `kept`, sent as values and columns | quantisation |
| M = mean_k exp(M_k / tau_T) | `targets`, `methods.maths.ensemble_similarity`, `teacher_temperature` | eqs. 5-6 |
| p, q, KL(p || q), tau_S | `methods.maths.similarity_distillation`, `student_temperature` | eqs. 7-9 |
| anchors Q, m; momentum encoder, zeta | `anchors`; `key`, `momentum` | eq. 10 |
| E, B', eta of the distillation | `distil_epochs`, `distil_batch_size`, `distil_lr` | section 4 |

Decisions
- The client that owns the public images does not train, as in the paper: K - 1 teachers. Under other methods it trains.
- A client embeds the public images without augmentation, in eval mode. The authors' code normalises them differently
  from the training images; here all images have the same normalisation.
- Entries removed by quantisation are similarities of 0, not probabilities of 0: each has mass exp(0 / tau_T), as in the
  code. A row keeps k = int(n N) + 1 entries, the image itself among them.
- The key encoder starts at the student and is updated after each step. Keys enter the queue before their queries are
  compared with it, as in the paper. The code makes no step with the first m / B' batches of every epoch, which fill the
  queue (`fill_anchors: true`); by default the loss starts with the first batch, over the anchors present.
- The code leaves out a short last batch of the distillation, and keeps those of local training: `drop_last: true`.
- Every architecture of the federation (`federation.encoders`) has a student at the server. All students learn from the
  same targets, and each client starts a round from the student of its architecture; the paper proposes such
  federations without results.
- The distillation has its own constant learning rate; the schedule is for clients. `training.clip_norm` is for both.
- Networks that distillation does not train (a predictor, the head of rotation) start every round from their initial
  weights: clients do not send them, and the student has none.
- FLESD-cc is one round (`flesd-cc`).
- The server holds the matrices of all clients, N x N floats each, before it computes the ensemble.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
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
)
from methods.maths import dense, ensemble_similarity, similarity, similarity_distillation, top_similarities, upcast
from methods.objective import enqueue, update_ema


class FLESD(FederatedMethod):
    """Clients send similarities of public images; the server distils their ensemble into a student.

    Args:
        teacher_temperature, student_temperature: tau_T and tau_S.
        kept: fraction of each row of a client's similarities that is sent, in (0, 1]; 1: the full matrix.
        anchors: m, number of keys that a query is compared with.
        momentum: zeta, weight of the key encoder's previous value in its moving average.
        distil_epochs, distil_batch_size, distil_lr, distil_weight_decay: the student's training, by Adam.
        drop_last: whether a short last batch of the distillation is left out.
        fill_anchors: whether the first `anchors // distil_batch_size` batches of an epoch only become anchors.
    """

    mixes: ClassVar[bool] = True
    activity: ClassVar = {"student_moved": Activity("relative distance that the distillation moves the student", 0.001)}
    phases: ClassVar[tuple[Phase, ...]] = (
        Phase("fit"),
        Phase(
            "infer", work="observe", data="public", views=("plain",), gather={"rows": Cat()},
            uplink={"similarity": Each()},
        ),
        Phase("distil", where="server", data="public", views=("augment", "augment"), uplink={"weights": Each()}),
    )  # fmt: skip
    anchor_rows: Tensor
    anchor_images: Tensor
    anchors_filled: Tensor

    def __init__(
        self,
        objective: Objective,
        *,
        teacher_temperature: float = 0.1,
        student_temperature: float = 0.1,
        kept: float = 1.0,
        anchors: int = 2048,
        momentum: float = 0.999,
        distil_epochs: int = 200,
        distil_batch_size: int = 128,
        distil_lr: float = 1e-3,
        distil_weight_decay: float = 1e-6,
        drop_last: bool = False,
        fill_anchors: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(objective, **kwargs)
        if self.personal:
            raise MethodError(
                f"method.stays={list(self.personal)}: FLESD's clients send no weights, and the server's student "
                "has all parts: leave it out"
            )
        if names := [addon.name for addon in self.terms if addon.networks() is not None]:
            raise MethodError(
                f"FLESD sends no weights, and its student has no networks of add-on {names[0]!r}: leave it out"
            )
        self.teacher_temperature = check_number("method.teacher_temperature", teacher_temperature, above=0)
        self.student_temperature = check_number("method.student_temperature", student_temperature, above=0)
        self.kept = check_number("method.kept", kept, above=0, at_most=1)
        self.momentum = check_number("method.momentum", momentum, at_least=0, at_most=1)
        self.distil_epochs = check_number("method.distil_epochs", distil_epochs, at_least=1)
        self.distil_batch_size = check_number("method.distil_batch_size", distil_batch_size, at_least=2)
        self.distil_lr = check_number("method.distil_lr", distil_lr, at_least=0)
        self.distil_weight_decay = check_number("method.distil_weight_decay", distil_weight_decay, at_least=0)
        rows = check_number("method.anchors", anchors, at_least=1)
        self.drop_last, self.skip = drop_last, rows // distil_batch_size if fill_anchors else 0
        if fill_anchors and not self.skip:
            raise MethodError(
                f"method.fill_anchors=true: method.anchors={anchors} is less than a batch of {distil_batch_size}: "
                "leave it out"
            )
        self.stays = objective.travels  # the client's own networks, from `fit` to `infer`
        self.key = deepcopy(objective).requires_grad_(False)
        self.register_buffer("anchor_rows", torch.zeros(rows, objective.width))
        self.register_buffer("anchor_images", torch.zeros(rows, dtype=torch.long))
        self.register_buffer("anchors_filled", torch.zeros((), dtype=torch.long))

    def plan(self, round: int) -> tuple[Phase, ...]:
        """Phases `fit`, `infer` and `distil`, the last with its own epochs and batches."""
        fit, infer, distil = self.phases
        return (
            fit,
            infer,
            replace(
                distil,
                epochs=self.distil_epochs,
                batch_size=self.distil_batch_size,
                drop_last=self.drop_last,
                skip=self.skip,
            ),
        )

    # --- the server

    def init_server(self, round_context: RoundContext) -> Tree:
        """An untrained student of every architecture."""
        running = self.batch_norm != "local"
        return {"students": {name: trees.clone(each.weights(running)) for name, each in self.architectures.items()}}

    def send_fit(self, server: Tree, round_context: RoundContext) -> Mail:
        """To each client the student of its architecture."""
        return Mail(
            private={
                client.id: {"weights": server["students"][client.architecture]} for client in round_context.members
            }
        )

    def send_infer(self, server: Tree, round_context: RoundContext) -> Mail:
        """Nothing: clients have the public images and their own networks."""
        return Mail()

    def update_infer(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The ensemble `[N, N]` of the clients' similarities."""
        matrices = (dense(**sent) if "columns" in sent else sent["values"] for sent in replies["similarity"].values())
        return {**server, "targets": {"M": ensemble_similarity(matrices, self.teacher_temperature)}}

    def server_workers(self, server: Tree) -> tuple[Client, ...]:
        """One for each student: -1 for the default architecture, then -2, -3, ... for the others by name."""
        architectures = ("default", *sorted(set(server["students"]) - {"default"}))
        return tuple(Client(-1 - index, 0, architecture) for index, architecture in enumerate(architectures))

    def send_distil(self, server: Tree, round_context: RoundContext) -> Mail:
        """The targets to all, and to each worker its student."""
        students = {worker.id: {"weights": server["students"][worker.architecture]} for worker in round_context.members}
        return Mail({"targets": server["targets"]}, students)

    def update_distil(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The trained students, without the targets."""
        students = {
            worker.architecture: trees.overlay(server["students"][worker.architecture], replies["weights"][worker.id])
            for worker in round_context.members
        }
        trained = {name: each.trainable() for name, each in self.architectures.items()}
        round_context.notes["student_moved"] = trees.apart(server["students"], students, trained)
        return {"students": students}

    def export(self, server: Tree, clients: Mapping[int, Tree]) -> Mapping[str, Tree]:
        """Every student; the default architecture's is named `global`."""
        return {
            "global" if architecture == "default" else architecture: tree
            for architecture, tree in server["students"].items()
        }

    def adopt(self, server: Tree, exported: Mapping[str, Tree]) -> Tree:
        """The inverse of `export`."""
        return {"students": {"default" if name == "global" else name: tree for name, tree in exported.items()}}

    # --- the client

    def receive_infer(self, visit: Visit) -> None:
        """Loads nothing: the client's networks have stayed with it since `fit`."""

    def observe_infer(self, batch: Batch) -> Message:
        """The embeddings `[B, d]` of a batch of public images."""
        return {"rows": {"z": upcast(self.objective.embed(batch.views[0])[1])}}

    def reply_infer(self, visit: Visit) -> tuple[Message, Tree]:
        """Similarities of the public images: `[N, N]`, or the largest k of each row with their columns."""
        matrix = similarity(visit.observed["rows"]["z"])
        if self.kept == 1:
            return {"similarity": {"values": matrix}}, visit.memory
        values, columns = top_similarities(matrix, self.kept)
        return {"similarity": {"values": values, "columns": columns}}, visit.memory

    # --- the distillation, by a server worker

    def receive_distil(self, visit: Visit) -> None:
        """Loads the student into the objective and the key encoder, and stores the targets."""
        self.receive(visit)
        self.key.load_state_dict(self.objective.state_dict())

    def configure_optimizers_distil(self) -> torch.optim.Optimizer:
        """Adam over the student."""
        return torch.optim.Adam(self.objective.parameters(), lr=self.distil_lr, weight_decay=self.distil_weight_decay)

    def training_step_distil(self, batch: Batch, batch_idx: int = 0) -> dict[str, Any]:
        """Loss between one view's similarities to the anchors, with this batch's keys in front, and the ensemble's."""
        with torch.no_grad():
            keys = normalize(upcast(self.key.embed(batch.views[1])[1]), dim=1)
        rows, images = enqueue(self.anchor_rows, keys), enqueue(self.anchor_images, batch.index)
        valid = torch.arange(len(rows), device=keys.device) < self.anchors_filled + len(keys)
        targets = self.context["targets"]["M"][batch.index][:, images] * valid
        queries = self.objective.embed(batch.views[0])[1]
        loss = similarity_distillation(queries, rows, targets, self.student_temperature)
        return {"loss": loss, "push": {"rows": rows, "images": images}}

    @torch.no_grad()
    def on_train_batch_end_distil(self, outputs: Any, batch: Batch, batch_idx: int = 0) -> None:
        """Stores the new queue of anchors and updates the key encoder's moving average."""
        self.anchor_rows.copy_(outputs["push"]["rows"])
        self.anchor_images.copy_(outputs["push"]["images"])
        self.anchors_filled.add_(len(batch.index)).clamp_(max=len(self.anchor_rows))
        update_ema(self.key, self.objective, self.momentum)

    def reply_distil(self, visit: Visit) -> tuple[Message, Tree]:
        """The trained student."""
        return {"weights": self.weights()}, visit.memory

    def protections(self) -> Mapping[str, str]:
        """Entry `similarity`: of public images only, by networks that stay with the client."""
        kept = "" if self.kept == 1 else f", the {100 * self.kept:g} % largest of each row"
        return {"similarity": f"cosines between public images only{kept}; weights stay with the client"}
