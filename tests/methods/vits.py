"""A vision transformer that is small enough for the tiny scenario."""

from methods.networks import Encoder
from methods.networks.transformers import VisionTransformer


def small(*, depth: int = 3, in_channels: int = 3, image_size: int = 8) -> Encoder:
    """Layers of width 8 with two heads, patches of 4 x 4 pixels, the class token's 8 features."""
    shape = {"width": 8, "depth": depth, "heads": 2, "in_channels": in_channels}
    return Encoder(VisionTransformer(image_size=image_size, patch_size=4, features="class", **shape), 8)


SMALL = "encoder={class: tests.methods.vits.small}"
"""Override of a config: this encoder, 3 layers."""
