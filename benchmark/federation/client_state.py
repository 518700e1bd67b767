"""What clients remember between rounds, by client id, on disk: staged while a round runs, committed when it is safe.

A file carries client, round and phase in its name; which file counts is said by the index, and the index that counts is
the checkpoint's. So a run killed at any moment finds the memories of its last whole round.
"""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from methods import trees
from methods.trees import Tree


class ClientState(Mapping[int, Tree]):
    """Client id -> what it kept, read lazily: peak memory does not grow with the number of clients.

    Args:
        folder: where the files lie; on several nodes a folder all of them see.
        device: where a remembered Tree is loaded to.
    """

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        self.folder, self.device = folder, device
        self.index: dict[int, str] = {}

    def __getitem__(self, client: int) -> Tree:
        return torch.load(self.folder / self.index[client], map_location=self.device, weights_only=True)

    def __contains__(self, client: object) -> bool:
        return client in self.index

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.index))

    def __len__(self) -> int:
        return len(self.index)

    def write(self, client: int, round: int, phase: str, tree: Tree) -> str | None:
        """Puts a Tree on disk without making it count yet; returns the file's name, or None for an empty Tree."""
        if not tree:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"client{client}-round{round}-{phase}.pt"
        torch.save(trees.clone(tree), self.folder / name)  # a view of the resident model would be saved with all of it
        return name

    def stage(self, written: Mapping[int, str | None]) -> None:
        """Makes written files count for the rest of the round; clients that wrote nothing are forgotten."""
        for client, name in written.items():
            if name is None:
                self.index.pop(client, None)
            else:
                self.index[client] = name

    def restore(self, index: Mapping[int, str]) -> None:
        """Goes back to the index of a checkpoint and clears away what a broken round left."""
        self.index = dict(index)
        self.commit()

    def aside(self) -> "ClientState":
        """The same memories, whose changes go to a folder beside this one's; `clear` it in the end."""
        other = ClientState(self.folder.with_name("aside"), self.device)
        other.index = {client: str(self.folder.resolve() / name) for client, name in self.index.items()}
        return other

    def clear(self) -> None:
        """Deletes the folder with all that is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def commit(self) -> None:
        """Deletes every file the index does not name; called once the checkpoint with that index is on disk."""
        if self.folder.is_dir():
            keep = set(self.index.values())
            for file in self.folder.iterdir():
                if file.name not in keep:
                    with contextlib.suppress(FileNotFoundError):
                        file.unlink()


class LocalParts(Mapping[int, Tree]):
    """Client id -> the parts that stay with that client, as a method's `export` is given them; read one at a time."""

    def __init__(self, memory: ClientState) -> None:
        self.memory = memory

    def __getitem__(self, client: int) -> Tree:
        return self.memory[client].get("stays", {})

    def __iter__(self) -> Iterator[int]:
        return iter(self.memory)

    def __len__(self) -> int:
        return len(self.memory)
