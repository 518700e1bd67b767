"""State that stays with clients between rounds, on disk by client id: staged during a round, committed with it.

A file has client, round, phase and the hash of its content in its name. The index names the file that counts for each
client, and the checkpoint holds the index, so that a run killed at any moment finds the states of its last completed
round, and a file that has changed since is noticed.
"""

import contextlib
import hashlib
import io
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from benchmark.errors import CheckpointError, one_line
from methods import trees
from methods.trees import Tree

HASHED = re.compile(r"-([0-9a-f]{16})\.pt$")
"""The hash in a file's name; early files have none."""


class ClientState(Mapping[int, Tree]):
    """Client id -> its state as a Tree, read on access: peak memory does not grow with the number of clients.

    Args:
        folder: of the files; on several nodes a folder that all of them see.
        device: that a Tree is loaded to.
    """

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        self.folder, self.device = folder, device
        self.index: dict[int, str] = {}

    def __getitem__(self, client: int) -> Tree:
        """A client's state. Raises CheckpointError: its file is missing or not as it was written."""
        file = self.folder / self.index[client]
        try:
            content = file.read_bytes()
            if (written := HASHED.search(file.name)) and written[1] != _hash(content):
                raise ValueError("it has changed")
            tree: Tree = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            return trees.move(tree, self.device)
        except Exception as error:  # of a file that is no Tree torch raises errors of many classes
            reason = getattr(error, "strerror", None) or one_line(error)[:100]
            raise CheckpointError(
                f"{file}, which client {client} keeps, cannot be read ({reason}): restore it from a copy, or delete "
                f"{self.folder.parent} to start the run over"
            ) from error

    def __contains__(self, client: object) -> bool:
        return client in self.index

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.index))

    def __len__(self) -> int:
        return len(self.index)

    def write(self, client: int, round: int, phase: str, tree: Tree) -> str | None:
        """Writes a Tree that does not count yet; returns the file's name, or None for an empty Tree."""
        if not tree:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        # a view of the resident model would be saved with all of it
        torch.save(trees.clone(trees.move(tree, "cpu")), content)
        name = f"client{client}-round{round}-{phase}-{_hash(content.getbuffer())}.pt"
        (self.folder / name).write_bytes(content.getbuffer())
        return name

    def stage(self, written: Mapping[int, str | None]) -> None:
        """Makes written files count for the rest of the round; a client without a file has no state any more."""
        for client, name in written.items():
            if name is None:
                self.index.pop(client, None)
            else:
                self.index[client] = name

    def restore(self, index: Mapping[int, str]) -> None:
        """Returns to the index of a checkpoint and deletes the files of an interrupted round."""
        self.index = dict(index)
        self.commit()

    def scratch_copy(self) -> "ClientState":
        """The same states, whose changes go to a folder of their own; `clear` it after use."""
        scratch = ClientState(self.folder.with_name("scratch"), self.device)
        scratch.index = {client: str(self.folder.resolve() / name) for client, name in self.index.items()}
        return scratch

    def clear(self) -> None:
        """Deletes the folder and its files."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def commit(self) -> None:
        """Deletes every file that the index does not name; called once the checkpoint with that index is on disk."""
        if self.folder.is_dir():
            named = set(self.index.values())
            for file in self.folder.iterdir():
                if file.name not in named:
                    with contextlib.suppress(FileNotFoundError):
                        file.unlink()


def _hash(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


class LocalParts(Mapping[int, Tree]):
    """Client id -> the parts that stay with that client, for a method's `export`; read one client at a time."""

    def __init__(self, client_state: ClientState) -> None:
        self.client_state = client_state

    def __getitem__(self, client: int) -> Tree:
        return self.client_state[client].get("stays", {})

    def __iter__(self) -> Iterator[int]:
        return iter(self.client_state)

    def __len__(self) -> int:
        return len(self.client_state)
