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
- The client whose images are public takes no part, as in the paper: K - 1 teachers. Under other methods it trains.
- A client embeds the public images as they are, in eval mode. The authors' code normalises them otherwise than those it
  trains on; here one normalisation holds for all.
- Entries that quantisation leaves out are similarities of 0, not probabilities of 0: exp(0 / tau_T) of mass each, as in
  the code. k = int(n N) + 1 a row, the image itself among them.
- The key encoder moves after each step and starts at the student. Keys enter the queue before their queries are
  compared with it, as in the paper; the code also lets the first batches of every epoch go by until the queue is full.
  Here the loss starts at once, over the anchors that are there.
- Every architecture of the federation (`federation.encoders`) has a student at the server, all distilled from the same
  targets, and each client starts a round from its kind's: the paper names such federations and reports none.
- The distillation's rate is its own and constant; the schedule is the clients'. `training.clip_norm` holds for both.
- Networks that distillation does not train (a predictor, the head of rotation) begin every round as they began the
  first: they never leave a client, and the student does not know them.
- FLESD-cc is one round (`flesd-cc`).
- The server takes up every client's matrix, N x N floats each, before it makes the ensemble.
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
    Tree,
    Turn,
    Visit,
    check_number,
)
from methods.maths import dense, ensemble_similarity, kept, similarity, similarity_distillation
from methods.objective import update_ema


