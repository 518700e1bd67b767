"""All of a checkout that is made from records, papers and the privacy sheet; and whether it is what they make."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from leaderboards import store
from leaderboards.markdown import MISSING
from leaderboards.pages import board, methods, privacy, reproduction, site, studies
from leaderboards.papers import tables, verdicts
from leaderboards.schema import Record, RecordError

MEASURED = "measured.json"
"""Of the leaderboards' folder: place of a published cell that needs no run -> what we measured of it, by seeds."""

DATA = f"leaderboards/site/{site.DATA}"
GENERATED = ("leaderboards/README.md", "leaderboards/figures/*.svg", DATA, "docs/studies/*.svg")
"""Files that are made from nothing but data."""


class Moved(NamedTuple):
    """One line of what moved: where it is, what it was, what it is now."""

    what: str
    old: str
    new: str


def judged(records: Sequence[Record], folder: Path) -> list[verdicts.Verdict]:
    """A verdict on every published cell, of the folder's own papers where it has any."""
    papers = folder / tables.FOLDER.name
    papers = papers if papers.is_dir() else tables.FOLDER
    file = papers.parent / MEASURED
    measured = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return verdicts.judged(tables.collect(papers), records, measured)


def write(records: Sequence[Record], folder: Path, docs: Path | None = None, guarded: bool = True) -> None:
    """Writes the board and its site into `folder`, and where `docs` is given the tables of its pages and the verdicts.

    Raises:
        RecordError: a page or its mark is missing; or, guarded, a verdict got worse, and nothing is written then.
    """
    found = judged(records, folder)
    if docs is not None:
        if guarded and (lost := verdicts.worse(verdicts.read(folder), found)):
            place, before, now = lost[0]
            raise RecordError(
                f"{place} was {before} and is {now}: find out why, or take its line out of {folder / verdicts.FILE}"
            )
        verdicts.write(folder, found)
        methods.write(records, docs / "methods")
        studies.write(records, docs / "studies")
        reproduction.write(found, docs / "reproduction.md", records)
        if (folder / privacy.SHEET).exists():
            privacy.write_page(docs / "privacy.md", privacy.read(folder / privacy.SHEET))
    board.write(records, folder, found)
    site.write(records, found, folder)


def stale(root: Path = Path()) -> list[Moved]:
    """What of a checkout is committed otherwise than its data render to."""
    with tempfile.TemporaryDirectory() as name:
        fresh = Path(name)
        for part in ("leaderboards", "docs"):
            shutil.copytree(root / part, fresh / part, ignore=shutil.ignore_patterns("__pycache__"))
        for made in GENERATED:
            for file in fresh.glob(made):
                file.unlink()  # what is made no more is to be missing
        records = store.collect(fresh / "leaderboards" / "results")
        write(records, fresh / "leaderboards", fresh / "docs", guarded=False)
        found = [one for part in ("leaderboards", "docs") for one in _unlike(root / part, fresh / part, part)]
    return sorted(found, key=lambda one: not one.what.startswith(DATA))  # the cause before what it shows in


def _unlike(committed: Path, fresh: Path, name: str) -> Iterator[Moved]:
    there, made = _files(committed), _files(fresh)
    for file in sorted(there | made):
        where = f"{name}/{file.as_posix()}"
        if file not in made or file not in there:
            yield Moved(where, *(("there", "not made any more") if file in there else ("not there", "made")))
            continue
        old, new = (committed / file).read_bytes(), (fresh / file).read_bytes()
        if old != new:
            yield from list(_inside(where, old, new)) or [Moved(where, "committed", "written otherwise")]


def _files(folder: Path) -> set[Path]:
    found = (file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return {file.relative_to(folder) for file in found}


def _inside(where: str, old: bytes, new: bytes) -> Iterator[Moved]:
    """The numbers of data, the lines of text, that are not the same; of a picture only that it is another."""
    if where.endswith(".svg"):
        yield Moved(where, "committed", "drawn otherwise")
    elif where.endswith((".js", ".json")):
        try:
            yield from moved(where, site.read(old.decode()), site.read(new.decode()))
        except ValueError as error:
            yield Moved(where, "committed", f"cannot be read: {error}")
    else:
        yield from _lines(where, old.decode().splitlines(), new.decode().splitlines())


def _lines(where: str, old: Sequence[str], new: Sequence[str]) -> Iterator[Moved]:
    """Lines that changed, came or went, with the heading they stand under; a line more moves no other."""
    heading = ""
    for kind, first, last, start, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            for one, other in zip_longest(old[first:last], new[start:stop], fillvalue=MISSING):
                yield Moved(f"{where}, {heading or 'top'}", *_apart(one, other))
        heading = next((line.strip("# ") for line in reversed(old[first:last]) if line.startswith("#")), heading)


def _apart(old: str, new: str) -> tuple[str, str]:
    """Two lines of a table, by their name and the cells that differ; other lines whole."""
    one, other = ([cell.strip() for cell in line.strip("| ").split(" | ")] for line in (old, new))
    if len(one) != len(other):
        return old, new
    unlike = [place for place in range(1, len(one)) if one[place] != other[place]]
    if one[0] != other[0] or not unlike:
        return old, new
    return f"{one[0]}: {', '.join(one[place] for place in unlike)}", ", ".join(other[place] for place in unlike)


def moved(where: str, old: Any, new: Any) -> Iterator[Moved]:
    """Every number or word of nested data that is not the same, with its place."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from moved(f"{where} {key}", old.get(key, MISSING), new.get(key, MISSING))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from moved(f"{where} {_called(one, place)}", one, other)
    elif old != new:
        yield Moved(where, _short(old), _short(new))


def _called(item: Any, place: int) -> str:
    """An item of a list by its name, where it has one: a table, a row and its cells, a column."""
    if isinstance(item, Mapping):
        names = [str(item[key]) for key in ("paper", "table", "row", "key") if key in item]
    else:
        names = item[:1] if isinstance(item, list) and item and isinstance(item[0], str) else []
    return ", ".join(names) or str(place)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
