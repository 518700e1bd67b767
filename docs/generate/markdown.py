"""Markdown as repository viewers read it: a list may follow a paragraph without a blank line, `<details>` hold Markdown."""

import re

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

ITEM = re.compile(r"(?:[-*+]|\d+\.) ")
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
            before = new[-1] if new else ""
            if not fenced and ITEM.match(line) and before.strip() and not before.startswith((" ", "\t", "|")):
                if not ITEM.match(before):
                    new.append("")
            new.append("<details markdown='1'>" + line[9:] if line.startswith("<details>") else line)
        return new
