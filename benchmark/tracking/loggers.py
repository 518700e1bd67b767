"""Where scalars, the record and figures go: W&B, offline unless the user is logged in, or plain CSV."""

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
"""Letters of a tag that W&B takes."""


def flat(result: Record) -> dict[str, float]:
    """A record's scores as W&B's summary holds them: "protocol/metric" -> value."""
    return {
        f"{protocol}/{metric}": value for protocol, own in result["scores"].items() for metric, value in own.items()
    }


class RunLogger:
    """A Lightning logger, and the end of a run.

    Args:
        logger: takes scalars by round.
    """

    def __init__(self, logger: Logger) -> None:
        self.logger = logger

    @property
    def starts_over(self) -> bool:
        """Whether a resumed run loses what it logged before: the CSV file is written anew."""
        return isinstance(self.logger, CSVLogger)

    def log_metrics(self, numbers: dict[str, float], step: int) -> None:
        """Scalars of a round."""
        self.logger.log_metrics(numbers, step=step)

    @contextmanager
    def open(self) -> Iterator[None]:
        """While the run is played: W&B's run is ended where an error stops it, or the next one would log into it."""
        try:
            yield
        except Exception:
            if isinstance(self.logger, WandbLogger):
                import wandb

                wandb.finish(exit_code=1)
            raise

    def close(self, result: Record, pictures: dict[str, Path]) -> None:
        """W&B: the record as summary, figures as media; then ends the run."""
        if isinstance(self.logger, WandbLogger):
            import wandb

            self.logger.experiment.summary.update({**flat(result), "record": result})
            for name, file in pictures.items():
                self.logger.log_image(f"figures/{name}", [str(file)])
            wandb.finish()
        else:
            self.logger.finalize("success")


def open_logger(config: DictConfig, folder: Path) -> RunLogger:
    """The logger a config asks for; W&B works offline, in the run's own folder, where nobody is logged in."""
    first = rank_zero_only.rank == 0  # type: ignore[attr-defined]
    if config.logger == "csv" or not first:  # ranks that log nothing need no service of W&B's
        warnings.filterwarnings("ignore", "Experiment logs directory")  # its rows are written anew from the history
        return RunLogger(CSVLogger(save_dir=folder, name="", version="csv"))
    import wandb

    os.environ.setdefault("WANDB_SILENT", "true")
    wandb.setup()  # hears that it is to be silent before it first has something to say
    content: Any = OmegaConf.to_container(config, resolve=True)
    key = f"{config.scenario}/{config.row}/seed{config.seed}"
    logger = WandbLogger(
        project="fulcrum",
        name=key,
        id=hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12],
        group=f"{config.scenario}/{config.row}",
        tags=[tag[:TAG] for tag in (config.scenario, config.row, config.objective["name"])],
        save_dir=folder,
        mode=os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False, verify=False) else "offline"),
        config=content,
    )
    return RunLogger(logger)
