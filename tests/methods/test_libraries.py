"""Encoders of torchvision and timm: their own networks without the classifier, and nothing that loads by itself."""

import re
import socket
import warnings

import pytest
import torch
from torch import nn
from torchvision import models

from methods import networks
from methods.base import MethodError
from methods.networks import libraries

FAMILIES = (
    *(("resnet18", {}, 512), ("mobilenet_v3_small", {"width_mult": 0.5}, 512), ("swin_t", {}, 768)),
    *(("mobilenet_v2", {"width_mult": 0.25}, 1280), ("squeezenet1_1", {}, 512)),
)
"""A classifier that is one layer by three names, the last of a sequence, and a convolution."""
FURTHER = {
    **{"efficientnet_b0": 1280, "densenet121": 1024, "vgg11": 4096, "convnext_tiny": 768},
    **{"vit_b_16": 768, "shufflenet_v2_x0_5": 1024, "regnet_y_400mf": 440},
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch):
    """No test here reaches a network."""

    def refuse(*_: object, **__: object):
        raise AssertionError("a network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize(
    ("name", "options", "dim"),
    [*FAMILIES, *(pytest.param(name, {}, dim, marks=pytest.mark.long) for name, dim in FURTHER.items())],
)
def test_a_family_of_torchvision_is_its_own_network_without_classifier(name: str, options: dict, dim: int):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder = networks.torchvision(name=name, image_size=32, **options)
    assert encoder.dim == dim
    own, theirs = encoder.backbone.state_dict(), models.get_model(name, **encoder.model.options).state_dict()
    head = {f"{encoder.model.classifier}.weight", f"{encoder.model.classifier}.bias"}
    assert theirs.keys() - own.keys() == head & theirs.keys() != set()
    assert {key: value.shape for key, value in own.items()} == {key: theirs[key].shape for key in own}
    assert all(module.training for module in encoder.modules())
    assert encoder.eval()(torch.rand(2, 3, 32, 32)).shape == (2, dim)


def test_the_width_is_measured_without_a_trace_and_the_dropout_of_a_classifier_goes_with_it():
    torch.manual_seed(3)
    plain = models.mobilenet_v3_small()
    after = torch.rand(1)
    torch.manual_seed(3)
    encoder = networks.torchvision(name="mobilenet_v3_small", image_size=32)
    assert torch.equal(torch.rand(1), after)
    theirs = plain.state_dict()
    assert all(torch.equal(value, theirs[key]) for key, value in encoder.backbone.state_dict().items())
    for built, kept in (
        (encoder, 0),
        (networks.torchvision(name="vgg11", image_size=32), 1),
    ):  # of one and two Dropouts
        assert sum(isinstance(module, nn.Dropout) for module in built.modules()) == kept


def check_refused(build, arguments: dict, line: str):
    with pytest.raises(MethodError, match=re.escape(line)) as caught:
        build(**arguments)
    assert "\n" not in str(caught.value)


def test_features_are_those_that_the_classifier_reads():
    encoder = networks.torchvision(name="efficientnet_b0", image_size=32).eval()
    plain = models.efficientnet_b0().eval()
    plain.load_state_dict(encoder.backbone.state_dict(), strict=False)
    seen: list[torch.Tensor] = []
    plain.classifier[1].register_forward_hook(lambda module, given, result: seen.append(given[0]))
    images = torch.rand(2, 3, 32, 32)
    plain(images)
    assert torch.equal(encoder(images), seen[0])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"name": "resnet81"}, "'resnet81': torchvision has no model of this name: did you mean resnet18"),
        ({"name": "zzz"}, "give one of its 80 models"),
        ({"name": "resnet18", "width_mult": 2}, "resnet18 cannot be built by torchvision with width_mult=2: TypeError"),
        ({"name": "resnet18", "in_channels": 1}, "read 3 channels, the images have 1: set data.channels=3"),
        ({"name": "alexnet", "image_size": 32}, "alexnet cannot read images of 3 x 32 x 32"),
        ({"name": "googlenet", "init_weights": False}, "set encoder.aux_logits=false"),
        *(
            ({"name": "resnet18", key: value}, f"encoder.{key}: torchvision's resnet18")
            for key, value in {"num_classes": 10, "weights": "X", "weights_backbone": "X", "pretrained": True}.items()
        ),
        *(
            ({"name": "resnet18", "norm_layer": value}, "no address and no path")
            for value in ("https://x.org/a.pt", ["a", {"b": "../x.pt"}], {"url": "x"})
        ),
    ],
)  # fmt: skip
def test_what_torchvision_cannot_build_is_one_line(arguments: dict, line: str):
    check_refused(networks.torchvision, arguments, line)


