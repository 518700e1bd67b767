"""Encoders and heads against parameter counts made by hand, published ones, and torchvision's own networks."""

import itertools
from collections.abc import Callable

import pytest
import torch
import torchvision
from torch import nn

from methods import fixup, networks
from methods.base import MethodError


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_resnet18_has_the_published_size() -> None:
    encoder = networks.resnet18()
    assert encoder.dim == 512
    assert parameters(encoder) == 11_168_832
    assert sum(layer.num_features for layer in encoder.modules() if isinstance(layer, nn.BatchNorm2d)) == 4800
    assert sum(buffer.numel() for buffer in encoder.buffers() if buffer.is_floating_point()) == 9600


def test_resnet50_is_torchvisions_without_its_classifier() -> None:
    encoder = networks.resnet50(stem="imagenet")
    assert encoder.dim == 2048
    assert parameters(encoder) == 25_557_032 - (2048 * 1000 + 1000)
    small = networks.resnet50()
    assert parameters(small) == parameters(encoder) - 64 * 3 * (49 - 9)
    assert small.eval()(torch.zeros(1, 3, 16, 16)).shape == (1, 2048)


def test_fixup_resnet20_has_the_published_size_and_looks_at_each_image_alone() -> None:
    encoder = networks.fixup_resnet20(width=8)
    assert encoder.dim == 512
    assert parameters(encoder) == 17_108_399
    assert not list(encoder.buffers())
    small, images = networks.fixup_resnet20(width=1, in_channels=1), torch.randn(3, 1, 16, 16)
    torch.testing.assert_close(small(images)[:1], small(images[:1]))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_fixup_blocks_shortcut_is_shifted_where_the_image_shrinks(stride: int) -> None:
    block, x = fixup.FixupBlock(4, 4, stride, blocks=9), torch.randn(2, 4, 8, 8)
    with torch.no_grad():
        block.residual[0].bias.fill_(0.5)
    torch.testing.assert_close(block(x), (x if stride == 1 else x[:, :, ::2, ::2] + 0.5).relu())


def test_fixups_first_convolutions_shrink_with_the_number_of_blocks() -> None:
    deep, shallow = (fixup.FixupBlock(64, 64, 1, blocks).residual[1].weight.std() for blocks in (16, 1))
    assert float(shallow) == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)
    assert float(shallow / deep) == pytest.approx(4, rel=0.05)


def test_batch_statistics_normalises_by_the_batch_and_leaves_the_statistics_alone() -> None:
    norm, x = nn.BatchNorm1d(3).eval(), 5 + 2 * torch.randn(64, 3)
    assert norm.running_mean is not None
    norm.running_mean.fill_(7.0)
    before = {name: value.clone() for name, value in norm.named_buffers() if value.is_floating_point()}
    with networks.batch_statistics(norm):
        torch.testing.assert_close(norm(x).mean(dim=0), torch.zeros(3), atol=1e-5, rtol=0)
    assert all(torch.equal(getattr(norm, name), value) for name, value in before.items())
    assert not norm.training
    assert norm.momentum == 0.1
    assert float(norm(x).mean()) < -1


def test_a_fixup_block_starts_as_its_shortcut() -> None:
    block, x = fixup.FixupBlock(4, 6, 2, blocks=9), torch.randn(2, 4, 8, 8)
    out = block(x)
    torch.testing.assert_close(out[:, :4], x[:, :, ::2, ::2].relu())
    assert out.shape == (2, 6, 4, 4)
    assert not out[:, 4:].any()
    out.sum().backward()
    assert block.residual[5].weight.grad.abs().sum() > 0  # the last convolution, which starts at zero, learns first


def test_imagenet_stem_is_torchvisions_network_number_for_number() -> None:
    encoder, reference = networks.resnet18(stem="imagenet").eval(), torchvision.models.resnet18()
    reference.fc = nn.Identity()
    reference.eval().load_state_dict(encoder.backbone.state_dict())
    images = torch.rand(2, 3, 64, 64)
    assert torch.equal(encoder(images), reference(images))


