"""A griffe extension that reads the suite's docstrings as the google style that mkdocstrings shows.

- `a, b: text` below `Args:` becomes an entry for each name, and so does the second half of `a: text. b: text`.
- Where there is no `Args:`, a paragraph that begins with `name: ` is such a section if that is a parameter's name, and
  the section `Attributes:` if it is a field's.
- Lines from `>>>` to the next empty one become a block of code.
- A name that only `**kwargs` takes is described under `**kwargs`.
"""

import re
import textwrap
from collections.abc import Collection
from typing import Any

import griffe

NAMES = r"(?:\*{0,2}\w+, )*\*{0,2}\w+"
ENTRY = re.compile(rf"({NAMES}): (.*)", re.DOTALL)
FOLLOWING = re.compile(rf"(?<=[.;]) (?={NAMES}: )")
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
SECTION = re.compile(r"^Args:\n((?:[ ]{4}.*\n?|\n(?=[ ]{4}))+)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """A class: its entries are the parameters of its constructor and its fields."""
        constructor = cls.members.get("__init__")
        fields = [name for name, member in cls.members.items() if member.is_attribute]
        rewrite(cls, [parameter.name for parameter in getattr(constructor, "parameters", ())], fields)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """A function: its entries are its parameters."""
        rewrite(func, [parameter.name for parameter in func.parameters])


def rewrite(thing: griffe.Object, parameters: Collection[str], fields: Collection[str] = ()) -> None:
    """Rewrites the docstring of a class or function."""
    if thing.docstring is not None:
        thing.docstring.value = rewritten(thing.docstring.value, parameters, fields)


def rewritten(text: str, parameters: Collection[str], fields: Collection[str] = ()) -> str:
    """The text of a docstring in google style."""
    text = EXAMPLE.sub(r"```pycon\n\g<0>\n```", text)
    if found := SECTION.search(text):
        section = arguments(textwrap.dedent(found[1]), parameters, any_name=True)
        return f"{text[: found.start()]}Args:\n{section}\n{text[found.end() :]}"
    paragraphs = text.split("\n\n")
    for number, paragraph in enumerate(paragraphs[1:], 1):
        entry = ENTRY.match(paragraph)
        for title, known in (("Args", parameters), ("Attributes", fields)):
            if entry and set(entry[1].split(", ")) <= set(known):
                paragraphs[number] = f"{title}:\n{arguments(paragraph, known).rstrip()}"
                return "\n\n".join(paragraphs)
    return text


def arguments(content: str, known: Collection[str], any_name: bool = False) -> str:
    """The entries of a section, from lines that begin with names; a line that does not continues the one before.

    any_name: whether a name need not be known, so that griffe warns of it.
    """
    entries: list[str] = []
    for line in content.splitlines():
        entry = ENTRY.match(line)
        if entries and not (entry and (any_name or set(entry[1].split(", ")) <= set(known))):
            entries[-1] += f" {line.strip()}"
        else:
            entries.append(line)
    texts: dict[str, list[str]] = {}
    rest = next((name for name in known if name == "kwargs"), None)
    for part in [part for whole in entries for part in split(whole, known)]:
        match = ENTRY.match(part)
        names, meaning = (match[1].split(", "), match[2]) if match else ([part], "")
        plain = [name.lstrip("*") for name in names]
        for name in plain:
            if name in known or rest is None:
                texts.setdefault(name, []).append(meaning)
        if rest is not None and (taken := [f"`{name}`" for name in plain if name not in known]):
            texts.setdefault(rest, []).append(f"{', '.join(taken)}: {meaning}")
    return "".join(f"    {name}: {' '.join(meanings)}\n" for name, meanings in texts.items())


def split(entry: str, known: Collection[str]) -> list[str]:
    """The descriptions that share a line: `a: text. b: text` for parameters a and b."""
    parts: list[str] = []
    for part in FOLLOWING.split(entry):
        match = ENTRY.match(part)
        if parts and not (match and set(match[1].split(", ")) <= set(known)):
            parts[-1] += f" {part}"
        else:
            parts.append(part)
    return parts
