"""The bibliography: BibTeX entries of the papers behind methods, objectives and server optimisers, in `papers.bib`."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parents[1] / "papers.bib"
SUITE = "fulcrum"
"""Key of the suite's own entry."""


class Entry(NamedTuple):
    """A paper's BibTeX."""

    text: str
    fields: Mapping[str, str]

    @property
    def line(self) -> str:
        """The paper in a line: first author, title, venue by its acronym, year."""
        first, *others = self.fields["author"].split(" and ")
        venue = re.search(r"\((\w+)\)$", self.fields.get("booktitle", ""))
        author = f"{first.partition(',')[0]}{' et al.' if others else ''}"
        date = " ".join([*([venue[1]] if venue else []), self.fields["year"]])
        return f"{author}, {re.sub('[{}]', '', self.fields['title'])}, {date}"


@cache
def read() -> dict[str, Entry]:
    """The entries by their keys."""
    entries = {}
    text = FILE.read_text(encoding="utf-8")
    for entry, key in re.findall(r"^(@\w+\{(\w+),\n(?:  .*\n)*\}\n)", text, re.MULTILINE):
        entries[key] = Entry(entry, dict(re.findall(r"^  (\w+) = \{(.*)\},$", entry, re.MULTILINE)))
    return entries
