"""LW-FedSSL. Tun et al.: LW-FedSSL: Resource-efficient Layer-wise Federated Self-supervised Learning (2024).

| symbol | name | source |
|---|---|---|
| stages, blocks, weight transfer | `methods.progfedssl` | layer-wise training |
| F_s on the server's data | phase `calibrate`: `calibration_epochs`, `calibration_lr` | server-side calibration |
| alpha, tau | `alignment`, `temperature`: `RepresentationAlignment` | representation alignment |

Reconstructed: only abstracts of the paper's versions were available, so no equation is cited by number. Their ratio of
bytes fixes what travels: a client receives the whole sub-model, which calibration has changed, and sends one block;
end-to-end training of 12 layers in 12 stages has 2 * 12 / (6.5 + 1) = 3.2 times the bytes, heads left out.

Decisions (D: without a source, decided here); those on blocks and stages are in `methods/progfedssl.py`
- D: the sub-model is sent whole also without calibration, as a client keeps nothing between visits. The abstract of a
  later version has a ratio of 5.07, which could not be checked: without the sub-model's way down it would be
  2 * 12 / (1 + 1) = 12, heads left out, and the paper's heads are not known.
- D: calibration trains all of the sub-model on two views of the public images, with the clients' optimiser at a
  constant rate, without add-ons.
- D: alignment is InfoNCE between a view's embedding by the local model and the other view's by the received one, over
  the images of a batch, in both directions; the received model is in eval mode. alpha and tau are our choice.
- D: the client whose images are public does not train, as in FLESD, where a config does not name another public set.
- The objective is the config's. The paper's is MoCo v3; `byol` and `moco` are the nearest here.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from methods import trees
from methods.base import (
    Activity,
    AddOn,
    Batch,
    Client,
    Each,
    Mail,
    Mean,
    Message,
    MethodError,
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
)
from methods.maths import nt_xent
from methods.networks import Frozen
from methods.progfedssl import ProgFedSSL, sub_model

COMPARES = "alignment compares the embeddings"


class RepresentationAlignment(AddOn):
    """InfoNCE between embeddings of a view by the local model and of the other view by the received one.

    Args:
        weight: alpha. temperature: tau, divides the cosines.
    """

    name = "alignment"
    must_travel: Mapping[str, str] = {"encoder": "alignment compares with the received one"}

    def __init__(self, *, weight: float = 0.01, temperature: float = 0.2) -> None:
        super().__init__()
        self.weight = check_number("method.alignment", weight, at_least=0)
        self.temperature = check_number("method.temperature", temperature, above=0)

    def build(self, objective: Objective) -> None:
        """Creates the copy of encoder and projector that holds the received model."""
        check_pair(objective, COMPARES)
        self.received = Frozen(objective.encoder, objective.projector)

    @torch.no_grad()
    def receive(self, visit: Visit, method: MethodParts) -> None:
        """Copies the model as it was received."""
        if method.tensors("encoder") and "encoder" not in visit.message.get("weights", {}):
            raise MethodError(
                f"alignment compares with the received encoder, and {type(method).__name__} sends none: leave it out"
            )
        for part, network in zip(("encoder", "projector"), self.received.networks, strict=True):
            values = method.tensors(part)
            for name, tensor in (*network.named_parameters(), *network.named_buffers()):
                if name in values:
                    tensor.copy_(values[name])

    def forward(self, out: Outputs, batch: Batch, method: MethodParts) -> Tensor:
        """The weighted mean of the two directions."""
        z_a, z_b = out.embeddings
        t_a, t_b = self.received(torch.cat(batch.views[:2])).split(len(z_a))
        both = nt_xent(z_a, t_b, self.temperature, "one-way") + nt_xent(z_b, t_a, self.temperature, "one-way")
        return self.weight / 2 * both


class LWFedSSL(ProgFedSSL):
    """A stage trains its own block only; the server then trains the whole sub-model on public images.

    Args:
        calibration_epochs: passes over the public images in each round; 0: no calibration, and no public images.
        calibration_lr: constant learning rate of the calibration; None: `optimizer.lr`.
        alignment: alpha, weight of the representation alignment; 0: without it. temperature: tau.
    """

    activity: ClassVar = {
        **ProgFedSSL.activity,
        "calibration_moved": Activity("relative distance that the server's training moves the sub-model", 0.001),
    }
    phases: ClassVar[tuple[Phase, ...]] = (
        Phase("fit", uplink={"weights": Mean("examples")}),
        Phase("calibrate", where="server", data="public", uplink={"calibrated": Each()}),
    )

    def __init__(
        self,
        objective: Objective,
        *,
        calibration_epochs: int = 1,
        calibration_lr: float | None = None,
        alignment: float = 0.01,
        temperature: float = 0.2,
        addons: tuple[AddOn, ...] = (),
        **kwargs: Any,
    ) -> None:
        aligned = RepresentationAlignment(weight=alignment, temperature=temperature)
        if alignment:
            check_pair(objective, COMPARES, "set method.alignment=0, or ")
        super().__init__(objective, addons=(*addons, aligned) if alignment else tuple(addons), **kwargs)
        self.calibration_epochs = check_number("method.calibration_epochs", calibration_epochs, at_least=0)
        if calibration_lr is not None:
            calibration_lr = check_number("method.calibration_lr", calibration_lr, at_least=0)
        self.calibration_lr = calibration_lr
        if self.calibration_epochs:
            self.check_calibration()

    def check_calibration(self) -> None:
        """Raises MethodError where the server lacks a part of the objective, or what it makes of a client's data."""
        objective, name, otherwise = self.objective, type(self.objective).__name__, "set method.calibration_epochs=0"
        unneeded = (*objective.queues, *self.addons)
        for part in (*objective.stays, *self.personal):
            if part not in unneeded:
                raise MethodError(
                    f"part {part!r} stays with the clients, and the server would calibrate with one that nobody "
                    f"trains: let it travel, or {otherwise}"
                )
        if objective.labels:
            raise MethodError(f"the server calibrates on public images, which lack {name}'s labels: {otherwise}")
        if type(objective).start_epoch is not Objective.start_epoch:
            raise MethodError(f"the server calibrates without {name}'s work before each epoch: {otherwise}")

    def trained(self, visit: Visit) -> range:
        """A client trains the stage's block, the server all layers of the sub-model."""
        return self.block(visit) if visit.phase.where == "clients" else super().trained(visit)

    @property
    def uses_public_images(self) -> bool:
        """Whether there is a calibration."""
        return self.calibration_epochs > 0

    def plan(self, round: int) -> tuple[Phase, ...]:
        """Phase `fit`, then `calibrate` with its own epochs."""
        fit, calibrate = super().plan(round)
        return (fit, replace(calibrate, epochs=self.calibration_epochs)) if self.calibration_epochs else (fit,)

    def server_workers(self, server: Tree) -> tuple[Client, ...]:
        """One, for the global model."""
        return (Client(-1, 0),)

    def send_calibrate(self, server: Tree, round_context: RoundContext) -> Mail:
        """The aggregated sub-model."""
        return Mail(common={"weights": sub_model(server["weights"], range(self.block(round_context).stop))})

    def configure_optimizers_calibrate(self) -> torch.optim.Optimizer:
        """The clients' optimiser, with the learning rate of the calibration."""
        optimizer = self.configure_optimizers()
        if self.calibration_lr is not None:
            for group in optimizer.param_groups:
                group["lr"] = self.calibration_lr
        return optimizer

    def reply_calibrate(self, visit: Visit) -> tuple[Message, Tree]:
        """The calibrated sub-model."""
        message, memory = self.reply(visit)
        return {"calibrated": message["weights"]}, memory

    def update_calibrate(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The weights with the calibrated sub-model."""
        (calibrated,) = replies["calibrated"].values()
        trained = sub_model(self.trainable(), range(self.block(round_context).stop))
        round_context.notes["calibration_moved"] = trees.apart(server["weights"], calibrated, trained)
        return {**server, "weights": trees.overlay(server["weights"], calibrated)}
