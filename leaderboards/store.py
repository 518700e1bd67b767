"""Reading, writing, merging and collecting run records."""

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from reprlib import repr as shortened
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from leaderboards.schema import AXES, FIELDS, INCIDENTAL, Record, RecordError, first_error, flaw, validate

Table = TypeVar("Table")

COMMITTED = Path(__file__).parent / "results"
"""The records that the suite ships; a wheel has an archive of this folder in its place."""
PARTIAL = "partial.json"
"""In the folder of an unfinished run: the record of its rounds so far, without scores."""

UNREADABLE = (OSError, ValueError, RecursionError)
"""What reading JSON raises: ValueError for errors of JSON, Unicode and numbers too long, RecursionError for nesting."""
DEFINING = ("schema", "scenario", "row", "method", "objective", "seed", "federation", "settings")
"""Fields that define a run, beside the planned rounds."""


def load_yaml(file: str) -> Any:
    """The content of a YAML file of this package."""
    return yaml.safe_load((Path(__file__).parent / file).read_text(encoding="utf-8"))


SETTING_DEFAULTS: dict[str, object] = load_yaml("setting_defaults.yaml")
"""Setting that some committed records are older than -> the value that reproduces them."""


def read_table(path: str | Path, cls: type[Table], what: str, command: str) -> Table:
    """The object of a pydantic dataclass or a built-in type in a JSON file; what: in words, command: that writes it.

    Raises RecordError: the file is missing or holds something else.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if (refused := flaw(content)) is not None:
            raise RecordError(refused)
        return TypeAdapter(cls).validate_python(content)
    except UNREADABLE as error:  # also a ValidationError and a RecordError: they are ValueErrors
        reason = first_error(error) if isinstance(error, ValidationError) else error
        raise RecordError(f"{path}: no {what} ({reason}): write it by `python -m benchmark {command}`") from error


def write_table(path: str | Path, table: Any) -> None:
    """Writes a dataclass as JSON, a value a line; the same object gives the same bytes."""
    Path(path).write_text(json.dumps(asdict(table), indent=1) + "\n", encoding="utf-8")


def read(path: str | Path) -> Record:
    """The validated record in `path`. Raises RecordError when it is unreadable, not JSON or not valid."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except UNREADABLE as error:
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


def merged(folder: Path, added: Mapping[Path, Record]) -> list[Record]:
    """The records of a folder, which need not exist, once those that `additions` returned are written."""
    return list({**dict(_standing(folder).values()), **added}.values())


def additions(folder: Path, records: Iterable[Record]) -> dict[Path, Record]:
    """The file for each record that is to be added to a folder of results, which need not exist.

    A record of fewer rounds than the standing one of its run is left out; one without `costs` takes the standing one's.

    Raises RecordError: a standing record is of another run, or has another result; see `check_replaces`.
    """
    standing, files = _standing(folder), dict[Path, Record]()
    for record in records:
        path, before = standing.get(name(record), (folder / f"{name(record)}.json", None))
        if before is not None:
            check_replaces(path, before, record)
        if before is None or record["rounds"]["done"] >= before["rounds"]["done"]:
            known = {"costs": before["costs"]} if before is not None and before.get("costs") else {}
            files[path] = {**known, **record}
    return files


def check_replaces(path: Path, before: Record, record: Record) -> None:
    """Compares the standing record in a file with a new one of the same name.

    What defines a run has to be equal. After the same rounds the result has to be equal too, where it is not
    `INCIDENTAL`; it may gain protocols, deviations and fields that the standing record is too old for. After more
    rounds, the standing record's scores have to be equal. After fewer, the new record counts for nothing.

    Raises RecordError: one line, with the file and the fields that differ.
    """
    if differing := _differing(_defining(before), _defining(record)):
        do = "give the new one a row= of its own, or delete the file first if the new one is to stand"
        raise RecordError(f"{path} holds another run of this name: {differing}: {do}")
    more = record["rounds"]["done"] - before["rounds"]["done"]
    kept = ("scores",) if more else [key for key in before if key not in DEFINING]
    pair = before, _without_gains(before, record)
    old, new = ({key: value for key, value in lasting(fields).items() if key in kept} for fields in pair)
    if more >= 0 and (differing := _differing(old, new)):
        do = "delete it first if the new one is to stand"
        raise RecordError(f"{path} holds another result of this run: {differing}: {do}")


