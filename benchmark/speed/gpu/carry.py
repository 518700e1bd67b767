"""A folder with all that a machine with a GPU and without a network needs: the checkout's files, and wheels."""

import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmark.errors import ConfigError
from benchmark.speed.gpu.archive import LIMIT

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
