"""What a client pays in rows of large boards whose records do not say it; `benchmark.audit.row_costs` counts it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from statistics import fmean

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from leaderboards import store
from leaderboards.schema import Record

FILE = Path(__file__).parent / "row_costs.json"


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RowCost:
    """config: hash of the config that was counted, see `provenance`. flops, memory: as in a record's `costs`."""

    config: str
    flops: float
    memory: int


def key(record: Record) -> str:
    """The name of a record's row: `scenario/row`."""
    return f"{record['scenario']}/{record['row']}"


def read(path: Path) -> dict[str, RowCost]:
    """The rows of a file by `key`. Raises RecordError where it is missing or holds something else."""
    return store.read_table(path, dict[str, RowCost], "table of what rows cost", "costs")


def write(path: Path, rows: Mapping[str, RowCost]) -> None:
    """Writes rows, one a line, in order of name."""
    lines = (f" {json.dumps(name)}: {json.dumps(asdict(row))}" for name, row in sorted(rows.items()))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


@cache
def _committed() -> dict[str, RowCost]:
    return read(FILE)


def of(group: Sequence[Record]) -> tuple[float, float] | None:
    """Operations of a client in a round and bytes at a client at most, for the records of a row.

    They are means over the records that have them, else those of the committed row of this name and config.
    """
    if own := [record["costs"] for record in group if record.get("costs")]:
        return fmean(each["flops"] for each in own), fmean(each["memory"] for each in own)
    known = _committed().get(key(group[0]))
    if known is None or known.config not in {record["provenance"]["config"] for record in group}:
        return None
    return known.flops, float(known.memory)
