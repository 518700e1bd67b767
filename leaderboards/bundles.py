"""Submissions: the runs of a row that somebody else made, as a bundle, a zip archive that is read without unpacking.

A bundle holds `submission.json`, the `Manifest`, and below `runs/<scenario>/<row>/seed<k>` the files of each run.
Beside `NAME.zip` lies `NAME.json`, the `Receipt` of who has verified it; without one, its records are self-reported.
"""

import hashlib
import json
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from leaderboards import store
from leaderboards.schema import Record, RecordError, Scores, first_error, flaw, validate

MANIFEST, RUNS = "submission.json", "runs"
FORMAT: Literal[1] = 1
MARKS = ("self-reported", "verified", "replayed")
"""What is known of a submitted record, the least first."""
FILES, BYTES, TEXT = 10_000, 1 << 30, 1 << 24
"""Most files of a bundle, and most bytes of all and of a text that is parsed."""
NEAR_ZERO = 0.01
"""Below it a difference of scores is a share of this, and not of the score."""
MEMBER = re.compile(r"\w[\w.+=-]*(/\w[\w.+=-]*)*")
UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, RecursionError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class Code:
    """Code that a run's config names. sha256: of its source. wheel: its `NAME VERSION`, "" for the suite."""

    sha256: str
    wheel: str


@dataclass(frozen=True)
class Manifest:
    """What a bundle says of itself.

    commit: of the suite. chosen: by what its settings were chosen, in the submitter's words. runs: names
    `<scenario>/<row>/seed<k>`. code: import path -> Code. files: path in the bundle -> its SHA-256.
    """

    format: Literal[1]
    commit: str
    chosen: str
    runs: list[str]
    code: dict[str, Code]
    files: dict[str, str]


@dataclass(frozen=True)
class RunScores:
    """Scores of a run: those that its record claims, and those that its encoder gave the verifier."""

    claimed: Scores
    recomputed: Scores


@dataclass(frozen=True)
class Receipt:
    """Who has verified a bundle: its SHA-256, what was found, the verifier's commit and hardware, and the date.

    difference: the largest of all `scores`, see `difference`. scores: by run. Receipts of before 0.1.0 have neither.
    """

    bundle: str
    mark: Literal["verified", "replayed"]
    git: str | None
    hardware: str
    date: str
    replayed: str = ""
    difference: float | None = None
    scores: dict[str, RunScores] = field(default_factory=dict)


def archive(file: Path) -> zipfile.ZipFile:
    """A file as an archive, of which nothing else is known; RecordError where it is none."""
    try:
        return zipfile.ZipFile(file)
    except UNREADABLE as error:
        raise RecordError(f"{file}: no zip archive that can be read ({error})") from error


@contextmanager
def opened(file: Path) -> Iterator[tuple[Manifest, zipfile.ZipFile]]:
    """A bundle and its manifest, once each of its files is known to be what the manifest says.

    Raises RecordError: it is no bundle, a path leads elsewhere, it is too large, or a file is not the manifest's.
    """
    with archive(file) as bundle:
        _check_members(file, bundle.infolist())
        try:
            manifest = _manifest(bundle)
            for name, digest in manifest.files.items():
                with bundle.open(name) as stream:
                    if hashlib.file_digest(stream, "sha256").hexdigest() != digest:  # type: ignore[arg-type]
                        raise RecordError(f"{name} is not the file that {MANIFEST} names")
        except ValidationError as error:
            raise RecordError(f"{file}: {MANIFEST}: {first_error(error)}") from None
        except (*UNREADABLE, KeyError) as error:
            raise RecordError(f"{file}: {' '.join(str(error).split())}") from error
        yield manifest, bundle


def _check_members(file: Path, members: list[zipfile.ZipInfo]) -> None:
    """Refuse what would not unpack to a few plain files below one folder; only the archive's list is read."""
    if len(members) > FILES or (size := sum(member.file_size for member in members)) > BYTES:
        what = f"{len(members):,} files" if len(members) > FILES else f"{size:,} bytes"
        raise RecordError(f"{file}: holds {what}, and a bundle at most {FILES:,} files of {BYTES:,} bytes in all")
    names = [member.filename for member in members]
    for member in members:
        is_plain = stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG)
        if not MEMBER.fullmatch(member.filename) or not is_plain or names.count(member.filename) > 1:
            raise RecordError(f"{file}: {member.filename!r} is no plain file below the bundle's folder")


def _manifest(bundle: zipfile.ZipFile) -> Manifest:
    content = json.loads(text(bundle, MANIFEST))
    if (reason := flaw(content)) is not None:
        raise RecordError(f"{MANIFEST}: {reason}")
    manifest = TypeAdapter(Manifest).validate_python(content)
    if (listed := {MANIFEST, *manifest.files}) != (held := set(bundle.namelist())):
        raise RecordError(f"{min(listed ^ held)} is {'missing' if listed - held else f'not in {MANIFEST}'}")
    folders = {name.removeprefix(f"{RUNS}/").rpartition("/")[0] for name in held if name.endswith("/result.json")}
    if not manifest.runs or folders != set(manifest.runs):
        raise RecordError(f"{MANIFEST} names the runs {manifest.runs}, and there are records of {sorted(folders)}")
    return manifest


