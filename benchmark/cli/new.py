"""The command `new`: files of a method, objective, protocol or scenario that work, to be changed into one's own.

A template, `benchmark/templates/KIND.txt`, has a section for each file, below a line `=== IN_THE_SUITE | IN_A_FOLDER`
with its path in the root of a checkout and in any other folder, `-` where it is not written. `+FILE` is added at the
end of a file that there is, `+FILE:NAME` at that of its dict `NAME`; `then` has what to do next.
"""

import ast
import keyword
import os
import re
from importlib.util import find_spec
from pathlib import Path
from string import Template

import yaml
from rich.text import Text

from benchmark import PROGRAM, ROOT
from benchmark.cli.session import Session
from benchmark.configuration.files import available
from benchmark.configuration.keys import nearest
from benchmark.configuration.words import exactly
from benchmark.disk import replacing
from benchmark.errors import ConfigError

KINDS = ("method", "objective", "protocol", "scenario")
NEW = f"{'|'.join(KINDS)} NAME"
TEMPLATES = Path(__file__).parents[1] / "templates"
SECTION = re.compile(r"^=== (\S+) \| (\S+)\n", re.MULTILINE)


def new(words: list[str], session: Session) -> None:
    """Write a method, objective, protocol or scenario that works, and its test, into this folder or this checkout."""
    kind, name = exactly(words, f"new {NEW}")
    if kind not in KINDS:
        raise ConfigError(f"there is no kind {kind!r}{nearest(kind, KINDS)}: choose {', '.join(KINDS)}")
    shipped = Path.cwd() == Path(ROOT).resolve()
    _check_name(kind, name, shipped)
    made, then = _made(kind, name, shipped)
    for file, (text, is_new) in made.items():
        with replacing(file) as beside:
            beside.write_text(text, encoding="utf-8")
        session.console.print(Text(f"{file}{'' if is_new else ' (added to)'}"), soft_wrap=True)
    session.console.print(
        Text(f"next:\n{then}".rstrip("\n").replace("\n", "\n  ").replace("python -m benchmark", PROGRAM)),
        soft_wrap=True,
    )


def _made(kind: str, name: str, shipped: bool) -> tuple[dict[Path, tuple[str, bool]], str]:
    """File -> its text and whether it is new; what to do next. Raises ConfigError: a file cannot be written."""
    sections = _sections(kind, name, shipped)
    then = sections.pop("then")
    _check_names_used(name, next(iter(sections.items())))
    made: dict[Path, tuple[str, bool]] = {}
    for place, body in sections.items():
        path, _, within = place.removeprefix("+").partition(":")
        file, is_new = Path(path), path == place
        if is_new and (taken := next(filter(os.path.lexists, (file, file.with_suffix(""))), None)) is not None:
            raise ConfigError(f"{taken} exists already and is not overwritten: {_other(name)}")
        before = "" if is_new else made[file][0] if file in made else file.read_text(encoding="utf-8")
        made[file] = _joined(before, body, file, within), is_new
    return made, then


def _sections(kind: str, name: str, shipped: bool) -> dict[str, str]:
    """Path, as in the template's heading -> text, of a kind's template for a name."""
    module = name.lower()
    known = {"name": module, "Class": _class(name), "id": module.replace("_", "-")}
    text = Template((TEMPLATES / f"{kind}.txt").read_text(encoding="utf-8")).substitute(known)
    _, *parts = SECTION.split(text)
    places, bodies = parts[0 if shipped else 1 :: 3], parts[2::3]
    return {place: body for place, body in zip(places, bodies, strict=True) if place != "-"}


def _joined(before: str, body: str, file: Path, within: str) -> str:
    """A file's text with another at its end, or at the end of the dict of this name."""
    if not within:
        return f"{before.rstrip()}\n{body}" if before else body
    found = re.search(rf"^{within} = \{{\n(?s:.*?)(?=^\}})", before, re.MULTILINE)
    if not found:
        raise ConfigError(f"{file} has no dict {within} to add to: take the file of the suite's last commit")
    return before[: found.end()] + body + before[found.end() :]


def _check_name(kind: str, name: str, shipped: bool) -> None:
    """Refuse a name that no module can have, or that is taken."""
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        letters = re.sub(r"\W+", "_", re.sub(r"\.(py|ya?ml)$", "", name), flags=re.ASCII).strip("_") or "own"
        other = letters if letters[0].isalpha() else f"{kind}_{letters}"
        raise ConfigError(f"{name!r} is no name of a module: give letters, digits and underscores, such as {other}")
    if any(map(keyword.iskeyword, (name, name.lower(), _class(name)))):
        raise ConfigError(f"{name} is a word of Python's own: {_other(name)}")
    if _plain(name) in map(_plain, _taken(kind)):
        raise ConfigError(f"{name} is taken by a shipped {kind}: {_other(name)}")
    if not shipped and kind != "scenario" and _is_installed(name.lower()):
        raise ConfigError(f"{name.lower()} is an installed module, which would be imported instead: {_other(name)}")


def _check_names_used(name: str, module: tuple[str, str]) -> None:
    """Refuse a name that a module of the template needs for something else. module: its path and text."""
    path, text = module
    if not path.endswith(".py"):
        return
    nodes, used = list(ast.walk(ast.parse(text))), set[str]()
    for node in nodes:
        used |= {node.id} if isinstance(node, ast.Name) else {node.arg} if isinstance(node, ast.arg) else set()
        used |= {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in used:
            raise ConfigError(f"{node.name} means something else in the new file: {_other(name)}")


def _taken(kind: str) -> list[str]:
    """The names of a kind that the suite has."""
    if kind != "protocol":
        return available(kind)
    entries = yaml.safe_load((Path(ROOT) / "eval" / "protocols.yaml").read_text(encoding="utf-8"))
    return [name.partition("/")[0] for name in entries]


def _is_installed(module: str) -> bool:
    """Whether there is a module of this name elsewhere than in this folder, which is looked into last."""
    spec = None if os.path.lexists(f"{module}.py") else find_spec(module)
    return spec is not None and spec.origin is not None


def _class(name: str) -> str:
    """The class of a name: `my_method` and `MyMethod` are both MyMethod."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _plain(name: str) -> str:
    return re.sub("[-_]", "", name).lower()


def _other(name: str) -> str:
    return f"give another name, such as {name}2"
