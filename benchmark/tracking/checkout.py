"""The commit of the suite's own files; apart from the rest of a record's origin, which needs torch."""

import base64
import hashlib
import os
import re
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

from benchmark import IS_CHECKOUT

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("benchmark", "datamodules", "eval", "methods")
NAME = "fulcrum-ful"
"""Of the wheel."""


def version() -> str | None:
    """The installed version of the suite; None where it is not installed."""
    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return None


@cache
def commit() -> str | None:
    """The checkout's commit, with a `+` where code was changed or added since; of a wheel that of its version.

    A copy that was carried without its history has FULCRUM_COMMIT of the environment, or None. The first call of a
    process counts: the checkout may have changed by the time a run ends.
    """

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if not IS_CHECKOUT and (name := commit_of(version() or "")) is not None:
        return name if "+" in name or is_unchanged() else f"{name}+"
    if git("rev-parse", "--show-toplevel") != str(ROOT):
        return os.environ.get("FULCRUM_COMMIT")  # an installed copy, perhaps inside somebody else's repository
    head, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", *PACKAGES)
    return head and head + ("" if changes == "" else "+")


def commit_of(version: str) -> str | None:
    """The commit that a version is of, by its tag where it is a release; with a `+` where it was built from more.

    >>> commit_of("0.1.0"), commit_of("0.1.dev7+g6a21d08f1"), commit_of("0.1.dev7+g6a21d08f1.d20261127")
    ('v0.1.0', '6a21d08f1', '6a21d08f1+')
    """
    if re.fullmatch(r"[\d.]+((a|b|rc)\d+)?", version):
        return f"v{version}"
    found = re.search(r"\+g([0-9a-f]+)(\.d\d+)?$", version)
    return found and found[1] + ("+" if found[2] else "")


def is_unchanged() -> bool:
    """Whether the code of an installed wheel is what its list of hashes says."""
    for file in metadata.files(NAME) or ():
        if file.suffix in (".py", ".yaml") and file.hash is not None:
            digest = hashlib.new(file.hash.mode, Path(str(file.locate())).read_bytes()).digest()
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
                return False
    return True
