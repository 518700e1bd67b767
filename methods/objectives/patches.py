"""What objectives that leave out patches of a vision transformer have in common."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torchvision.models import vision_transformer

from methods.base import MethodError, Objective, Outputs
from methods.networks import Encoder
from methods.networks.transformers import VisionTransformer


class TokenDecoder(nn.Module):
    """A narrow transformer over an encoder's tokens and mask tokens; a subclass says where these stand.

    Args:
        encoder: whose tokens are read.
        name: of the argument `objective.<name>_width` and its like.
        width: of a token. depth: layers. heads: of an attention.
        outputs: numbers that it gives for a patch.
    """

    def __init__(
        self, encoder: VisionTransformer, name: str, *, width: int, depth: int, heads: int, outputs: int
    ) -> None:
        super().__init__()
        if width < 1 or depth < 1 or heads < 1 or width % heads:
            key = f"objective.{name}"
            raise MethodError(
                f"{key}_width={width} {name}_depth={depth} {name}_heads={heads}: "
                "give whole numbers of at least 1, the width a multiple of the heads"
            )
        self.patches = encoder.patches
        self.embed = nn.Linear(encoder.hidden_dim, width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, width).normal_(std=0.02))
        self.layers = vision_transformer.Encoder(1 + encoder.patches, depth, heads, width, 4 * width, 0.0, 0.0)
        self.head = nn.Linear(width, outputs)


class PatchObjective(Objective):
    """An objective of one view, of which the encoder sees some patches; embeddings are representations of these.

    Args:
        encoder: images -> `[B, encoder.dim]`, a vision transformer of `methods.networks`.
        colours: whether the view's colours change as the scenario has it; False: it is a crop.
    """

    views: tuple[str, ...] = ("augment",)

    def __init__(self, encoder: Encoder, *, colours: bool) -> None:
        super().__init__(encoder)
        if not isinstance(encoder.backbone, VisionTransformer):
            raise MethodError(
                f"{type(self).__name__} hides patches, which this encoder does not have: "
                "set encoder={class: methods.networks.vit_tiny}, or vit_small or vit"
            )
        if encoder.backbone.features == "patches":
            raise MethodError(
                f"encoder.features=patches: {type(self).__name__} hides patches, so an image would have fewer features "
                "than the encoder says: set encoder.features=mean"
            )
        self.views = ("augment",) if colours else ("crop",)
        self.width = encoder.dim
        self.projector = nn.Identity()

    @property
    def backbone(self) -> VisionTransformer:
        """The vision transformer."""
        return cast(VisionTransformer, self.encoder.backbone)

    def outputs(self, tokens: Tensor, prediction: Tensor, target: Tensor, extra: Sequence[Tensor]) -> Outputs:
        """What `forward` returns. tokens: of the patches that were seen. extra: views of add-ons, seen whole."""
        h = self.backbone.pooled(tokens)
        return Outputs((h,), (h,), (prediction,), (target,), tuple(map(self.embed, extra)))