class FLESD(FederatedMethod):
    """Clients tell how alike they find public images; the server teaches a student what they find together.

    Args:
        teacher_temperature, student_temperature: tau_T and tau_S.
        kept: part of each row of a client's similarities that is sent, in (0, 1]; 1: all, as a full matrix.
        anchors: m, keys a query is compared with.
        momentum: zeta, weight of the key encoder's own past.
        distil_epochs, distil_batch_size, distil_lr, distil_weight_decay: of the student's training, by Adam.
    """

    mixes: ClassVar[bool] = True
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
        **kwargs: Any,
    ) -> None:
        super().__init__(objective, **kwargs)
        if own := [addon.name for addon in self.terms if addon.networks() is not None]:
            raise MethodError(
                f"FLESD sends no weights, and its student learns nothing of the networks of add-on {own[0]!r}: "
                "leave it out"
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
        self.stays = objective.travels  # the client's own networks, from `fit` to `infer`
        self.key = deepcopy(objective).requires_grad_(False)
        self.register_buffer("anchor_rows", torch.zeros(rows, objective.width))
        self.register_buffer("anchor_images", torch.zeros(rows, dtype=torch.long))
        self.register_buffer("anchors_filled", torch.zeros((), dtype=torch.long))

    def plan(self, round: int) -> tuple[Phase, ...]:
        """Fit, infer, distil; the distillation as long as asked for."""
        fit, infer, distil = self.phases
        return fit, infer, replace(distil, epochs=self.distil_epochs, batch_size=self.distil_batch_size)

    # --- the server

    def init_server(self, turn: Turn) -> Tree:
        """A student of every architecture, untrained."""
        kinds = {"default": self, **self.others}
        return {"students": {kind: trees.clone(one.weights(self.batch_norm != "local")) for kind, one in kinds.items()}}

    def send_fit(self, server: Tree, turn: Turn) -> Mail:
        """Its kind's student to each client."""
        return Mail(private={client.id: {"weights": server["students"][client.kind]} for client in turn.members})

    def send_infer(self, server: Tree, turn: Turn) -> Mail:
        """Nothing: the public images are there, and the networks are the client's own."""
        return Mail()

    def update_fit(self, server: Tree, turn: Turn, replies: Replies) -> Tree:
        """Nothing has come yet."""
        return server

    def update_infer(self, server: Tree, turn: Turn, replies: Replies) -> Tree:
        """The ensemble `[N, N]` of the clients' similarities."""
        matrices = (dense(**sent) if "columns" in sent else sent["values"] for sent in replies["similarity"].values())
        return {**server, "targets": {"M": ensemble_similarity(matrices, self.teacher_temperature)}}

    def seats(self, server: Tree) -> tuple[Client, ...]:
        """A seat for each student: -1 the common architecture's, then the others' by name."""
        kinds = ("default", *sorted(set(server["students"]) - {"default"}))
        return tuple(Client(-1 - place, 0, kind) for place, kind in enumerate(kinds))

    def send_distil(self, server: Tree, turn: Turn) -> Mail:
        """The targets, and its student to each seat."""
        students = {seat.id: {"weights": server["students"][seat.kind]} for seat in turn.members}
        return Mail({"targets": server["targets"]}, students)

    def update_distil(self, server: Tree, turn: Turn, replies: Replies) -> Tree:
        """The taught students; the targets have served."""
        taught = {
            seat.kind: trees.overlay(server["students"][seat.kind], replies["weights"][seat.id])
            for seat in turn.members
        }
        return {"students": taught}

    def export(self, server: Tree, clients: Mapping[int, Tree]) -> Mapping[str, Tree]:
        """Every student; the common architecture's is the global one."""
        return {"global" if kind == "default" else kind: tree for kind, tree in server["students"].items()}

    def adopt(self, server: Tree, exported: Mapping[str, Tree]) -> Tree:
        """The way back from `export`."""
        return {"students": {"default" if name == "global" else name: tree for name, tree in exported.items()}}

    # --- the client

    def receive_infer(self, visit: Visit) -> None:
        """Nothing to load: its own networks, as `fit` left them, are there already."""

    def observe_infer(self, batch: Batch) -> Message:
        """The embeddings `[B, d]` of some public images."""
        return {"rows": {"z": self.objective.embed(batch.views[0])[1].float()}}

    def reply_infer(self, visit: Visit) -> tuple[Message, Tree]:
        """How alike the public images are to this client: `[N, N]`, or the largest k of each row with their columns."""
        matrix = similarity(visit.observed["rows"]["z"])
        if self.kept == 1:
            return {"similarity": {"values": matrix}}, visit.memory
        values, columns = kept(matrix, self.kept)
        return {"similarity": {"values": values, "columns": columns}}, visit.memory

    # --- the distillation, at a seat

    def receive_distil(self, visit: Visit) -> None:
        """The student, a key encoder that is the same, the targets, and a queue without anchors."""
        self.receive(visit)
        self.key.load_state_dict(self.objective.state_dict())

    def configure_optimizers_distil(self) -> torch.optim.Optimizer:
        """Adam over the student."""
        return torch.optim.Adam(self.objective.parameters(), lr=self.distil_lr, weight_decay=self.distil_weight_decay)

    def training_step_distil(self, batch: Batch, batch_idx: int = 0) -> dict[str, Any]:
        """One view's similarities to the anchors, this batch's keys the newest, shall be the ensemble's."""
        images, anchors = batch.index, len(self.anchor_rows)
        with torch.no_grad():
            keys = normalize(self.key.embed(batch.views[1])[1].float(), dim=1)
        rows = torch.cat([keys, self.anchor_rows])[:anchors]
        held = torch.cat([images, self.anchor_images])[:anchors]
        there = torch.arange(anchors, device=keys.device) < self.anchors_filled + len(keys)
        targets = self.context["targets"]["M"][images][:, held] * there
        queries = self.objective.embed(batch.views[0])[1]
        loss = similarity_distillation(queries, rows, targets, self.student_temperature)
        return {"loss": loss, "push": {"rows": rows, "images": held}}

    @torch.no_grad()
    def on_train_batch_end_distil(self, outputs: Any, batch: Batch, batch_idx: int = 0) -> None:
        """The keys become anchors, the oldest go; the key encoder follows the student."""
        self.anchor_rows.copy_(outputs["push"]["rows"])
        self.anchor_images.copy_(outputs["push"]["images"])
        self.anchors_filled.add_(len(batch.index)).clamp_(max=len(self.anchor_rows))
        update_ema(self.key, self.objective, self.momentum)

    def reply_distil(self, visit: Visit) -> tuple[Message, Tree]:
        """The taught student."""
        return {"weights": self.weights()}, visit.memory

    def guards(self) -> Mapping[str, str]:
        """Only public images are looked at; what is told of them comes from networks that never leave."""
        most = "" if self.kept == 1 else f", the {100 * self.kept:g} % largest of each row"
        return {"similarity": f"cosines between public images only{most}; weights stay with the client"}
