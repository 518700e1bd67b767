"""Tables: a CSV file that lists images, or clients of images; and files beside images that name their labels."""

import csv
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from datamodules.errors import DataError, first
from datamodules.listing import LONGEST, ImageFile, formats, of_files
from datamodules.raw import Raw
from datamodules.splits import OPTIONS, is_missing, split_of

COLUMNS = {
    "path": ("path", "filepath", "filename", "image", "imagepath", "imagename", "imageid", "img", "imgpath", "imgname"),
    "label": ("label", "labels", "class", "classname", "classid", "category", "categoryname", "target"),
    "client": ("client", "clientid", "user", "userid", "writer", "writerid"),
    "split": ("split", "set", "subset"),
    "index": ("index", "idx"),
}
"""What a column says -> its names, in any case and with any marks between the words: `File Name`, `file_name`."""
ROLES = ("path", "label", "client", "split")
"""Keys of `data.options` that name a column of a table."""
TABLE_OPTIONS = (*ROLES, *OPTIONS, "folder")


Names = tuple[str | None, str | None]
"""Of a class and a client, None where there is none."""
_Rows = tuple[list[str], Iterator[tuple[int, list[str]]]]
"""The header of a table, and the line and values of each further row."""


@dataclass(frozen=True)
class Row:
    """A row of a table: its texts by what they say. As a string, the file and the line."""

    file: Path
    line: int
    text: dict[str, str]

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"

    @property
    def names(self) -> Names:
        """Of the image's class and client."""
        label = self.text.get("label")
        return None if is_missing(label) else label, self.text.get("client") or None


def in_table(file: Path, options: Mapping[str, Any] | None = None, *, labels: bool = True) -> Raw:
    """The images that a CSV file lists: columns `path`, from the file's folder, and any of `label`, `client`, `split`.

    split: one of `splits.NAMES`; without that column a fifth of the images is held out as test. A path may lack its
    suffix. options: columns of other names, `train` and `test` (values of split), `folder` (put before the paths).
    labels: whether those in it are used.

    Raises DataError: a missing or unknown column, a path that leads out of the folder, twice the same image, a missing
    file, images of which only some have a label or a client, or a test set without labels where train has some.
    """
    options = options or {}
    base = file.parent / inside(str(options["folder"]), "data.options.folder") if "folder" in options else file.parent
    found: dict[str, list[ImageFile]] = {}
    spelled: dict[str, str] = {}  # a split's name in any case -> as it comes first
    seen: set[str] = set()
    stems: dict[Path, dict[str, list[str]]] = {}
    named = {key: options[key] for key in ROLES if key in options}
    notes: list[str] = []
    for row in rows(file, ("path",), ROLES[1:], given=named, notes=notes, aside=bool(named)):
        split = row.text.get("split", "train")
        split = spelled.setdefault(split.casefold(), split)
        if not (split_of(split) or "train" in options or not split):
            raise DataError(f"{row}: split={split!r}: give train or test, or set data.options.splits.train and test")
        path = inside(row.text["path"], str(row))
        path = path if _is_file(base / path) else _with_suffix(base, path, stems)
        if path in seen:
            raise DataError(f"{row}: {path} is listed twice: give each image once")
        seen.add(path)
        if not _is_file(base / path):
            raise DataError(
                f"{row}: there is no image {base / path}: paths begin there; data.options.folder=NAME "
                "puts a folder before them"
            )
        label, client = row.names
        found.setdefault(split, []).append(ImageFile(str(base / path), path, label if labels else None, client))
    if "" in found and len(found) > 1:
        raise DataError(f"{file}: {found[''][0].path} has no split, others have: give all one, or none")
    found = {name or "train": sorted(images, key=lambda image: image.path) for name, images in found.items()}
    if not found or not ("train" in options or any(split_of(name) == "train" for name in found)):
        raise DataError(f"{file} lists no training image: give it rows, and a header of path,label[,client][,split]")
    read = of_files(found, str(file), options)
    return replace(read, notes=(*notes, *read.notes))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long for the file system
        return False


