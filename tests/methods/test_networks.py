"""Encoders and heads against parameter counts by hand, published ones, and torchvision's own networks."""

import itertools
from collections.abc import Callable

import pytest
import torch
import torchvision
from torch import nn

from methods import networks
from methods.base import MethodError
from methods.networks.convolutional import FixupBlock
from methods.networks.transformers import VisionTransformer


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


RESNET50 = 25_557_032 - (2048 * 1000 + 1000)
LARGE = {"patch_size": 16, "image_size": 224}


@pytest.mark.parametrize(
    ("build", "arguments", "dim", "count"),
    [
        (networks.resnet18, {}, 512, 11_168_832),
        (networks.resnet50, {"stem": "imagenet"}, 2048, RESNET50),
        (networks.resnet50, {}, 2048, RESNET50 - 64 * 3 * (49 - 9)),
        (networks.fixup_resnet20, {"width": 8}, 512, 17_108_399),
        (networks.vit_tiny, LARGE, 192, 5_524_416),  # DeiT's Table 1 has 5 and 22 million
        (networks.vit_small, LARGE, 384, 21_665_664),
        (networks.mobilenet_v3, {}, 1024, None),
        (networks.mobilenet_v3, {"size": "large"}, 1280, None),
        (networks.convnext_tiny, {}, 768, None),
    ],
)
def test_published_sizes_without_classifier(build, arguments, dim: int, count: int | None) -> None:
    encoder, side = build(**arguments).eval(), arguments.get("image_size", 32)
    assert count in (None, parameters(encoder))
    assert encoder(torch.zeros(1, 3, side, side)).shape == (1, encoder.dim) == (1, dim)


def test_fixup_looks_at_each_image_alone() -> None:
    encoder, images = networks.fixup_resnet20(width=1, in_channels=1), torch.randn(3, 1, 16, 16)
    assert not list(encoder.buffers())
    torch.testing.assert_close(encoder(images)[:1], encoder(images[:1]))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_fixup_block_starts_as_its_shortcut_which_is_shifted_where_the_image_shrinks(stride: int) -> None:
    block, x = FixupBlock(4, 2 + 2 * stride, stride, blocks=9), torch.randn(2, 4, 8, 8)
    out = block(x)
    torch.testing.assert_close(out[:, :4], x[:, :, ::stride, ::stride].relu())
    assert out.shape == (2, 2 + 2 * stride, 8 // stride, 8 // stride)
    assert not out[:, 4:].any()
    out.sum().backward()
    assert block.residual[5].weight.grad.abs().sum() > 0  # the last convolution, which starts at zero, learns first
    with torch.no_grad():
        block.residual[0].bias.fill_(0.5)
    torch.testing.assert_close(block(x)[:, :4], (x if stride == 1 else x[:, :, ::2, ::2] + 0.5).relu())
    deep, shallow = (FixupBlock(64, 64, 1, blocks).residual[1].weight.std().item() for blocks in (16, 1))
    assert shallow == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)
    assert shallow / deep == pytest.approx(4, rel=0.05)  # first convolutions shrink with the number of blocks


def test_batch_statistics_normalises_by_the_batch_and_leaves_the_statistics_alone() -> None:
    norm, x = nn.BatchNorm1d(3).eval(), 5 + 2 * torch.randn(64, 3)
    norm.running_mean = torch.full((3,), 7.0)
    before = {name: value.clone() for name, value in norm.named_buffers() if value.is_floating_point()}
    with networks.batch_statistics(norm):
        torch.testing.assert_close(norm(x).mean(dim=0), torch.zeros(3), atol=1e-5, rtol=0)
    assert all(torch.equal(getattr(norm, name), value) for name, value in before.items())
    assert (norm.training, norm.momentum) == (False, 0.1)
    assert norm(x).mean().item() < -1


def test_imagenet_stem_is_torchvisions_network_number_for_number() -> None:
    encoder, reference = networks.resnet18(stem="imagenet").eval(), torchvision.models.resnet18()
    reference.fc = nn.Identity()
    reference.eval().load_state_dict(encoder.backbone.state_dict())
    images = torch.rand(2, 3, 64, 64)
    assert torch.equal(encoder(images), reference(images))


