"""Links of the repository's pages, rewritten for the site; in a repository viewer they work as they are."""

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "licence.md",
    "leaderboards/README.md": "board.md",
}
"""Document outside docs/ -> its page of the site."""
MOVED = {
    "architecture": "explanation/architecture",
    "campaigns": "how-to/campaigns",
    "clusters": "how-to/clusters",
    "commands": "how-to/run",
    "communication": "how-to/communication",
    "data": "reference/data",
    "encoders": "how-to/encoders",
    "engine": "explanation/engine",
    "evaluation": "how-to/evaluate",
    "export": "how-to/export",
    "gpu": "how-to/gpu",
    "leaderboards": "how-to/boards",
    "objectives": "reference/objectives",
    "parity": "reference/parity",
    "performance": "reference/performance",
    "privacy": "how-to/privacy",
    "python": "how-to/python",
    "results": "explanation/results",
    "scale": "explanation/scale",
    "scope": "explanation/scope",
    "troubleshooting": "how-to/troubleshooting",
    "tune": "how-to/tune",
    "wandb": "how-to/wandb",
}
"""Page of an earlier site -> the page that has its subject now; both without an ending."""
GENERATED = {
    "benchmark/configuration/schema.py": "reference/config.md",
    "leaderboards/schema.py": "reference/record.md",
    "eval/protocols.yaml": "reference/protocols.md",
    "docs/methods": "methods/index.md",
    "docs/studies": "studies/index.md",
    "docs/reference/performance": "reference/measurements.md",
    "tests/kernels.json": "reference/kernels.md",
}
"""File or folder -> the page of the site that is generated from it."""
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s#]*)(#[^)\s]+)?((?:\s[^)]*)?)\)")
FENCE = re.compile(r"^(```.*?^```[^\n]*$)", re.DOTALL | re.MULTILINE)


class Target(NamedTuple):
    """A page of the site and an anchor on it, which is empty or begins with #."""

    page: str
    anchor: str = ""


def site_page(path: str, modules: Callable[[str], Target | None]) -> Target | None:
    """The page of the site for a path of the repository; None: it has none.

    modules: path of a Python file -> its place in the reference.
    """
    if page := DOCUMENTS.get(path) or GENERATED.get(path):
        return Target(page)
    if path.startswith("docs/") and (ROOT / path).is_file():
        return Target(path.removeprefix("docs/").replace(".ipynb", ".md"))
    if path.endswith(".svg") and (ROOT / path).is_file():
        return Target(path)
    return modules(path)


def rewrite(text: str, source: str, page: str, modules: Callable[[str], Target | None]) -> str:
    """The text of a document with links for the site; one to a file without a page becomes the file's name.

    A link that leads nowhere stays as it is, for the strict build to refuse.

    Args:
        text: Markdown. source: its path in the repository. page: its place in the site. modules: see `site_page`.
    """

    def replaced(link: re.Match[str]) -> str:
        shown, to, anchor, title = link.groups(default="")
        if not to or "://" in to or to.startswith("mailto:"):
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), to))
        if target := site_page(path, modules):
            address = posixpath.relpath(target.page, posixpath.dirname(page) or ".")
            return f"[{shown}]({address}{anchor or target.anchor}{title})"
        if (ROOT / path).exists():
            return f"`{path}`" if shown.strip("`/").lstrip("./") in path else f"{shown} (`{path}`)"
        return link[0]

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(replaced, part) for part in parts)
