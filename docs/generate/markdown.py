"""Markdown as repository viewers read it: a list may follow a paragraph at once, and `<details>` hold Markdown."""

import re

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

ITEM = re.compile(r"(?:[-*+]|\d+\.) ")
PARAGRAPH = re.compile(rf"(?!{ITEM.pattern})[^\s|]")
"""The beginning of a paragraph's line: no item of a list, row of a table or indented line."""
FENCE = re.compile(r"\s*(`{3,}|~{3,})")


class Viewer(Extension):
    """The extension."""

    def extendMarkdown(self, md: Markdown) -> None:  # the name is Markdown's
        """Register before code blocks are taken out, at 25."""
        md.preprocessors.register(Lists(md), "viewer", 28)


class Lists(Preprocessor):
    """Blank lines before lists."""

    def run(self, lines: list[str]) -> list[str]:
        """The lines with a blank one before each list that follows a paragraph."""
        new: list[str] = []
        fenced = False
        for line in lines:
            fenced ^= FENCE.match(line) is not None
            if not fenced and ITEM.match(line) and new and PARAGRAPH.match(new[-1]):
                new.append("")
            new.append(re.sub("^<details", "<details markdown='1'", line))
        return new