@pytest.mark.parametrize(("stem", "side", "channels"), [("cifar", 4, 3), ("imagenet", 1, 3), ("imagenet", 1, 1)])
def test_stems_shrink_a_small_image_to(stem: str, side: int, channels: int) -> None:
    encoder, seen = networks.resnet18(stem=stem, in_channels=channels).eval(), []
    encoder.backbone.layer4.register_forward_hook(lambda module, given, maps: seen.append(maps.shape))
    assert encoder(torch.rand(2, channels, 32, 32)).shape == (2, 512)
    assert seen == [(2, 512, side, side)]
    assert encoder.backbone.conv1.weight.shape == (64, channels, *((3, 3) if stem == "cifar" else (7, 7)))


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_convolutions_are_initialised_by_fan_out_or_uniformly_by_fan_in(stem: str) -> None:
    """PyTorch's own is kaiming_uniform_ with a = sqrt(5): within 1 / sqrt(fan-in), deviation 1 / sqrt(3 fan-in)."""
    weight = networks.resnet18(stem=stem, in_channels=1).backbone.conv1.weight
    assert weight.std().item() == pytest.approx((2 / (64 * weight[0].numel())) ** 0.5, rel=0.1)
    for layer in networks.resnet18(stem=stem, init="default").modules():
        if isinstance(layer, nn.Conv2d):
            bound = layer.weight[0].numel() ** -0.5
            assert layer.weight.abs().max() <= bound
            assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)


def test_convnet_shapes_and_size_by_hand() -> None:
    encoder, channels, maps = networks.convnet(), (3, 32, 64, 128, 256), []
    assert parameters(encoder) == sum(a * b * 9 + 2 * b for a, b in itertools.pairwise(channels)) == 388_896
    assert encoder.dim == 256
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda module, given, result: maps.append(result.shape[1:]))
    assert encoder(torch.rand(2, 3, 32, 32)).shape == (2, 256)
    assert maps == [(32, 16, 16), (64, 8, 8), (128, 4, 4), (256, 4, 4)]
    encoder, images = networks.convnet(widths=(5,), strides=(1,), in_channels=1).eval(), torch.rand(2, 1, 6, 6)
    torch.testing.assert_close(encoder(images), encoder.backbone[:3](images).mean(dim=(2, 3)))


@pytest.mark.parametrize("build", [networks.resnet18, networks.convnet])
def test_group_norm_has_no_statistics_to_average(build: Callable[..., nn.Module]) -> None:
    encoder, images = build(norm="group").train(), torch.rand(3, 3, 16, 16)
    assert list(encoder.buffers()) == []
    assert parameters(encoder) == parameters(build(norm="batch"))
    torch.testing.assert_close(encoder(images)[:1], encoder(images[:1]), rtol=1e-4, atol=1e-5)  # images are independent
    groups = {channels: networks.normalisation("group")(channels).num_groups for channels in (*range(1, 130), 512)}
    assert all(1 <= count <= 32 and channels % count == 0 for channels, count in groups.items())
    assert (groups[64], groups[512]) == (16, 32)


def test_mlp_layers_and_biases() -> None:
    def shape(head: nn.Sequential) -> list[object]:
        return [(type(layer), getattr(layer, "bias", None) is not None) for layer in head]

    linear, relu, norm = nn.Linear, nn.ReLU, nn.BatchNorm1d
    hidden = [(linear, False), (norm, True), (relu, False)]  # BatchNorm has the bias
    assert shape(networks.mlp((8, 6, 5, 4))) == [*hidden, *hidden, (linear, True)]
    assert shape(networks.mlp((8, 6, 4), norm=False)) == [(linear, True), (relu, False), (linear, True)]
    assert shape(networks.mlp((8, 6, 4), last_norm=True)) == [*hidden, (linear, False), (norm, False)]
    assert shape(networks.mlp((8, 4))) == [(linear, True)]
    assert networks.mlp((8, 6, 5, 4))(torch.rand(3, 8)).shape == (3, 4)


