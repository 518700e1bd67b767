"""Vision transformers: torchvision's numbers, patches left out, and features by class token or mean."""

import pytest
import torch
from torchvision import models

from methods import networks
from methods.validation import MethodError
from methods.vit import VisionTransformer


def small(**changes):
    settings = {"image_size": 8, "patch_size": 4, "width": 12, "depth": 2, "heads": 3, "in_channels": 3}
    return VisionTransformer(**{**settings, "features": "class", **changes})


def test_the_class_token_is_torchvisions():
    ours, theirs = small(), models.VisionTransformer(8, 4, 2, 3, 12, 48)
    torch.nn.init.normal_(ours.encoder.pos_embedding)
    torch.nn.init.normal_(ours.class_token)
    theirs.heads = torch.nn.Identity()
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(5, 3, 8, 8)
    torch.testing.assert_close(ours(images), theirs(images))


def test_the_published_sizes():
    """Without classifier, at patches of 16 pixels and images of 224; DeiT's Table 1 has 5 and 22 million."""
    for build, count in ((networks.vit_tiny, 5_524_416), (networks.vit_small, 21_665_664)):
        encoder = build(patch_size=16, image_size=224)
        assert sum(parameter.numel() for parameter in encoder.parameters()) == count
        assert encoder(torch.zeros(1, 3, 224, 224)).shape == (1, encoder.dim)


def test_mean_features_are_those_of_the_patches_also_of_grey_images():
    network, images = small(features="mean", in_channels=1), torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(network(images), network.tokens(images)[:, 1:].mean(1))


def test_a_patch_that_is_left_out_has_no_part():
    network, images = small(), torch.randn(2, 3, 8, 8)
    kept = torch.tensor([[0, 3], [2, 1]])
    before = network.tokens(images, kept)
    assert before.shape == (2, 3, 12)
    images[0, :, :4, 4:] += 1  # patch 1 of the first image
    images[1, :, 4:, 4:] += 1  # patch 3 of the second
    torch.testing.assert_close(network.tokens(images, kept), before)
    images[1, :, :4, 4:] += 1  # patch 1, which the second image keeps
    assert not torch.allclose(network.tokens(images, kept)[1], before[1])


def test_all_patches_in_another_order_give_the_same_tokens():
    network, images = small(), torch.randn(2, 3, 8, 8)
    torch.nn.init.normal_(network.encoder.pos_embedding)
    order = torch.tensor([[3, 1, 0, 2]]).expand(2, -1)
    whole, turned = network.tokens(images), network.tokens(images, order)
    torch.testing.assert_close(turned[:, 0], whole[:, 0])
    torch.testing.assert_close(turned[:, 1:], whole[:, 1:][:, order[0]])


SIZE = r"encoder: width=\d+ depth=\d+ heads=\d: width is a multiple of heads"


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        *((networks.vit, size, SIZE) for size in ({"width": 10}, {"depth": 0}, {"heads": 0}, {"width": 0})),
        (networks.vit, {"patch_size": 5}, r"encoder\.patch_size=5 does not divide images of 32 pixels"),
        (networks.vit, {"patch_size": 0}, r"encoder\.patch_size=0 does not divide"),
        (networks.vit, {"features": "max"}, r"encoder\.features='max': choose class or mean"),
        (networks.mobilenet_v3, {"size": "tiny"}, r"encoder\.size='tiny': choose small or large"),
    ],
)
def test_bad_values_are_one_line(build, arguments, message):
    with pytest.raises(MethodError, match=message):
        build(**({"width": 12, "depth": 2, "heads": 3} if build is networks.vit else {}) | arguments)


@pytest.mark.parametrize(
    ("build", "arguments", "dim"),
    [
        (networks.mobilenet_v3, {}, 1024),
        (networks.mobilenet_v3, {"size": "large"}, 1280),
        (networks.convnext_tiny, {}, 768),
    ],
)
def test_named_networks_of_torchvision(build, arguments, dim):
    assert build(**arguments).dim == dim
