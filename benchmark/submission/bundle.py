"""Makes a bundle of the runs of a row, see `leaderboards.bundles`."""

import hashlib
import inspect
import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from omegaconf import DictConfig

from benchmark import disk
from benchmark.configuration.files import GROUPS, plugins
from benchmark.configuration.instantiate import locate, named_classes
from benchmark.errors import ConfigError
from benchmark.experiment.folder import load_folder
from benchmark.tracking.provenance import PACKAGES, ROOT
from leaderboards import store
from leaderboards.bundles import FORMAT, MANIFEST, RUNS, Code, Manifest
from leaderboards.schema import Record

FILES = ("config.yaml", "result.json", "rounds.jsonl")
"""Of a run's folder, beside all of its `checkpoint`."""
LIBRARY = "torch."
"""Where paths begin whose code is torch's: its version is in the record, and decides a replay's last bits only."""


def make(folders: Sequence[Path], chosen: str, file: Path) -> Manifest:
    """Writes the bundle of some finished runs of one row into a file; returns its manifest.

    chosen: by what the settings were chosen.

    Raises ConfigError: a run is not finished, was made by changed code, or is of another row or commit than the first.
    """
    runs, code, paths = dict[str, Record](), dict[str, Code](), dict[str, Path]()
    for folder in folders:
        config = load_folder(folder, trust=True)  # one's own
        if not (folder / "result.json").is_file():
            raise ConfigError(f"{folder} has no result.json: finish it first, by `resume`")
        record = store.read(folder / "result.json")
        run, origin = store.name(record), record["provenance"]
        if origin["git"] is None or origin["dirty"]:
            raise ConfigError(
                f"{folder} was made by changed code, which nobody could run again: commit it, or install a "
                "version, and run anew"
            )
        first = next(iter(runs.values()), record)
        if any(record[key] != first[key] for key in ("scenario", "row")) or origin["git"] != first["provenance"]["git"]:
            raise ConfigError(f"{folder} is of another row or commit than {folders[0]}: a bundle is of one row")
        if run in runs:
            raise ConfigError(f"{folder}: {run} is given twice: name each run once")
        runs[run], code = record, code | code_of(config)
        paths |= {f"{RUNS}/{run}/{path}": folder / path for path in _paths(folder)}
    commit = str(next(iter(runs.values()))["provenance"]["git"])
    hashes = {name: disk.sha256(path) for name, path in paths.items()}
    manifest = Manifest(FORMAT, commit, chosen, list(runs), code, hashes)
    with disk.replacing(file) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr(zipfile.ZipInfo(MANIFEST), json.dumps(asdict(manifest), indent=1) + "\n")
        for name, path in paths.items():
            bundle.write(path, name)
    return manifest


def _paths(folder: Path) -> Iterator[str]:
    """The files of a run that a bundle has."""
    for file in (*(folder / name for name in FILES), *sorted((folder / "checkpoint").rglob("*"))):
        if file.is_file():
            yield file.relative_to(folder).as_posix()


def code_of(config: DictConfig) -> dict[str, Code]:
    """Import path -> Code of each class that a config names, but torch's; imports them.

    The hash of a part of the suite is of its file, that of another package of all its modules.
    """
    found = {}
    for where, section in named_classes(config):
        target = locate(section, where)
        path, file = str(section["class"]), Path(inspect.getfile(target)).resolve()
        if path.startswith(LIBRARY):
            continue
        if any(file.is_relative_to(ROOT / package) for package in PACKAGES):
            found[path] = Code(disk.sha256(file), "")
            continue
        name = path.partition(".")[0]
        top = next((folder for folder in file.parents if folder.name == name), None)
        files = sorted(top.rglob("*.py")) if top is not None else [file]
        digest = hashlib.sha256()
        for each in files:
            digest.update(f"{each.relative_to(files[0].parent) if top is None else each.relative_to(top)}\0".encode())
            digest.update(each.read_bytes())
        entries = (entry for group in GROUPS for entry in plugins(group).values())
        wheel = next((entry.wheel for entry in entries if entry.path.startswith(f"{name}.")), f"the module {name}")
        found[path] = Code(digest.hexdigest(), wheel)
    return found
