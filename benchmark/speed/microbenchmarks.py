"""Microbenchmarks: the terms of docs/scale.md, and the evaluation protocols on cached features.

An author's probe feeds `nn.Linear` and `torch.optim.Adam` from a DataLoader over a TensorDataset; one of its epochs is
timed and multiplied by their number. scikit-learn's logistic regression sees the features standardised as
`linear-lbfgs/v1` does it, at the strength that probe chose.
"""

import io
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmark.federation.checkpoint import Checkpoint
from benchmark.federation.client_state import ClientState
from benchmark.rng import Streams
from benchmark.speed.timing import Line, Log, Spread, interleaved, ratio, seconds, spread
from datamodules.partition import Parts, iid
from datamodules.recipe import Recipe
from datamodules.views import augment
from eval.features import Features
from eval.linear import lbfgs_probe, standardised
from eval.protocol import PROTOCOLS, Subject
from methods.networks import resnet18
from methods.objectives.simclr import SimCLR

CLIENTS, IMAGES_PER_CLIENT = 1_000_000, 10
FILES = 20_000
SIDE = 224

TRAIN, TEST, WIDTH, CLASSES = 50_000, 10_000, 512, 10
LINEAR, SOLVED, NEIGHBOURS = "linear/v1", "linear-lbfgs/v1", "knn/v1"
LOADER, FEDX, SKLEARN = "loader, batch 512", "loader, batch 64", "scikit-learn"


def terms(repetitions: int, log: Log) -> list[Line]:
    """Each term of a million clients and of large images."""
    with tempfile.TemporaryDirectory() as folder:
        return [*_client_terms(repetitions), *_state_terms(Path(folder), repetitions), *_image_terms(repetitions)]


def _timed(what: str, unit: str, repetitions: int, call: Callable[[], object]) -> Line:
    """Duration of a call; unit: s or ms."""
    return Line(what, spread({"s": 1, "ms": 1000}[unit] * seconds(call) for _ in range(repetitions)), unit)


def _client_terms(repetitions: int) -> list[Line]:
    """Drawing a cohort, and storing which client has which images."""
    labels = np.zeros(CLIENTS * IMAGES_PER_CLIENT, dtype=np.int64)
    draw = partial(Streams(0).cohort, 0, CLIENTS, 100 / CLIENTS)
    parts = Parts(iid(labels, CLIENTS, seed=0))
    size = (parts.indices.nbytes + parts.sizes.nbytes + parts.ends.nbytes) / 2**20
    del parts
    what = f"{len(labels):,} images dealt to {CLIENTS:,} clients"
    return [
        _timed(f"a cohort of 100 drawn from {CLIENTS:,}", "ms", repetitions, draw),
        _timed(what, "s", min(3, repetitions), lambda: Parts(iid(labels, CLIENTS, seed=0))),
        Line("the lists of that", spread([size]), "MiB"),
    ]


def _state_terms(folder: Path, repetitions: int) -> list[Line]:
    """What a stateful method costs for each client, and for all of them in each round."""
    tree = {"memory": {name: parameter.detach() for name, parameter in resnet18().named_parameters()}}
    states, checkpoint = ClientState(folder / "memory"), Checkpoint(folder, "terms")
    index = {client: f"client{client}-round{client}-fit.pt" for client in range(CLIENTS)}

    def write() -> None:
        states.stage({0: states.write(0, 0, "fit", tree)})

    lines = [
        _timed("resnet18's memory of a client written", "ms", repetitions, write),
        _timed("and read", "ms", repetitions, lambda: states[0]),
    ]
    states.index = {client: f"client{client}-round0-fit.pt" for client in range(FILES)}
    for name in states.index.values():
        (states.folder / name).touch()
    save = partial(checkpoint.save, {"memory": index})
    return [
        *lines,
        _timed(f"clearing up among {FILES:,} memories", "ms", repetitions, states.commit),
        _timed(f"a checkpoint that names {CLIENTS:,} memories", "s", repetitions, save),
    ]


