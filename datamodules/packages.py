"""Packages of npm at fixed versions, fetched once by `npm pack` and compared with the hashes of a lock file.

A lock file, `datamodules/locks/<name>.lock`, has a line for each package: its name, version and npm's integrity hash.
"""

import base64
import errno
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from datamodules.errors import DataError, first, one_line

LOCKS = Path(__file__).parent / "locks"
TOGETHER = 8
"""Packages that one call of npm fetches."""
STALE = ("ETARGET", "EINTEGRITY")
"""Codes of npm where its cache may be older than the lock file, or damaged."""


class Package(NamedTuple):
    """A package of npm; integrity: `<algorithm>-<base64>`, as npm writes the hash of its archive."""

    name: str
    version: str
    integrity: str

    @property
    def file(self) -> str:
        """The name that `npm pack` gives the archive."""
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"

    @property
    def client(self) -> str:
        """Its name without the scope."""
        return self.name.rpartition("/")[2]


def locked(name: str) -> list[Package]:
    """The packages of a lock file. name: of the federation."""
    lines = (LOCKS / f"{name}.lock").read_text(encoding="utf-8").splitlines()
    return [Package(*line.split()) for line in lines if line and not line.startswith("#")]


def is_intact(file: Path, package: Package) -> bool:
    """Whether a file is the package's archive, by its hash."""
    if not file.is_file():
        return False
    algorithm, _, expected = package.integrity.partition("-")
    with file.open("rb") as stream:
        return base64.b64encode(hashlib.file_digest(stream, algorithm).digest()).decode() == expected


def fetch(packages: Sequence[Package], folder: Path) -> Iterator[Package]:
    """Puts into a folder the archives that it lacks, or has a part of; yields each package once it is there.

    An archive gets its name there after its hash was compared, so a command that is stopped loses only the few that
    were on their way. One process at a time may fetch into a folder.

    Raises DataError: npm is missing or fails, or an archive is not the one of the lock file. OSError: a disk is full.
    """
    lacking = []
    for package in packages:
        if is_intact(folder / package.file, package):
            yield package
        else:
            lacking.append(package)
    if not lacking:
        return
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            f"missing or damaged: {first([package.file for package in lacking])} ({len(lacking)} in all), and there is "
            "no npm: install Node.js, which has it, or copy the folder `packages` from a machine that has run this "
            "command"
        )
    beside = folder / ".fetched"
    for start in range(0, len(lacking), TOGETHER):
        some = lacking[start : start + TOGETHER]
        try:
            # what npm's cache has takes seconds, also offline, but may be older than the lock file
            for use_of_cache in ("--prefer-offline", "--prefer-online"):
                failure = _pack(npm, some, beside, use_of_cache)
                wrong = [package for package in some if not is_intact(beside / package.file, package)]
                if not wrong:
                    break
            for package in some:
                if package not in wrong:
                    (beside / package.file).replace(folder / package.file)
            for package in wrong:
                found = "has another hash than" if (beside / package.file).is_file() else "does not have the name of"
                raise failure or DataError(
                    f"{package.name}@{package.version}: what npm fetched {found} that of the lock file: nothing of "
                    "it is used; run the command again, with another registry if it stays so"
                )
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        yield from some


def _pack(npm: str, packages: Sequence[Package], folder: Path, use_of_cache: str) -> DataError | None:
    """Lets npm write the archives of some packages into a new folder; use_of_cache: an option of npm.

    Returns: the failure where its cache may be at fault, else None. Raises any other failure.
    """
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    folder.mkdir(parents=True)
    names = [f"{package.name}@{package.version}" for package in packages]
    options = ["--silent", "--json", "--ignore-scripts", "--fetch-retry-maxtimeout=10000", use_of_cache]
    done = subprocess.run(
        [npm, "pack", *options, f"--pack-destination={folder}", *names], capture_output=True, text=True, check=False
    )
    if not done.returncode:
        return None
    code = ""
    try:
        error = json.loads(done.stdout)["error"]
        code, reason = str(error.get("code")), one_line(error.get("summary") or error["code"])
    except (ValueError, LookupError, TypeError, AttributeError):
        reason = one_line(done.stderr or done.stdout)[-200:] or f"exit code {done.returncode}"
    if code == "ENOSPC":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{folder.parent} or the cache of npm")
    failure = DataError(
        f"npm cannot fetch {first(names)} ({reason}): what was fetched before stays, run the command again once that "
        "is mended"
    )
    if code not in STALE:
        raise failure
    return failure


def members(file: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Name within the package -> content of some files of an archive, in the order of their names.

    Raises DataError: the archive cannot be read.
    """
    try:
        with tarfile.open(file) as archive:
            read = {
                member.name.partition("/")[2]: archive.extractfile(member)
                for member in archive
                if member.isfile() and wanted(member.name.partition("/")[2])
            }
            return {name: stream.read() for name, stream in sorted(read.items()) if stream is not None}
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{file} cannot be read ({one_line(error)}): remove it and run the command again") from error


def licence(file: Path) -> tuple[str, str]:
    """The licence that a package states, and whose it is."""
    found = members(file, lambda name: name in ("package.json", "info.json", "LICENSE"))
    info = json.loads(found.get("info.json", b"{}"))
    stated = json.loads(found.get("package.json", b"{}")).get("license", "not stated")
    holder = info.get("author", {}).get("name") or next(iter(found.get("LICENSE", b"").decode().splitlines()), "")
    return str(stated), holder.strip()
