"""The cases' results: kept as JSON beside docs/reference/libraries.md, and rendered into that page."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from benchmark.disk import write_json
from leaderboards import store
from leaderboards.markdown import escape, replace_between, table_lines

FILE, PAGE = Path("docs/reference/libraries.json"), Path("docs/reference/libraries.md")
COLUMNS = ("comparison", "ours", "theirs", "difference", "allowed", "planted fault", "difference with it")


@dataclass(frozen=True)
class Result:
    """A case, how far the suite is from the library, and how far with the planted fault; None: it could not be run.

    library: the distribution, as pip knows it. error: why it could not be run, in one line; else empty.
    """

    title: str
    ours: str
    theirs: str
    library: str
    tolerance: float
    fault: str
    note: str
    difference: float | None = None
    seen: float | None = None
    error: str = ""

    @property
    def met(self) -> bool:
        """Whether the suite agrees and the fault is seen."""
        known = self.difference is not None and self.seen is not None
        return known and self.difference <= self.tolerance < self.seen  # type: ignore[operator] # both are known


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Table:
    """All results. versions: of the libraries."""

    versions: dict[str, str]
    results: tuple[Result, ...]


def read(file: Path = FILE) -> Table:
    """The table in a file. Raises RecordError: it is missing or holds something else."""
    return store.read_table(file, Table, "table of libraries", "parity-libraries")


def line(result: Result) -> str:
    """A result in a line of the terminal."""
    name = f"{result.title} ({result.theirs})"
    if result.error:
        return f"NOT RUN {name}: {result.error}"
    numbers = f"{result.difference:.1e}, allowed {result.tolerance:.1e}, with the fault {result.seen:.1e}"
    return f"{'met' if result.met else 'NOT MET'} {name}: {numbers}"


def drift(before: Table, now: Table) -> Iterator[str]:
    """Lines on what has changed: versions, and comparisons that are not met."""
    for name, version in now.versions.items():
        if (old := before.versions.get(name, "none")) != version:
            yield f"- {name} {old} -> {version}"
    unmet = [result for result in now.results if not result.met]
    yield f"{len(now.results) - len(unmet)} of {len(now.results)} comparisons are met"
    yield from (f"- {line(result)}" for result in unmet)


def save(table: Table, file: Path) -> None:
    """Writes the table as JSON."""
    write_json(file, asdict(table))


def filled(page: str, table: Table) -> str:
    """The page with the table between its marks. Raises RecordError: a mark is missing."""
    rows = [
        (r.title, r.ours, r.theirs, f"{r.difference:.1e}", f"{r.tolerance:.1e}", r.fault, f"{r.seen:.1e}")
        for r in table.results
        if not r.error
    ]
    notes: dict[str, list[str]] = {}
    for result in table.results:
        if result.note:
            notes.setdefault(result.note, []).append(result.title)
    text = [
        f"{len(rows)} comparisons, with {', '.join(f'{name} {version}' for name, version in table.versions.items())}.",
        "",
        *table_lines(COLUMNS, rows, "lllrrlr"),
        "",
        "Where a library computes something else, theirs is compared after this:",
        "",
        *(f"- {escape('; '.join(titles))}: {escape(note)}." for note, titles in notes.items()),
    ]
    return replace_between(page, "libraries", "\n".join(text))
