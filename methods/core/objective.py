"""Objective and AddOn: a local loss with its networks, and a term that can be added to any of them."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from methods.core.hooks import read_earlier_names
from methods.core.modules import Encoder, mlp
from methods.core.types import Batch, MethodParts, Outputs, Visit
from methods.core.validation import MethodError, check_number
from methods.trees import Tree


class Objective(nn.Module):
    """A local self-supervised loss and its networks.

    A part in none of `travels`, `ema` and `stays` starts at its initial weights at each visit, and is never sent.

    travels: parts (submodule names) that make up the entry "weights".
    views: recipe names, one for each view.
    ema: target part -> source part; after each step the target's parameters follow the source's with `momentum`.
    queues: names of FIFO buffers `[rows, d]` fed from `Outputs.push`; a buffer `<name>_filled` counts their valid rows.
    stays: parts (submodules or queues) that stay with the client, whatever the method.
    labels: whether batches carry labels (supervised references only).
    only_for: class name of the only method that can use this objective; empty: any method can.
    contrastive: whether the loss compares the images of a batch, so that it depends on the batch size.
    min_batch_size: fewest images of an epoch's short last batch that is trained on.
    needs_two: whether the loss is not defined for a batch of one image.
    separate_views: whether views pass the networks one after the other, so that BatchNorm normalises each by itself;
        False: together. Set by `training.views`.
    width: features of an embedding.
    """

    travels: tuple[str, ...] = ("encoder", "projector")
    views: tuple[str, ...] = ("augment", "augment")
    ema: Mapping[str, str] = {}
    momentum: float = 0.99
    queues: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()
    labels = False
    only_for: str = ""
    contrastive = False
    min_batch_size = 2
    needs_two = False
    separate_views = False
    takes_draws = False  # whether `forward` has an argument `draws`; set when a class is defined

    encoder: Encoder
    projector: nn.Module
    width: int

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        read_earlier_names(cls)
        arguments = inspect.signature(cls.forward).parameters
        passes_on = any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())
        cls.takes_draws = "draws" in arguments or (passes_on and cls.takes_draws)  # of its base class

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def check_staying(self, staying: Sequence[str]) -> None:
        """Raises MethodError where settings do not go with the parts that stay with the client; called once."""

    def embed(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Online pass: images `[B, C, H, W]` -> representations `[B, encoder.dim]`, embeddings `[B, width]`."""
        h = self.encoder(images)
        return h, self.projector(h)

    def forward(self, *views: Tensor, extra: Sequence[Tensor] = ()) -> Outputs:
        """The online pass over all views and the add-ons' extra ones."""
        images = (*views, *extra)
        if self.separate_views:
            h, z = zip(*map(self.embed, images), strict=True)
        else:
            h, z = (rows.split([len(view) for view in images]) for rows in self.embed(torch.cat(images)))
        n = len(views)
        return Outputs(h[:n], z[:n], extra=tuple(zip(h[n:], z[n:], strict=True)))

    def each_view(self, network: Callable[[Tensor], Tensor], views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The output of `network` for every view, from one joint pass or from one pass after the other."""
        if self.separate_views:
            return tuple(map(network, views))
        return network(torch.cat(views)).split([len(view) for view in views])

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The loss, a scalar; a pure function of `out`, `batch` and buffers, without another encoder pass."""
        raise NotImplementedError

    def receive(self, visit: Visit) -> None:
        """Called at the start of a client's training visit, after the method's `receive`."""

    def draw(self, batch: Batch, stream: torch.Generator) -> Tree:
        """Random tensors for the step, drawn outside it: a Tree, such as {"noise": `[B, width]`}.

        `loss` finds them in `batch.draws["objective"]`; `forward` gets them as `draws` if it has such an argument.
        The stream is on the CPU and depends on round, phase and client alone: draw with `generator=stream`, then send
        the tensors to `batch.index.device`.
        """
        return {}

    def drawn(self, draws: Tree | None) -> dict[str, Any]:
        """{"draws": the objective's of a batch's draws} if `forward` has this argument, else {}."""
        return {"draws": (draws or {}).get("objective")} if self.takes_draws else {}

    def start_epoch(self, plain_batches: Callable[[], Iterator[Batch]], stream: torch.Generator) -> None:
        """Called before each local epoch, in eval mode and without gradient.

        plain_batches: yields the client's images in their order, without augmentation.
        stream: a CPU generator of this visit.
        """

    schedules: ClassVar[Sequence[str]] = ()
    """Options that make `start_step` follow the run's progress, where set: such a run cannot go on to more rounds."""

    def start_step(self, progress: float) -> None:
        """Called before each local step, outside it; progress: of the whole run, in [0, 1).

        A value that follows a schedule goes into a buffer, in place: a recorded step reads it there.
        """

    def add_queue(self, name: str, rows: int, dim: int) -> None:
        """Registers the empty FIFO buffer `name` `[rows, dim]`, the newest row first, and `<name>_filled`, 0-d.

        List the name in `queues`: after each step the rows `[n, dim]` of `Outputs.push[name]` enter it. It is empty at
        the start of each visit, unless `stays` has it too.
        """
        self.register_buffer(name, torch.zeros(rows, dim))
        self.register_buffer(f"{name}_filled", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def after_step(self, push: Mapping[str, Tensor]) -> None:
        """Update after an optimiser step: targets follow their sources, new rows enter the queues."""
        self.move_targets()
        for name in self.queues:
            queue = getattr(self, name)
            fill(queue, getattr(self, f"{name}_filled"), push[name].detach()[-len(queue) :])

    def move_targets(self) -> None:
        """The targets' parameters follow their sources', one step of the moving average."""
        momentum = getattr(self, "momentum_now", self.momentum)  # a buffer where it follows a schedule
        for target, source in self.ema.items():
            update_ema(getattr(self, target), getattr(self, source), momentum)


def enqueue(queue: Tensor, rows: Tensor) -> Tensor:
    """A FIFO queue of the same length with new rows in front: the newest first, the oldest dropped."""
    return torch.cat([rows, queue])[: len(queue)]


@torch.no_grad()
def fill(queue: Tensor, filled: Tensor, rows: Tensor) -> None:
    """Puts new rows into a queue's buffer, and counts its valid rows: `filled`, 0-d."""
    queue.copy_(enqueue(queue, rows))
    filled.add_(len(rows)).clamp_(max=len(queue))


@torch.no_grad()
def update_ema(target: nn.Module, source: nn.Module, momentum: float | Tensor) -> None:
    """Moves the target's parameters towards the source's, not its buffers.

    momentum: weight of the target's values; as a tensor, 0-d, it is read by the device, where it may change.
    """
    targets, sources = ([*network.parameters()] for network in (target, source))
    if isinstance(momentum, Tensor):
        for old, new in zip(targets, sources, strict=True):
            old.lerp_(new, (1 - momentum).to(old.dtype))
    elif targets:  # an empty projector has none
        torch._foreach_lerp_(targets, sources, 1 - momentum)  # type: ignore[arg-type] # one kernel on a GPU


def cosine(start: float, end: float, progress: float) -> float:
    """From `start` to `end` along half a cosine (Grill et al. 2020, BYOL, section 3.2; DINO's `cosine_scheduler`).

    >>> [round(cosine(0.99, 1.0, progress), 4) for progress in (0, 0.5, 1)]
    [0.99, 0.995, 1.0]
    """
    return end - (end - start) * (1 + math.cos(math.pi * progress)) / 2


class WithTargets(Objective):
    """An objective that can have target networks: moving averages of the online ones."""

    momentum_end: float | None = None
    momentum_now: Tensor

    def add_targets(
        self,
        momentum: float,
        prefix: str = "target",
        end: float | None = None,
        sources: Sequence[str] = ("encoder", "projector"),
    ) -> None:
        """Adds `<prefix>_<source>` for each source: copies without gradient that follow the online networks.

        end: the momentum that the run ends at, by a cosine from `momentum`; None: it is constant.
        """
        self.momentum = check_number("objective.momentum", momentum, at_least=0, at_most=1)
        self.momentum_end = end
        if end is not None:
            check_number("objective.momentum_end", end, at_least=0, at_most=1)
            self.register_buffer("momentum_now", torch.tensor(float(momentum)), persistent=False)
        self.ema = {f"{prefix}_{source}": source for source in sources}
        for target, source in self.ema.items():
            setattr(self, target, deepcopy(getattr(self, source)).requires_grad_(False))

    schedules: ClassVar[Sequence[str]] = ("momentum_end",)

    @torch.no_grad()
    def start_step(self, progress: float) -> None:
        """Sets the targets' momentum, where it follows a schedule."""
        if self.momentum_end is not None:
            self.momentum_now.fill_(cosine(self.momentum, self.momentum_end, progress))


class Projected(WithTargets):
    """An objective whose embeddings are a projector's output.

    Args:
        encoder: images -> `[B, encoder.dim]`.
        projector: widths after the encoder's, the last being the embedding's; empty: embeddings are representations.
        head_norm: BatchNorm before every ReLU of the projector.
        last_norm: BatchNorm without affine parameters on the embeddings.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        projector: Sequence[int] = (512, 256),
        head_norm: bool = True,
        last_norm: bool = False,
    ) -> None:
        super().__init__(encoder)
        if projector:
            self.projector = mlp((encoder.dim, *projector), norm=head_norm, last_norm=last_norm)
        else:
            self.projector = nn.Identity()
        self.width = projector[-1] if projector else encoder.dim

    @torch.no_grad()
    def embed_targets(self, images: Tensor) -> Tensor:
        """Embeddings `[B, width]` by the target networks, without gradient."""
        for target in self.ema:
            images = getattr(self, target)(images)
        return images


class AddOn(nn.Module):
    """A term for the loss of any objective and method, e.g. FedX's, FedDecorr's and FedProx's.

    name: the part under which `networks()` travel.
    views: recipe names of additional views; the objective returns them in `out.extra`.
    must_travel: part -> why the term needs it in every message, so that the setting `method.stays` may not name it.
    whole_encoder: see `FederatedMethod`.
    """

    name: str = "addon"
    views: tuple[str, ...] = ()
    must_travel: Mapping[str, str] = {}
    whole_encoder: str = ""

    def build(self, objective: Objective) -> None:
        """Called once, when the method is built: creates networks whose widths depend on the objective."""

    def networks(self) -> nn.Module | None:
        """The add-on's networks, trained and sent with the objective's; None: none."""
        return None

    def receive(self, visit: Visit, method: MethodParts) -> None:
        """Called at the start of a client's training visit, after the method's `receive`."""

    def draw(self, batch: Batch, stream: torch.Generator) -> Tree:
        """Random tensors for the step, drawn outside it; `forward` finds them in `batch.draws[name]`."""
        return {}

    def forward(self, out: Outputs, batch: Batch, method: MethodParts) -> Tensor:
        """The term, a scalar to be added to the loss.

        out: the objective's outputs; `extra` holds this add-on's views only.
        batch: `views` holds the objective's views, then this add-on's.
        """
        raise NotImplementedError


def check_pair(objective: Objective, work: str, otherwise: str = "") -> None:
    """Raises MethodError for an objective without the embeddings of exactly two views of an image.

    work: what needs them, as the start of a sentence. otherwise: what else to set than another objective,
    ending in ", or ".
    """
    if len(objective.views) == 2 and isinstance(objective, Projected):
        return
    other = "choose another objective, e.g. objective=simclr"
    own = "set objective.local_views=0" if "local" in objective.views else other
    raise MethodError(f"{work} of an image's two views, which {type(objective).__name__} has not: {otherwise}{own}")


def build_addons(addons: Sequence[AddOn], objective: Objective) -> nn.ModuleDict:
    """The add-ons by name, built over the objective. Raises MethodError: two parts have one name."""
    names = {name for name, _ in objective.named_children()}
    for addon in addons:
        if addon.name in names:
            raise MethodError(f"two parts are named {addon.name!r}: give {type(addon).__name__} another name")
        names.add(addon.name)
        addon.build(objective)
    return nn.ModuleDict({addon.name: addon for addon in addons})
