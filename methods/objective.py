"""Objective and AddOn: the local loss with its networks, and terms that sit on any of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from methods.networks import Encoder, mlp
from methods.trees import Tree
from methods.types import Batch, Outputs, Visit

if TYPE_CHECKING:
    from methods.base import FederatedMethod


class Objective(nn.Module):
    """A local self-supervised loss and its networks.

    travels: parts (submodule names) that make up the entry "weights".
    views: recipe names, one a view.
    ema: target part -> source part; the target's parameters follow the source's after each step with `momentum`.
    queues: names of FIFO buffers `[rows, d]` fed from `Outputs.push`; a buffer `<name>_filled` counts their valid rows.
    stays: parts (submodules or queues) that stay with the client, whatever the method.
    labels: whether batches carry labels (supervised references only).
    only_for: the method without which it does not work, by its class's name; empty: any method takes it.
    contrastive: whether the loss compares the images of a batch, so that its size is part of the loss.
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

    encoder: Encoder
    projector: nn.Module
    width: int  # of the embeddings

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def embed(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The online path: images `[B, C, H, W]` -> representations `[B, encoder.dim]`, embeddings `[B, width]`."""
        h = self.encoder(images)
        return h, self.projector(h)

    def forward(self, *views: Tensor, extra: Sequence[Tensor] = ()) -> Outputs:
        """One joint pass over all views (and an add-on's extra ones), so that BatchNorm sees them together."""
        everything = (*views, *extra)
        sizes = [len(view) for view in everything]
        h, z = (joint.split(sizes) for joint in self.embed(torch.cat(everything)))
        own = len(views)
        return Outputs(h[:own], z[:own], extra=tuple(zip(h[own:], z[own:], strict=True)))

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """A scalar, a pure function of `out`, `batch` and buffers; it never encodes again."""
        raise NotImplementedError

    def receive(self, visit: Visit) -> None:
        """Called on clients in training phases, after the method has received."""

    def start_epoch(self, look: Callable[[], Iterator[Batch]], stream: torch.Generator) -> None:
        """Called before each local epoch, in eval mode and without gradient.

        look: passes over the client's images as they are, in their order. stream: a CPU generator of this visit.
        """

    def add_queue(self, name: str, rows: int, dim: int) -> None:
        """Registers the FIFO buffer `name` `[rows, dim]`, empty, with its fill count; list the name in `queues`."""
        self.register_buffer(name, torch.zeros(rows, dim))
        self.register_buffer(f"{name}_filled", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def after_step(self, push: Mapping[str, Tensor]) -> None:
        """What follows an optimiser step: targets move towards their sources, queues take the new rows."""
        for target, source in self.ema.items():
            update_ema(getattr(self, target), getattr(self, source), self.momentum)
        for name in self.queues:
            queue, filled = getattr(self, name), getattr(self, f"{name}_filled")
            rows = push[name].detach()[-len(queue) :]
            queue.copy_(torch.cat([rows, queue])[: len(queue)])  # newest first, so valid rows are the first `filled`
            filled.add_(len(rows)).clamp_(max=len(queue))


@torch.no_grad()
def update_ema(follower: nn.Module, leader: nn.Module, momentum: float) -> None:
    """Moves parameters towards those of a network built alike, buffers not; momentum: weight of their own past."""
    for own, lead in zip(follower.parameters(), leader.parameters(), strict=True):
        own.lerp_(lead, 1 - momentum)


class Projected(Objective):
    """An objective whose embeddings are a projector's.

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


class AddOn(nn.Module):
    """A term that sits on any objective and method: FedX, FedDecorr, FedProx's proximal term.

    name: under which `networks()` travel, as one more part.
    views: recipe names it wants beside the objective's; they come back as `out.extra`.
    """

    name: str = "addon"
    views: tuple[str, ...] = ()

    def build(self, objective: Objective) -> None:
        """Called once, when the method is put together: makes networks whose widths are the objective's."""

    def networks(self) -> nn.Module | None:
        """Networks of its own, trained and sent with the objective's; None: it has none."""
        return None

    def receive(self, visit: Visit, method: "FederatedMethod") -> None:
        """Called on clients in training phases, after the method has received."""

    def draw(self, batch: Batch, stream: torch.Generator) -> Tree:
        """The random tensors of its step, drawn outside it; they come back as `batch.draws[name]`."""
        return {}

    def forward(self, out: Outputs, batch: Batch, method: "FederatedMethod") -> Tensor:
        """The term, a scalar to be added to the loss.

        out: of the objective; `extra` holds this add-on's own views. batch: `views` holds the objective's and then
        its own.
        """
        raise NotImplementedError
