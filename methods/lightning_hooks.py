"""Trainer().fit on pooled data: one client, no exchange. These hooks are Lightning's; the loop has its own ways."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from methods.parts import Parts
from methods.types import Batch, Client, MethodError, Turn, Visit


class TrainerHooks(Parts):
    """What Lightning's Trainer calls of a method, and the loop does not."""

    def on_fit_start(self) -> None:
        """Starts the server and lets client 0 receive, so that the first phase can train."""
        own: Any = self
        phase = next(iter(own.plan(0)), own.phase)
        if phase.work != "train":
            raise MethodError(
                f"Trainer().fit needs a method whose first phase trains; {type(self).__name__} starts with "
                f"{phase.name!r} ({phase.work}): run it with `python -m benchmark run`"
            )
        client = Client(0, examples=getattr(getattr(self.trainer, "datamodule", None), "examples", 1))
        stream = torch.Generator()
        turn = Turn(0, 1, phase, (client,), (client,), stream)
        mail = own.hook("send", phase)(own.init_server(turn), turn)
        visit = Visit(0, 1, phase, client, mail.to(0), {}, stream)
        visit.memory = own.hook("init_client", phase)(visit)
        own.start_visit(visit)
        own.visiting = visit

    def on_train_epoch_start(self) -> None:
        """Lets the objective look at the images before an epoch, which stands for a round."""
        own: Any = self
        own.objective.receive(replace(own.visiting, round=self.trainer.current_epoch))
        if (look := self._pooled()) is not None:
            own.start_epoch(look, own.stream)

    def _pooled(self) -> Callable[[], Iterator[Batch]] | None:
        """Passes over the pooled images as they are, where its data module can make them."""
        look = getattr(getattr(self.trainer, "datamodule", None), "look", None)
        return None if look is None else partial(look, self.device)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Sets the learning rate."""
        own: Any = self
        trainer = self.trainer
        total = float(trainer.estimated_stepping_batches)
        optimizers = self.optimizers()
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
            set_learning_rate(optimizer, own.schedule(trainer.global_step / total))


def set_learning_rate(optimizer: Any, factor: float) -> float:
    """Sets every group's rate to `factor` times the one it was built with; returns the first group's new rate."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
    return optimizer.param_groups[0]["lr"]