def _with_suffix(base: Path, path: str, stems: dict[Path, dict[str, list[str]]]) -> str:
    """A path that lacks its suffix, with it; as it is where there is no such image, or are several."""
    folder = (base / path).parent
    if folder not in stems:
        stems[folder] = {}
        names = os.listdir(folder) if folder.is_dir() else []
        for name in names:
            if Path(name).suffix.lower() in formats():
                stems[folder].setdefault(Path(name).stem, []).append(name)
    matches = stems[folder].get(PurePosixPath(path).name, [])
    return str(PurePosixPath(path).with_name(matches[0])) if len(matches) == 1 else path


def rows(
    file: Path,
    required: Sequence[str],
    optional: Sequence[str] = (),
    *,
    one_of: Sequence[str] = (),
    given: Mapping[str, str] | None = None,
    notes: list[str] | None = None,
    aside: bool = False,
) -> Iterator[Row]:
    """The rows of a table with a header, of texts that can be printed.

    Args:
        required, optional: what its columns say, keys of COLUMNS. one_of: of which it has one.
        given: names of columns by what they say. notes: gets a line of the columns that are left out.
        aside: whether other columns are left out, else they are refused.

    Raises DataError: it cannot be read, or lacks a required column, or has one that is neither required nor optional.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            header, lines = _jsonl(file, stream) if file.suffix.lower() == ".jsonl" else _csv(stream)
            wanted = _Wanted(required, optional, one_of)
            positions = _positions(file, header, wanted, given or {})
            used = set(positions.values())
            rest = [name for position, name in enumerate(header) if position not in used]
            if rest and not aside:
                raise DataError(f"{file} has a column {rest[0]!r}: {wanted}")
            if rest and notes is not None:
                notes.append(f"columns of {file.name} that are left out: {first(rest, 5)}")
            for line, values in lines:
                texts = {role: values[k].strip() if k < len(values) else "" for role, k in positions.items()}
                row = Row(file, line, texts)
                _check_row(row, len(values) > len(header), [role for role in (*required, *one_of) if role in positions])
                yield row
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} is no CSV file in UTF-8 ({error})") from error


def _csv(stream: Any) -> _Rows:
    reader = csv.reader(stream, strict=True)
    header = [name.strip() for name in next(reader, [])]
    return header, ((reader.line_num, values) for values in reader if values)


def _jsonl(file: Path, stream: Any) -> _Rows:
    """Objects, one a line; the first has the columns. Raises DataError: another line."""

    def objects() -> Iterator[tuple[int, dict[str, Any]]]:
        for line, text in enumerate(stream, 1):
            try:
                content = json.loads(text) if text.strip() else {}
            except (ValueError, RecursionError) as error:
                raise DataError(f"{file}, line {line} is no JSON: {error}") from error
            if not isinstance(content, dict):
                raise DataError(f"{file}, line {line}: give an object, {{column: value}}")
            if content:
                yield line, content

    every = objects()
    top = next(every, None)
    header = list(top[1]) if top else []
    lines = itertools.chain([top] if top else [], every)
    texts = (
        (line, ["" if content.get(name) is None else str(content[name]) for name in header]) for line, content in lines
    )
    return header, texts


class _Wanted(NamedTuple):
    """What columns say, keys of COLUMNS; of `one_of` a table has one. As a string, what the columns are."""

    required: Sequence[str]
    optional: Sequence[str]
    one_of: Sequence[str]

    def __str__(self) -> str:
        before = [" or ".join(self.one_of)] if self.one_of else []
        text = f"the columns are {', '.join([*before, *self.required])}"
        text += f", and any of {', '.join(self.optional)}" if self.optional else ""
        if self.required == ("path",):
            text += (
                "; data.options.label=COLUMN, .path=, .client= and .split= name others, and further ones are left out"
            )
        return text


def _positions(file: Path, header: Sequence[str], wanted: _Wanted, given: Mapping[str, str]) -> dict[str, int]:
    """What a column says -> its position. Raises DataError: two columns say it, or none that has to be there."""
    if twice := [name for name, number in Counter(header).items() if number > 1]:
        raise DataError(f"{file} has two columns {twice[0][:50]!r}: {wanted}")
    places = {name: position for position, name in enumerate(header)}
    plain: dict[str, list[str]] = {}
    for name in header:
        plain.setdefault("".join(filter(str.isalnum, name.casefold())), []).append(name)
    positions = {}
    for role in (*wanted.one_of, *wanted.required, *wanted.optional):
        if role in given:
            if given[role] not in places:
                shown = ", ".join(name[:50] for name in header[:20])
                raise DataError(f"data.options.{role}={given[role]}: the columns of {file} are {shown}")
            names = [given[role]]
        else:
            names = [name for alias in COLUMNS[role] for name in plain.get(alias, []) if name not in given.values()]
            names = [role] if role in names else names
        if len(names) > 1:
            raise DataError(
                f"{file}: {' and '.join(names[:2])} could both be the {role}: keep one, or set data.options"
            )
        if names:
            positions[role] = places[names[0]]
    there = [role for role in wanted.one_of if role in positions]
    if len(there) > 1:
        raise DataError(f"{file} has the columns {' and '.join(there)}: keep one of them")
    missing = [role for role in wanted.required if role not in positions]
    if missing := [*([] if there else wanted.one_of), *missing]:
        marks = {";": "semicolons", "\t": "tabs"}
        mark = next((word for mark, word in marks.items() if any(mark in name for name in header)), None)
        hint = f"; separate columns by commas, not by {mark}" if mark else ""
        raise DataError(f"{file} has no column {missing[0]!r}: {wanted}{hint}")
    return positions


def _check_row(row: Row, too_long: bool, required: Sequence[str]) -> None:
    """Raises DataError: a row that cannot be."""
    if too_long or not all(map(str.isprintable, row.text.values())):
        raise DataError(f"{row}: it has more values than columns, or characters that cannot be printed")
    if any(len(row.text.get(key, "")) > LONGEST for key in ("label", "client")):
        raise DataError(f"{row}: a name of more than {LONGEST} characters: shorten it")
    if empty := [key for key in required if not row.text[key]]:
        raise DataError(f"{row}: {empty[0]} is empty")


def inside(path: str, where: str) -> str:
    """A relative path, short and with /. DataError: it begins with /, has a .. or is empty. where: for messages."""
    parts = PurePosixPath(path.replace("\\", "/")).parts
    if path.startswith("/"):
        raise DataError(f"{where}: {path!r} leads out of the folder: give a path within it, relative to it")
    if not parts or ".." in parts:
        raise DataError(f"{where}: {path!r} leads out of the folder: give a path within it")
    return str(PurePosixPath(*parts))


class Beside(NamedTuple):
    """A file that says what images are: names by path, or `by_name`; and why it says nothing, if so."""

    file: Path
    names: dict[str, Names]
    by_name: bool = False
    reason: str = ""


def beside(folder: Path) -> Beside | None:
    """What a folder's `metadata.csv`, `metadata.jsonl` or `*_annotations.txt` says of its images; None without one.

    The first two are tables as the library `datasets` writes them, the third is Tiny-ImageNet's: name, tab, class.
    """
    tables = [table for name in ("metadata.csv", "metadata.jsonl") if (table := folder / name).is_file()]
    if (file := next(iter([*tables, *sorted(folder.glob("*_annotations.txt"))]), None)) is None:
        return None
    by_name = file.suffix == ".txt"
    try:
        said = _annotations(file) if by_name else _metadata(file)
    except DataError as error:
        return Beside(file, {}, reason=str(error))
    return Beside(file, said, by_name, "" if said else "it has no column of labels")


def _metadata(file: Path) -> dict[str, Names]:
    """Names by path; empty where no image has a class."""
    listed = rows(file, ("path",), ("label", "client"), aside=True)
    said = {inside(row.text["path"], str(row)): row.names for row in listed}
    return said if any(label for label, _ in said.values()) else {}


def _annotations(file: Path) -> dict[str, Names]:
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    words = [line.split("\t") for line in lines if line.strip()]
    if wrong := [each for each in words if len(each) < 2 or not each[1].isprintable() or len(each[1]) > LONGEST]:
        raise DataError(f"{file}: {wrong[0][0][:50]!a}: give lines of an image, a tab and its class")
    return {each[0]: (each[1], None) for each in words}
