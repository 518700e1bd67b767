"""The state of a run in one file, written beside and renamed, so that a round is saved entirely or not at all."""

import os
from pathlib import Path
from typing import Any

import torch

from benchmark.errors import CheckpointError


class Checkpoint:
    """The last completed round of a run.

    Args:
        folder: of the checkpoint.
        config_hash: of the run; a checkpoint of another config is refused.
    """

    def __init__(self, folder: Path, config_hash: str) -> None:
        self.file, self.config_hash = folder / "state.pt", config_hash

    def save(self, state: dict[str, Any]) -> None:
        """Replaces the checkpoint; a crash at any point leaves the old or the new one, whole."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        beside = self.file.with_suffix(".new")
        with beside.open("wb") as stream:
            torch.save({**state, "config": self.config_hash}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, self.file)

    def load(self, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The saved state, or None where there is none yet.

        Raises CheckpointError: the file cannot be read, or belongs to another config.
        """
        if not self.file.exists():
            return None
        try:
            state = torch.load(self.file, map_location=device, weights_only=True)
            saved_hash = state["config"]
        except Exception as error:
            raise CheckpointError(
                f"{self.file} cannot be read ({type(error).__name__}): delete {self.file.parent} to start the run over"
            ) from error
        if saved_hash != self.config_hash:
            config = self.file.parent.parent / "config.yaml"
            raise CheckpointError(
                f"{self.file} belongs to another config than {config}, or to other images: "
                "restore them, or run the changed config under another name (row=NAME)"
            )
        environments = [  # as checkpoints of earlier versions name them; the first ones have none, and no accounts
            {"numerical_deviations" if key == "otherwise" else key: value for key, value in environment.items()}
            for environment in state.get("played", [])
        ]
        return {"account": {"releases": [], "covers": []}, "environments": environments, **state}
