"""Archives that carry a data set to a machine with a GPU, and bring what was measured back."""

import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmark.errors import ConfigError

LIMIT = 60 * 10**6
"""Bytes that an archive stays below."""
RECORDS = ("result.json", "partial.json", "rounds.jsonl", "config.yaml", "sessions.jsonl", "log.txt")
"""Files of a run folder that are brought back before its checkpoint."""


def pack(dataset: Path, into: Path, limit: int = LIMIT) -> list[Path]:
    """Archives of an image folder, each below the limit: `NAME-1.zip`, ...; the files as they are.

    Raises ConfigError: no folder, or a file that is larger than the limit.
    """
    files = sorted(file for file in dataset.rglob("*") if file.is_file())
    if not files:
        raise ConfigError(f"{dataset}: no such folder of images: give data.root=FOLDER and data.name=NAME")
    into.mkdir(parents=True, exist_ok=True)
    packed = []
    for number, group in enumerate(_groups(files, limit), 1):
        packed.append(into / f"{dataset.name}-{number}.zip")
        write(packed[-1], group, dataset.parent)
    return packed


def unpack(root: Path) -> list[str]:
    """Unpacks every `NAME-1.zip`, ... of a folder that `pack` wrote, once; returns the names of the data sets."""
    names = []
    for archive in sorted(root.glob("*-*.zip")):
        name, done = archive.stem.rpartition("-")[0], archive.with_suffix(".unpacked")
        with zipfile.ZipFile(archive) as content:
            if not all(member.startswith(f"{name}/") for member in content.namelist()):
                continue  # not one of ours
            if not done.exists():
                content.extractall(root)
                done.touch()
        names.append(name)
    return sorted(set(names))


def bring_back(folder: Path, limit: int = LIMIT) -> tuple[Path, list[Path]]:
    """`FOLDER.zip` of a folder's tables, page and runs, and the files for which there was no room.

    Checkpoints of unfinished runs come last, each whole or not at all: with it a run goes on on another machine.
    """
    groups: dict[Path, list[Path]] = {}
    for file in sorted(folder.rglob("*")):
        if not file.is_file() or file.suffix in (".new", ".zip"):
            continue
        checkpoint = next((each for each in file.parents if each.name == "checkpoint"), None)
        if checkpoint is None or not (checkpoint.parent / "result.json").exists():
            groups.setdefault(checkpoint or file, []).append(file)
    chosen, left, size = list[Path](), list[Path](), 0

    def order(group: Path) -> tuple[bool, bool, bool, int]:
        beside = len(group.relative_to(folder).parts) == 1
        return not beside, group.name == "checkpoint", group.name not in RECORDS, sum(map(_room, groups[group]))

    for group in sorted(groups, key=order):
        room = sum(map(_room, groups[group]))
        fits = size + room < limit
        size += room if fits else 0
        (chosen if fits else left).extend(groups[group])
    archive = folder.with_name(f"{folder.name}.zip")
    write(archive, chosen, folder.parent)
    return archive, left


def write(archive: Path, files: Iterable[Path], root: Path) -> None:
    """A zip file of these files, named from `root`."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as content:
        for file in files:
            content.write(file, file.relative_to(root))


def _room(file: Path) -> int:
    """The most bytes that a file takes of an archive: its content, and its name twice."""
    return file.stat().st_size + 2 * len(str(file)) + 200


def _groups(files: Iterable[Path], limit: int) -> Iterator[list[Path]]:
    group, size = list[Path](), 0
    for file in files:
        if (room := _room(file)) > limit:
            raise ConfigError(f"{file} has more than {limit / 1e6:g} MB")
        if size + room > limit:
            yield group
            group, size = [], 0
        group.append(file)
        size += room
    yield group
