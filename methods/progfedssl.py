"""Prog-FedSSL. Tun et al.: LW-FedSSL: Resource-efficient Layer-wise Federated Self-supervised Learning (2024).

| symbol | name | source |
|---|---|---|
| S stages, L layers | `stages`, `depth`; the layers that a stage adds: `block` | progressive training |
| L_s <- L_(s-1) | `weight_transfer`, in `send` | weight transfer |

Reconstructed: only abstracts of the paper's versions were available, so no equation is cited by number. Their ratio of
bytes fixes what travels: end-to-end training of 12 layers in 12 stages has 2 * 12 / (6.5 + 6.5) = 1.8 times the bytes,
heads left out.

Decisions (D: without a source, decided here)
- The encoder is a vision transformer (`methods.networks.vit`), as in the paper: its layers have equal widths, so every
  sub-model has the projector's input. Encoders whose blocks differ in width are refused.
- A sub-model is the embedding, the first layers and the last LayerNorm. D: the embedding (patches, class token,
  positions) belongs to the first block; the last LayerNorm and the heads are trained and sent in every stage.
- Blocks are equal groups of layers, stages equal shares of the rounds; where S does not divide the rounds, stages
  differ by one round. `stages: null`: as many as layers, in a run of fewer rounds the most stages that divide L.
- D: the server copies the new block, so that a client receives it like the others.
- D: the schedule of the learning rate runs over all rounds; it does not start anew with a stage.
- Evaluated is the sub-model. In its export absent layers are identities: their two residual branches end in zeros.
- A target that stays with its client is refused: it would lack the blocks that were added since.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from methods import trees
from methods.base import (
    Activity,
    Mail,
    Message,
    MethodError,
    Objective,
    Replies,
    RoundContext,
    Tree,
    Visit,
    check_number,
)
from methods.fedavg import FedAvg
from methods.networks.transformers import VisionTransformer, branch_ends, copied_layers, identities, layer_of, of_layers


def sub_model(weights: Tree, layers: range) -> Tree:
    """{part: {name: tensor}} without the encoder's other layers; heads and the last LayerNorm are included."""
    return {part: of_layers(tensors, layers) if part == "encoder" else tensors for part, tensors in weights.items()}


def without_absent(weights: Tree, present: int | torch.Tensor) -> Tree:
    """The weights with identities for the layers from `present` on."""
    return trees.overlay(weights, {"encoder": identities(weights["encoder"], present)})


