"""Vision transformers (Dosovitskiy et al., ICLR 2021) whose patches can be left out, over torchvision's.

Decisions
- torchvision's initial weights, whatever the number of channels. Dropout is left out: it would be visited client by
  client on a GPU, and the small models of DeiT (Touvron et al. 2021) have none either.
- `features: mean` is the mean of the patches' last tokens, `class` the class token, as in the paper.
- torchvision adds the positions inside its encoder, where all patches must be present. Here they are added before,
  so that `tokens` can leave patches out; with all patches the numbers are torchvision's.
"""

import math

import torch
from torch import Tensor, nn
from torchvision import models

from methods.validation import MethodError, choose


class VisionTransformer(models.VisionTransformer):
    """torchvision's, without its classifier: `[B, in_channels, image_size, image_size]` -> `[B, width]`.

    patches: number of an image's patches, row after row.

    Args:
        image_size, patch_size: sides in pixels. width: of a token. depth: layers. heads: of an attention.
        in_channels: of the images. features: "class" or "mean".
    """

    def __init__(
        self, *, image_size: int, patch_size: int, width: int, depth: int, heads: int, in_channels: int, features: str
    ) -> None:
        if patch_size < 1 or image_size % patch_size:
            raise MethodError(
                f"encoder.patch_size={patch_size} does not divide images of {image_size} pixels: give a divisor"
            )
        super().__init__(image_size, patch_size, depth, heads, width, 4 * width)
        self.heads = nn.Identity()
        self.features = choose("encoder.features", features, "class", "mean")
        self.patches = (image_size // patch_size) ** 2
        if in_channels != 3:
            self.conv_proj = nn.Conv2d(in_channels, width, patch_size, patch_size)
            nn.init.trunc_normal_(self.conv_proj.weight, std=math.sqrt(1 / (in_channels * patch_size**2)))
            nn.init.zeros_(self.conv_proj.get_parameter("bias"))

    def tokens(self, images: Tensor, kept: Tensor | None = None) -> Tensor:
        """Last tokens `[B, 1 + patches, width]`, the class token first; kept: patches to read, indices `[B, m]`."""
        rows = self.conv_proj(images).flatten(2).transpose(1, 2) + self.encoder.pos_embedding[:, 1:]
        if kept is not None:
            rows = rows.gather(1, kept.unsqueeze(2).expand(-1, -1, rows.shape[2]))
        first = (self.class_token + self.encoder.pos_embedding[:, :1]).expand(len(rows), -1, -1)
        return self.encoder.ln(self.encoder.layers(torch.cat([first, rows], 1)))

    def pooled(self, tokens: Tensor) -> Tensor:
        """The features `[B, width]` of an image by its tokens."""
        return tokens[:, 0] if self.features == "class" else tokens[:, 1:].mean(1)

    def forward(self, x: Tensor) -> Tensor:
        """Images -> features."""
        return self.pooled(self.tokens(x))
