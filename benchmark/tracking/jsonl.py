"""Reading of JSON lines, one value a line."""

import contextlib
import json
from pathlib import Path
from typing import Any


def read_lines(file: Path) -> list[Any]:
    """Values of a JSON lines file, which need not exist; a line that a power cut left incomplete is skipped."""
    values = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        with contextlib.suppress(ValueError):
            values.append(json.loads(line))
    return values
