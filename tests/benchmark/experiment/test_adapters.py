"""`encoder.adapter`: adapters by peft under every method, their averages, and what is exported of them."""

import json
import re
import sys
from copy import deepcopy
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from benchmark.cli.main import main
from benchmark.configuration.files import read
from benchmark.errors import ConfigError
from benchmark.experiment import adapters
from methods import networks, trees
from methods.base import MethodError
from methods.networks.transformers import split_attention
from tests.methods import test_measures
from tests.methods.contract import PROJECTOR, MethodContract
from tests.methods.frozen import FrozenContract, check_interrupted
from tests.methods.toys import EVERYONE, first_round
from tests.run_helpers import TINY, build_run, execute_run, train_run

pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="adapters need the extra peft")


def lora(targets="qkv,proj", rank=2, extra="", encoder="tests.methods.vits.small", name="lora"):
    """Override of a config: this encoder with this adapter."""
    ranked = f"rank: {rank}, " * (name != "ia3")
    return f"encoder={{class: {encoder}, adapter: {{name: {name}, {ranked}targets: [{targets}]{extra}}}}}"


VIT = 4 * (8 * 3 * 16 + 8 + 8 + 5 * 8 + 3 * (4 * 8 + 24 * 8 + 24 + 8 * 8 + 8 + 32 * 8 + 32 + 8 * 32 + 8) + 16)
"""Bytes of the small transformer: patches, class token, five positions, three layers of width 8, the last LayerNorm."""
FACTORS = 4 * 3 * (2 * 8 + 24 * 2 + 2 * 8 + 8 * 2)
"""Bytes of A and B of rank 2 for qkv and proj of three layers."""
HEADS = 4 * (PROJECTOR + 2 * 12)
BASES = 4 * 3 * (24 * 8 + 8 * 8)
"""Bytes of the matrices qkv and proj."""


class TestLora(FrozenContract, MethodContract):
    overrides = (lora(),)
    sent, frozen = FACTORS + HEADS, VIT


class TestProduct(FrozenContract, MethodContract):
    overrides = (lora(extra=", average: product"),)
    sent, down, frozen = FACTORS + HEADS, FACTORS + HEADS + BASES, VIT - BASES


class TestFirstFactorFrozen(FrozenContract):
    overrides = (lora(extra=", average: freeze-a"),)
    sent, frozen = FACTORS - 4 * 3 * 2 * (2 * 8) + HEADS, VIT + 4 * 3 * 2 * (2 * 8)


REFUSING = ("progfedssl", "lwfedssl", "ldawa")


@pytest.mark.parametrize("method", [each for each in test_measures.GRID if each not in REFUSING])
def test_under_every_method_only_adapter_and_heads_move_and_a_resumed_run_is_the_unbroken_one(method, tmp_path):
    words = [w for w in test_measures.OVERRIDES[method] if not w.startswith("encoder=")]
    run = check_interrupted(tmp_path, method, *words, lora(), "federation.rounds=2")
    names = {path[-1] for path, _ in trees.leaves(run.loop.server) if "backbone" in str(path[-1])}
    assert all("lora_" in name for name in names)
    other = build_run(tmp_path / "start", method, *words, lora(), "federation.rounds=2").loop.method.frozen()
    assert all(
        torch.equal(leaf, dict(trees.leaves(other))[path]) for path, leaf in trees.leaves(run.loop.method.frozen())
    )


def products(layers, weights):
    """s B A of each layer by NumPy, of weights {part: {name: tensor}}."""
    found = dict(trees.leaves(weights))
    return [each.scale * (found[each.b].double().numpy() @ found[each.a].double().numpy()) for each in layers]


