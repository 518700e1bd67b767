"""Campaigns as a SLURM array, through submitit: jobs that share a run folder and never a piece."""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmark.errors import ConfigError

SPARE = 2
"""Minutes a job has beyond its campaign's, to start and to end."""


def submit(
    words: Sequence[str], folder: Path, *, cluster: str, jobs: int, minutes: float, options: Mapping[str, Any]
) -> list[str]:
    """Submits `jobs` times the same campaign; returns the jobs' ids.

    Args:
        words: of the campaign's command. folder: where submitit keeps its scripts and logs.
        cluster: slurm, or local for this machine. options: of submitit, such as slurm_partition or gpus_per_node.

    Raises:
        ConfigError: submitit is not installed, there is no such cluster here, or it refuses an option.
    """
    try:
        import submitit
    except ImportError as error:
        raise ConfigError("cluster= needs submitit: pip install 'fulcrum-ful[cluster]'") from error
    if taken := sorted({"name", "timeout_min", "slurm_array_parallelism"} & set(options)):
        raise ConfigError(f"submit.{taken[0]} follows from minutes= and jobs=: leave it out")
    environment = None  # the job's own
    if cluster == "local":
        if jobs > 1 and "accelerator=cpu" not in words and torch.cuda.is_available():
            raise ConfigError(
                "cluster=local gives all its jobs the same GPUs: one campaign takes them all, leave jobs out"
            )
        environment = dict(os.environ)  # submitit would choose GPUs by its own count
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(
            name="fulcrum", timeout_min=math.ceil(minutes) + SPARE, slurm_array_parallelism=jobs, **options
        )
        command = [sys.executable, "-m", "benchmark", "campaign", *words, f"minutes={minutes:g}"]
        with executor.batch():
            made = [executor.submit(submitit.helpers.CommandFunction(command, env=environment)) for _ in range(jobs)]
    except (RuntimeError, NameError, TypeError, ValueError, AssertionError, OSError) as error:
        raise ConfigError(f"cluster={cluster}: {' '.join(str(error).split())}") from error
    return [str(job.job_id) for job in made]
