"""Vision transformers (Dosovitskiy et al., ICLR 2021) whose patches can be left out, over torchvision's.

Decisions
- torchvision's initial weights, whatever the number of channels. Dropout is left out: it would be visited client by
  client on a GPU, and the small models of DeiT (Touvron et al. 2021) have none either.
- `features: mean` is the mean of the patches' last tokens, `cls` (or `class`) the class token, as in the paper,
  `cls+mean` both, as in DINOv2's linear probe, and `patches` all tokens of patches, one after the other.
- torchvision adds the positions inside its encoder, where all patches must be present. Here they are added before,
  so that `tokens` can leave patches out; with all patches the numbers are torchvision's.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models

from methods.core.modules import Encoder
from methods.core.validation import MethodError, choose

LAYER = re.compile(r"(?<=\.encoder_layer_)\d+(?=\.)")
EMBEDDING = re.compile(r"\.(conv_proj|class_token|pos_embedding)\b")
BRANCH_END = re.compile(r"\.(self_attention\.out_proj|mlp\.3)\.(weight|bias)$")
"""Names of an encoder's tensors: of a layer, of the embedding, of the last matrix and bias of a residual branch."""


def take(rows: Tensor, indices: Tensor) -> Tensor:
    """Rows of each image by their indices `[B, m]`: `[B, n, width]`, or `[1, n, width]` for all -> `[B, m, width]`."""
    whole = rows.expand(len(indices), -1, -1)
    return whole.gather(1, indices.unsqueeze(2).expand(-1, -1, rows.shape[2]))


class VisionTransformer(models.VisionTransformer):
    """torchvision's, without its classifier: `[B, in_channels, image_size, image_size]` -> `[B, dim]`.

    patches: number of an image's patches, row after row.
    applied: number of first layers that an image passes; all of them, unless a method trains fewer.

    Args:
        image_size, patch_size: sides in pixels. width: of a token. depth: layers. heads: of an attention.
        in_channels: of the images. features: "cls" (or "class"), "mean", "cls+mean" or "patches".
    """

    def __init__(
        self, *, image_size: int, patch_size: int, width: int, depth: int, heads: int, in_channels: int, features: str
    ) -> None:
        if patch_size < 1 or image_size % patch_size:
            raise MethodError(
                f"encoder.patch_size={patch_size} does not divide images of {image_size} pixels: give a divisor"
            )
        if min(width, depth, heads) < 1 or width % heads:
            raise MethodError(
                f"encoder: width={width} depth={depth} heads={heads}: width is a multiple of heads, all above 0"
            )
        super().__init__(image_size, patch_size, depth, heads, width, 4 * width)
        self.heads = nn.Identity()
        self.features = choose("encoder.features", features, "cls", "class", "mean", "cls+mean", "patches")
        self.patches = (image_size // patch_size) ** 2
        self.dim = width * {"cls+mean": 2, "patches": self.patches}.get(features, 1)
        self.applied = depth
        if in_channels != 3:
            self.conv_proj = nn.Conv2d(in_channels, width, patch_size, patch_size)
            nn.init.trunc_normal_(self.conv_proj.weight, std=math.sqrt(1 / (in_channels * patch_size**2)))
            nn.init.zeros_(self.conv_proj.get_parameter("bias"))

    def tokens(self, images: Tensor, kept: Tensor | None = None) -> Tensor:
        """Last tokens `[B, 1 + patches, width]`, the class token first; kept: patches to read, indices `[B, m]`."""
        rows = self.conv_proj(images).flatten(2).transpose(1, 2) + self.encoder.pos_embedding[:, 1:]
        if kept is not None:
            rows = take(rows, kept)
        first = (self.class_token + self.encoder.pos_embedding[:, :1]).expand(len(rows), -1, -1)
        rows = torch.cat([first, rows], 1)
        for layer in [*self.encoder.layers][: self.applied]:
            rows = layer(rows)
        return self.encoder.ln(rows)

    def pooled(self, tokens: Tensor) -> Tensor:
        """The features `[B, dim]` of an image by its tokens."""
        if self.features == "patches":
            return tokens[:, 1:].flatten(1)
        if self.features == "cls+mean":
            return torch.cat([tokens[:, 0], tokens[:, 1:].mean(1)], 1)
        return tokens[:, 1:].mean(1) if self.features == "mean" else tokens[:, 0]

    def forward(self, x: Tensor) -> Tensor:
        """Images -> features."""
        return self.pooled(self.tokens(x))


def vit(
    *,
    width: int,
    depth: int,
    heads: int,
    patch_size: int = 4,
    features: str = "class",
    in_channels: int = 3,
    image_size: int = 32,
) -> Encoder:
    """A vision transformer (Dosovitskiy et al. 2021) of any size.

    Args:
        width: of a token, a multiple of `heads`. depth: number of layers. heads: of each layer's attention.
        patch_size: side of a patch in pixels; 16 for images of 224.
        features: "cls" or "class" (the class token), "mean" (of the patches' tokens), "cls+mean" (both), "patches" (all
            their tokens).
        in_channels: channels of the images. image_size: their side in pixels.

    >>> vit(width=96, depth=4, heads=3).dim
    96
    """
    shape = {"width": width, "depth": depth, "heads": heads, "in_channels": in_channels}
    network = VisionTransformer(image_size=image_size, patch_size=patch_size, features=features, **shape)
    return Encoder(network, network.dim)


def _deit(width: int, heads: int, patch_size: int, features: str, in_channels: int, image_size: int) -> Encoder:
    shape = {"width": width, "depth": 12, "heads": heads, "in_channels": in_channels}
    return vit(patch_size=patch_size, features=features, image_size=image_size, **shape)


def vit_tiny(*, patch_size: int = 4, features: str = "class", in_channels: int = 3, image_size: int = 32) -> Encoder:
    """ViT-Tiny (Touvron et al. 2021): 12 layers, 3 heads, 192 features; other arguments as for `vit`.

    >>> vit_tiny(patch_size=8).dim
    192
    """
    return _deit(192, 3, patch_size, features, in_channels, image_size)


def vit_small(*, patch_size: int = 4, features: str = "class", in_channels: int = 3, image_size: int = 32) -> Encoder:
    """ViT-Small (Touvron et al. 2021): 12 layers, 6 heads, 384 features; other arguments as for `vit`."""
    return _deit(384, 6, patch_size, features, in_channels, image_size)


def layer_of(name: str) -> int | None:
    """The layer that a tensor of the encoder belongs to, the embedding with layer 0; None: of the last LayerNorm."""
    if found := LAYER.search(name):
        return int(found[0])
    return 0 if EMBEDDING.search(name) else None


def of_layers(tensors: Mapping[str, Tensor], layers: range) -> dict[str, Tensor]:
    """The encoder's tensors without those of other layers."""
    return {name: tensor for name, tensor in tensors.items() if layer_of(name) in (None, *layers)}


def copied_layers(tensors: Mapping[str, Tensor], layers: range, distance: int) -> dict[str, Tensor]:
    """For each tensor of `layers`, the one of the layer `distance` before; 0 is not among `layers`."""
    names = [name for name in tensors if layer_of(name) in layers]
    return {name: tensors[LAYER.sub(lambda at: str(int(at[0]) - distance), name)] for name in names}


def branch_ends(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, Tensor]]:
    """Name -> (layer, tensor) of what a residual branch ends in; a layer whose ends are zero is an identity."""
    return {
        name: (int(found[0]), tensor)
        for name, tensor in tensors.items()
        if BRANCH_END.search(name) and (found := LAYER.search(name))
    }


