"""FederatedMethod, the base class of all methods, and everything else the author of a method imports.

A method defines the work of a client, the messages and the work of the server. The defaults are FedAvg, so a paper's
file holds only what differs. A method is built over an objective (a local self-supervised loss and its networks) and
add-ons (further terms of the loss). None of the three depends on the benchmark.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from methods import trees
from methods.core.activity import GRADIENT_SHARE
from methods.core.hooks import check_hooks, read_earlier_names
from methods.core.lightning_hooks import TrainerHooks, set_learning_rate
from methods.core.objective import AddOn, Objective, Projected, WithTargets, build_addons, check_pair
from methods.core.recalibration import Recalibration
from methods.core.staying import ClientModels, check_stays
from methods.core.types import (
    Activity,
    Batch,
    Cat,
    Client,
    Each,
    Mail,
    Mean,
    Message,
    MethodParts,
    Outputs,
    Phase,
    Reduction,
    Replies,
    RoundContext,
    Sum,
    Visit,
)
from methods.core.validation import MethodError, check_number, choose
from methods.server import ServerOptimizer
from methods.trees import Tree

__all__ = [
    "GRADIENT_SHARE", "Activity", "AddOn", "Batch", "Cat", "Client", "Each", "FederatedMethod", "Mail", "Mean",
    "Message", "MethodError", "MethodParts", "Objective", "Outputs", "Phase", "Projected", "Reduction", "Replies",
    "RoundContext", "Sum", "Tree", "Visit", "WithTargets", "check_number", "check_pair", "choose", "set_learning_rate",
]  # fmt: skip

Turn = RoundContext  # its earlier name


class FederatedMethod(Recalibration, TrainerHooks):
    """FedAvg, with a hook for each step that a method may change.

    travels, stays, personal: see `methods.core.parts.Parts`.
    warmup: phases that run once, before the others of the first round. phases: those of every round, in order; a hook
        that ends in the name of one (`send_fit`) is for that phase alone, see `Phase.name`.
    mixes: whether clients may have different encoders.
    whole_encoder: why the method needs all of the encoder's weights, so that none may be frozen; empty: it does not.
    whole_layers: why it needs layers without an adapter.
    must_travel: part -> why the method needs it in every message, so that the setting `stays` may not name it.
    activity: note -> what it says about how much the method's own idea moves, see `Activity`; the method writes it into
        `visit.notes` or, in `update`, `round_context.notes`. `GRADIENT_SHARE` is measured for it, and for add-ons.
    others: this method over the federation's other architectures, by kind; they are not submodules.

    Args:
        objective: the local loss and its networks.
        addons: terms added to its loss.
        stays: parts, of those that would travel, that stay with each client instead; see `personal`.
        optimizer: parameters -> optimiser, a new one at each visit.
        schedule: progress in [0, 1] -> factor on the learning rate.
        clip_norm: largest gradient norm; None: no clipping.
        batch_norm: treatment of BatchNorm's running statistics: "average", "local" or "recalibrate".
        server_optimizer: the server's step towards the clients' mean; None: the mean itself.
    """

    mixes: ClassVar[bool] = False
    whole_encoder: str = ""
    whole_layers: str = ""
    must_travel: Mapping[str, str] = {}
    activity: ClassVar[Mapping[str, Activity]] = {}
    warmup: ClassVar[tuple[Phase, ...]] = ()
    phases: ClassVar[tuple[Phase, ...]] = (Phase("fit", uplink={"weights": Mean("examples")}),)

    def __init__(
        self,
        objective: Objective,
        *,
        addons: Sequence[AddOn] = (),
        stays: Sequence[str] = (),
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
        schedule: Callable[[float], float] = lambda progress: 1.0,
        clip_norm: float | None = None,
        batch_norm: str = "average",
        server_optimizer: ServerOptimizer | None = None,
    ) -> None:
        super().__init__()
        reductions = (phase.uplink.get("weights") for phase in self.phases if phase.where == "clients")
        averages = type(self).update is FederatedMethod.update and any(isinstance(by, Mean) for by in reductions)
        if server_optimizer is not None and not averages:
            raise MethodError(
                f"{type(self).__name__} averages no weights, or has its own server step: server_optimizer would change "
                "nothing, leave it out"
            )
        self.accepts(type(objective))
        self.places = {}
        self.others: dict[str, FederatedMethod] = {}
        self.objective = objective
        self.addons = build_addons(addons, objective)
        self.make_optimizer = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.03, momentum=0.9))
        self.schedule = schedule
        self.clip_norm = clip_norm
        self.batch_norm = batch_norm
        self.server_optimizer = server_optimizer
        self.context: Message = {}
        self.phase = Phase("none", work="none")
        self.stream = torch.Generator()  # for Trainer; the federated loop has one for each visit
        self.personal = check_stays(self, stays)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        read_earlier_names(cls)
        check_hooks(cls)

    def hook(self, name: str, phase: Phase) -> Callable[..., Any]:
        """The hook `name` of `phase`: its phase-specific version if there is one, else the plain one."""
        return getattr(self, f"{name}_{phase.name}", None) or getattr(self, name)

    def is_default(self, name: str, phase: Phase) -> bool:
        """Whether a phase's hook is the default of `FederatedMethod`, whose effect the loop knows."""
        return getattr(self.hook(name, phase), "__func__", None) is getattr(FederatedMethod, name)

    def plan(self, round: int) -> tuple[Phase, ...]:
        """The phases of a round, in order; a method may replace some of their fields by round."""
        return (*self.warmup, *self.phases) if round == 0 else self.phases

    @property
    def architectures(self) -> dict[str, "FederatedMethod"]:
        """This method, as "default", and `others`, by their names."""
        return {"default": self, **self.others}

    @property
    def own_activity(self) -> Mapping[str, Activity]:
        """`activity`, and the add-ons'; empty for a method that adds nothing to FedAvg."""
        return {**self.activity, **(GRADIENT_SHARE if self.terms else {})}

    @property
    def uses_public_images(self) -> bool:
        """Whether a phase reads public images."""
        return any(phase.data == "public" for phase in (*self.warmup, *self.phases))

    # --- the server: state, message, update

    def init_server(self, round_context: RoundContext) -> Tree:
        """The server's state before the first round: {"weights": ...} and what a method adds, kept by `update`."""
        server: Tree = {"weights": trees.clone(self.weights(self.batch_norm != "local"))}
        if self.server_optimizer is not None:
            server["optimizer"] = self.server_optimizer.init(trees.clone(self.trainable()))
        return server

    def send(self, server: Tree, round_context: RoundContext) -> Mail:
        """The server's messages at the start of a phase. Entries sent earlier in the round need not be sent again."""
        return Mail(common={"weights": server["weights"]})

    def update(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The server's state after the combined replies; the default takes, or steps towards, the mean weights."""
        if "weights" not in replies:
            return server
        mean = trees.overlay(server["weights"], replies["weights"])
        if self.server_optimizer is None:
            return {**server, "weights": mean}
        trained = self.trainable()
        weights, state = self.server_optimizer.step(
            trees.select(server["weights"], trained), trees.select(mean, trained), server["optimizer"]
        )
        return {**server, "weights": trees.overlay(mean, weights), "optimizer": state}

    @classmethod
    def accepts(cls, objective: type[Objective]) -> None:
        """Raises MethodError for an objective that does not fit: one that belongs to another method."""
        if objective.only_for and all(base.__name__ != objective.only_for for base in cls.__mro__):
            raise MethodError(
                f"{objective.__name__} is a part of {objective.only_for} and learns nothing without it: "
                f"choose that method, or another objective than {objective.__name__}'s"
            )

    def export(self, server: Tree, clients: Mapping[int, Tree]) -> Mapping[str, Tree]:
        """The encoders to evaluate: name -> weights Tree, read one after another; a name in `others` names its encoder.

        clients: id -> the parts that stay with that client; where its encoder does, each has one, `client<id>`.
        """
        return ClientModels(server["weights"], clients) if self.has_personal_encoders else {"global": server["weights"]}

    def adopt(self, server: Tree, exported: Mapping[str, Tree]) -> Tree:
        """The inverse of `export`: the server's state with the exported weights."""
        return {**server, "weights": exported["global"]}

    def server_workers(self, server: Tree) -> tuple[Client, ...]:
        """The members of a phase with `where="server"`."""
        return ()

    # --- privacy: protection of entries

    def noise(self, phase: Phase, client: Client) -> Mapping[str, float]:
        """Entry -> noise multiplier of the Gaussian mechanism that this client applies to it in this phase.

        The multiplier is the noise's standard deviation over the entry's L2 sensitivity to the replacement of one
        image. Entries that are absent are sent without noise.
        """
        return {}

    def protections(self) -> Mapping[str, str]:
        """Entry -> its protection beyond the combination of replies, as a text for the privacy sheet."""
        return {}

    # --- the client: memory, message, reply

    def init_client(self, visit: Visit) -> Tree:
        """A client's memory before its first visit."""
        return {}

    def receive(self, visit: Visit) -> None:
        """Loads "weights" into the networks and puts every other entry into `self.context`."""
        for entry, tree in visit.message.items():
            if entry == "weights":
                self.load(tree)
            else:
                self.context[entry] = tree

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        """(message to the server, the client's new memory). Both may hold live tensors: they are used at once."""
        return {"weights": self.weights()} if "weights" in visit.phase.uplink else {}, visit.memory

    def local_weights(self, message: Message, server: Tree) -> Tree | None:
        """A client's weights after training, computed from its reply for the drift scores; None: not possible."""
        return message.get("weights")

    # --- the local step: hooks with Lightning's names, called by the federated loop and by Trainer

    def training_step(self, batch: Batch, batch_idx: int = 0) -> dict[str, Any]:
        """The forward pass and the loss with its add-ons: {"loss": scalar, "push": rows for the queues}.

        The step must not depend on `batch_idx` or branch on tensor values: it may be recorded once and replayed.
        """
        if batch.draws is None:  # under Trainer
            draws = trees.to(self.hook("draw", self.phase)(batch, self.stream), dtype=self.dtype)
            batch = cast(Any, batch)._replace(draws=draws)
        out = self.step_outputs(batch)
        parts = self.step_losses(out, batch)
        self.log_loss(parts, len(batch.index))
        return {"loss": parts["loss"], "push": out.push}

    def step_losses(self, out: Outputs, batch: Batch) -> dict[str, Tensor]:
        """The parts of a step's loss: `objective`, the add-ons' by name, and `loss`, their sum."""
        views, extra = self.divided_views(batch.views)
        loss = self.hook("loss", self.phase)(out, batch)
        parts, end = {"objective": loss}, 0
        for addon in self.acting_addons:
            own_views = slice(end, end := end + len(addon.views))
            addon_batch = cast(Any, batch)._replace(views=(*views, *extra[own_views]))
            parts[addon.name] = addon(out._replace(extra=out.extra[own_views]), addon_batch, self)
            loss = loss + parts[addon.name]
        return parts | {"loss": loss}

    @property
    def acting_addons(self) -> list[AddOn]:
        """The add-ons of the present phase: all of them at a client, none on the server."""
        return self.terms if self.phase.where == "clients" else []

    def divided_views(self, views: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """A batch's views: the objective's, and the add-ons'."""
        count = len(views) - sum(len(addon.views) for addon in self.acting_addons)
        return views[:count], views[count:]

    def step_outputs(self, batch: Batch) -> Outputs:
        """The forward pass of a step."""
        views, extra = self.divided_views(batch.views)
        out: Outputs = self.objective(*views, extra=extra, **self.objective.drawn(batch.draws))
        return out

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The local loss, a scalar; a pure function of `out`, `batch`, parameters, buffers and `self.context`."""
        return self.objective.loss(out, batch)

    def observe(self, batch: Batch) -> Message:
        """The message of one batch in an observe phase, e.g. {"rows": {"h": `[B, dim]`}}.

        Those of all batches, combined as the phase's `gather` declares, are `visit.observed` in `reply`.
        """
        raise NotImplementedError

    def draw(self, batch: Batch, stream: torch.Generator) -> Tree:
        """Random tensors for the step, drawn outside it, into `batch.draws`: the objective's and the add-ons'.

        A method with draws of its own adds them: {**super().draw(batch, stream), "mine": ...}; see `Objective.draw`.
        """
        return {"objective": self.objective.draw(batch, stream)} | {a.name: a.draw(batch, stream) for a in self.terms}

    def adjust_gradients(self, gradients: Tree) -> Tree:
        """The gradients for the optimiser, with the paths of `trainable()`."""
        return gradients

    def start_epoch(self, plain_batches: Callable[[], Iterator[Batch]], stream: torch.Generator) -> None:
        """Calls `Objective.start_epoch` before a local epoch, in eval mode and without gradient."""
        if type(self.objective).start_epoch is not Objective.start_epoch:
            self.eval()
            with torch.no_grad():
                self.objective.start_epoch(plain_batches, stream)
            self.train()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The local optimiser, new at each visit, over the parameters that require a gradient after `receive`."""
        return self.make_optimizer(parameter for parameter in self.parameters() if parameter.requires_grad)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Applies `adjust_gradients`, then clips; called between backward and step."""
        if not self.is_default("adjust_gradients", self.phase):
            parameters, adjust = self.trainable(), self.hook("adjust_gradients", self.phase)
            gradients = trees.map(lambda leaf: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad, parameters)
            adjusted = dict(trees.leaves(adjust(gradients)))
            for path, parameter in trees.leaves(parameters):
                parameter.grad = adjusted[path]
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters(), self.clip_norm)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int = 0) -> None:
        """Updates targets and queues; called after the optimiser's step."""
        self.objective.after_step(outputs["push"])

    def start_visit(self, visit: Visit, stored: Tree | None = None) -> None:
        """Prepares this module for a client: loads the parts that stayed, then calls `receive`, then starts targets.

        The caller has reset the module to its initial state, so that no state of the previous client is left.
        stored: {part: {name: tensor}} of the parts that stayed with the client.
        """
        self.context, self.phase = {}, visit.phase
        self.load(stored or {})
        self.hook("receive", visit.phase)(visit)
        self.start_targets(known=stored or ())
        if visit.phase.work == "train" and visit.phase.where == "clients":
            self.objective.receive(visit)
            for addon in self.terms:
                addon.receive(visit, self)

    def views(self, phase: Phase) -> tuple[str, ...]:
        """Recipe names of a batch's views: the phase's, else the objective's; in training then the add-ons'."""
        names = phase.views or self.objective.views
        if phase.work != "train" or phase.where != "clients":
            return names
        return (*names, *(name for addon in self.terms for name in addon.views))