class ProgFedSSL(FedAvg):
    """FedAvg of a vision transformer that grows by a block of layers in each stage; all blocks so far are trained.

    depth: number of the encoder's layers.

    Args:
        stages: S, a divisor of the number of layers; None: as many as layers and rounds allow.
        weight_transfer: whether a new block starts as a copy of the one before it, or from its initial weights.
    """

    must_travel: Mapping[str, str] = {"encoder": "it grows at the server"}
    whole_encoder = "it grows by its layers, one a stage"
    activity: ClassVar = {"layers_absent": Activity("share of the encoder's layers that a round leaves out")}

    def __init__(
        self, objective: Objective, *, stages: int | None = None, weight_transfer: bool = True, **kwargs: Any
    ) -> None:
        if kwargs.get("server_optimizer") is not None:
            raise MethodError(
                f"{type(self).__name__}: a server optimiser's momentum would move blocks that are not trained: "
                "leave server_optimizer out"
            )
        super().__init__(objective, **kwargs)
        backbone = getattr(objective.encoder, "backbone", None)
        if not isinstance(backbone, VisionTransformer):
            raise MethodError(
                f"{type(self).__name__} adds blocks of equal width, which this encoder does not have: "
                "set encoder.class=methods.networks.vit_tiny or methods.networks.vit_small, or vit"
            )
        if kept := [part for part in objective.stays if part in objective.ema]:
            raise MethodError(
                f"{type(self).__name__}: {kept[0]} stays with a client and would lack the blocks of later stages: "
                "set objective.stateful=false"
            )
        self.depth = len(backbone.encoder.layers)
        self.stages = None if stages is None else int(check_number("method.stages", stages, at_least=1))
        if self.stages and self.depth % self.stages:
            divisors = [str(n) for n in range(1, self.depth + 1) if self.depth % n == 0]
            raise MethodError(
                f"method.stages={stages} does not divide the encoder's {self.depth} layers: "
                f"choose {', '.join(divisors)}"
            )
        self.weight_transfer = weight_transfer
        self.learned = {name for name, value in objective.encoder.named_parameters() if value.requires_grad}

    def stage(self, round: int, rounds: int) -> tuple[int, int]:
        """(stage of a round, number of stages)."""
        rounds = max(1, rounds)
        stages = self.stages or max(n for n in range(1, self.depth + 1) if self.depth % n == 0 and n <= rounds)
        return min(round, rounds - 1) * stages // rounds, stages

    def block(self, at: RoundContext | Visit) -> range:
        """The layers that the stage of this round adds; the sub-model is the layers before its `stop`."""
        stage, stages = self.stage(at.round, at.rounds)
        size = self.depth // stages
        return range(stage * size, (stage + 1) * size)

    def trained(self, visit: Visit) -> range:
        """The layers that a visit trains and sends."""
        return range(self.block(visit).stop)

    def resize(self, present: int, trained: range) -> None:
        """Applies the first `present` layers only, here and in copies of the encoder, and trains `trained` of them."""
        for module in self.modules():
            if isinstance(module, VisionTransformer):
                module.applied = present
        for name, value in self.part("encoder").named_parameters():
            value.requires_grad_(name in self.learned and layer_of(name) in (None, *trained))

    # --- the server

    def init_server(self, round_context: RoundContext) -> Tree:
        """The weights of all layers, and the number of layers of the sub-model."""
        if self.stages and round_context.rounds < self.stages:
            raise MethodError(
                f"method.stages={self.stages} needs a round for each stage: set federation.rounds to at least "
                f"{self.stages}, not {round_context.rounds}, or leave method.stages out"
            )
        return {
            **super().init_server(round_context),
            "layers": {"present": torch.tensor(self.block(round_context).stop)},
        }

    def send(self, server: Tree, round_context: RoundContext) -> Mail:
        """The sub-model; in the first round of a stage its last block is a copy of the one before."""
        weights, block = server["weights"], self.block(round_context)
        is_new = round_context.round > 0 and self.stage(round_context.round - 1, round_context.rounds) != self.stage(
            round_context.round, round_context.rounds
        )
        if is_new and self.weight_transfer:
            copies = copied_layers(weights["encoder"], block, len(block))
            weights = trees.overlay(weights, {"encoder": copies})
        return Mail(common={"weights": sub_model(weights, range(block.stop))})

    def update(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The mean of what the clients have trained; all other weights are unchanged."""
        stop = self.block(round_context).stop
        round_context.notes["layers_absent"] = 1 - stop / self.depth
        present = torch.full_like(server["layers"]["present"], stop)
        return {**super().update(server, round_context, replies), "layers": {"present": present}}

    def export(self, server: Tree, clients: Mapping[int, Tree]) -> Mapping[str, Tree]:
        """The sub-model as an encoder of all layers, the absent ones identities."""
        return {"global": without_absent(server["weights"], server["layers"]["present"])}

    def adopt(self, server: Tree, exported: Mapping[str, Tree]) -> Tree:
        """The server's state with the exported weights; absent layers keep theirs."""
        present, own = server["layers"]["present"], server["weights"]["encoder"]
        ends = branch_ends(exported["global"]["encoder"])
        absent = {name: torch.where(layer < present, value, own[name]) for name, (layer, value) in ends.items()}
        return {**server, "weights": trees.overlay(exported["global"], {"encoder": absent})}

    # --- the client

    def receive(self, visit: Visit) -> None:
        """Loads the sub-model; absent layers are left out of the forward pass, fixed ones get no gradient."""
        super().receive(visit)
        self.resize(self.block(visit).stop, self.trained(visit))

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        """What the visit has trained. The networks have all their layers again."""
        weights = sub_model(self.weights(), self.trained(visit))
        self.resize(self.depth, range(self.depth))
        return {"weights": weights}, visit.memory

    def local_weights(self, message: Message, server: Tree) -> Tree:
        """The client's sub-model: what it has trained over what it has received."""
        present = 1 + max(layer for name in message["weights"]["encoder"] if (layer := layer_of(name)) is not None)
        return without_absent(trees.overlay(server["weights"], message["weights"]), present)
