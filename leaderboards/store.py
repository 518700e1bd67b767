"""Reading, writing, merging and collecting run records."""

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from leaderboards.schema import FIELDS, INCIDENTAL, Record, RecordError, validate

PARTIAL = "partial.json"
"""Of a run that is not yet over: the record of its rounds so far, without scores."""


def read(path: str | Path) -> Record:
    """The validated record in `path`. Raises RecordError when it is unreadable, not JSON or not valid."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # a JSON or Unicode error is a ValueError
        raise RecordError(f"{path}: not a readable JSON file ({error})") from error
    validate(record, str(path))
    return record


def write(path: str | Path, record: Record) -> None:
    """Validate `record` and write it to `path`, whole or not at all; folders are made as needed."""
    path = Path(path)
    validate(record, str(path))
    text = json.dumps(record, sort_keys=True, indent=1, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.tmp")
    partial.write_text(text + "\n", encoding="utf-8")
    os.replace(partial, path)


def name(record: Record) -> str:
    """The run a record is of, `<scenario>/<row>/seed<k>`: its file under the results, its folder among the runs."""
    return f"{record['scenario']}/{record['row']}/seed{record['seed']}"


def merged(folder: Path, records: Iterable[Record]) -> list[Record]:
    """What the folder would hold with these records in it; it may not be there yet."""
    standing = {name(record): record for record in (collect(folder) if folder.is_dir() else [])}
    added = {name(record): record for record in records if newer(standing.get(name(record)), record)}
    return list({**standing, **added}.values())


def newer(before: Record | None, record: Record) -> bool:
    """Whether a record has at least the rounds of the one that stands."""
    return before is None or record["rounds"]["done"] >= before["rounds"]["done"]


def add_record(path: Path, record: Record) -> None:
    """Writes a record where none stands yet, or the same scores and perhaps more protocols', or more rounds.

    Another number for the same run is not put over it, and none is lost; a record of fewer rounds is left out.
    """
    before = read(path) if path.exists() else None
    if not newer(before, record):
        return
    standing = before["scores"] if before is not None else {}
    if any(record["scores"].get(protocol) != metrics for protocol, metrics in standing.items()):
        raise RecordError(f"{path} holds other scores for this run: delete it first if the new ones are to stand")
    write(path, record)


def collect(folder: str | Path) -> list[Record]:
    """Every record under `folder`, ordered by scenario, row and seed.

    A record lies in `<scenario>/<row>/seed<k>.json` or, in a run's folder, `<scenario>/<row>/seed<k>/result.json`,
    and that of a run that is not yet over in `partial.json` there; a scenario's name may span several folders. Two
    files may hold the same run as long as they say the same of it, but for when, where and how fast.

    Raises:
        RecordError: for a missing folder, an invalid record, a record that lies where another belongs, or two records
            of one run (scenario, row, seed) that differ.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RecordError(f"{folder}: no such folder, expected one of <scenario>/<row>/seed<k>.json files")
    found: dict[tuple[str, str, int], tuple[Path, Record]] = {}
    for path, add_record in _places(folder):
        if path.name == PARTIAL and not path.exists():  # the run has ended since
            path = path.with_name("result.json")
        record = read(path)
        run = (record["scenario"], record["row"], record["seed"])
        if add_record != name(record):
            raise RecordError(f"{path}: holds {name(record)}, not {add_record}: move it there")
        first, kept = found.setdefault(run, (path, record))
        unlike = [key for key in FIELDS if key not in INCIDENTAL and kept.get(key) != record.get(key)]
        if unlike:
            raise RecordError(
                f"{first} and {path}: the same run with different {', '.join(unlike)}, remove one of them"
            )
    return [found[run][1] for run in sorted(found)]


def _places(folder: Path) -> Iterator[tuple[Path, str]]:
    """Each record's file and the run that its path names, `<scenario>/<row>/seed<k>`."""
    whole = {*folder.rglob("seed*.json"), *folder.rglob("seed*/result.json")}
    early = {file for file in folder.rglob(f"seed*/{PARTIAL}") if file.with_name("result.json") not in whole}
    for path in sorted(whole | early):
        add_record = path.parent if path.name in ("result.json", PARTIAL) else path.with_suffix("")
        if re.fullmatch(r"seed\d+", add_record.name):
            yield path, add_record.relative_to(folder).as_posix()
