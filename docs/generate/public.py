"""What is public, and the pages of the reference that document it from docstrings.

Public is every name without a leading underscore that a module of `methods`, `eval`, `datamodules` or `leaderboards`,
`benchmark.api` or `benchmark.errors` defines itself: its classes and functions, and those of its variables that have a
docstring. Modules whose names begin with an underscore are not public.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from generate.links import ROOT, Target

PAGES = {
    "methods": ("Methods: base classes", "What a method is made of: hooks, messages, optimisers."),
    "methods-papers": ("Methods: papers", "The class of each method."),
    "methods.objectives": ("Objectives", "The class of each local loss."),
    "methods.networks": (
        "Networks",
        "The constructors of encoders, which `methods.networks` has by name.",
    ),
    "methods.maths": ("Mathematics", "Pure functions: losses, terms of methods, solvers."),
    "eval": ("Evaluation (package)", "Features, protocols and scores."),
    "datamodules": ("Data", "Sources of images, partitions, views."),
    "benchmark": ("Benchmark", "What a notebook imports, and the errors that a user can fix."),
    "leaderboards": ("Leaderboards (package)", "Records, ranks, pages."),
}
"""Page of docstrings -> title and content. A page has its package's modules, without those of a longer name here."""
TABLES = {
    "config": ("Config keys", "Every key of a config: type, default, meaning."),
    "protocols": ("Protocols", "Every protocol: what it does, its settings and metrics."),
    "record": ("Fields of a record", "Every field of a run's `result.json`."),
    "commands": ("Help of the commands", "Every command with its help."),
    "measurements": ("Measurements", "Every time, size and ratio behind the page of performance."),
    "kernels": (
        "Kernels of a step",
        "What a step of each method launches on a GPU, and how often a visit waits.",
    ),
}
"""Other page of the reference -> title and content; `generate.tables` makes them."""
BENCHMARK = ("benchmark.api", "benchmark.errors")
"""The public modules of `benchmark`."""


def modules() -> Iterator[str]:
    """The public modules, by dotted name."""
    yield from BENCHMARK
    for package in ("methods", "eval", "datamodules", "leaderboards"):
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            if not any(part.startswith("_") for part in parts):
                yield ".".join(parts)


@cache
def names(module: str) -> tuple[str, ...]:
    """The public names that a module defines, in its order."""
    body = ast.parse(path(module).read_text(encoding="utf-8")).body
    found = []
    for node, below in zip(body, [*body[1:], None], strict=True):
        documented = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.append(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if documented:
                found.append(name)
    return tuple(name for name in found if not name.startswith("_"))


def path(module: str) -> Path:
    """The file of a module."""
    return (ROOT / module.replace(".", "/")).with_suffix(".py")


def page_of(module: str) -> str:
    """The page of the reference that has a module: a key of PAGES."""
    package = module.rpartition(".")[0]
    if package == "methods" and _is_paper(module):
        return "methods-papers"
    return package if package in PAGES else package.partition(".")[0]


def _is_paper(module: str) -> bool:
    """Whether a module of `methods` is a method's: it has a page in docs/methods."""
    return (ROOT / "docs" / "methods" / f"{module.rpartition('.')[2]}.md").is_file()


def place(file: str) -> Target | None:
    """The place of a Python file in the reference; None: it is not public."""
    module = file.removesuffix(".py").replace("/", ".")
    return Target(f"reference/{page_of(module)}.md", f"#{module}") if module in set(modules()) else None


def pages() -> dict[str, str]:
    """Place in the site -> Markdown, of the pages made from docstrings."""
    texts = {page: f"# {title}\n\n{content}\n" for page, (title, content) in PAGES.items()}
    texts["index"] = index()
    for module in modules():
        members = "".join(f"\n        - {name}" for name in names(module))
        texts[page_of(module)] += f"\n::: {module}\n    options:\n      members:{members or ' false'}\n"
    return {f"reference/{page}.md": text for page, text in texts.items()}


def index() -> str:
    """The page before the others: what there is, and what counts as public."""
    listed = {**TABLES, **PAGES}.items()
    lines = [f"| [{title}]({page}.md) | {content} |" for page, (title, content) in listed]
    rule = str(__doc__).partition("\n\n")[2]
    return "\n".join(
        ["# Reference\n\nAll of it is made from the code.\n", "| page | content |", "|---|---|", *lines, "", rule]
    )


def entries(module: str) -> list[str]:
    """The dotted names that a module's part of the reference has: its own and those of its public names."""
    return [module, *(f"{module}.{name}" for name in names(module))]
