"""Reading, writing, merging and collecting run records."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from leaderboards.schema import FIELDS, INCIDENTAL, Record, RecordError, first_error, validate

Table = TypeVar("Table")

PARTIAL = "partial.json"
"""In the folder of an unfinished run: the record of its rounds so far, without scores."""


def load_yaml(file: str) -> Any:
    """The content of a YAML file of this package."""
    return yaml.safe_load((Path(__file__).parent / file).read_text(encoding="utf-8"))


def read_table(path: str | Path, cls: type[Table], what: str, command: str) -> Table:
    """The object of a pydantic dataclass in a JSON file; what: in words, command: that writes it.

    Raises RecordError: the file is missing or holds something else.
    """
    try:
        return TypeAdapter(cls).validate_json(Path(path).read_bytes())
    except (OSError, ValidationError) as error:
        reason = first_error(error) if isinstance(error, ValidationError) else error
        raise RecordError(f"{path}: no {what} ({reason}): write it by `python -m benchmark {command}`") from error


def write_table(path: str | Path, table: Any) -> None:
    """Writes a dataclass as JSON, a value a line; the same object gives the same bytes."""
    Path(path).write_text(json.dumps(asdict(table), indent=1) + "\n", encoding="utf-8")


def read(path: str | Path) -> Record:
    """The validated record in `path`. Raises RecordError when it is unreadable, not JSON or not valid."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # a JSON or Unicode error is a ValueError
        raise RecordError(f"{path}: not a readable JSON file ({error})") from error
    validate(record, str(path))
    return record


def write(path: str | Path, record: Record) -> None:
    """Validate `record` and write it to `path`, completely or not at all; folders are made as needed."""
    path = Path(path)
    validate(record, str(path))
    text = json.dumps(record, sort_keys=True, indent=1, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text + "\n", encoding="utf-8")
    os.replace(temporary, path)


def name(record: Record) -> str:
    """The run of a record, `<scenario>/<row>/seed<k>`: its file among the results, its folder among the runs."""
    return f"{record['scenario']}/{record['row']}/seed{record['seed']}"


def digest(record: Record) -> str:
    """A hash of all of a record's fields and values."""
    return hashlib.sha256(json.dumps(record, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def merged(folder: Path, records: Iterable[Record]) -> list[Record]:
    """The records of a folder after these are added; the folder need not exist."""
    standing = {name(record): record for record in (collect(folder) if folder.is_dir() else [])}
    added = {name(record): record for record in records if newer(standing.get(name(record)), record)}
    return list({**standing, **added}.values())


def newer(before: Record | None, record: Record) -> bool:
    """Whether a record has at least as many rounds as the earlier one."""
    return before is None or record["rounds"]["done"] >= before["rounds"]["done"]


def add_record(path: Path, record: Record) -> None:
    """Writes a record unless the file holds one of more rounds.

    Raises RecordError: the file has another score for the same run, or one of a protocol that the new record lacks.
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

    A record lies in `<scenario>/<row>/seed<k>.json` or, in a run's folder, `<scenario>/<row>/seed<k>/result.json`; an
    unfinished run has `partial.json` there. A scenario's name may span several folders. Two files may hold the same run
    if they differ only in `INCIDENTAL` fields.

    Raises:
        RecordError: for a missing folder, an invalid record, a record in the place of another, or two records of one
            run (scenario, row, seed) that differ.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RecordError(f"{folder}: no such folder, expected one of <scenario>/<row>/seed<k>.json files")
    records: dict[tuple[str, str, int], tuple[Path, Record]] = {}
    for path, run_name in _files(folder):
        if path.name == PARTIAL and not path.exists():  # the run has ended since the files were listed
            path = path.with_name("result.json")
        record = read(path)
        if run_name != name(record):
            raise RecordError(f"{path}: holds {name(record)}, not {run_name}: move it there")
        run = (record["scenario"], record["row"], record["seed"])
        first_path, first = records.setdefault(run, (path, record))
        unlike = [key for key in FIELDS if key not in INCIDENTAL and first.get(key) != record.get(key)]
        if unlike:
            raise RecordError(
                f"{first_path} and {path}: the same run with different {', '.join(unlike)}, remove one of them"
            )
    return [records[run][1] for run in sorted(records)]


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Each record's file and the run that its path names, `<scenario>/<row>/seed<k>`."""
    results = {*folder.rglob("seed*.json"), *folder.rglob("seed*/result.json")}
    partial = {file for file in folder.rglob(f"seed*/{PARTIAL}") if file.with_name("result.json") not in results}
    for path in sorted(results | partial):
        run = path.parent if path.name in ("result.json", PARTIAL) else path.with_suffix("")
        if re.fullmatch(r"seed\d+", run.name):
            yield path, run.relative_to(folder).as_posix()