@pytest.mark.parametrize(("stem", "side", "channels"), [("cifar", 4, 3), ("imagenet", 1, 3), ("imagenet", 1, 1)])
def test_stems_shrink_a_small_image_to(stem: str, side: int, channels: int) -> None:
    encoder = networks.resnet18(stem=stem, in_channels=channels).eval()
    seen = []
    encoder.backbone.layer4.register_forward_hook(lambda module, given, maps: seen.append(maps.shape))
    assert encoder(torch.rand(2, channels, 32, 32)).shape == (2, 512)
    assert seen == [(2, 512, side, side)]
    assert encoder.backbone.conv1.weight.shape == (64, channels, *((3, 3) if stem == "cifar" else (7, 7)))


def test_a_new_stem_is_initialised_as_the_rest() -> None:
    for network in (networks.resnet18(), networks.resnet18(stem="imagenet", in_channels=1)):
        weight = network.backbone.conv1.weight
        fan_out = weight.shape[0] * weight.shape[2] * weight.shape[3]
        assert weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_pytorchs_own_initialisation_is_uniform_by_fan_in(stem: str) -> None:
    """kaiming_uniform_ with a = sqrt(5): within 1 / sqrt(fan-in), with deviation 1 / sqrt(3 fan-in)."""
    for layer in networks.resnet18(stem=stem, init="default").modules():
        if isinstance(layer, nn.Conv2d):
            bound = layer.weight[0].numel() ** -0.5
            assert layer.weight.abs().max() <= bound
            assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)


def test_convnet_shapes_and_size_by_hand() -> None:
    encoder = networks.convnet()
    channels = (3, 32, 64, 128, 256)
    by_hand = sum(a * b * 9 + 2 * b for a, b in itertools.pairwise(channels))
    assert parameters(encoder) == by_hand == 388_896
    assert encoder.dim == 256
    maps: list[torch.Size] = []
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda module, given, result: maps.append(result.shape[1:]))
    assert encoder(torch.rand(2, 3, 32, 32)).shape == (2, 256)
    assert maps == [(32, 16, 16), (64, 8, 8), (128, 4, 4), (256, 4, 4)]


def test_convnet_averages_over_the_image() -> None:
    encoder, images = networks.convnet(widths=(5,), strides=(1,), in_channels=1).eval(), torch.rand(2, 1, 6, 6)
    torch.testing.assert_close(encoder(images), encoder.backbone[:3](images).mean(dim=(2, 3)))


@pytest.mark.parametrize("build", [networks.resnet18, networks.convnet])
def test_group_norm_has_no_statistics_to_average(build: Callable[..., nn.Module]) -> None:
    encoder = build(norm="group")
    assert list(encoder.buffers()) == []
    assert parameters(encoder) == parameters(build(norm="batch"))
    images = torch.rand(3, 3, 16, 16)
    encoder.train()
    torch.testing.assert_close(encoder(images)[:1], encoder(images[:1]), rtol=1e-4, atol=1e-5)  # images are independent


def test_group_norm_takes_any_width() -> None:
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


def test_mlps_have_the_published_sizes() -> None:
    """FedSC's and FLESD's heads without normalisation; BYOL's with it, less a bias that has no effect."""
    sizes = {(512, 1024, 512): 1_050_112, (512, 512, 128): 328_320}
    assert {widths: parameters(networks.mlp(widths, norm=False)) for widths in sizes} == sizes
    assert parameters(networks.mlp((512, 4096, 2048))) == 10_500_096 - 4096


def test_last_norm_has_no_affine_parameters_and_standardises() -> None:
    head = networks.mlp((8, 6, 4), last_norm=True)
    assert parameters(head[-1]) == 0
    z = head(torch.randn(64, 8))
    torch.testing.assert_close(z.mean(dim=0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(z.var(dim=0, unbiased=False), torch.ones(4), atol=1e-2, rtol=0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: networks.resnet18(norm="layer"), r"encoder.norm='layer': choose batch or group"),
        (lambda: networks.convnet(norm="layer"), r"encoder.norm='layer': choose batch or group"),
        (lambda: networks.resnet18(stem="big"), r"encoder.stem='big': choose cifar .* or imagenet"),
        (lambda: networks.convnet(widths=(4, 8), strides=(2,)), r"widths has 2 entries, encoder.strides 1"),
    ],
)
def test_mistakes_of_the_user_are_errors_of_one_line(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(MethodError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)