def test_average_product_is_the_mean_of_products_and_that_of_factors_is_not(tmp_path):
    gaps, distances = {}, {}
    for average in ("factors", "product", "freeze-a"):
        words = (lora(extra=f", average: {average}"), EVERYONE, "training.epochs=3", "optimizer.lr=0.5")
        run, before, sent = first_round(tmp_path / average, "fedavg", *words)
        encoder = run.loop.method.objective.encoder
        encoder.trained_adapter = encoder.trained_adapter._replace(average="product")
        layers = adapters.factors(encoder)
        frozen = {"encoder": {name: tensor.clone() for name, tensor in encoder.state_dict().items()}}
        total = sum(visit.client.examples for visit, _ in sent)
        clients = [products(layers, trees.overlay(frozen, message["weights"])) for _, message in sent]
        shares = [visit.client.examples / total for visit, _ in sent]
        wanted = [
            sum(share * each for share, each in zip(shares, layer, strict=True)) for layer in zip(*clients, strict=True)
        ]
        server = trees.overlay(frozen, run.loop.server["weights"])
        moved = products(layers, server)
        if average == "product":
            old, new = dict(trees.leaves(before)), dict(trees.leaves(server))
            moved = [(new[e.base] - old[e.base]).double().numpy() + each for e, each in zip(layers, moved, strict=True)]
        gaps[average] = max(abs(a - b).max() for a, b in zip(moved, wanted, strict=True))
        distances[average] = max(abs(each).max() for each in wanted)
    assert gaps["product"] < 1e-6 < 1e-4 < gaps["factors"]
    assert gaps["freeze-a"] < 1e-6
    assert min(distances.values()) > 1e-3


def test_a_rank_of_the_full_width_takes_the_step_of_full_tuning(tmp_path):
    """With A the identity, B moves by the gradient of the layer's matrix, and A by nothing, since B is zero."""
    run = build_run(tmp_path, "fedavg", lora("proj", rank=8), "heads.head_norm=false")
    adapted = run.loop.method.objective.train()
    full = deepcopy(adapted)
    adapters.merge(full.encoder)
    targets = [layer for name, layer in adapted.encoder.named_modules() if name.endswith(".proj")]
    whole = [layer for layer in full.modules() if isinstance(layer, nn.MultiheadAttention)]
    for layer, attention in zip(targets, whole, strict=True):
        nn.init.eye_(layer.lora_A["default"].weight)
        attention.out_proj.weight.requires_grad_(True)
    views = torch.randn(2, 6, 3, 8, 8)
    for objective in (adapted, full):
        parameters = [each for each in objective.parameters() if each.requires_grad]
        optimizer = torch.optim.SGD(parameters, lr=0.5)
        objective.loss(objective(*views), None).backward()
        optimizer.step()
    for layer, attention in zip(targets, whole, strict=True):
        before = layer.base_layer.weight
        assert (attention.out_proj.weight - before).abs().max() > 1e-3
        torch.testing.assert_close(before + layer.get_delta_weight("default"), attention.out_proj.weight)