def identities(tensors: Mapping[str, Tensor], present: int | Tensor) -> dict[str, Tensor]:
    """The branch ends, with zeros from layer `present` on; `present` may be on a GPU."""
    return {name: tensor * (layer < present) for name, (layer, tensor) in branch_ends(tensors).items()}


class SplitAttention(nn.Module):
    """The attention of a tensor to itself with linear layers `qkv` and `proj`, in the place of torch's own.

    Args:
        attention: whose weights it takes; with one width, and the batch first.
    """

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        width, self.heads = attention.embed_dim, attention.num_heads
        self.qkv, self.proj = nn.Linear(width, 3 * width, device="meta"), attention.out_proj
        self.qkv.weight, self.qkv.bias = attention.in_proj_weight, attention.in_proj_bias

    def forward(self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool = False) -> tuple[Tensor, None]:
        """Tokens `[B, n, width]`, three times the same -> `[B, n, width]`, as torch's attention returns it."""
        batch, tokens, width = query.shape
        q, k, v = self.qkv(query).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        rows = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(rows.transpose(1, 2).reshape(batch, tokens, width)), None


def split_attention(network: nn.Module) -> None:
    """Gives each attention of torch's own in a transformer its linear layers; the numbers stay, to rounding."""
    for name, layer in list(network.named_modules()):
        if isinstance(layer, nn.MultiheadAttention):
            network.set_submodule(name, SplitAttention(layer))


def join_attention(network: nn.Module) -> None:
    """The inverse of `split_attention`: the names of tensors are torchvision's again."""
    for name, layer in list(network.named_modules()):
        if isinstance(layer, SplitAttention):
            joined: Any = nn.MultiheadAttention(layer.proj.in_features, layer.heads, batch_first=True, device="meta")
            joined.in_proj_weight, joined.in_proj_bias = layer.qkv.weight, layer.qkv.bias
            joined.out_proj.weight, joined.out_proj.bias = layer.proj.weight, layer.proj.bias
            network.set_submodule(name, joined.train(layer.training))
