"""The command list: every name that commands take."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from rich.table import Table

from benchmark.cli.reports import SERVER_OPTIMIZERS
from benchmark.cli.session import Session
from benchmark.configuration.files import GROUPS as PLUGINS
from benchmark.configuration.files import available, plugins, summary
from benchmark.configuration.keys import nearest
from benchmark.errors import ConfigError

GROUPS = ("suite", "campaign", "scenario", "method", "objective")
"""Groups of shipped configs, in the order of `list`."""
LISTS = (*(f"{group}s" for group in GROUPS), "encoders", "server_optimizers", "sources", "protocols")
"""What `list` takes."""


def listing(words: list[str], session: Session) -> None:
    """Print every name that commands take, one line each, or one group of them."""
    for name in words:
        if name not in LISTS:
            raise ConfigError(f"there is no group {name!r}{nearest(name, LISTS)}: choose {', '.join(LISTS)}")
    for title in words or LISTS:
        table = Table(title=title, title_justify="left", box=None, show_header=False)
        for row in _listed(title):
            table.add_row(*row)
        session.console.print(table)


def _listed(title: str) -> list[tuple[str, str]]:
    """Names of a group with their summaries; none needs torch."""
    if (group := title.removesuffix("s")) in GROUPS:
        return [*((name, summary(group, name)) for name in available(group)), *_added(title)]
    if title == "protocols":
        from eval.official import PROTOCOLS, find

        long = {name: " (of `papers`, not of `all`)" for name, protocol in PROTOCOLS.items() if protocol.long}
        names = [(name, protocol.summary + long.get(name, "")) for name, protocol in PROTOCOLS.items()]
        further = {version: find(f"transfer-other/{version}").summary for version in ("v1", "v2")}
        return [
            *names,
            *_added(title),
            *((f"transfer-<data set>/{v}", text.replace("other", "it", 1)) for v, text in further.items()),
        ]
    if title == "encoders":
        return list(_encoders())
    if title == "sources":
        from datamodules.archives import ARCHIVES
        from datamodules.embedded import EMBEDDED

        embedded = [(name, (made.__doc__ or "").partition("\n")[0]) for name, made in EMBEDDED.items()]
        return [*embedded, *((name, f"torchvision's {of}") for name, of in ARCHIVES.items()), *_added(title)]
    made = {f"methods.server.{each.name}": each for each in _parsed("methods.server") if isinstance(each, ast.ClassDef)}
    return [(path, _first_line(made[path])) for path in SERVER_OPTIMIZERS]


def _added(group: str) -> list[tuple[str, str]]:
    """What installed packages add to a group of `list`."""
    added = plugins(group).items() if group in PLUGINS else ()
    return [(name, f"{plugin.path}, of {plugin.wheel}") for name, plugin in added]


def _encoders() -> Iterator[tuple[str, str]]:
    """The constructors of `methods.networks`."""
    for statement in _parsed("methods.networks"):
        if isinstance(statement, ast.ImportFrom) and str(statement.module).startswith("methods.networks."):
            functions = _parsed(str(statement.module))
            known = {each.name: each for each in functions if isinstance(each, ast.FunctionDef)}
            for each in (known[alias.name] for alias in statement.names if alias.name in known):
                if each.returns and ast.unparse(each.returns) == "Encoder":
                    yield f"methods.networks.{each.name}", _first_line(each)


def _parsed(module: str) -> list[ast.stmt]:
    """The statements of a module, read from its text: it would import torch, for seconds."""
    package, _, name = module.partition(".")
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parent.joinpath(*name.split("."))
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8")).body


def _first_line(made: ast.FunctionDef | ast.ClassDef) -> str:
    """Of a docstring."""
    return (ast.get_docstring(made) or "").partition("\n")[0]
