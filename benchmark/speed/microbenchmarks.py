"""The terms from which docs/scale.md derives a million clients and images of ImageNet's size."""

import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmark.federation.checkpoint import Checkpoint
from benchmark.federation.client_state import ClientState
from benchmark.rng import Streams
from benchmark.speed.timing import Line, Say, seconds, spread
from datamodules.partition import Parts, iid
from datamodules.recipe import Recipe
from datamodules.views import augment
from methods.networks import resnet18
from methods.objectives.simclr import SimCLR

TITLE = "Terms of a million clients, and of large images"
CLIENTS, EACH = 1_000_000, 10
FILES = 20_000
SIDE = 224


def measure(repetitions: int, say: Say) -> list[Line]:
    """Each term on its own."""
    with tempfile.TemporaryDirectory() as folder:
        lines = [*_clients(repetitions), *_memories(Path(folder), repetitions), *_images(repetitions)]
    return lines


def _line(what: str, unit: str, repetitions: int, figure: Callable[[], float]) -> Line:
    return Line(what, spread(figure() for _ in range(repetitions)), unit)


def _clients(repetitions: int) -> list[Line]:
    """Drawing a cohort, and holding who has what."""
    streams = Streams(0)
    labels = np.zeros(CLIENTS * EACH, dtype=np.int64)
    held: list[Parts] = []

    def deal() -> float:
        held.clear()
        return seconds(lambda: held.append(Parts(iid(labels, CLIENTS, seed=0))))

    return [
        _line(
            f"a cohort of 100 drawn from {CLIENTS:,}",
            "ms",
            repetitions,
            lambda: 1000 * seconds(lambda: streams.cohort(0, CLIENTS, 100 / CLIENTS)),
        ),
        _line(f"{CLIENTS * EACH:,} images dealt to {CLIENTS:,} clients", "s", min(3, repetitions), deal),
        _line(
            "the lists of that",
            "MiB",
            1,
            lambda: (held[0].indices.nbytes + held[0].sizes.nbytes + held[0].ends.nbytes) / 2**20,
        ),
    ]


def _memories(folder: Path, repetitions: int) -> list[Line]:
    """What a stateful method pays for each client, and for all of them each round."""
    kept = {"memory": {name: p.detach() for name, p in resnet18().named_parameters()}}
    memory = ClientState(folder / "memory")

    def write() -> float:
        return 1000 * seconds(lambda: memory.stage({0: memory.write(0, 0, "fit", kept)}))

    lines = [
        _line("resnet18's memory of a client written", "ms", repetitions, write),
        _line("and read", "ms", repetitions, lambda: 1000 * seconds(lambda: memory[0])),
    ]
    for client in range(FILES):
        (memory.folder / f"client{client}-round0-fit.pt").touch()
    memory.index = {client: f"client{client}-round0-fit.pt" for client in range(FILES)}
    lines.append(
        _line(f"clearing up among {FILES:,} memories", "ms", repetitions, lambda: 1000 * seconds(memory.commit))
    )
    checkpoint = Checkpoint(folder, "terms")
    index = {client: f"client{client}-round{client}-fit.pt" for client in range(CLIENTS)}
    lines.append(
        _line(
            f"a checkpoint that names {CLIENTS:,} memories",
            "s",
            repetitions,
            lambda: seconds(lambda: checkpoint.save({"memory": index})),
        )
    )
    return lines


def _images(repetitions: int) -> list[Line]:
    """Decoding, views and steps at SIDE pixels."""
    generator, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    photograph = io.BytesIO()
    rough = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    rough.resize((500, 375), Image.Resampling.BICUBIC).save(photograph, "JPEG", quality=90)

    def decode() -> float:
        photograph.seek(0)
        return 1000 * seconds(lambda: Image.open(photograph).convert("RGB").resize((SIDE, SIDE)))

    images = torch.from_numpy(rng.integers(0, 256, (64, 3, SIDE, SIDE), dtype=np.uint8))
    recipe = Recipe(SIDE)
    model = SimCLR(resnet18(stem="imagenet"), projector=(512, 128)).to(memory_format=torch.channels_last)

    def step(precision: torch.dtype) -> float:
        views = [torch.rand(16, 3, SIDE, SIDE).contiguous(memory_format=torch.channels_last) for _ in range(2)]
        began = time.perf_counter()
        with torch.autocast("cpu", dtype=precision, enabled=precision != torch.float32):
            out = model(*views)
        model.loss(out, None).backward()  # type: ignore[arg-type] # it looks at the embeddings alone
        return 16 / (time.perf_counter() - began)

    step(torch.float32)
    return [
        _line("a photograph of 500 x 375 decoded and resized", "ms", repetitions, decode),
        _line(
            f"views of {SIDE} pixels", "a second", repetitions,
            lambda: len(images) / seconds(lambda: augment(images, recipe, generator)),
        ),
        _line(f"resnet18 at {SIDE} pixels, fp32", "images/s", repetitions, lambda: step(torch.float32)),
        _line(f"resnet18 at {SIDE} pixels, bf16", "images/s", repetitions, lambda: step(torch.bfloat16)),
    ]  # fmt: skip
