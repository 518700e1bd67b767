"""A Python environment beside the suite's own, for libraries that pin other versions of what the suite uses."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

CACHE = Path("~/.cache/fulcrum").expanduser()


def install(name: str, what: str, requirements: Path, log: Callable[[str], object], *options: str) -> Path:
    """The Python of the environment `name`, made unless the requirements and our own environment are unchanged.

    A .pth file makes our packages visible in it, so that all run the same torch, which is not downloaded twice.

    Args:
        what: the libraries, in words. requirements: a file for pip. log: prints a line. options: further ones for pip.

    Raises RuntimeError: it cannot be made; one line.
    """
    home, ours = CACHE / name, "\n".join(path for path in sys.path if path.endswith(("site-packages", "dist-packages")))
    python, stamp = home / "bin" / "python", home / "installed.txt"
    content = "\n".join((ours, *options, requirements.read_text()))
    if stamp.is_file() and stamp.read_text() == content:
        return python
    log(f"installing {what} into {home}")
    shutil.rmtree(home, ignore_errors=True)
    failed = f"{what} cannot be installed into {home}"
    check_call(sys.executable, "-m", "venv", str(home), failed=failed)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(home)}))
    (site / "fulcrum.pth").write_text(f"{ours}\n")
    check_call(*pip(python), "--requirement", str(requirements), *options, failed=failed)
    stamp.write_text(content)
    return python


def pip(python: Path) -> tuple[str, ...]:
    """Words of the command that installs what follows them into an environment."""
    return (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def check_call(*command: str, failed: str) -> None:
    """Runs a command without our `PYTHONPATH`; RuntimeError of one line where it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        output = done.stdout.splitlines() or ["no output"]
        why = next((line for line in output if line.startswith("ERROR:")), output[-1])
        raise RuntimeError(f"{failed}: {why}")
