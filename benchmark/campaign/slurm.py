"""Submission of a campaign to a cluster by submitit: several jobs that share its runs."""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmark.errors import ConfigError

EXTRA_MINUTES = 2
"""Minutes of a job beyond its campaign's budget, to start and to end."""


def submit(
    words: Sequence[str], folder: Path, *, cluster: str, jobs: int, minutes: float, options: Mapping[str, Any]
) -> list[str]:
    """Submit the same campaign `jobs` times; returns the jobs' ids.

    Args:
        words: of the campaign's command. folder: for submitit's scripts and logs.
        cluster: slurm, or local for this machine. options: of submitit, such as slurm_partition or gpus_per_node.

    Raises:
        ConfigError: submitit is not installed, there is no such cluster here, or it refuses an option.
    """
    try:
        import submitit
    except ImportError as error:
        raise ConfigError("cluster= needs submitit: pip install 'fulcrum-ful[cluster]'") from error
    if reserved := sorted({"name", "timeout_min", "slurm_array_parallelism"} & set(options)):
        raise ConfigError(f"submit.{reserved[0]} follows from minutes= and jobs=: leave it out")
    environment = None  # the job's own
    if cluster == "local":
        if jobs > 1 and "accelerator=cpu" not in words and torch.cuda.is_available():
            raise ConfigError(
                "cluster=local gives all its jobs the same GPUs: one campaign takes them all, leave jobs out"
            )
        environment = dict(os.environ)  # else submitit chooses the GPUs
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(
            name="fulcrum", timeout_min=math.ceil(minutes) + EXTRA_MINUTES, slurm_array_parallelism=jobs, **options
        )
        command = [sys.executable, "-m", "benchmark", "campaign", *words, f"minutes={minutes:g}"]
        with executor.batch():
            tasks = [executor.submit(submitit.helpers.CommandFunction(command, env=environment)) for _ in range(jobs)]
    except (RuntimeError, NameError, TypeError, ValueError, AssertionError, OSError) as error:
        raise ConfigError(f"cluster={cluster}: {' '.join(str(error).split())}") from error
    return [str(task.job_id) for task in tasks]
