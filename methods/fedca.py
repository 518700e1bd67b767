"""FedCA. Zhang, Kuang, et al.: Federated Unsupervised Representation Learning (arXiv 2010.08982, 2020; FITEE 2023).

| symbol | name | source |
|---|---|---|
| D, the global dictionary | entry `dictionary`, unit projections of the clients' images | dictionary module |
| the local loss over D | `methods.maths.nt_xent` with `negatives` | contrastive loss |
| the base model | phase `base`: `base_epochs` on public images | alignment module |
| its projections of the public images | phase `embed`, entry `base` | alignment module |
| beta | `alignment`, times `methods.maths.byol_regression` | alignment module |

Reconstructed: of the paper only abstracts could be read. They have the two modules, contrastive local training and a
mean of the models; how each module computes is ours. So no equation is cited by number.

Decisions (D: without a source, decided here)
- D: the dictionary is all rows of the last round's clients, from their networks after training, of images without
  augmentation, in eval mode. All clients get the same one, their own rows included; the first round has none.
- D: its rows are negatives of both views of every image, without gradient, at the temperature of the loss.
- D: the base model starts at the run's initial weights, and is trained on the public images by the objective, with the
  clients' optimiser at a constant rate, before the first round. The global model does not start from it.
- D: in each step as many public images as the batch has images are embedded without augmentation; BatchNorm normalises
  them by themselves, and its running statistics stay those of the client's own images. The distance to the base model's
  projections is the squared one of unit rows.
- D: clients have the public images, as in FLESD, and keep them from phase `look` to `fit`. The base model's projections
  are sent in every round, as a client keeps nothing between rounds.
- D: the client whose images are public does not train, where a config does not name another public set.
- D: the mean of the weights is FedAvg's. beta, `base_epochs` and the temperature are our choice.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from methods.base import (
    GRADIENT_SHARE,
    Batch,
    Cat,
    Client,
    Each,
    Mail,
    Mean,
    Message,
    MethodError,
    Objective,
    Outputs,
    Phase,
    Replies,
    RoundContext,
    Tree,
    Visit,
    check_number,
)
from methods.fedavg import FedAvg
from methods.maths import byol_regression, nt_xent, upcast
from methods.networks import batch_statistics
from methods.objectives.simclr import SimCLR


class FedCA(FedAvg):
    """FedAvg with a shared dictionary of projections as negatives, and alignment to a model of public images.

    Args:
        dictionary: most rows of a client in the dictionary, drawn at random; None: one of each image; 0: no dictionary.
        alignment: beta, weight of the distance to the base model's projections; 0: no base model, no public images.
        base_epochs: passes of the base model's training over the public images.
    """

    must_travel: Mapping[str, str] = dict.fromkeys(
        ("encoder", "projector"), "projections of clients and base model are comparable only if one network learns them"
    )
    activity = GRADIENT_SHARE
    warmup: ClassVar[tuple[Phase, ...]] = (
        Phase("base", where="server", data="public", uplink={"trained": Each()}),
        Phase(
            "embed", where="server", work="observe", data="public", views=("plain",), gather={"rows": Cat()},
            uplink={"base": Cat()},
        ),
    )  # fmt: skip
    phases: ClassVar[tuple[Phase, ...]] = (
        Phase("look", work="observe", data="public", views=("plain",), gather={"images": Cat()}),
        Phase("fit"),
        Phase(
            "share", work="observe", views=("plain",), gather={"rows": Cat()},
            uplink={"weights": Mean("examples"), "dictionary": Cat()},
        ),
    )  # fmt: skip
    objective: SimCLR

    def __init__(
        self,
        objective: Objective,
        *,
        dictionary: int | None = None,
        alignment: float = 0.01,
        base_epochs: int = 20,
        **kwargs: Any,
    ) -> None:
        super().__init__(objective, **kwargs)
        self.rows = None if dictionary is None else check_number("method.dictionary", dictionary, at_least=0)
        self.alignment = check_number("method.alignment", alignment, at_least=0)
        self.base_epochs = check_number("method.base_epochs", base_epochs, at_least=1)
        if self.rows != 0:
            self.stays = self.travelling  # the client's own networks, from `fit` to `share`

    @classmethod
    def accepts(cls, objective: type[Objective]) -> None:
        """Raises MethodError for an objective without the negatives that the dictionary adds to."""
        if not issubclass(objective, SimCLR):
            raise MethodError(f"FedCA adds negatives to SimCLR's, not to {objective.__name__}'s: set objective=simclr")

    @property
    def uses_public_images(self) -> bool:
        """Whether there is an alignment."""
        return self.alignment > 0

    def plan(self, round: int) -> tuple[Phase, ...]:
        """First `base` and `embed`; then in each round `look`, `fit`, `share`, as far as both modules are in use."""
        phases = {phase.name: phase for phase in super().plan(round)}
        if "base" in phases:
            phases["base"] = replace(phases["base"], epochs=self.base_epochs)
        unused = () if self.alignment else ("base", "embed", "look")
        if self.rows == 0:
            phases["fit"] = replace(phases["fit"], uplink={"weights": self.averaging(round)})
            unused = (*unused, "share")
        return tuple(phase for name, phase in phases.items() if name not in unused)

    # --- the server

    def server_workers(self, server: Tree) -> tuple[Client, ...]:
        """One, for the base model."""
        return (Client(-1, 0),)

    def reply_base(self, visit: Visit) -> tuple[Message, Tree]:
        """The base model, with its running statistics."""
        return {"trained": self.weights(statistics=True)}, visit.memory

    def update_base(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The base model, kept for the next phase."""
        (trained,) = replies["trained"].values()
        return {**server, "trained": trained}

    def send_embed(self, server: Tree, round_context: RoundContext) -> Mail:
        """The base model."""
        return Mail({"weights": server["trained"]})

    def observe_embed(self, batch: Batch) -> Message:
        """Unit projections `[B, d]` of a batch of public images."""
        return self.projections(batch)

    def reply_embed(self, visit: Visit) -> tuple[Message, Tree]:
        """The base model's projections `[N, d]` of the public images, in their order."""
        return {"base": visit.observed["rows"]}, visit.memory

    def update_embed(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The projections in place of the base model."""
        return {**{key: value for key, value in server.items() if key != "trained"}, "base": replies["base"]}

    def send_look(self, server: Tree, round_context: RoundContext) -> Mail:
        """Nothing: clients have the public images."""
        return Mail()

    def send_fit(self, server: Tree, round_context: RoundContext) -> Mail:
        """The weights, and what there is of dictionary and base model's projections."""
        return Mail({entry: server[entry] for entry in ("weights", "dictionary", "base") if entry in server})

    def send_share(self, server: Tree, round_context: RoundContext) -> Mail:
        """Nothing: clients have their own networks."""
        return Mail()

    def update_share(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The mean of the weights, and the new dictionary."""
        return {**self.update(server, round_context, replies), "dictionary": replies["dictionary"]}

    # --- the client

    def projections(self, batch: Batch) -> Message:
        """Unit projections `[B, d]` of a batch's only view."""
        return {"rows": {"z": normalize(upcast(self.objective.embed(batch.views[0])[1]), dim=1)}}

    def receive_look(self, visit: Visit) -> None:
        """Loads nothing: no network is needed."""

    def observe_look(self, batch: Batch) -> Message:
        """A batch of public images `[B, C, H, W]`."""
        return {"images": {"x": batch.views[0]}}

    def reply_look(self, visit: Visit) -> tuple[Message, Tree]:
        """Nothing is sent; the images are kept for the training."""
        return {}, {**visit.memory, "public": visit.observed["images"]}

    def receive_fit(self, visit: Visit) -> None:
        """Loads the weights, and finds dictionary, projections and public images for the loss."""
        self.receive(visit)
        if "public" in visit.memory:
            self.context["public"] = visit.memory["public"]

    def draw_fit(self, batch: Batch, stream: torch.Generator) -> Tree:
        """Further: which public images are embedded in this step, `[B]` or all."""
        drawn = self.draw(batch, stream)
        if "public" in self.context:
            rows = torch.randperm(len(self.context["public"]["x"]), generator=stream)[: len(batch.index)]
            drawn["public"] = {"rows": rows.to(batch.index.device, non_blocking=True)}
        return drawn

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """SimCLR's loss with the dictionary as further negatives, plus the weighted alignment."""
        negatives = self.context["dictionary"]["z"] if "dictionary" in self.context else None
        loss = nt_xent(*out.embeddings, self.objective.temperature, self.objective.form, negatives)
        if "public" not in self.context:
            return loss
        assert batch.draws is not None
        rows = batch.draws["public"]["rows"]
        with batch_statistics(self.objective):
            z = self.objective.embed(self.context["public"]["x"][rows])[1]
        return loss + self.alignment * byol_regression(z, self.context["base"]["z"][rows])

    def reply_fit(self, visit: Visit) -> tuple[Message, Tree]:
        """The weights where there is no dictionary; the public images are not kept any longer."""
        message, memory = self.reply(visit)
        return message, {key: value for key, value in memory.items() if key != "public"}

    def receive_share(self, visit: Visit) -> None:
        """Loads nothing: the client's networks have stayed with it since `fit`."""

    def observe_share(self, batch: Batch) -> Message:
        """Unit projections `[B, d]` of a batch of the client's images."""
        return self.projections(batch)

    def reply_share(self, visit: Visit) -> tuple[Message, Tree]:
        """The trained weights, and the client's rows of the dictionary `[n, d]`."""
        message, memory = self.reply(visit)
        z = visit.observed["rows"]["z"]
        if self.rows is not None and self.rows < len(z):
            z = z[torch.randperm(len(z), generator=visit.stream)[: self.rows].to(z.device, non_blocking=True)]
        return {**message, "dictionary": {"z": z}}, memory

    def protections(self) -> Mapping[str, str]:
        """Entry `dictionary`: rows of single images."""
        return {"dictionary": "none: unit projections of single images"}
