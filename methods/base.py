"""FederatedMethod, Objective and AddOn: what a paper's file says, and what it gets for nothing.

A method says what happens on a client, what is exchanged and what the server does; FedAvg is its set of defaults, so a
file shows only where its paper differs. It composes with an objective (a local self-supervised loss and its networks)
and add-ons (terms that sit on any of them). None of the three knows the benchmark that runs it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from methods import trees
from methods.hooks import check_hooks
from methods.lightning_hooks import TrainerHooks, set_learning_rate
from methods.objective import AddOn, Objective, Projected
from methods.server import ServerOptimizer
from methods.trees import Tree
from methods.types import (
    Batch,
    Cat,
    Client,
    Each,
    Mail,
    Mean,
    Message,
    MethodError,
    Outputs,
    Phase,
    Replies,
    Sum,
    Turn,
    Visit,
)
from methods.validation import check_number, choose

__all__ = [
    "AddOn", "Batch", "Cat", "Client", "Each", "FederatedMethod", "Mail", "Mean", "Message", "MethodError", "Objective",
    "Outputs", "Phase", "Projected", "Replies", "Sum", "Tree", "Turn", "Visit",
    "choose", "check_number", "set_learning_rate",
]  # fmt: skip


class FederatedMethod(TrainerHooks):
    """FedAvg, and the hooks by which a paper differs from it.

    travels: parts that make up the entry "weights"; None: the objective's and the add-ons' networks.
    stays: parts that stay with the client and are there again at its next visit.
    warmup: phases played once, before the others of the first round. phases: those of every round.

    Args:
        objective: the local loss and its networks.
        addons: terms added to its loss.
        optimizer: parameters -> optimiser, built afresh at each visit.
        schedule: progress in [0, 1] -> factor on the learning rate.
        clip_norm: largest gradient norm; None: no clipping.
        batch_norm: "average", "local" or "recalibrate": what becomes of BatchNorm's running statistics.
        server_optimizer: what the server does with the clients' mean; None: it takes it.
    """

    mixes: ClassVar[bool] = False  # whether clients may run different encoders
    warmup: ClassVar[tuple[Phase, ...]] = ()
    phases: ClassVar[tuple[Phase, ...]] = (Phase("fit", uplink={"weights": Mean("examples")}),)

    def __init__(
        self,
        objective: Objective,
        *,
        addons: Sequence[AddOn] = (),
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
        schedule: Callable[[float], float] = lambda progress: 1.0,
        clip_norm: float | None = None,
        batch_norm: str = "average",
        server_optimizer: ServerOptimizer | None = None,
    ) -> None:
        super().__init__()
        means = (one.uplink.get("weights") for one in self.phases if one.where == "clients")
        averages = type(self).update is FederatedMethod.update and any(isinstance(how, Mean) for how in means)
        if server_optimizer is not None and not averages:
            raise MethodError(
                f"{type(self).__name__} averages no weights, or by a step of its own: server_optimizer would change "
                "nothing, leave it out"
            )
        self.accepts(type(objective))
        self.places = {}
        self.others: dict[str, FederatedMethod] = {}  # the same over other architectures, by kind; no submodules
        self.objective = objective
        taken = [name for name, _ in objective.named_children()]
        for addon in addons:
            if addon.name in taken:
                raise MethodError(f"two parts are called {addon.name!r}: name {type(addon).__name__} otherwise")
            taken.append(addon.name)
        for addon in addons:
            addon.build(objective)
        self.addons = nn.ModuleDict({addon.name: addon for addon in addons})
        self.make_optimizer = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.03, momentum=0.9))
        self.schedule = schedule
        self.clip_norm = clip_norm
        self.batch_norm = batch_norm
        self.server_optimizer = server_optimizer
        self.context: Message = {}
        self.phase = Phase("none", work="none")
        self.stream = torch.Generator()  # Trainer's draws; the loop brings its own

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_hooks(cls)

    def hook(self, name: str, phase: Phase) -> Callable[..., Any]:
        """The hook `name` of `phase`: the one that carries the phase's name, else the plain one."""
        return getattr(self, f"{name}_{phase.name}", None) or getattr(self, name)

    def is_default(self, name: str, phase: Phase) -> bool:
        """Whether a phase's hook is FedAvg's own, so that the loop knows what it does."""
        return getattr(self.hook(name, phase), "__func__", None) is getattr(FederatedMethod, name)

    def plan(self, round: int) -> tuple[Phase, ...]:
        """The phases of a round, in order: those listed in `warmup` and `phases`, perhaps with fields replaced."""
        return (*self.warmup, *self.phases) if round == 0 else self.phases

    @property
    def uses_public_images(self) -> bool:
        """Whether a phase looks at public images."""
        return any(phase.data == "public" for phase in (*self.warmup, *self.phases))

    # --- the server: remember, speak, listen

    def init_server(self, turn: Turn) -> Tree:
        """What the server knows before the first round."""
        server: Tree = {"weights": trees.clone(self.weights(self.batch_norm != "local"))}
        if self.server_optimizer is not None:
            server["optimizer"] = self.server_optimizer.init(trees.clone(self.trainable()))
        return server

    def send(self, server: Tree, turn: Turn) -> Mail:
        """What the server sends at the start of a phase. A later phase of a round need not resend the weights."""
        return Mail(common={"weights": server["weights"]})

    def update(self, server: Tree, turn: Turn, replies: Replies) -> Tree:
        """The server Tree after the combined replies; the default takes the weights' mean, or steps towards it."""
        if "weights" not in replies:
            return server
        mean = trees.overlay(server["weights"], replies["weights"])
        if self.server_optimizer is None:
            return {**server, "weights": mean}
        now, then = (
            {part: {name: tree[part][name] for name in names} for part, names in self.trainable().items()}
            for tree in (mean, server["weights"])
        )
        moved, state = self.server_optimizer.step(then, now, server["optimizer"])
        return {**server, "weights": trees.overlay(mean, moved), "optimizer": state}

    @classmethod
    def accepts(cls, objective: type[Objective]) -> None:
        """Raises MethodError for an objective it cannot work with: one that is a part of another method."""
        if objective.only_for and not any(one.__name__ == objective.only_for for one in cls.__mro__):
            raise MethodError(
                f"{objective.__name__} is a part of {objective.only_for} and learns nothing without it: "
                f"choose that method, or another objective than {objective.__name__}'s"
            )

    def export(self, server: Tree, clients: Mapping[int, Tree]) -> Mapping[str, Tree]:
        """What is evaluated, by name: weights Trees, read one after another. `clients`: id -> the parts that stay.

        A name of one of `others` is of that architecture.
        """
        return {"global": server["weights"]}

    def adopt(self, server: Tree, exported: Mapping[str, Tree]) -> Tree:
        """The way back from `export`: the server with the exported weights in place."""
        return {**server, "weights": exported["global"]}

    def seats(self, server: Tree) -> tuple[Client, ...]:
        """The members of a phase that is played on the server."""
        return ()

    # --- privacy: what an entry gives away

    def noise(self, phase: Phase, client: Client) -> Mapping[str, float]:
        """Entry -> noise multiplier of the Gaussian mechanism through which it leaves this client in this phase.

        The multiplier is the noise's standard deviation over the entry's L2 sensitivity to the exchange of one image
        for another. Entries that are not named are released as they are.
        """
        return {}

    def guards(self) -> Mapping[str, str]:
        """Entry -> how it is protected beyond its combination with others', in words for the privacy sheet."""
        return {}

    # --- the client: remember, listen, speak

    def init_client(self, visit: Visit) -> Tree:
        """A client's memory at its first visit."""
        return {}

    def receive(self, visit: Visit) -> None:
        """Loads "weights" into the networks and puts every other entry into `self.context`."""
        for entry, tree in visit.message.items():
            if entry == "weights":
                self.load(tree)
            else:
                self.context[entry] = tree

    def reply(self, visit: Visit) -> tuple[Message, Tree]:
        """(message, memory): what goes to the server and what is kept. The message may be live: it is used at once."""
        return {"weights": self.weights()} if "weights" in visit.phase.uplink else {}, visit.memory

    def local_weights(self, message: Message, server: Tree) -> Tree | None:
        """The weights a client ended with, as its reply to this server tells them; None: it does not. Drift asks."""
        return message.get("weights")

    # --- the local step: Lightning's own hooks, called by the loop under Lightning's names

    def training_step(self, batch: Batch, batch_idx: int = 0) -> dict[str, Any]:
        """One joint forward pass and the loss with its add-ons: {"loss": scalar, "push": rows for the queues}.

        Not to depend on `batch_idx`, nor to branch on values of tensors: a step may be recorded once and repeated.
        """
        if batch.draws is None:  # Trainer knows nothing of draws
            batch = cast(Any, batch)._replace(draws=self.hook("draw", self.phase)(batch, self.stream))
        terms = self.terms if self.phase.where == "clients" else []
        own = len(batch.views) - sum(len(addon.views) for addon in terms)
        out = self.objective(*batch.views[:own], extra=batch.views[own:])
        loss = self.hook("loss", self.phase)(out, batch)
        place = 0
        for addon in terms:
            mine = slice(place, place := place + len(addon.views))
            views = (*batch.views[:own], *batch.views[own:][mine])
            loss = loss + addon(out._replace(extra=out.extra[mine]), cast(Any, batch)._replace(views=views), self)
        return {"loss": loss, "push": out.push}

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The local loss, a scalar; a pure function of `out`, `batch`, parameters, buffers and `self.context`."""
        return self.objective.loss(out, batch)

    def observe(self, batch: Batch) -> Message:
        """What one batch of an observe phase contributes; combined over batches as the phase's `gather` declares."""
        raise NotImplementedError

    def draw(self, batch: Batch, stream: torch.Generator) -> Tree:
        """The step's random tensors, drawn outside it and handed in as `batch.draws`: the add-ons', by their names."""
        return {addon.name: drawn for addon in self.terms if (drawn := addon.draw(batch, stream))}

    def adjust_gradients(self, gradients: Tree) -> Tree:
        """The gradients the optimiser will see, keyed like `trainable()`."""
        return gradients

    def start_epoch(self, look: Callable[[], Iterator[Batch]], stream: torch.Generator) -> None:
        """Lets the objective look at the client's images before a local epoch; see `Objective.start_epoch`."""
        if type(self.objective).start_epoch is not Objective.start_epoch:
            self.eval()
            with torch.no_grad():
                self.objective.start_epoch(look, stream)
            self.train()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The local optimiser, fresh at each visit, over what requires a gradient after `receive`."""
        return self.make_optimizer(parameter for parameter in self.parameters() if parameter.requires_grad)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Applies `adjust_gradients`, then clips; called between backward and step."""
        if not self.is_default("adjust_gradients", self.phase):  # the usual case pays nothing
            parameters, adjust = self.trainable(), self.hook("adjust_gradients", self.phase)
            adjusted = dict(trees.leaves(adjust(trees.map(_gradient, parameters))))
            for path, parameter in trees.leaves(parameters):
                parameter.grad = adjusted[path]
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters(), self.clip_norm)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int = 0) -> None:
        """Moves targets and queues; called after the optimiser's step."""
        self.objective.after_step(outputs["push"])

    def start_visit(self, visit: Visit, kept: Tree | None = None) -> None:
        """Makes this module the visited client's: kept parts, then what was received, then targets and add-ons.

        The caller has reset the module to its pristine state, so that nothing of the previous client is left.
        """
        self.context, self.phase = {}, visit.phase
        self.load(kept or {})
        self.hook("receive", visit.phase)(visit)
        self.start_targets(known=kept or ())
        if visit.phase.work == "train" and visit.phase.where == "clients":
            self.objective.receive(visit)
            for addon in self.terms:
                addon.receive(visit, self)

    def views(self, phase: Phase) -> tuple[str, ...]:
        """Recipe names of the views a batch of `phase` holds: the phase's, or the objective's; then the add-ons'."""
        own = phase.views or self.objective.views
        if phase.work != "train" or phase.where != "clients":
            return own
        return (*own, *(name for addon in self.terms for name in addon.views))


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
