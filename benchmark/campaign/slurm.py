"""Submission of a campaign to a cluster by submitit: several jobs that share its runs."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.errors import ConfigError
from benchmark.runtime import program

EXTRA_MINUTES = 2
"""Minutes of a job beyond its campaign's budget, to start and to end."""


def submit(
    words: Sequence[str], folder: Path, *, cluster: str, jobs: int, minutes: float, options: Mapping[str, Any]
) -> list[str]:
    """Submit the same campaign `jobs` times; returns the jobs' ids.

    Args:
        words: of the campaign's command. folder: for submitit's scripts and logs.
        cluster: slurm, or local for this machine. options: of submitit, such as slurm_partition or gpus_per_node.

    Raises ConfigError: submitit is not installed, there is no such cluster here, or it refuses an option.
    """
    try:
        import submitit
    except ImportError as error:
        raise ConfigError("cluster= needs submitit: pip install 'fulcrum-ful[cluster]'") from error
    command = program("campaign", *words, f"minutes={minutes:g}")
    environment = dict(os.environ) if cluster == "local" else None  # there submitit would hide the GPUs
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        executor.update_parameters(
            name="fulcrum", timeout_min=math.ceil(minutes) + EXTRA_MINUTES, slurm_array_parallelism=jobs, **options
        )
        with executor.batch():
            tasks = [executor.submit(submitit.helpers.CommandFunction(command, env=environment)) for _ in range(jobs)]
    except (RuntimeError, NameError, TypeError, ValueError, AssertionError, OSError) as error:
        raise ConfigError(f"cluster={cluster}: {' '.join(str(error).split())}") from error
    return [str(task.job_id) for task in tasks]
