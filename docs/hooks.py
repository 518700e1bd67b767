"""Hooks of the documentation site: pages made from code and from documents outside docs/, and links for the site."""

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from mkdocs.config.defaults import MkDocsConfig  # noqa: E402
from mkdocs.exceptions import PluginError  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402
from mkdocs.structure.pages import Page  # noqa: E402

from generate import links, notebooks, public, tables  # noqa: E402
from generate.markdown import Viewer  # noqa: E402

LISTED = {"Methods": "methods", "Studies": "studies"}
"""Section of the navigation -> folder whose pages it lists."""
BOOST = {"how-to/troubleshooting.md": 1.5, "changelog.md": 0.3, "reproduction.md": 0.5, "reference/parity.md": 0.5}
"""Page -> factor of its search results. Guides come before the reference of Python names, which has most words."""
WORDS = {
    "start/install.md": ["install", "installation"],
    "how-to/run.md": ["resume"],
    "how-to/scenario-files.md": ["scenario file", "scenario YAML", "suite file"],
    "how-to/troubleshooting.md": ["out of memory", "OOM"],
    "how-to/recipes.md": ["custom augmentation"],
}
"""Page -> searches that find it first, by words that it need not have."""
PYTHON = {f"reference/{page}.md" for page in public.PAGES}
OUTER = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(https?:[^"]*)"')
"""What a page would load from elsewhere; a link that a reader follows is none."""
HERE = "the site that `make docs` opens"
REFERENCE = (
    "[config keys](reference/config.md), [protocols](reference/protocols.md), [commands](reference/commands.md), "
    "[functions](reference/index.md)"
)
"""What the front page says of the reference in the repository, which has none, and on the site."""
SOURCES = {page: source for source, page in links.DOCUMENTS.items()}
FORWARD = (
    '<!doctype html><meta charset="utf-8"><title>Moved</title><script>location.replace("{to}" + location.hash)</script>'
    '<meta http-equiv="refresh" content="0; url={to}"><a href="{to}">{to}</a>'
)
"""A page that leads to another, with the anchor where the browser runs scripts."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists a folder's pages in the navigation, so that a new method needs no line in mkdocs.yml."""
    config.markdown_extensions.append(Viewer())
    for section in _sections(config.nav or []):
        for title, folder in LISTED.items():
            if title in section:
                section[title] += [f"{folder}/{file.name}" for file in sorted((ROOT / "docs" / folder).glob("*.md"))]
    return config


def _sections(entries: list[Any]) -> list[dict[str, Any]]:
    """The sections of a navigation, at every depth."""
    found = [entry for entry in entries if isinstance(entry, dict)]
    lists = [value for entry in found for value in entry.values() if isinstance(value, list)]
    return found + [inner for value in lists for inner in _sections(value)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages, the documents outside docs/ and the board's figures."""
    for source, page in links.DOCUMENTS.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        shown = text if source.endswith(".md") else f"# Licence\n\n```text\n{text}\n```\n"
        files.append(File.generated(config, page, content=shown))
    for page, text in {**public.pages(), **tables.pages(), **notebooks.pages()}.items():
        files.append(File.generated(config, page, content=text))
    for figure in sorted((ROOT / "leaderboards" / "figures").glob("*.svg")):
        files.append(File.generated(config, str(figure.relative_to(ROOT)), abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links of pages that are files of the repository."""
    place = page.file.src_uri
    page.meta["search"] = {"boost": 0.2 if place in PYTHON else BOOST.get(place, 1.0)}
    page.meta["tags"] = WORDS.get(place, [])
    if place == "glossary.md":  # a search for one of its words finds it first
        rows = re.findall(r"^\| ([^|]+) \|", markdown, re.MULTILINE)
        page.meta["tags"] = [word.strip(" `") for row in rows for word in row.split(",") if word.strip(" -") != "word"]
    if (method := re.fullmatch(r"methods/(\w+)\.md", place)) and method[1] != "index":
        markdown += tables.bibtex(method[1])
    if place == "index.md":
        markdown = markdown.replace(HERE, REFERENCE)
    source = SOURCES.get(place) or (None if page.file.generated_by else f"docs/{place}")
    return markdown if source is None else links.rewrite(markdown, source, place, public.place)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuses a site that lacks a public name, or that a reader without a network could not see whole."""
    site = Path(config.site_dir)
    pages = {page.relative_to(site).as_posix(): page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    missing = []
    for module in public.modules():
        page = pages[f"reference/{public.page_of(module)}.html"]
        missing += [name for name in public.entries(module) if f'id="{name}"' not in page]
    if missing:
        raise PluginError(f"no entry in the reference: {', '.join(missing)}")
    for old, new in links.MOVED.items():
        if f"{old}.html" in pages or f"{new}.html" not in pages:
            raise PluginError(f"{old}.html cannot lead to {new}.html")
        (site / f"{old}.html").write_text(FORWARD.format(to=f"{new}.html"), encoding="utf-8")
    if fetched := {found for text in pages.values() for found in OUTER.findall(text)}:
        raise PluginError(f"fetched from the network: {', '.join(sorted(fetched))}")
