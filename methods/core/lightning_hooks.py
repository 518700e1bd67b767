"""Hooks of Lightning's Trainer, for `Trainer().fit` on pooled data: one client and no exchange."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from methods.core.parts import Parts
from methods.core.types import Batch, Client, RoundContext, Visit
from methods.core.validation import MethodError


class TrainerHooks(Parts):
    """What a method needs beside the federated loop's hooks to be fitted by Lightning's Trainer."""

    def on_fit_start(self) -> None:
        """Initialises the server and sends client 0 its message, so that the first phase can train."""
        method: Any = self
        phase = next(iter(method.plan(0)), method.phase)
        if not phase.learns:
            work = "no steps" if phase.skip is None else phase.work
            raise MethodError(
                f"Trainer().fit needs a method whose first phase trains; {type(self).__name__} starts with "
                f"{phase.name!r} ({work}): run it with `python -m benchmark run`"
            )
        client = Client(0, examples=getattr(getattr(self.trainer, "datamodule", None), "examples", 1))
        stream = torch.Generator()
        round_context = RoundContext(0, 1, phase, (client,), (client,), stream)
        mail = method.hook("send", phase)(method.init_server(round_context), round_context)
        visit = Visit(0, 1, phase, client, mail.to(0), {}, stream, first=True)
        visit.memory = method.hook("init_client", phase)(visit)
        method.start_visit(visit)
        method.visiting = visit

    def on_train_epoch_start(self) -> None:
        """Starts an epoch of the objective; Trainer's epochs count as rounds."""
        method: Any = self
        epoch = self.trainer.current_epoch
        method.objective.receive(replace(method.visiting, round=epoch, first=epoch == 0))
        module = getattr(self.trainer, "datamodule", None)
        plain_batches = getattr(module, "plain_batches", getattr(module, "look", None))  # look: its earlier name
        if plain_batches is not None:
            method.start_epoch(partial(plain_batches, self.device), method.stream)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Sets the learning rate, and what of the objective follows a schedule."""
        method: Any = self
        progress = self.trainer.global_step / float(self.trainer.estimated_stepping_batches)
        set_learning_rate(self.optimizers(), method.schedule(progress))
        method.objective.start_step(progress)

    def log_loss(self, parts: Mapping[str, Tensor], images: int) -> None:
        """Logs the parts of a step's loss as `train/<part>`, means over an epoch's images, where Trainer trains.

        The federated loop, which has no Trainer, averages the loss by itself.
        """
        if self._trainer is not None and self._trainer.training:  # `trainer` raises where there is none
            values = {f"train/{name}": value for name, value in parts.items()}
            self.log_dict(values, prog_bar=True, on_step=False, on_epoch=True, sync_dist=True, batch_size=images)


def set_learning_rate(optimizer: Any, factor: float) -> float:
    """Sets every group's rate to `factor` times its initial rate; returns the first group's new rate."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
    return optimizer.param_groups[0]["lr"]
