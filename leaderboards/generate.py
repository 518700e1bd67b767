"""Everything in a checkout that is made from records, papers, privacy sheet and parity table; what is out of date."""

import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from leaderboards import choices, error_rates, store
from leaderboards.markdown import MISSING, replace_between, rewrite
from leaderboards.pages import board, costs, fairness, methods, parity, privacy, reproduction, site, studies, twins
from leaderboards.papers import computed, tables, verdicts
from leaderboards.schema import Record, RecordError, is_number

DIGESTS = "record_hashes.json"
"""In the leaderboards' folder: run -> hash of its record, so that no number of a record changes unnoticed."""
GENERATED = ("leaderboards/README.md", f"leaderboards/{DIGESTS}", "leaderboards/figures/*.svg", "docs/studies/*.svg")
"""Committed files that are made from data alone."""


class Moved(NamedTuple):
    """One difference: where it is, the old value, the new value."""

    what: str
    old: str
    new: str


def judged(records: Sequence[Record], folder: Path) -> list[verdicts.Verdict]:
    """A verdict on every published cell, of the folder's own papers where it has any."""
    papers = folder / tables.FOLDER.name
    papers = papers if papers.is_dir() else tables.FOLDER
    return verdicts.judged(tables.collect(papers), records, computed.read(papers.parent / computed.FILE))


def write(records: Sequence[Record], folder: Path, docs: Path | None = None, guarded: bool = True) -> None:
    """Writes the board and its site into `folder`; with `docs` also its pages' tables, the verdicts and the digests.

    Raises RecordError: a page or its mark is missing; or, if guarded, a verdict got worse: then nothing is written.
    """
    current, sheet, compared = _checked(records, folder, docs, guarded)
    if docs is not None:
        verdicts.write(folder, current)
        digests = {store.name(record): store.digest(record) for record in records}
        (folder / DIGESTS).write_text(json.dumps(digests, indent=0, sort_keys=True) + "\n", encoding="utf-8")
        methods.write(records, docs / "methods", [verdict.cell for verdict in current])
        studies.write(records, docs / "studies")
        twins.write(records, docs / "studies")
        rewrite(
            docs / "reproduction.md", partial(reproduction.filled, verdicts=current, records=records, parity=compared)
        )
        if (rates := folder / error_rates.FILE.name).exists():
            text = "\n".join(error_rates.lines(error_rates.read(rates)))
            rewrite(docs / "explanation" / "reading-the-board.md", partial(replace_between, mark="rates", text=text))
        for made in filter(Path.is_dir, map(folder.joinpath, choices.FOLDERS)):
            filled = partial(fairness.filled, choices=choices.collect(made), mark=made.name)
            rewrite(docs / "explanation" / "fairness.md", filled)
        if sheet is not None:
            rewrite(docs / "reference" / "privacy-sheet.md", partial(privacy.filled, sheet=sheet))
        if (counted := folder / costs.SHEET).exists():
            rewrite(docs / "reference" / "cost-sheet.md", partial(costs.filled, sheet=costs.read(counted)))
        if compared is not None:
            rewrite(docs / "reference" / "parity.md", partial(parity.filled, parity=compared, records=records))
    board.write(records, folder, current, sheet, linked=docs is not None)
    site.write(records, current, folder, sheet)


def check(records: Sequence[Record], folder: Path, docs: Path | None = None) -> None:
    """Raises the RecordError of `write` for records and the folder's files, without writing anything."""
    current, sheet, _ = _checked(records, folder, docs, guarded=True)
    board.markdown(records, sheet, current)


def _checked(
    records: Sequence[Record], folder: Path, docs: Path | None, guarded: bool
) -> tuple[list[verdicts.Verdict], privacy.Sheet | None, parity.Parity | None]:
    """The verdicts, privacy sheet and parity table. Raises RecordError: a file is not valid, or a verdict got worse."""
    current = judged(records, folder)
    if docs is not None and guarded and (lost := verdicts.worse(verdicts.read(folder), current)):
        place, before, now = lost[0]
        raise RecordError(
            f"{place} was {before} and is {now}: find out why, or take its line out of {folder / verdicts.FILE}"
        )
    sheet = privacy.read(folder / privacy.SHEET) if (folder / privacy.SHEET).exists() else None
    compared = parity.read(folder / parity.FILE) if docs is not None and (folder / parity.FILE).exists() else None
    return current, sheet, compared


