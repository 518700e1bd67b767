"""Loggers of scalars, records and figures: W&B, offline unless the user is logged in, or plain CSV."""

import hashlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger
from omegaconf import DictConfig, OmegaConf

from leaderboards.schema import Record

TAG = 64
"""Longest tag that W&B accepts, in characters."""


def flat(result: Record) -> dict[str, float]:
    """A record's scores for W&B's summary: "protocol/metric" -> value."""
    return {
        f"{protocol}/{metric}": value
        for protocol, metrics in result["scores"].items()
        for metric, value in metrics.items()
    }


@contextmanager
def end_on_error(logger: Logger) -> Iterator[None]:
    """Ends W&B's run where an error stops the training, so that the next run does not log into it."""
    try:
        yield
    except Exception:
        if isinstance(logger, WandbLogger):
            import wandb

            wandb.finish(exit_code=1)
        raise


def close(logger: Logger, result: Record, pictures: dict[str, Path]) -> None:
    """Ends the run; with W&B, after uploading the record as summary and the figures as media."""
    if not isinstance(logger, WandbLogger):
        logger.finalize("success")
        return
    import wandb

    logger.experiment.summary.update({**flat(result), "record": result})
    for name, file in pictures.items():
        logger.log_image(f"figures/{name}", [str(file)])
    wandb.finish()


def open_logger(config: DictConfig, folder: Path) -> Logger:
    """The config's logger; W&B works offline, in the run's folder, unless the user is logged in."""
    first = rank_zero_only.rank == 0  # type: ignore[attr-defined]
    if config.logger == "csv" or not first:  # other ranks log nothing
        warnings.filterwarnings("ignore", "Experiment logs directory")  # its rows are rewritten from the history
        return CSVLogger(save_dir=folder, name="", version="csv")
    import wandb

    os.environ.setdefault("WANDB_SILENT", "true")
    wandb.setup()  # reads WANDB_SILENT before its first message
    content: Any = OmegaConf.to_container(config, resolve=True)
    key = f"{config.scenario}/{config.row}/seed{config.seed}"
    return WandbLogger(
        project="fulcrum",
        name=key,
        id=hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12],
        group=f"{config.scenario}/{config.row}",
        tags=[tag[:TAG] for tag in (config.scenario, config.row, config.objective["name"])],
        save_dir=folder,
        mode=os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False, verify=False) else "offline"),
        config=content,
    )