def test_mlps_have_the_published_sizes_and_a_last_norm_standardises() -> None:
    """FedSC's and FLESD's heads without normalisation; BYOL's with it, less a bias that has no effect."""
    sizes = {(512, 1024, 512): 1_050_112, (512, 512, 128): 328_320}
    assert {widths: parameters(networks.mlp(widths, norm=False)) for widths in sizes} == sizes
    assert parameters(networks.mlp((512, 4096, 2048))) == 10_500_096 - 4096
    head = networks.mlp((8, 6, 4), last_norm=True)
    assert parameters(head[-1]) == 0
    z = head(torch.randn(64, 8))
    torch.testing.assert_close(z.mean(dim=0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(z.var(dim=0, unbiased=False), torch.ones(4), atol=1e-2, rtol=0)


# --- vision transformers


def small(**changes) -> VisionTransformer:
    settings = {"image_size": 8, "patch_size": 4, "width": 12, "depth": 2, "heads": 3, "in_channels": 3}
    network = VisionTransformer(**{**settings, "features": "class", **changes})
    nn.init.normal_(network.encoder.pos_embedding)
    nn.init.normal_(network.class_token)
    return network


def test_the_class_token_is_torchvisions_and_mean_features_those_of_the_patches() -> None:
    ours, theirs, images = small(), torchvision.models.VisionTransformer(8, 4, 2, 3, 12, 48), torch.randn(5, 3, 8, 8)
    theirs.heads = nn.Identity()
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(images), theirs(images))
    grey = small(features="mean", in_channels=1)
    torch.testing.assert_close(grey(images[:, :1]), grey.tokens(images[:, :1])[:, 1:].mean(1))


def test_features_of_the_class_token_and_patches_are_one_after_the_other() -> None:
    network, images = small(), torch.randn(5, 3, 8, 8)
    tokens, whole = network.tokens(images), {}
    for kind in ("class", "cls", "mean", "cls+mean", "patches"):
        network.features = kind
        whole[kind] = network(images)
        assert networks.vit(width=12, depth=1, heads=3, image_size=8, features=kind).dim == whole[kind].shape[1]
    assert torch.equal(whole["cls"], whole["class"])
    assert torch.equal(whole["cls+mean"], torch.cat([whole["cls"], whole["mean"]], 1))
    assert torch.equal(whole["patches"].view(5, 4, 12), tokens[:, 1:])


def test_a_patch_that_is_left_out_has_no_part_and_the_order_of_patches_none_either() -> None:
    network, images, kept = small(), torch.randn(2, 3, 8, 8), torch.tensor([[0, 3], [2, 1]])
    before = network.tokens(images, kept)
    assert before.shape == (2, 3, 12)
    images[0, :, :4, 4:] += 1  # patch 1 of the first image
    images[1, :, 4:, 4:] += 1  # patch 3 of the second
    torch.testing.assert_close(network.tokens(images, kept), before)
    images[1, :, :4, 4:] += 1  # patch 1, which the second image keeps
    assert not torch.allclose(network.tokens(images, kept)[1], before[1])
    order = torch.tensor([[3, 1, 0, 2]]).expand(2, -1)
    whole, turned = network.tokens(images), network.tokens(images, order)
    torch.testing.assert_close(turned, whole[:, [0, *(1 + order[0])]])


SIZE = r"encoder: width=\d+ depth=\d+ heads=\d: width is a multiple of heads"
VIT = {"width": 12, "depth": 2, "heads": 3}


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        (networks.resnet18, {"norm": "layer"}, r"encoder.norm='layer': choose batch or group"),
        (networks.convnet, {"norm": "layer"}, r"encoder.norm='layer': choose batch or group"),
        (networks.resnet18, {"stem": "big"}, r"encoder.stem='big': choose cifar .* or imagenet"),
        (networks.convnet, {"widths": (4, 8), "strides": (2,)}, r"widths has 2 entries, encoder.strides 1"),
        *((networks.vit, VIT | size, SIZE) for size in ({"width": 10}, {"depth": 0}, {"heads": 0}, {"width": 0})),
        (networks.vit, {**VIT, "patch_size": 5}, r"encoder\.patch_size=5 does not divide images of 32 pixels"),
        (networks.vit, {**VIT, "patch_size": 0}, r"encoder\.patch_size=0 does not divide"),
        (
            networks.vit,
            {**VIT, "features": "max"},
            r"encoder\.features='max': choose cls or class or mean or cls\+mean or patches",
        ),
        (networks.mobilenet_v3, {"size": "tiny"}, r"encoder\.size='tiny': choose small or large"),
    ],
)
def test_mistakes_of_the_user_are_errors_of_one_line(build, arguments, message: str) -> None:
    with pytest.raises(MethodError, match=message) as caught:
        build(**arguments)
    assert "\n" not in str(caught.value)
