"""The state of a run in one file, written beside and renamed, so that a round is saved entirely or not at all."""

import hashlib
import os
import re
import struct
from io import BufferedRandom
from pathlib import Path
from typing import Any

import torch

from benchmark.disk import replacing
from benchmark.errors import CheckpointError

SEAL = re.compile(rb"sha256=([0-9a-f]{64})$")
"""The comment at the end of the file, which is a zip archive: the hash of all bytes before it."""
SEAL_SIZE = 71

FIELDS = {"round": int, "server": dict, "memory": dict, "ledger": dict, "account": dict}
FIELDS |= {"history": list, "environments": list}
"""Field of a state -> its type."""


class Checkpoint:
    """The last completed round of a run.

    Args:
        folder: of the checkpoint.
        config_hash: of the run; a checkpoint of another config is refused. None: one of any config is read.
    """

    def __init__(self, folder: Path, config_hash: str | None) -> None:
        self.file, self.config_hash = folder / "state.pt", config_hash

    def save(self, state: dict[str, Any]) -> None:
        """Replaces the checkpoint; a crash at any point leaves the old or the new one, whole."""
        with replacing(self.file) as beside, beside.open("w+b") as stream:
            try:
                torch.save({**state, "config": self.config_hash}, stream)
            except RuntimeError as error:  # what torch makes of an error of the stream, such as that of a full disk
                raise error.__context__ if isinstance(error.__context__, OSError) else error from None
            seal(stream)

    def load(self, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The saved state, or None where there is none yet.

        Raises CheckpointError: the file is damaged or no checkpoint, or belongs to another config.
        """
        if not self.file.exists():
            return None
        try:
            check_seal(self.file)
            state = torch.load(self.file, map_location=device, weights_only=True)
            saved_hash = dict(state)["config"]
        except Exception as error:
            reason = str(error) if type(error) is ValueError else type(error).__name__
            raise self._unusable(f"cannot be read ({reason})") from error
        # earlier versions hashed fewer of the data sets, from the first on
        if self.config_hash is not None and not f"{self.config_hash}/".startswith(f"{saved_hash}/"):
            config = self.file.parent.parent / "config.yaml"
            raise CheckpointError(
                f"{self.file} belongs to another config than {config}, or to other images: "
                "restore them, or run the changed config under another name (row=NAME)"
            )
        environments = [  # as checkpoints of earlier versions name them; the first ones have none, and no accounts
            {"numerical_deviations" if key == "otherwise" else key: value for key, value in environment.items()}
            for environment in state.get("played", [])
        ]
        state = {"account": {"releases": [], "covers": []}, "environments": environments, **state}
        for field, kind in FIELDS.items():
            if not isinstance(state.get(field), kind):
                raise self._unusable(f"has no {field!r} that this version could read")
        return state

    def _unusable(self, why: str) -> CheckpointError:
        return CheckpointError(
            f"{self.file} {why}: restore it from a copy, or delete {self.file.parent} to start the run over"
        )


def seal(stream: BufferedRandom) -> None:
    """Ends what `torch.save` wrote with its hash, as the comment of a zip archive, which `torch.load` ignores."""
    stream.seek(-2, os.SEEK_END)
    stream.write(struct.pack("<H", SEAL_SIZE))  # length of the comment, 0 before
    stream.seek(0)
    stream.write(b"sha256=%s" % hashlib.file_digest(stream, "sha256").hexdigest().encode())


def check_seal(file: Path) -> None:
    """ValueError where a sealed file has changed; `torch.load` would accept it. Early files have no seal."""
    content = memoryview(file.read_bytes())
    sealed = SEAL.match(content[-SEAL_SIZE:])
    if sealed is None and content[-SEAL_SIZE - 2 : -SEAL_SIZE] == struct.pack("<H", SEAL_SIZE):
        raise ValueError("its seal has changed")
    if sealed and hashlib.sha256(content[:-SEAL_SIZE]).hexdigest().encode() != sealed[1]:
        raise ValueError("it has changed since it was written")