def _image_terms(repetitions: int) -> list[Line]:
    """Decoding, views and steps at SIDE pixels."""
    generator, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    file = io.BytesIO()
    coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    coarse.resize((500, 375), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    images = torch.from_numpy(rng.integers(0, 256, (64, 3, SIDE, SIDE), dtype=np.uint8))
    model = SimCLR(resnet18(stem="imagenet"), projector=(512, 128)).to(memory_format=torch.channels_last)
    views = [torch.rand(16, 3, SIDE, SIDE).contiguous(memory_format=torch.channels_last) for _ in range(2)]

    def step(precision: torch.dtype) -> None:
        with torch.autocast("cpu", dtype=precision, enabled=precision != torch.float32):
            out = model(*views)
        model.loss(out, None).backward()  # type: ignore[arg-type] # it needs the embeddings alone

    def rate(count: int, call: Callable[[], object]) -> Spread:
        return spread(count / seconds(call) for _ in range(repetitions))

    def decode() -> None:
        Image.open(file).convert("RGB").resize((SIDE, SIDE))

    step(torch.float32)
    return [
        _timed("a photograph of 500 x 375 decoded and resized", "ms", repetitions, decode),
        Line(f"views of {SIDE} pixels", rate(64, partial(augment, images, Recipe(SIDE), generator)), "a second"),
        Line(f"resnet18 at {SIDE} pixels, fp32", rate(16, partial(step, torch.float32)), "images/s"),
        Line(f"resnet18 at {SIDE} pixels, bf16", rate(16, partial(step, torch.bfloat16)), "images/s"),
    ]


def evaluation(repetitions: int, log: Log) -> list[Line]:
    """Probes by the suite, by loaders and by scikit-learn, and kNN."""
    small, features = make_features(600, 200), make_features(TRAIN, TEST)
    for warm_up in _probes(small, 1e-3).values():
        warm_up()
    strength = lbfgs_probe(features, torch.Generator().manual_seed(0))["strength"]
    log(f"{TRAIN} x {WIDTH} features, {torch.get_num_threads()} threads, strength {strength:g}")
    values = interleaved(_probes(features, strength), repetitions, log)
    return [
        Line("loader at batch 64, 100 epochs (from 1) / linear-lbfgs/v1", ratio(values, FEDX, SOLVED), goal=">= 10"),
        Line("loader at batch 512, 200 epochs (from 1) / linear/v1", ratio(values, LOADER, LINEAR)),
        Line("scikit-learn, one strength / linear-lbfgs/v1, five and a last", ratio(values, SKLEARN, SOLVED)),
        *(Line(name, spread(values[name]), "s") for name in (SOLVED, LINEAR, FEDX, LOADER, SKLEARN)),
        Line("knn/v1: 200 neighbours", spread(values[NEIGHBOURS]), "s"),
    ]


def make_features(train: int, test: int) -> Features:
    """Features of ten classes of three clusters in 32 dimensions, squashed, mixed into WIDTH, blurred and rectified."""
    generator = torch.Generator().manual_seed(0)
    noise = partial(torch.randn, generator=generator)
    clusters, squash, mix = 0.75 * noise(CLASSES, 3, 32), noise(32, WIDTH) / 32**0.5, noise(WIDTH, WIDTH) / WIDTH**0.5
    n = train + test
    y, cluster = (torch.randint(high, (n,), generator=generator) for high in (CLASSES, 3))
    x = ((clusters[y, cluster] + noise(n, 32)) @ squash).tanh() @ mix + 0.3 * noise(n, WIDTH)
    x = x.relu()
    return Features(train_x=x[:train], train_y=y[:train], test_x=x[train:], test_y=y[train:], num_classes=CLASSES)


def _probes(features: Features, strength: float) -> dict[str, Callable[[], float]]:
    """Functions that return the seconds of each probe, those of loaders for all their epochs."""

    def run(protocol: str) -> None:
        PROTOCOLS[protocol].run(Subject(features=features), torch.Generator().manual_seed(0))

    return {
        **{name: partial(seconds, partial(run, name)) for name in (SOLVED, LINEAR, NEIGHBOURS)},
        FEDX: lambda: 100 * seconds(partial(_loader_epoch, features, 64, 1e-3, 1e-6)),
        LOADER: lambda: 200 * seconds(partial(_loader_epoch, features, 512, 3e-3, 0.0)),
        SKLEARN: partial(seconds, partial(_scikit_learn_probe, features, strength)),
    }


def _loader_epoch(features: Features, batch_size: int, lr: float, weight_decay: float) -> None:
    """One epoch of a linear probe, as it is commonly written."""
    loader = DataLoader(TensorDataset(features.train_x, features.train_y), batch_size, shuffle=True)
    layer = nn.Linear(WIDTH, CLASSES)
    optimizer = torch.optim.Adam(layer.parameters(), lr, weight_decay=weight_decay)
    for x, y in loader:
        loss = F.cross_entropy(layer(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _scikit_learn_probe(features: Features, strength: float) -> None:
    """scikit-learn's logistic regression of the same objective, which it divides by the strength."""
    x, test_x, _ = standardised(features)
    model = LogisticRegression(C=1 / (strength * len(x)), max_iter=1000)
    model.fit(x.numpy(), features.train_y.numpy())
    model.predict(test_x.numpy())