KINDS = {
    "vit": lora(),
    "dora": lora(name="dora"),
    "ia3": lora(name="ia3"),
    "alpha": lora(extra=", alpha: 8"),
    "convolutions": lora("0,3", encoder="methods.networks.convnet, widths: [6, 8], strides: [2, 2]"),
    "timm": lora(encoder="methods.networks.timm, name: vit_tiny_patch16_224, patch_size: 4, embed_dim: 12, depth: 2"),
    "torchvision": lora("conv1,conv2", encoder="methods.networks.torchvision, name: resnet18"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_encoder_is_that_of_the_run_and_has_the_names_of_its_architecture(kind, tmp_path):
    loop = train_run(tmp_path, "fedavg", KINDS[kind], "federation.rounds=1", "optimizer.lr=0.5").loop
    method = loop.method
    method.load(loop.server["weights"])
    wrapped, images = method.objective.encoder.eval(), torch.randn(4, 3, 8, 8)
    start = build_run(tmp_path / "start", "fedavg", KINDS[kind]).loop.method.objective.encoder.eval()
    bare = build_run(tmp_path / "bare", "fedavg", KINDS[kind].partition(", adapter")[0] + "}").loop.method
    merged = deepcopy(wrapped)
    adapters.merge(merged)
    with torch.no_grad():
        torch.testing.assert_close(merged(images), wrapped(images), rtol=1e-5, atol=1e-6)
        assert (wrapped(images) - start(images)).abs().max() > 1e-5
    assert merged.state_dict().keys() == bare.objective.encoder.state_dict().keys()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run with LoRA."""
    folder = tmp_path_factory.mktemp("adapted")
    words = [f"output={folder}/runs", f"data.cache={folder}/cache", "logger=csv", "accelerator=cpu", "threads=1"]
    words += ["row=it", "scenario=tiny", "evaluation.protocols=[geometry/v1]", "optimizer.lr=0.5"]
    section = lora(encoder="methods.networks.vit, width: 8, depth: 2, heads: 2")
    assert main(["run", TINY, "fedavg", *words, section]) == 0
    return folder / "runs" / "tiny" / "it" / "seed0"


def test_peft_loads_what_export_wrote_and_merged_weights_load_without_an_adapter(finished, tmp_path):
    for file, given in ((tmp_path / "adapter", ["format=peft"]), (tmp_path / "merged.pt", [])):
        assert main(["export", str(finished), str(file), *given]) == 0
    card = json.loads((tmp_path / "adapter.json").read_text())
    assert card["format"] == "peft"
    plain = networks.vit(**card["architecture"]["arguments"])
    merged = networks.vit(**card["architecture"]["arguments"])
    merged.backbone.load_state_dict(torch.load(tmp_path / "merged.pt"))
    start = build_run(tmp_path, "fedavg", lora(encoder="methods.networks.vit, width: 8, depth: 2, heads: 2"))
    origin = deepcopy(start.loop.method.objective.encoder)
    adapters.merge(origin)  # an adapter that has not trained is a product with zeros
    plain.load_state_dict(origin.state_dict())
    before = plain.eval().backbone(images := torch.randn(4, 3, 8, 8))
    split_attention(plain.backbone)
    loaded = pytest.importorskip("peft").PeftModel.from_pretrained(plain.backbone, tmp_path / "adapter").eval()
    torch.testing.assert_close(loaded(images), merged.eval()(images), rtol=1e-5, atol=1e-6)
    assert (loaded(images) - before).abs().max() > 1e-3


def test_rank_8_is_less_than_a_twentieth_of_the_small_transformers_uplink(tmp_path):
    """By hand: A and B of qkv and proj of 12 layers of width 384, and the projector of 384 - 512 - 256."""
    section = lora(rank=8, encoder="methods.networks.vit_small")
    words = ("data.image_size=8", "heads.projector=[512,256]", "federation.rounds=1")
    adapted = build_run(tmp_path, "fedavg", section, *words).loop.method
    full = build_run(tmp_path, "fedavg", "encoder={class: methods.networks.vit_small}", *words).loop.method
    factors = 12 * 8 * (384 + 3 * 384 + 384 + 384)
    projector = 384 * 512 + 2 * 512 + 512 * 256 + 256 + 2 * 512
    sent, whole = (trees.nbytes(method.weights()) for method in (adapted, full))
    assert sent == 4 * (factors + projector)
    assert sent < 0.05 * whole


def test_rank_8_is_less_than_a_twentieth_of_the_uplink_in_the_suite_adapt_by_its_ledger_and_by_hand(tmp_path):
    """By hand: A and B of qkv of two layers of width 96; a head of 96 - 48; of all, patches of 8 x 8 too."""
    shipped = read("scenario", "adapt")
    words = ("data.image_size=32", "data.channels=1", "federation.rounds=1", "training.steps=1")
    words += (f"heads.projector={shipped['heads']['projector']}", "evaluation.protocols=[]")
    (line,) = (line.split() for line in read("suite", "adapt")["methods"] if line.endswith("row=fedavg-lora8"))
    lora8 = [word for word in line if word.startswith("encoder.adapter.")]
    sent = []
    for more in (lora8, []):
        record, _ = execute_run(tmp_path / str(len(more)), "fedavg", f"encoder={shipped['encoder']}", *words, *more)
        sent.append(record["bytes"]["up"]["weights"] / record["bytes"]["visits"])
    head, factors = 96 * 48 + 48, 2 * 8 * (96 + 3 * 96)
    whole = (8 * 8 + 1 + 1 + 17) * 96 + 2 * (12 * 96**2 + 13 * 96) + 2 * 96
    assert sent == [4 * (factors + head), 4 * (whole + head)]
    assert (factors + head, whole, whole + head) == (10_800, 231_840, 236_496)  # as the study has them
    assert sent[0] < 0.05 * sent[1]


PRODUCT = lora(extra=", average: product")
REFUSED = [
    ("fedavg", lora("nowhere"), "no linear or convolutional layer 'nowhere': choose among conv_proj, qkv"),
    ("fedavg", lora("qvk"), r"'qvk' \(did you mean 'qkv'"),
    ("fedavg", lora(rank=9), "rank=9: .* has a matrix of rank 8: give at most that"),
    ("fedavg", lora(rank=0), "rank=0: give a whole number of at least 1"),
    ("fedavg", lora(name="lore"), r"name='lore': choose lora, dora, ia3 \(did you mean 'lora'"),
    ("fedavg", lora(""), "name the layers that it is for"),
    ("fedavg", lora(extra=", average: sum"), "average='sum': choose factors, product, freeze-a"),
    ("fedavg", lora(extra=", alpha: 0"), "alpha=0: give a number above 0"),
    ("fedavg", lora(extra=", ranks: 3"), r"unknown key 'encoder.adapter.ranks' \(did you mean 'rank'"),
    ("fedavg", lora(name="ia3", extra=", rank: 2"), "rank: ia3 has factors of outputs"),
    ("fedavg", lora(name="dora", extra=", average: product"), "a layer of dora is no sum"),
    ("fedavg", lora()[:-1] + ", freeze: all}", "all but encoder.adapter is frozen anyway"),
    ("fedavg", "encoder.adapter=lora", "give a mapping, such as"),
    ("ldawa", lora(), "LDAWA weighs each tensor by its cosine"),
    ("progfedssl", lora(), "ProgFedSSL needs all weights of the encoder"),
    ("lwfedssl", lora(), "LWFedSSL needs all weights of the encoder"),
    ("scaffold", PRODUCT, "Scaffold takes another or none in phase 'fit'"),
    ("local", PRODUCT, "Local keeps some of the encoder at its clients"),
    ("orchestra", f"{PRODUCT} objective=orchestra", "Orchestra averages target_encoder by factors"),
    ("fedavg", f"{PRODUCT} privacy.secure_aggregation=true", "does not go with privacy.secure_aggregation"),
    ("fedavg", f"{PRODUCT} compression.name=int8", "does not go with compression.name: choose average: freeze-a"),
    ("fedavg", f"{PRODUCT} method.stays=[encoder]", "FedAvg keeps some of the encoder at its clients"),
    ("fedavg", lora(extra=", alpha: .nan"), "alpha=nan: give a number above 0"),
    ("fedavg", f"{lora(encoder='methods.networks.torchvision, name: swin_t')} data.image_size=32", "one is not called"),
]


@pytest.mark.parametrize(("method", "words", "line"), REFUSED)
def test_what_cannot_be_adapted_is_refused_in_one_line(tmp_path, method, words, line):
    with pytest.raises((ConfigError, MethodError), match=line) as error:
        build_run(tmp_path, method, *re.split(r"(?<=\}) ", words))
    assert "\n" not in str(error.value)


def test_without_an_adapter_or_peft_the_line_says_so(tmp_path, monkeypatch):
    plain = build_run(tmp_path, "fedavg").loop.method.objective.encoder
    with pytest.raises(ConfigError, match="format=peft is for an encoder with an adapter"):
        adapters.write(plain, tmp_path, tmp_path / "file")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        ConfigError, match=r"encoder.adapter needs the package peft .* pip install 'fulcrum-ful\[peft\]'"
    ):
        build_run(tmp_path, "fedavg", lora())
