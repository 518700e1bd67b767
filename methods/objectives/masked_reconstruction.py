"""MAE. He et al.: Masked Autoencoders Are Scalable Vision Learners (CVPR 2022).

| symbol | name | equation |
|---|---|---|
| masking ratio | `mask_ratio`, 75 % | section 3 |
| decoder | `decoder`: `decoder_width`, `decoder_depth`, `decoder_heads` | section 3, Table 1 |
| reconstruction target | `methods.maths.masked_reconstruction`, of normalised pixels | section 3, Table 1d |

Decisions
- One view. The patches to hide are drawn anew for each image and step: a uniform number for each patch, the largest are
  hidden, as in the released code. The paper's views are crops and mirrors: `colours: false` leaves the colours of the
  scenario's views as they are.
- The decoder is narrower and shallower than the paper's by default, as this field's images are small. Its positions
  are learned; the paper's are fixed waves.
- The representation is what the encoder returns for whole images: the class token, or the patches' mean with
  `encoder.features=mean`. There is no projector; the embedding is the representation of the patches that were seen.
- The decoder travels with the encoder. `decoder: stays` keeps it with its client: fewer bytes, and each client decodes
  its own images.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from methods.base import Batch, Outputs, Tree, check_number, choose
from methods.maths import masked_reconstruction
from methods.maths.reconstruction import patches
from methods.networks import Encoder
from methods.objectives.patches import PatchObjective, TokenDecoder


class Decoder(TokenDecoder):
    """Tokens of the patches that were seen -> pixels of all patches."""

    def forward(self, tokens: Tensor, seen: Tensor) -> Tensor:
        """tokens: `[B, 1 + m, dim]`, the class token first; seen: their patches `[B, m]` -> `[B, patches, pixels]`."""
        first, rows = self.embed(tokens).split([1, seen.shape[1]], 1)
        images = torch.arange(len(seen), device=seen.device).unsqueeze(1)
        whole = self.mask_token.to(rows.dtype).expand(len(seen), self.patches, -1).index_put((images, seen), rows)
        return self.head(self.layers(torch.cat([first, whole], 1))[:, 1:])


class MaskedReconstruction(PatchObjective):
    """A decoder restores the pixels of the patches that a vision transformer has not seen.

    Args:
        encoder: images -> `[B, encoder.dim]`, a vision transformer of `methods.networks`.
        mask_ratio: share of an image's patches that are hidden; at least one is hidden and one is seen.
        normalise: whether the pixels of a patch are normalised by their own mean and variance.
        decoder_width, decoder_depth, decoder_heads: of the decoder.
        decoder: "travels" or "stays".
        colours: whether the view's colours change as the scenario has it; False: it is a crop, as in the paper.
    """

    travels: tuple[str, ...] = ("encoder", "decoder")

    def __init__(
        self,
        encoder: Encoder,
        *,
        mask_ratio: float = 0.75,
        normalise: bool = True,
        decoder_width: int = 96,
        decoder_depth: int = 2,
        decoder_heads: int = 3,
        decoder: str = "travels",
        colours: bool = True,
    ) -> None:
        super().__init__(encoder, colours=colours)
        check_number("objective.mask_ratio", mask_ratio, above=0, below=1)
        backbone = self.backbone
        self.normalise, self.patch_size = normalise, backbone.patch_size
        self.seen = min(max(1, round((1 - mask_ratio) * backbone.patches)), backbone.patches - 1)
        pixels = backbone.conv_proj.in_channels * self.patch_size**2
        shape = {"width": decoder_width, "depth": decoder_depth, "heads": decoder_heads}
        self.decoder = Decoder(backbone, "decoder", **shape, outputs=pixels)
        if choose("objective.decoder", decoder, "travels", "stays") == "stays":
            self.travels, self.stays = ("encoder",), ("decoder",)

    def draw(self, batch: Batch, stream: torch.Generator) -> Tree:
        """A uniform number for each patch, `[B, patches]`; those with the largest are hidden."""
        order = torch.rand(len(batch.index), self.backbone.patches, generator=stream)
        return {"order": order.to(batch.index.device, non_blocking=True)}

    def forward(self, *views: Tensor, extra: Sequence[Tensor] = (), draws: Tree | None = None) -> Outputs:
        """The pass over the patches that are seen, with predictions and targets `[B, patches, pixels]`."""
        assert draws is not None
        seen = draws["order"].argsort(1)[:, : self.seen]
        tokens = self.backbone.tokens(views[0], seen)
        return self.outputs(tokens, self.decoder(tokens, seen), patches(views[0], self.patch_size).detach(), extra)

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The mean squared error over the pixels of the hidden patches."""
        assert batch.draws is not None
        ranks = batch.draws["objective"]["order"].argsort(1).argsort(1)
        hidden = (ranks >= self.seen).to(out.targets[0].dtype)
        return masked_reconstruction(out.predictions[0], out.targets[0], hidden, self.normalise)