def lasting(record: Record) -> Record:
    """A record without what differs when the same run is made again: `INCIDENTAL` fields, and seconds in others."""
    fields = {key: value for key, value in record.items() if key not in INCIDENTAL}
    for key in ("curve", "server"):
        if key in fields:
            points = fields[key] if isinstance(fields[key], list) else [fields[key]]
            fields[key] = [{name: value for name, value in point.items() if name != "seconds"} for point in points]
    return fields


def _defining(record: Record) -> Record:
    """What defines a run; settings that an old record lacks have the value that reproduces it."""
    fields = {key: record[key] for key in DEFINING}
    settings = {**SETTING_DEFAULTS, **record["settings"]}
    return {**fields, "settings": settings, "rounds.planned": record["rounds"]["planned"]}


def _without_gains(before: Record, record: Record) -> Record:
    """A record without the protocols, deviations and losses that an earlier one lacks."""

    def shared(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in new.items() if key in old}

    encoders = shared(before["encoders"], record["encoders"])
    curve = record.get("curve", [])
    if not any("loss" in point for point in before.get("curve", [])):  # of an older version
        plain = [{key: value for key, value in point.items() if key != "loss"} for point in curve]
        curve = [point for point in plain if len(point) > len(AXES)]
    return {
        **record,
        **({"curve": curve} if "curve" in record else {}),
        "scores": shared(before["scores"], record["scores"]),
        "encoders": {encoder: shared(before["encoders"][encoder], new) for encoder, new in encoders.items()},
        "deviations": [line for line in record["deviations"] if line in before["deviations"]],
    }


def _differing(before: Record, after: Record) -> str:
    """The values that differ, in words, at most four of them; empty where all are equal."""
    old, new = _leaves(before), _leaves(after)
    keys = [key for key in {**old, **new} if key not in old or key not in new or old[key] != new[key]]
    lines = []
    for key in keys[:4]:
        there, here = (shortened(leaves[key]) if key in leaves else "missing" for leaves in (old, new))
        lines.append(f"{key.removeprefix('settings.')} is {there} there and {here} in the new one")
    return ", ".join(lines + ([f"and {len(keys) - 4} more"] if len(keys) > 4 else []))


def _leaves(value: object, field: str = "") -> dict[str, object]:
    """Field, its levels joined by dots -> value, of nested objects."""
    if not isinstance(value, dict) or not value:
        return {field: value}
    inner = (_leaves(child, f"{field}.{key}" if field else key) for key, child in value.items())
    return {key: leaf for leaves in inner for key, leaf in leaves.items()}


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
        raise RecordError(f"{folder}: no such folder, expected <scenario>/<row>/seed<k>.json files or run folders")
    located = _standing(folder)
    return sorted(
        (record for _, record in located.values()), key=lambda each: (each["scenario"], each["row"], each["seed"])
    )


def committed() -> list[Record]:
    """The records that the suite ships, as `collect` orders them."""
    if COMMITTED.is_dir():
        return collect(COMMITTED)
    with TemporaryDirectory() as folder, tarfile.open(COMMITTED.with_suffix(".tar.gz")) as archive:
        archive.extractall(folder, filter="data")
        return collect(folder)


def _standing(folder: Path) -> dict[str, tuple[Path, Record]]:
    """Name of a run -> its file and record, in a folder that need not exist."""
    records: dict[str, tuple[Path, Record]] = {}
    for path, run_name in _files(folder):
        if path.name == PARTIAL and not path.exists():  # the run has ended since the files were listed
            path = path.with_name("result.json")
        record = read(path)
        if run_name != name(record):
            raise RecordError(f"{path}: holds {name(record)}, not {run_name}: move it there")
        first_path, first = records.setdefault(run_name, (path, record))
        if first is record:
            continue
        one, other = lasting(first), lasting(record)
        if unlike := [key for key in FIELDS if one.get(key) != other.get(key)]:
            raise RecordError(
                f"{first_path} and {path}: the same run with different {', '.join(unlike)}, remove one of them"
            )
    return records


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Each record's file and the run that its path names, `<scenario>/<row>/seed<k>`."""
    results = {*folder.rglob("seed*.json"), *folder.rglob("seed*/result.json")}
    partial = {file for file in folder.rglob(f"seed*/{PARTIAL}") if file.with_name("result.json") not in results}
    for path in sorted(results | partial):
        run = path.parent if path.name in ("result.json", PARTIAL) else path.with_suffix("")
        if re.fullmatch(r"seed\d+", run.name):
            if not str(path).isprintable():
                raise RecordError(f"{str(path)!r}: not a printable name, rename it")
            yield path, run.relative_to(folder).as_posix()
