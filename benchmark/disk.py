"""Files that are written whole or not at all, files of JSON lines, and the hash of a file."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A path beside a file: when the block ends, what it has written there takes the file's place, once it is on disk.

    A crash at any point leaves the old file or the new one, whole; an error leaves nothing beside it. Makes the folder.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f"{file.name}.new")
    try:
        yield beside
        with beside.open("rb") as written:
            os.fsync(written.fileno())  # else a power cut after the rename can leave an empty file under the name
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)


def sha256(file: Path) -> str:
    """Hash of a file's content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_json(file: Path, content: Any) -> None:
    """Replaces a JSON file."""
    with replacing(file) as beside:
        beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_lines(file: Path) -> list[Any]:
    """Values of a JSON lines file, which need not exist; a line that a power cut left incomplete is skipped."""
    values = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        with contextlib.suppress(ValueError):
            values.append(json.loads(line))
    return values
