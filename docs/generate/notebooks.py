"""The tutorials, which are notebooks, as pages of the site: their cells as Markdown, with outputs and figures."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generate import links, public

FOLDER = links.ROOT / "docs" / "tutorials"


def pages() -> dict[str, str]:
    """Place in the site -> Markdown."""
    return {f"tutorials/{file.stem}.md": page(file) for file in sorted(FOLDER.glob("*.ipynb"))}


def page(file: Path) -> str:
    """A notebook as Markdown, with links for the site; its last line leads to the notebook itself."""
    parts = [part for cell in json.loads(file.read_text(encoding="utf-8"))["cells"] for part in _cell(cell)]
    text = links.rewrite("\n\n".join(parts), f"docs/tutorials/{file.name}", f"tutorials/{file.stem}.md", public.place)
    return f"{text}\n\nThis page is the notebook [{file.name}]({file.name}).\n"


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    """The source of a cell and what it printed and drew; a cell of commands is shown as a terminal takes it."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    commands = source.startswith("!")
    yield (
        _block("sh", "\n".join(line.removeprefix("!") for line in source.splitlines()))
        if commands
        else _block("python", source)
    )
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("text")})
        if "image/png" in data:
            png = "".join("".join(data["image/png"]).split())
            yield f'<img alt="figure of the cell above" src="data:image/png;base64,{png}">'
        else:
            yield _block("text", "".join(data["text/plain"]).rstrip())


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"
