"""The parts in their order, and the cells of views and of evaluation."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmark.speed.evaluation import TEST, TRAIN, make_features
from benchmark.speed.gpu.cells import Cell, Part, Setting
from benchmark.speed.gpu.checks import contract, methods, parity
from benchmark.speed.gpu.ladder import ladder
from benchmark.speed.views import SIZE, make_images
from datamodules.compiled import apply_compiled
from datamodules.recipe import Recipe
from datamodules.views import Apply, apply, augment
from eval.features import Features
from eval.protocol import PROTOCOLS, Subject

PROBES = ("linear/v1", "linear-lbfgs/v1", "knn/v1")
REPETITIONS = 3


def views(setting: Setting) -> Iterator[Cell]:
    """Cells of SimCLR's views: by calls of 512 and of 2,048 images, eager and compiled."""
    forms: dict[str, Apply] = {"eager": apply, "compiled": apply_compiled}
    for name, form in forms.items():
        for images in (64,) if setting.tiny else (512, 2048):
            if not (setting.tiny and form is apply_compiled):  # compiling takes a minute
                yield Cell(f"{name}, {images} images a call", partial(_views, form, images, setting))


def _views(form: Apply, images: int, setting: Setting) -> dict[str, Any]:
    """Views a second, of ten calls."""
    batch, generator = make_images(images).to(setting.device), torch.Generator().manual_seed(0)

    def calls() -> None:
        for _ in range(10):
            augment(batch, Recipe(SIZE), generator, form)

    if form is apply_compiled:
        torch.compiler.reset()
    setting.timed(calls)
    return {"views_per_second": 10 * images / min(setting.timed(calls) for _ in range(REPETITIONS))}


def evaluation(setting: Setting) -> Iterator[Cell]:
    """Cells of PROBES on cached features: 50,000 and 10,000 rows of 512."""
    for name in PROBES:
        yield Cell(name, partial(_probe, name, setting))


def _probe(name: str, setting: Setting) -> dict[str, Any]:
    """Seconds and accuracy of a probe."""
    made = make_features(*((300, 100) if setting.tiny else (TRAIN, TEST)))
    x = {key: getattr(made, key).to(setting.device) for key in ("train_x", "train_y", "test_x", "test_y")}
    features = Features(**x, num_classes=made.num_classes)
    scores: dict[str, float] = {}

    def probe() -> None:
        scores.update(PROTOCOLS[name].run(Subject(features=features), torch.Generator().manual_seed(0)))

    return {"probe_seconds": setting.timed(probe), "accuracy": scores["accuracy"]}


PARTS = (
    Part("parity", 0.16, parity, first=60, timed=False),
    Part("contract", 0.05, contract, first=20, timed=False),
    Part("methods", 0.20, methods, first=10, timed=False),
    Part("views", 0.03, views),
    Part("evaluation", 0.05, evaluation),
    Part("ladder", 0.36, ladder),
)
"""Their shares leave a seventh of the time to a campaign; time that a part does not use goes to the next."""
