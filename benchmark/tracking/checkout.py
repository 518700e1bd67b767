"""The commit of the suite's own files; apart from the rest of a record's origin, which needs torch."""

import os
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("benchmark", "datamodules", "eval", "methods")


@cache
def commit() -> str | None:
    """The checkout's commit, with a `+` where code was changed or added since.

    Outside a checkout it is FULCRUM_COMMIT of the environment, of a copy that was carried without its history, or None.
    The first call of a process counts: the checkout may have changed by the time a run ends.
    """

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("rev-parse", "--show-toplevel") != str(ROOT):
        return os.environ.get("FULCRUM_COMMIT")  # an installed copy, perhaps inside somebody else's repository
    head, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", *PACKAGES)
    return head and head + ("" if changes == "" else "+")
