"""What is carried to a machine with a GPU, and brought back: archives of a data set, and of what was measured there.

One without a network also needs a folder with the checkout's files, and wheels.
"""

import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
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
        raise ConfigError(f"{large} has more than {limit / 1e6:g} MB, which an archive stays below: make it smaller")
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


LACKING = (
    "omegaconf", "pydantic", "pydantic-core", "annotated-types", "typing-inspection", "typing-extensions",
    "dp-accounting", "dm-tree",
)  # fmt: skip
"""What a machine lacks that has torch, lightning, torchmetrics, scikit-learn, matplotlib, rich and absl-py."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
CHECKOUT = "fulcrum.zip"


def carry(into: Path, python: str, root: Path, results: Path) -> list[str]:
    """Writes CHECKOUT and `wheels/` into a folder, less than `LIMIT` bytes in all; the lines that say how to go on.

    python: version of Python there, such as 3.12. results: of earlier measurements, which travel and are gone on with.
    Raises ConfigError: no checkout with everything committed, no wheels, or too much.
    """
    into.mkdir(parents=True, exist_ok=True)
    if _git(root, "status", "--porcelain", "--untracked-files=no"):
        raise ConfigError(f"{root} has changes that are not committed: commit them, so that results name their code")
    commit = _git(root, "rev-parse", "HEAD")
    _git(root, "archive", "--format=zip", f"--output={(into / CHECKOUT).resolve()}", "HEAD")
    measured = sorted(results.glob("*.json")) if results.is_dir() else []
    with zipfile.ZipFile(into / CHECKOUT, "a", zipfile.ZIP_DEFLATED) as content:
        for file in measured:
            content.write(file, f"gpu/{file.name}")
    _download(pinned(root / "constraints.txt"), into / "wheels", python)
    size = sum(file.stat().st_size for file in into.rglob("*") if file.is_file())
    if size > LIMIT:
        raise ConfigError(f"{into} has {size / 1e6:.1f} MB, more than {LIMIT / 1e6:g}: give carry= an empty folder")
    return [
        f"{into}: {size / 1e6:.1f} MB{f', with {len(measured)} files of results' if measured else ''}. There, in it:",
        f"python3 -m zipfile -e {CHECKOUT} fulcrum && cd fulcrum && "
        "python3 -m pip install -q --no-index --no-deps --target site ../wheels/*.whl && "
        f"FULCRUM_COMMIT={commit} PYTHONPATH=site:. python3 -m benchmark.speed gpu minutes=9 campaign=none",
    ]


def pinned(constraints: Path) -> list[str]:
    """NAME==VERSION of each of LACKING, by the versions that the checkout pins."""
    lines = [line.strip() for line in constraints.read_text(encoding="utf-8").splitlines()]
    versions = {line.partition("==")[0].lower().replace("_", "-"): line for line in lines if "==" in line}
    return [versions[name] for name in LACKING]


def _download(requirements: Iterable[str], into: Path, python: str) -> None:
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    command = [
        *(
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--dest",
            str(into.resolve()),
        ),
        *("--python-version", python, "--implementation", "cp", *platforms, *requirements),
    ]
    _output(command, Path(), f"no wheels for Python {python}")


def _git(root: Path, *words: str) -> str:
    return _output(["git", *words], root, f"{root} is no checkout")


def _output(command: Sequence[str], folder: Path, problem: str) -> str:
    """What a command prints; ConfigError with the problem and the line of its error."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (
            [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines() or [""]
        )
        raise ConfigError(f"{problem}: {lines[0]}")
    return done.stdout.strip()
