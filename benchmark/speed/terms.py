"""The terms of docs/explanation/scale.md: what a million clients, and what large images cost."""

import io
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmark.federation.checkpoint import Checkpoint
from benchmark.federation.client_state import ClientState
from benchmark.rng import Streams
from benchmark.speed.timing import Line, Log, Spread, seconds, spread
from datamodules.partition import iid
from datamodules.parts import Parts
from datamodules.recipe import Recipe
from datamodules.views import augment
from methods.networks import resnet18
from methods.objectives.simclr import SimCLR

CLIENTS, IMAGES_PER_CLIENT = 1_000_000, 10
FILES = 20_000
SIDE = 224


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
