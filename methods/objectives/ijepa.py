"""I-JEPA. Assran et al.: Self-Supervised Learning from Images with a Joint-Embedding Predictive Architecture (2023).

| symbol | name | equation |
|---|---|---|
| f_theta | `encoder`, over the patches of the context | section 3 |
| f_theta-bar, its momentum | `target_encoder`; `momentum`, rising to `momentum_end` | section 3 |
| g_phi | `predictor`: `predictor_width`, `predictor_depth`, `predictor_heads` | section 3 |
| M, B_i | `blocks` of `block_scale` and `block_aspect`, drawn by `draw_blocks` | section 3, targets |
| B_x | `context_scale`, without the patches of any target | section 3, context |
| loss | `methods.maths.latent_prediction` | section 3, loss |

Decisions
- `variant: code | paper`. The code normalises targets over their features and takes the mean of smooth L1; the paper's
  loss adds squared distances up over a block's patches, is their mean over blocks, and has targets as they are.
- Blocks have one number of patches, so that no shape depends on what was drawn: of the middle of the paper's scales,
  three to four in aspect, upright or lying by chance. The code draws scale and aspect for each batch.
- For the same reason the context has as many patches as targets leave in any case, drawn among those they leave. The
  code cuts the last ones off, down to the shortest context of the batch.
- A block may be anywhere; the code's never reach the last row and column. No patch of a target is in the context; the
  code allows it where it finds no other context.
- Positions are learned and there is a class token, as in the suite's transformers; the predictor reads it too. The
  paper's representation is the patches' mean (`encoder.features=mean`).
- The target starts at the received encoder in each visit, as BYOL's does here; with `stateful: true` it stays with its
  client. Its momentum is constant, or rises by a cosine; the paper's rises linearly, from 0.996 to 1.
- The view is a crop without other colours, as the paper's; `colours: true` has those of the scenario.
- The predictor is narrower and shallower than the paper's by default, as is the decoder of `masked_reconstruction`.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from methods.base import Batch, MethodError, Outputs, Tree, WithTargets, check_number, choose
from methods.maths import latent_prediction
from methods.networks import Encoder
from methods.networks.transformers import VisionTransformer, take
from methods.objectives.patches import PatchObjective, TokenDecoder


class Predictor(TokenDecoder):
    """Tokens of the context and positions of a block's patches -> the target encoder's tokens of these."""

    def forward(self, tokens: Tensor, seen: Tensor, hidden: Tensor) -> Tensor:
        """Every block is predicted by itself.

        Args:
            tokens: `[B, 1 + m, width]`, the class token first. seen: their patches, `[B, m]`.
            hidden: patches of the blocks, `[B, M, n]`.

        Returns:
            `[B, M, n, width]`.
        """
        blocks, size = hidden.shape[1:]
        first, positions = self.layers.pos_embedding.split([1, self.patches], 1)
        at = torch.cat([first.expand(len(seen), -1, -1), take(positions, seen)], 1)
        context = (self.embed(tokens) + at).repeat_interleave(blocks, 0)  # [B * M, 1 + m, narrow]
        masks = (self.mask_token + take(positions, hidden.flatten(1))).view(-1, size, context.shape[2])
        rows = self.layers.ln(self.layers.layers(torch.cat([context, masks], 1)))
        return self.head(rows[:, -size:]).unflatten(0, (-1, blocks))


def draw_blocks(images: int, blocks: int, sides: tuple[int, int], grid: int, stream: torch.Generator) -> Tensor:
    """Patches of blocks of a grid, indices row after row: `[images, blocks, height * width]`.

    sides: of a block, each the height with equal chance. grid: patches along a side of the image.
    """
    upright, down, right = torch.rand(3, images, blocks, 1, generator=stream)
    height = torch.where(upright < 0.5, *sides)
    width = math.prod(sides) // height
    top, left = (down * (grid - height + 1)).long(), (right * (grid - width + 1)).long()
    inside = torch.arange(math.prod(sides))
    return (top + inside // width) * grid + left + inside % width


class IJEPA(PatchObjective, WithTargets):
    """From the patches of a context, a predictor says what a moving average of the encoder makes of hidden blocks.

    Args:
        encoder: images -> `[B, encoder.dim]`, a vision transformer of `methods.networks`.
        blocks: target blocks of an image; they may overlap.
        block_scale: a block's share of the image. block_aspect: its shorter side by its longer one.
        context_scale: share of the image of the square that the context is in.
        predictor_width, predictor_depth, predictor_heads: of the predictor.
        momentum: weight of the target's previous value in its moving average.
        momentum_end: what it rises to over the run, by a cosine; None: it is constant.
        variant: "code" or "paper".
        stateful: whether the target stays with its client.
        colours: whether the view's colours change as the scenario has it; False: it is a crop, as in the paper.

    sides: of a block, in patches. square: side of the context's square. seen: patches of the context.
    """

    target_encoder: Encoder

    travels = ("encoder", "predictor")

    def __init__(
        self,
        encoder: Encoder,
        *,
        blocks: int = 4,
        block_scale: float = 0.175,
        block_aspect: float = 0.75,
        context_scale: float = 0.925,
        predictor_width: int = 96,
        predictor_depth: int = 2,
        predictor_heads: int = 3,
        momentum: float = 0.996,
        momentum_end: float | None = None,
        variant: str = "code",
        stateful: bool = False,
        colours: bool = False,
    ) -> None:
        super().__init__(encoder, colours=colours)
        self.variant = choose("objective.variant", variant, "code", "paper")
        self.blocks = int(check_number("objective.blocks", blocks, at_least=1))
        shares = {"block_scale": block_scale, "block_aspect": block_aspect, "context_scale": context_scale}
        self.set_sizes(*(check_number(f"objective.{name}", x, above=0, at_most=1) for name, x in shares.items()))
        shape = {"width": predictor_width, "depth": predictor_depth, "heads": predictor_heads}
        self.predictor = Predictor(self.backbone, "predictor", **shape, outputs=self.backbone.hidden_dim)
        self.add_targets(momentum, end=momentum_end, sources=("encoder",))
        self.stays = tuple(self.ema) if stateful else ()

    def set_sizes(self, scale: float, aspect: float, context: float) -> None:
        """Sets the sizes of blocks and context. Raises MethodError: there is no room for them."""
        patches = self.backbone.patches
        self.grid = math.isqrt(patches)
        short, long = (max(1, round(math.sqrt(scale * patches * ratio))) for ratio in (aspect, 1 / aspect))
        self.sides, self.square = (short, long), max(1, round(math.sqrt(context * patches)))
        self.seen = self.square**2 - self.blocks * short * long
        if long > self.grid or self.seen < 1:
            raise MethodError(
                f"IJEPA: {self.blocks} blocks of {short} x {long} patches leave no context of {self.square} x "
                f"{self.square}, of an image of {self.grid} x {self.grid}: set a smaller encoder.patch_size, "
                "objective.blocks or objective.block_scale"
            )

    def draw(self, batch: Batch, stream: torch.Generator) -> Tree:
        """Patches of the context, `seen` `[B, m]`, and of the targets, `hidden` `[B, blocks, n]`."""
        images = len(batch.index)
        hidden = draw_blocks(images, self.blocks, self.sides, self.grid, stream)
        square = draw_blocks(images, 1, (self.square, self.square), self.grid, stream)
        outside = torch.ones(images, self.grid**2).scatter_(1, square.flatten(1), 0).scatter_(1, hidden.flatten(1), 1)
        order = torch.rand(images, self.grid**2, generator=stream) + outside
        drawn = {"seen": order.argsort(1)[:, : self.seen], "hidden": hidden}
        return {name: each.to(batch.index.device, non_blocking=True) for name, each in drawn.items()}

    def forward(self, *views: Tensor, extra: Sequence[Tensor] = (), draws: Tree | None = None) -> Outputs:
        """The pass over the context, with predictions and targets `[B, blocks, n, width]`."""
        assert draws is not None
        seen, hidden = draws["seen"], draws["hidden"]
        tokens = self.backbone.tokens(views[0], seen)
        return self.outputs(tokens, self.predictor(tokens, seen, hidden), self.embed_targets(views[0], hidden), extra)

    @torch.no_grad()
    def embed_targets(self, images: Tensor, hidden: Tensor) -> Tensor:
        """Tokens `[B, blocks, n, width]` of the blocks by the target encoder, which sees whole images."""
        tokens = cast(VisionTransformer, self.target_encoder.backbone).tokens(images)[:, 1:]
        return take(tokens, hidden.flatten(1)).unflatten(1, hidden.shape[1:])

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """How far the predictions are from the targets."""
        return latent_prediction(out.predictions[0], out.targets[0], self.variant)
