"""Archives that carry a data set to a machine with a GPU, and bring what was measured back."""

import zipfile
from collections.abc import Iterable
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
    left = [[file] for file in sorted(dataset.rglob("*")) if file.is_file()]
    if not left:
        raise ConfigError(f"{dataset}: no such folder of images: give data.root=FOLDER and data.name=NAME")
    if large := next((file for (file,) in left if not _fill([[file]], limit)[0]), None):
        raise ConfigError(f"{large} has more than {limit / 1e6:g} MB")
    into.mkdir(parents=True, exist_ok=True)
    packed = list[Path]()
    while left:
        chosen, left = _fill(left, limit)
        packed.append(into / f"{dataset.name}-{len(packed) + 1}.zip")
        _write(packed[-1], chosen, dataset.parent)
    return packed


def unpack(root: Path) -> list[str]:
    """Unpacks every `NAME-1.zip`, ... of a folder that `pack` wrote, once; returns the names of the data sets."""
    names = set[str]()
    for archive in sorted(root.glob("*-*.zip")):
        name, done = archive.stem.rpartition("-")[0], archive.with_suffix(".unpacked")
        with zipfile.ZipFile(archive) as content:
            if not all(member.startswith(f"{name}/") for member in content.namelist()):
                continue  # not one of ours
            if not done.exists():
                content.extractall(root)
                done.touch()
        names.add(name)
    return sorted(names)


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

    def order(group: Path) -> tuple[bool, bool, bool, int]:
        beside = group.parent == folder
        return not beside, group.name == "checkpoint", group.name not in RECORDS, _room(groups[group])

    chosen, left = _fill([groups[group] for group in sorted(groups, key=order)], limit)
    archive = folder.with_name(f"{folder.name}.zip")
    _write(archive, chosen, folder.parent)
    return archive, [file for group in left for file in group]


def _fill(groups: Iterable[list[Path]], limit: int) -> tuple[list[Path], list[list[Path]]]:
    """The files of the groups that fit into an archive, the first ones first, and the groups that do not."""
    chosen, left, size = list[Path](), list[list[Path]](), 0
    for group in groups:
        if size + (room := _room(group)) < limit:
            chosen += group
            size += room
        else:
            left.append(group)
    return chosen, left


def _room(files: Iterable[Path]) -> int:
    """The most bytes that files take of an archive: their contents, and their names twice."""
    return sum(file.stat().st_size + 2 * len(str(file)) + 200 for file in files)


def _write(archive: Path, files: Iterable[Path], root: Path) -> None:
    """A zip file of these files, named from `root`."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as content:
        for file in files:
            content.write(file, file.relative_to(root))
