"""Loggers of scalars, records and figures: W&B, offline unless the user is logged in and a server answers, or CSV."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import CSVLogger
from omegaconf import DictConfig, OmegaConf

from benchmark.tracking.clients import by_client
from benchmark.tracking.logged import config_of, summary, tags
from benchmark.tracking.record import known_at_start
from benchmark.tracking.wandb_run import Notify, WandbRun, options, print_to_stderr
from leaderboards.schema import Record
from leaderboards.store import name

RunLogger = CSVLogger | WandbRun


@contextmanager
def end_on_error(logger: RunLogger) -> Iterator[None]:
    """Ends W&B's run where an error stops the training, so that the next run does not log into it."""
    try:
        yield
    except Exception:
        if isinstance(logger, WandbRun):
            logger.finalize("failed")
        raise


def close(logger: RunLogger, result: Record, pictures: dict[str, Path]) -> None:
    """Ends the run; with W&B, after logging the record as summary, the figures and, if they were scored, clients."""
    if isinstance(logger, WandbRun):
        clients = [[client, cell.mean] for client, cell in by_client([result]).items()]
        tables = {"clients": (["client", "accuracy (%)"], clients)} if clients else {}
        logger.log_result(summary(result), config_of(result), pictures, tables)
    logger.finalize("success")


def open_logger(config: DictConfig, folder: Path, notify: Notify = print_to_stderr) -> RunLogger:
    """The config's logger; W&B works offline, in the run's folder, unless the user is logged in and a server answers.

    notify: prints the line that says why W&B is offline, or what of it failed.
    """
    first = rank_zero_only.rank == 0  # type: ignore[attr-defined]
    if config.logger == "csv" or not first:  # other ranks log nothing
        warnings.filterwarnings("ignore", "Experiment logs directory")  # its rows are rewritten from the history
        return CSVLogger(save_dir=folder, name="", version="csv", flush_logs_every_n_steps=1)  # rounds are long
    known = known_at_start(config)
    content = {**config_of(known), "composed": OmegaConf.to_container(config, resolve=True)}
    given = options(name(known), str(folder.resolve()), tags(known), content, folder)
    return WandbRun(folder, {**given, "resume": "allow"}, notify)