def stale(root: Path = Path()) -> list[Moved]:
    """How the committed files of a checkout differ from what its data give; the site's data are not committed."""
    with tempfile.TemporaryDirectory() as name:
        fresh = Path(name)
        for top in ("leaderboards", "docs"):
            shutil.copytree(root / top, fresh / top, ignore=shutil.ignore_patterns("__pycache__"))
        for pattern in GENERATED:
            for file in fresh.glob(pattern):
                file.unlink()  # a file that is no longer made has to be missing
        records = store.collect(fresh / "leaderboards" / "results")
        write(records, fresh / "leaderboards", fresh / "docs", guarded=False)
        committed, made = _files(root), _files(fresh)
    return sorted(_differences(committed, made), key=lambda moved: DIGESTS not in moved.what)  # causes come first


def _files(root: Path) -> dict[str, bytes]:
    """Path -> content of every file that a checkout's data and pages consist of."""
    files = (file for top in ("leaderboards", "docs") for file in (root / top).rglob("*") if file.is_file())
    kept = (file for file in files if file.name != site.DATA and "__pycache__" not in file.parts)
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in kept}


def _differences(committed: Mapping[str, bytes], made: Mapping[str, bytes]) -> Iterator[Moved]:
    for file in sorted(committed.keys() | made.keys()):
        old, new = committed.get(file), made.get(file)
        if new is None:
            yield Moved(file, "there", "not made any more")
        elif old is None:
            yield Moved(file, "not there", "made")
        elif old != new and file.endswith(".svg"):
            yield Moved(file, "committed", "drawn differently")
        elif old != new:
            yield from _lines(file, *(text.decode(errors="replace").split("\n") for text in (old, new)))


def _lines(where: str, old: Sequence[str], new: Sequence[str]) -> Iterator[Moved]:
    """Lines that changed, were added or removed, with the heading above; an added line moves no other."""
    heading = ""
    for kind, old_start, old_stop, new_start, new_stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            for pair in zip_longest(old[old_start:old_stop], new[new_start:new_stop], fillvalue=MISSING):
                yield Moved(f"{where}, {heading or 'top'}", *_cells(*pair))
        headings = [line.strip("# ") for line in old[old_start:old_stop] if line.startswith("#")]
        heading = headings[-1] if headings else heading


def _cells(old: str, new: str) -> tuple[str, str]:
    """Two lines of a table, reduced to their first cell and the cells that differ; other lines unchanged."""
    (old_name, *old_cells), (new_name, *new_cells) = (
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in (old, new)
    )
    if old_name != new_name or old_cells == new_cells or len(old_cells) != len(new_cells):
        return old, new
    unlike = [pair for pair in zip(old_cells, new_cells, strict=True) if pair[0] != pair[1]]
    old_shown, new_shown = (", ".join(cells) for cells in zip(*unlike, strict=True))
    return f"{old_name}: {old_shown}", new_shown


def moved(where: str, old: Any, new: Any, tolerance: float = 0.0, absolute: float | None = None) -> Iterator[Moved]:
    """Every number or text of nested data that differs, with its place.

    tolerance: of a number that is not whole, relative. absolute: of one near 0; None: as much.
    """
    near = tolerance if absolute is None else absolute
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            yield from moved(f"{where} {key}", old.get(key, MISSING), new.get(key, MISSING), tolerance, absolute)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from moved(f"{where} {index}", *pair, tolerance, absolute)
    elif is_number(old) and is_number(new):
        whole = isinstance(old, int) and isinstance(new, int)  # a count
        if old != new if whole else not math.isclose(old, new, rel_tol=tolerance, abs_tol=near):
            yield Moved(where, _short(old), _short(new))
    elif old != new:
        yield Moved(where, _short(old), _short(new))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