def test_without_timm_a_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(MethodError, match=r"needs the package timm .*pip install timm"):
        networks.timm(name="resnet18")


class TestTimm:
    @pytest.fixture(autouse=True)
    def timm(self):
        return pytest.importorskip("timm")

    @pytest.mark.parametrize(
        ("name", "channels"), [("resnet18", 1), ("vit_tiny_patch16_224", 3), ("mobilenetv3_small_050", 3)]
    )
    def test_a_model_is_its_own_network_without_classifier(self, timm, name, channels):
        encoder, images = networks.timm(name=name, in_channels=channels, image_size=32), torch.rand(2, channels, 32, 32)
        plain = timm.create_model(name, num_classes=0, **encoder.model.options)
        plain.load_state_dict(encoder.backbone.state_dict())
        assert torch.equal(encoder.eval()(images), plain.eval()(images))
        assert encoder.dim == (1024 if name == "mobilenetv3_small_050" else plain.num_features)

    def test_options_are_passed_on(self):
        assert networks.timm(name="resnet18", image_size=32, block_args={}, cardinality=1, base_width=64).dim == 512
        assert networks.timm(name="resnet26t", image_size=32, img_size=32).dim == 2048

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            ({"name": "resnet81"}, "timm has no model of this name: did you mean"),
            ({"name": "hf-hub:somebody/model"}, "timm has no model of this name"),
            ({"name": "local-dir:/tmp/x"}, "timm has no model of this name"),
            ({"name": "resnet18.a1_in1k"}, "timm has no model of this name: did you mean"),
            ({"name": "resnet18", "nonsense": 3}, "resnet18 cannot be built by timm with nonsense=3: TypeError"),
            ({"name": "resnet18", "global_pool": ""}, "resnet18 returns [1, 512, 7, 7] for one image"),
            ({"name": "resnet26t", "img_size": 64, "image_size": 32}, "img_size=64: the run's images have a side"),
            *(
                ({"name": "resnet18", key: value}, f"encoder.{key}: timm's resnet18 is built without")
                for key, value in {
                    "pretrained": True, "checkpoint_path": "x.pt", "pretrained_cfg": {"url": "x"},
                    "pretrained_cfg_overlay": {"file": "x"}, "features_only": True, "cache_dir": "x", "in_chans": 4,
                    "num_classes": 3, "pretrained_strict": False, "out_indices": [1],
                }.items()
            ),
        ],
    )  # fmt: skip
    def test_what_timm_cannot_build_is_one_line(self, arguments, line):
        check_refused(networks.timm, arguments, line)

    def test_a_classifier_of_timm_is_the_one_of_its_files(self, timm):
        for name in ("resnet18", "convnext_atto", "vit_tiny_patch16_224"):
            encoder = networks.timm(name=name, image_size=32)
            with torch.device("meta"):
                plain = timm.create_model(name)
            head = {f"{encoder.model.classifier}.weight", f"{encoder.model.classifier}.bias"}
            assert plain.state_dict().keys() - encoder.backbone.state_dict().keys() == head


def test_a_name_of_weights_is_looked_up_and_the_moving_alias_is_refused():
    entry = libraries.torchvision_weights("resnet18", "IMAGENET1K_V1")
    assert libraries.hub_file(entry).name == "resnet18-f37072fd.pth"
    with pytest.raises(MethodError, match="no such weights of resnet50; choose IMAGENET1K_V1, IMAGENET1K_V2"):
        libraries.torchvision_weights("resnet50", "DEFAULT")
