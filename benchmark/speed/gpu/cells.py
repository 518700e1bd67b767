"""Parts of the half hour on a GPU, and their cells: measurements that are each taken once and saved at once."""

import gc
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmark.disk import write_json
from benchmark.speed.timing import seconds
from benchmark.tracking.checkout import commit


@dataclass(frozen=True)
class Setting:
    """Where cells are measured. accelerator: cuda or cpu. tiny: small sizes, which rehearse every part on a CPU."""

    accelerator: str
    tiny: bool

    @property
    def device(self) -> torch.device:
        """The device."""
        return torch.device("cuda", 0) if self.accelerator == "cuda" else torch.device("cpu")

    def timed(self, call: Callable[[], object]) -> float:
        """Seconds of a call, to the end of its work on the device."""

        def finished() -> None:
            call()
            if self.accelerator == "cuda":
                torch.cuda.synchronize(self.device)

        return seconds(finished)

    def clear_memory(self) -> None:
        """Gives back what earlier cells have left on the device, and forgets how much they took."""
        gc.collect()  # the suite turns Python's own collection of cycles off
        if self.accelerator == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def reserved_memory(self) -> float | None:
        """The most memory taken of the device since `clear_memory`, MiB; None on a CPU.

        Reserved and not allocated: what recorded steps work in counts as allocated only while they are recorded.
        """
        return torch.cuda.max_memory_reserved(self.device) / 2**20 if self.accelerator == "cuda" else None


@dataclass(frozen=True)
class Cell:
    """One measurement. name: unique within its part. measure: returns what is saved, by name."""

    name: str
    measure: Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Part:
    """Cells of one subject.

    share: of the time. first: seconds that its first cell is expected to take. timed: nothing may run beside a cell.
    """

    name: str
    share: float
    cells: Callable[[Setting], Iterable[Cell]]
    first: float = 20.0
    timed: bool = True


class Results:
    """What a part's cells gave, in a file that is replaced whole: a kill loses one cell.

    Args:
        folder: of the files; a part's is `NAME.json`, cell -> its numbers, `seconds` it took and `commit` of the code.
    """

    def __init__(self, folder: Path, part: str) -> None:
        self.file = folder / f"{part}.json"
        self.cells: dict[str, dict[str, Any]] = json.loads(self.file.read_text()) if self.file.exists() else {}

    @property
    def done(self) -> dict[str, dict[str, Any]]:
        """Those that neither failed nor ended the process."""
        return {name: numbers for name, numbers in self.cells.items() if "error" not in numbers}

    def save(self, cell: str, numbers: dict[str, Any], seconds: float) -> None:
        """Adds a cell."""
        self.cells[cell] = {**numbers, "seconds": round(seconds, 2), "commit": commit()}
        write_json(self.file, self.cells)

    def longest(self, default: float) -> float:
        """Seconds of the longest cell so far; the default without any."""
        return max((cell["seconds"] for cell in self.cells.values() if cell["seconds"]), default=default)