def text(bundle: zipfile.ZipFile, name: str) -> str:
    """A text of a bundle."""
    if bundle.getinfo(name).file_size > TEXT:
        raise RecordError(f"{name} has {bundle.getinfo(name).file_size:,} bytes, and a text at most {TEXT:,}")
    return bundle.read(name).decode("utf-8")


def receipt(file: Path) -> Path:
    """Where a bundle's receipt is."""
    return file.with_suffix(".json")


def digest(file: Path) -> str:
    """SHA-256 of a bundle."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def difference(claimed: Scores, recomputed: Scores) -> float:
    """The largest difference of two scores of one name, as a share of the larger of them.

    >>> difference({"knn/v1": {"accuracy": 50.0}}, {"knn/v1": {"accuracy": 49.0}})
    0.02
    """
    pairs = [
        (claimed[protocol][metric], value)
        for protocol, metrics in recomputed.items()
        for metric, value in metrics.items()
        if metric in claimed.get(protocol, {})
    ]
    return max((abs(old - new) / max(abs(old), abs(new), NEAR_ZERO) for old, new in pairs), default=0.0)


def received(file: Path) -> Receipt | None:
    """The receipt of a bundle, which is of the same bytes; None where there is none."""
    if not receipt(file).is_file():
        return None
    found = store.read_table(receipt(file), Receipt, "receipt of a verified bundle", "verify BUNDLE")
    if found.bundle != digest(file):
        raise RecordError(f"{receipt(file)} is of another bundle than {file}: verify it again")
    return found


def records(folder: Path) -> list[Record]:
    """The records of all bundles in a folder, each with its `submission`. Raises RecordError: a bundle is not valid."""
    found = []
    for file in sorted(folder.glob("*.zip")):
        with opened(file) as (manifest, bundle):
            verified = received(file)
            scores = verified.scores if verified else {}
            known = {"mark": verified.mark if verified else MARKS[0], "chosen": manifest.chosen, "bundle": digest(file)}
            for run in manifest.runs:
                content = record(file, bundle, run)
                content.pop("costs", None)  # nobody counts them again
                measured = {"recomputed": scores[run].recomputed} if run in scores else {}
                found.append({**content, "submission": known | measured})
    return found


def check_distinct(records: Sequence[Record], standing: Sequence[Record]) -> None:
    """RecordError where a submitted record is of a run that another record is of.

    standing: of the board already; the same bundle may replace its own.
    """
    known: dict[str, Record] = {}
    for each in records:
        if (run := store.name(each)) in known and ("submission" in each or "submission" in known[run]):
            raise RecordError(f"{run} has two records, one of them submitted: keep one of them")
        known[run] = each
    for before in standing:
        run = store.name(before)
        each = known.get(run, before)
        bundle, old = (one.get("submission", {}).get("bundle") for one in (each, before))
        if bundle is not None and bundle != old:
            raise RecordError(
                f"{run} has a record on the board already: a bundle does not replace it; "
                f"delete results/{run}.json of that board first if the bundle's is to stand"
            )


def record(file: Path, bundle: zipfile.ZipFile, run: str) -> Record:
    """A bundle's record of a run. Raises RecordError: it is not valid, or of another run."""
    where = f"{file}: {run}"
    try:
        content = json.loads(text(bundle, f"{RUNS}/{run}/result.json"))
    except UNREADABLE as error:
        raise RecordError(f"{where}: not a readable JSON file ({error})") from error
    validate(content, where)
    if store.name(content) != run:
        raise RecordError(f"{where}: holds the record of {store.name(content)}")
    if "submission" in content:
        raise RecordError(f"{where}: a record has no mark of its own: leave `submission` out")
    return content


def recomputed(group: Sequence[Record]) -> list[Record]:
    """The records of a row with the scores that their verifier measured; none where one of them has no such scores."""
    found = [each.get("submission", {}).get("recomputed") for each in group]
    pairs = zip(group, found, strict=True)
    return [] if None in found else [{**record, "scores": scores, "encoders": {}} for record, scores in pairs]


def largest_difference(group: Sequence[Record]) -> float | None:
    """The largest `difference` of a row's scores from those of its verifier; None without such scores."""
    pairs = zip(group, recomputed(group), strict=False)  # the second may be empty
    return max((difference(claimed["scores"], again["scores"]) for claimed, again in pairs), default=None)


def lowest_mark(group: Sequence[Record]) -> str:
    """The mark of a row: the least of its submitted records; "" where none was submitted."""
    return min((each["submission"]["mark"] for each in group if "submission" in each), key=MARKS.index, default="")
