"""Toy method and objective for tests of the interface, and runs of them on the tiny scenario."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from benchmark.experiment.run import Run
from methods import trees
from methods.base import Batch, Client, FederatedMethod, Mean, Message, Objective, Outputs, Phase, Tree, Visit
from methods.maths import nt_xent
from methods.networks import Encoder, convnet, mlp
from methods.objectives.simclr import SimCLR
from tests import run_helpers


def linear() -> Encoder:
    """An encoder without convolutions, of images 3 x 8 x 8."""
    return Encoder(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 8), torch.nn.ReLU()), 8)


FIT = Phase("fit", uplink={"weights": Mean("examples")})
EVERYONE = "federation.participation=1"


def prepared(
    folder: Path, method: type, *overrides: str, objective: Any = "simclr", addons: Sequence[type] = ()
) -> Run:
    """A run of the tiny scenario with any method class, built from a config file as a user's own method is."""
    folder.mkdir(parents=True, exist_ok=True)
    if not isinstance(objective, str):
        file = folder / f"own_{objective.__name__.lower()}.yaml"
        file.write_text(f"objective:\n  class: {objective.__module__}.{objective.__name__}\n")
        objective = str(file)
    file = folder / f"own_{method.__name__.lower()}.yaml"
    listed = ", ".join(f"{{class: {addon.__module__}.{addon.__name__}}}" for addon in addons)
    text = f"objective: {objective}\nmethod:\n  class: {method.__module__}.{method.__name__}\n  addons: [{listed}]\n"
    file.write_text(text)
    return run_helpers.build_run(folder, str(file), *overrides)


def train_run(folder: Path, method: type, *overrides: str, **kwargs: Any) -> Run:
    run = prepared(folder, method, *overrides, **kwargs)
    run.loop.fit()
    return run


def fit_pooled(
    method: FederatedMethod,
    data: LightningDataModule,
    folder: Path,
    epochs: int = 1,
    callbacks: Sequence[Callback] = (),
) -> Trainer:
    """Trains a method on all images together by Lightning's own Trainer."""
    quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "logger"), False)
    saves = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    given: Any = {**quiet, "enable_checkpointing": saves, "callbacks": [*callbacks]}
    trainer = Trainer(max_epochs=epochs, accelerator="cpu", default_root_dir=folder, **given)
    trainer.fit(method, data)
    return trainer


def replies(run: Run, phase: str | None = None) -> list[tuple[Visit, Message]]:
    """A list that fills during the run with each visit and a copy of its message, of one phase or of all."""
    return run_helpers.collect_visits(run, lambda done: (done.visit, trees.clone(done.message)), phase)


def first_round(folder: Path, *words: str, phase: str | None = None) -> tuple[Run, Tree, list[tuple[Visit, Message]]]:
    """A run after its first round, the server's weights before it, and what `replies` has seen."""
    run = run_helpers.build_run(folder, *words)
    sent = replies(run, phase)
    run.loop.restore()
    before = trees.clone(run.loop.server["weights"])
    run.loop.run_round(0)
    return run, before, sent


def tiny(**kwargs: Any) -> FederatedMethod:
    torch.manual_seed(0)
    return FederatedMethod(SimCLR(convnet(widths=(4, 6), strides=(2, 2)), projector=(5, 4)), **kwargs)


def shift(module: torch.nn.Module, by: float) -> None:
    """Adds a number to every parameter."""
    for parameter in module.parameters():
        parameter.data += by


def shown(run: Run, *views: str, client: int | None = None) -> Batch:
    """A batch of all public images, or of all of a client's."""
    (batch,) = run.data.batches(client, views, 1000, order=None, views=torch.Generator(), device="cpu")
    return batch


@torch.no_grad()
def embedded(method: FederatedMethod, images: Tensor) -> Tensor:
    """The embeddings of images by a method's current weights, in eval mode."""
    return method.eval().objective.embed(images)[1]


def visit_of(phase: Phase, message: Message | None = None) -> Visit:
    return Visit(0, 1, phase, Client(0, 5), message or {}, {}, torch.Generator())


class Toy(FederatedMethod):
    """A method with a list, in which subclasses record their calls."""

    def __init__(self, objective: Objective, **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        self.calls: list[Any] = []


class Follow(Objective):
    """An objective with an EMA target and a queue of the target's outputs."""

    ema: ClassVar[dict[str, str]] = {"target": "projector"}
    queues = ("bank",)

    def __init__(self, encoder: Encoder, *, projector: Sequence[int] = (8,), momentum: float = 0.5) -> None:
        super().__init__(encoder)
        self.projector = mlp((encoder.dim, *projector))
        self.target = deepcopy(self.projector).requires_grad_(False)
        self.momentum = momentum
        self.add_queue("bank", 25, projector[-1])

    def forward(self, *views: Tensor, extra: Sequence[Tensor] = ()) -> Outputs:
        out = super().forward(*views, extra=extra)
        with torch.no_grad():
            targets = tuple(self.target(h) for h in out.representations)
        return out._replace(targets=targets, push={"bank": targets[0]})

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        return nt_xent(*out.embeddings)
