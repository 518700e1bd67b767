"""The privacy sheet: what leaves a client under each method, read from JSON and written into the pages.

`benchmark.audit.privacy_sheet` makes the sheet from the methods.
"""

from pathlib import Path

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from leaderboards import store
from leaderboards.markdown import in_bytes, render, replace_between
from leaderboards.sources import labelled

SHEET = "privacy.json"
"""The sheet's file in the leaderboards' folder."""
PLAIN = "sent as it is"
COLUMNS = ("method", "phase", "entry", "what it is", "bytes", "when", "combined", "the server needs", "protected")


@dataclass(frozen=True)
class Entry:
    """One entry of a client's reply in a phase.

    shape, bytes: of one reply; of a model in stages the shape in the last round, and the mean of bytes. combined:
    what the server computes from the clients' replies. alone: whether the server has to see each client's entry for
    that, so that secure aggregation could not hide it. protected: what else protects the entry, None: nothing.
    when: in which rounds, and which clients; recurs: whether more than once.
    """

    phase: str
    entry: str
    shape: str
    bytes: int
    combined: str
    alone: bool
    protected: str | None
    when: str = ""
    recurs: bool = True


@dataclass(frozen=True)
class Method:
    """What leaves a client under one method, and what stays with the client between its visits.

    scenario, objective: of the networks that are counted. keeps: names of what stays; kept_bytes: all of it.
    """

    name: str
    scenario: str
    objective: str
    entries: tuple[Entry, ...]
    keeps: tuple[str, ...]
    kept_bytes: int


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Sheet:
    """All methods at one encoder, for clients of `images` images and as many public images."""

    encoder: str
    images: int
    methods: tuple[Method, ...]


def read(path: str | Path) -> Sheet:
    """The sheet in a file. Raises RecordError where the file is missing or holds no sheet."""
    return store.read_table(path, Sheet, "privacy sheet", "privacy")


def filled(page: str, sheet: Sheet) -> str:
    """docs/reference/privacy-sheet.md with the sheet's tables between its marks."""
    return replace_between(
        page, "sheet", render("privacy.md.j2", sheet=sheet, columns=COLUMNS, cells=cells, labelled=labelled)
    )


def table(method: Method) -> Table:
    """What leaves a client under one method, and what stays, for the terminal."""
    stays = f"{', '.join(method.keeps)}, {in_bytes(method.kept_bytes)}" if method.keeps else "nothing"
    name = labelled(method.name, method.name)
    title = f"{name}: {method.objective}, networks of {method.scenario}; stays with the client: {stays}"
    result = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    for column in COLUMNS[1:]:
        result.add_column(column, overflow="fold")
    for entry in method.entries:
        result.add_row(*map(Text, cells(method, entry)[1:]))
    return result


def cells(method: Method, entry: Entry) -> tuple[str, ...]:
    """An entry as text, by column."""
    needs = "each one" if entry.alone else "the sum"
    details = (entry.shape, f"{entry.bytes:,}", entry.when, entry.combined, needs, entry.protected or PLAIN)
    return (labelled(method.name, method.name), entry.phase, entry.entry, *details)
