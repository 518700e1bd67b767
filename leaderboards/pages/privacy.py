"""The privacy sheet as data: what leaves a client under each method, read from JSON and written into the pages.

`benchmark.audit.privacy_sheet` makes it from the methods; nothing here needs one.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from leaderboards.markdown import MISSING, between, fill, in_bytes, line
from leaderboards.schema import RecordError

SHEET = "privacy.json"
"""Its file, among the leaderboards."""
START = "<!-- sheet: written by the privacy command from the methods -->"
END = "<!-- end of sheet -->"
PLAIN = "sent as it is"
NOTHING = "nothing"
COLUMNS = ("method", "phase", "entry", "what it is", "bytes", "when", "combined", "the server needs", "protected")
SECTION = """\
## What leaves a client

A line is what one client sends under a method, counted at {encoder}, with the heads of its paper where a scenario has
them, for a client of {images:,} images. Of most entries the server needs a mean or a sum over clients, which secure
aggregation could give it without showing it any client's own; *each one* are those it has to look at client by client.
*Protected* is what the method itself does to an entry before it is sent. Every entry's shape and rounds, what stays
with the client, and what all this does not say: [privacy](../docs/privacy.md).
"""


@dataclass(frozen=True)
class Entry:
    """One entry of what a client replies in a phase.

    bytes: of one reply. combined: what the server makes of the clients' replies. alone: whether it has to see each
    client's by itself for that, so that secure aggregation could not hide it. protected: how, beyond that; None: not at
    all. when: in which rounds, and who; recurs: whether more than once.
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
    """What leaves a client under one method, and what stays with it between its visits.

    scenario, objective: whose networks are counted. keeps: names of what stays; kept_bytes: all of it.
    """

    name: str
    scenario: str
    objective: str
    entries: tuple[Entry, ...]
    keeps: tuple[str, ...]
    kept_bytes: int


@dataclass(frozen=True)
class Sheet:
    """All methods at one encoder, for clients of so many images and as many public ones."""

    encoder: str
    images: int
    methods: tuple[Method, ...]


def read(path: str | Path) -> Sheet:
    """The sheet in a file. Raises RecordError where it is not one."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        return Sheet(**{**content, "methods": tuple(_method(one) for one in content["methods"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RecordError(f"{path}: no privacy sheet ({error}): write it by `python -m benchmark privacy`") from error


def _method(content: dict[str, Any]) -> Method:
    entries = tuple(Entry(**entry) for entry in content["entries"])
    return Method(**{**content, "entries": entries, "keeps": tuple(content["keeps"])})


def write(path: str | Path, sheet: Sheet) -> None:
    """The sheet as JSON, the same bytes for the same sheet."""
    Path(path).write_text(json.dumps(asdict(sheet), indent=1) + "\n", encoding="utf-8")


def section(sheet: Sheet) -> str:
    """The board's section: a line a method."""
    lines = [SECTION.format(encoder=sheet.encoder, images=sheet.images)]
    lines += ["| method | in a round | once | each one | protected |", "|---|---|---|---|---|"]
    for method in sheet.methods:
        each = dict.fromkeys(entry.entry for entry in method.entries if entry.alone)
        guards = {entry.entry: entry.protected for entry in method.entries if entry.protected}
        again, once = (_amounts(e for e in method.entries if e.recurs == recurs) for recurs in (True, False))
        protected = "; ".join(f"{entry}: {words}" for entry, words in guards.items())
        cells = (again or NOTHING, once or MISSING, ", ".join(each) or MISSING, protected or MISSING)
        lines.append(line((method.name, *cells)))
    return "\n".join([*lines, ""])


def _amounts(entries: Iterable[Entry]) -> str:
    """`R 1.05 MB, weights 48.9 MB`; an entry that is combined in several ways is one."""
    sizes = {(entry.phase, entry.entry): entry.bytes for entry in entries}
    return ", ".join(f"{entry} {in_bytes(size)}" for (_, entry), size in sizes.items())


def write_page(page: Path, sheet: Sheet) -> None:
    """Fills docs/privacy.md."""
    fill(page, partial(filled, sheet=sheet))


def filled(page: str, sheet: Sheet) -> str:
    """A page with what is between its marks written anew."""
    sent = [line(COLUMNS), "|" + "|".join("---:" if column == "bytes" else "---" for column in COLUMNS) + "|"]
    for method in sheet.methods:
        rows = [cells(method, entry) for entry in method.entries]
        sent += map(line, rows or [(method.name, *(MISSING,) * 2, NOTHING, *(MISSING,) * 5)])
    kept = ["| method | objective | networks of | stays with the client | bytes |", "|---|---|---|---|---:|"]
    for method in sheet.methods:
        stays = (", ".join(method.keeps), in_bytes(method.kept_bytes)) if method.keeps else (NOTHING, MISSING)
        kept.append(line((method.name, method.objective, method.scenario, *stays)))
    return between(page, START, END, [*sent, "", *kept])


def table(method: Method) -> Table:
    """What leaves a client under one method, and what stays, for the terminal."""
    stays = f"{', '.join(method.keeps)}, {in_bytes(method.kept_bytes)}" if method.keeps else NOTHING
    title = f"{method.name}: {method.objective}, networks of {method.scenario}; stays with the client: {stays}"
    result = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    for column in COLUMNS[1:]:
        result.add_column(column, overflow="fold")
    for entry in method.entries:
        result.add_row(*map(Text, cells(method, entry)[1:]))
    return result


def cells(method: Method, entry: Entry) -> tuple[str, ...]:
    """An entry as text, by column."""
    needs = "each one" if entry.alone else "the sum"
    said = (entry.shape, f"{entry.bytes:,}", entry.when, entry.combined, needs, entry.protected or PLAIN)
    return (method.name, entry.phase, entry.entry, *said)
