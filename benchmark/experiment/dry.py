"""A run without work: its loop, with one client that receives, does one step along ones, and replies.

Messages, their bytes and what stays with the client are those of a real run; the values mean nothing.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from lightning.fabric import Fabric
from omegaconf import DictConfig
from torch import Tensor

from benchmark.configuration.compose import merge
from benchmark.distributed.launch import RankProcesses
from benchmark.execution.observations import gather_batches
from benchmark.execution.sequential import SequentialExecutor
from benchmark.experiment import factory
from benchmark.experiment.building import build_loop
from benchmark.experiment.data import Clients
from benchmark.federation.loop import FederatedLoop
from benchmark.rng import Streams
from datamodules.federated import FederatedDataModule
from datamodules.sources import Source, Split
from methods import trees
from methods.base import Cat, Visit, set_learning_rate

IMAGES = 5_000
"""Images of a client, and of the public set: a tenth of CIFAR-10."""
SHAPE = (3, 32, 32)
"""Of an image, as CIFAR's."""
CLASSES = 10
DISTINCT = 512
"""Images of noise at most that are made; a larger client holds them again and again."""


class DryRunExecutor(SequentialExecutor):
    """Visits without work, whose replies have the right shape.

    Observations of two images are repeated for all images of a client; queues count as full. optimizer: of the last
    step, with its state.
    """

    optimizer: torch.optim.Optimizer

    def _train(self, visit: Visit) -> tuple[Tensor, int]:
        """One step along a gradient of ones, so that parameters change; and full queues."""
        method, objective = self.method, self.method.objective
        self.optimizer = optimizer = method.hook("configure_optimizers", visit.phase)()
        visit.batches = visit.counted = visit.steps = 1
        visit.lr_sum = set_learning_rate(optimizer, 1.0)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        method.on_before_optimizer_step(optimizer)
        optimizer.step()
        for name in objective.queues:
            getattr(objective, f"{name}_filled").fill_(len(getattr(objective, name)))
        return torch.zeros(()), 0

    @torch.no_grad()
    def _observe(self, visit: Visit) -> None:
        """One batch of two images, its rows repeated for all images and passes."""
        phase, size = visit.phase, 2
        batch = next(self._batches(visit, size, epochs=1, steps=1, shuffled=False))
        with self.fabric.autocast():
            observed = gather_batches({}, self.method.hook("observe", phase)(batch), phase.gather)
        times = len(self.data.held_by(self._holder(visit))) * (phase.epochs or 1) / size

        def repeat(leaf: Tensor, last: int | None) -> Tensor:
            rows = round(len(leaf) * times)
            return leaf[torch.arange(min(rows, last or rows)) % len(leaf)]

        for entry, how in phase.gather.items():
            if isinstance(how, Cat):  # a sum is as it is
                observed[entry] = trees.map(partial(repeat, last=how.last), observed[entry])
        visit.observed = observed


@contextmanager
def dry_loop(
    config: DictConfig,
    executor: type[SequentialExecutor] = DryRunExecutor,
    *,
    images: int = IMAGES,
    shape: tuple[int, ...] = SHAPE,
    classes: int = CLASSES,
    public: int | None = None,
    fabric: Fabric | None = None,
) -> Iterator[FederatedLoop]:
    """A loop at its first round, of one client of so many images; its messages have the bytes of a run's.

    shape: of an image. classes: of the labels. public: images of the public set; None: as many. fabric: None: that of
    the config, on one CPU.
    """
    config.accelerator = "cpu"
    distinct = min(images, DISTINCT)
    pixels = np.random.default_rng(0).integers(0, 256, (distinct, *shape), dtype=np.uint8)
    split = Split(pixels, np.arange(distinct) % classes)
    source = Source("noise", split, split, tuple(map(str, range(classes))), "")
    method = factory.method(config, source)
    data = FederatedDataModule(
        source,
        [np.arange(images) % distinct],
        factory.recipe(config, source),
        public=np.arange(public or images) % distinct,
        channels_last=config.training.channels_last,
        dtype=method.dtype,
        drop_last=config.training.drop_last,
        smallest=config.training.min_batch_size or method.objective.min_batch_size,
    )
    fabric = fabric or factory.fabric(merge(config, ["devices=1"]), RankProcesses())
    work = executor(fabric, method, data, factory.local_training(config), Streams(config.seed))
    with tempfile.TemporaryDirectory() as folder:
        loop = build_loop(config, work, Clients(data.parts), Path(folder), everybody=True)
        loop.restore()
        yield loop
