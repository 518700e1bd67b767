"""The suite's command, and the suite from Python: `benchmark.api`.

Importing it imports the four packages beside it, so that an `eval.py` or a `methods/` of the user's, which the path may
have first, is not taken for them.
"""

import importlib
import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[1])
"""The folder of the five packages."""
IS_CHECKOUT = (Path(ROOT) / "fulcrum.py").is_file()
"""Whether they are a checkout's, not those of an installed wheel."""
PROGRAM = "python -m benchmark" if IS_CHECKOUT else "fulcrum"
"""What a user types to start the command."""


def _import_the_others() -> None:
    sys.path.insert(0, ROOT)
    try:
        for name in ("datamodules", "eval", "leaderboards", "methods"):
            module = importlib.import_module(name)
            if not Path(str(module.__file__)).resolve().is_relative_to(Path(ROOT).resolve()):
                raise ImportError(
                    f"a module {name!r} was imported from {module.__file__} before the suite, which has one of this "
                    "name: import benchmark first, or give yours another name"
                )
    finally:
        sys.path.remove(ROOT)


_import_the_others()
