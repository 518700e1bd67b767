"""The reference has every public name, key, protocol, record field and command; links and docstrings are rewritten."""

import dataclasses
import importlib
import inspect
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from markdown import Markdown

from benchmark.cli.main import COMMANDS
from benchmark.configuration.keys import keys
from benchmark.configuration.schema import KEYS
from datamodules.recipe import Recipe
from generate import docstrings, links, public, tables
from generate.markdown import Viewer
from leaderboards.schema import FIELDS

ROOT = Path(__file__).parent.parent
SETTINGS = ("settings", "scores", "encoders", "libraries", "clients", "curve", "server", "up", "down", "evaluated")
SETTINGS += ("parts", "phases", "weights")
"""Objects of a record whose keys are data, not fields."""


def section(page: str, heading: str) -> str | None:
    """The text below a heading that is a name in code; None: there is no such heading."""
    found = re.search(rf"^##+ `{re.escape(heading)}`[^\n]*\n(.*?)(?=^##|\Z)", page, re.DOTALL | re.MULTILINE)
    return found and found[1].strip()


def without_entry(page: str, names) -> list[str]:
    return [name for name in names if not section(page, name)]


def test_every_config_key_has_its_entry():
    page = tables.config_page()
    expected = KEYS.keys() | {f"views.{field.name}" for field in dataclasses.fields(Recipe)}
    assert len(expected) > 70
    assert without_entry(page, expected) == []
    assert without_entry(page, ["federation.invented", "invented"]) == ["federation.invented", "invented"]
    assert "data.class" in section(page, "data.name")
    assert "A rule, such as iid or dirichlet" in section(page, "partition.name")
    assert [key.name for key in KEYS.values() if len(key.meaning) < 8] == []


def test_a_key_without_a_docstring_has_no_meaning():
    @dataclasses.dataclass
    class Section:
        told: int = 3
        """Its meaning."""
        untold: int = 4

    found = [(key.name, key.default, key.meaning) for key in keys(Section, "a.")]
    assert found == [("a.told", 3, "Its meaning."), ("a.untold", 4, "")]


def test_every_protocol_has_its_entry_with_its_settings():
    page = tables.protocols_page()
    entries = yaml.safe_load((ROOT / "eval" / "protocols.yaml").read_text())
    shipped = {name.replace("{data}", "<data set>"): entry for name, entry in entries.items()}
    assert without_entry(page, [*shipped, "linear/v9"]) == ["linear/v9"]
    assert "| `probe.lr` | `0.003` |" in section(page, "linear/v1")
    assert "| `k` | `200` |" in section(page, "knn/v1")
    for name, protocol in shipped.items():
        for key in protocol.get("settings", {}):
            assert key == "<<" or re.search(rf"`{key}[.`]", section(page, name)), (name, key)


def record_fields(value, path="") -> set[str]:
    """The dotted names of a record's fields, as JSON has them."""
    inner = {name: value[name] for name in value if isinstance(value[name], dict) and name not in SETTINGS}
    return {f"{path}{name}" for name in value}.union(*(record_fields(inner[name], f"{path}{name}.") for name in inner))


def begins(listed: list[str], name: list[str]) -> bool:
    """Whether a listed field is the name or within it; `*` stands for any key."""
    return len(name) <= len(listed) and all(one in ("*", other) for one, other in zip(listed, name, strict=False))


def test_every_field_of_a_record_has_its_entry():
    page = tables.record_page()
    assert without_entry(page, [*FIELDS, "invented"]) == ["invented"]
    files = sorted((ROOT / "leaderboards" / "results").rglob("*.json"))
    committed = {field for file in files for field in record_fields(json.loads(file.read_text()))}
    assert len(committed) > 40
    assert {name for name in committed if "." not in name} <= FIELDS.keys()
    nested = {name for name in committed if "." in name}
    listed = [name.split(".") for name in re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)]
    assert sorted(name for name in nested if not any(begins(each, name.split(".")) for each in listed)) == []
    assert "| `evaluated.*.git` |" in page
    assert not re.search(r"\| *\|", page)  # each has a type and a meaning


def test_every_command_has_its_help():
    page = tables.commands_page()
    assert without_entry(page, [*COMMANDS, "invented"]) == ["invented"]
    for name, (function, usage) in COMMANDS.items():
        words = " ".join(section(page, name).split())
        assert f"python -m benchmark {name} {' '.join(usage.split())}" in words
        assert inspect.getdoc(function).splitlines()[0] in words


def defined_names(module) -> set[str]:
    """The public classes and functions that a module defines, found by importing it."""
    things = {name: each for name, each in vars(module).items() if inspect.isclass(each) or inspect.isfunction(each)}
    own = {name for name, thing in things.items() if (thing.__module__, thing.__name__) == (module.__name__, name)}
    return {name for name in own if not name.startswith("_")}


def without_members(texts: str, module: str, names) -> list[str]:
    (block,) = re.findall(rf"^::: {re.escape(module)}\n(.*?)(?=^:::|\Z)", texts, re.DOTALL | re.MULTILINE)
    return sorted(name for name in names if f"\n        - {name}\n" not in block)


def test_every_public_class_and_function_has_its_entry():
    texts, modules = "\n".join(public.pages().values()), list(public.modules())
    packages = ("methods.base", "methods.maths.losses", "eval.protocol", "benchmark.api", "leaderboards.schema")
    assert {*packages} <= {*modules}
    missing = {name: without_members(texts, name, defined_names(importlib.import_module(name))) for name in modules}
    assert {name: names for name, names in missing.items() if names} == {}
    assert without_members(texts, "methods.core.types", ["Mean", "Median"]) == ["Median"]


FIGURE = "figures/cifar10-mini.svg"


@pytest.mark.parametrize(
    ("text", "source", "page", "expected"),
    [
        ("[a](docs/glossary.md#x)", "README.md", "index.md", "[a](glossary.md#x)"),
        ("[a](../README.md)", "docs/x.md", "x.md", "[a](index.md)"),
        ("[a](../glossary.md)", "docs/methods/ssd.md", "methods/ssd.md", "[a](../glossary.md)"),
        ("[a](../methods)", "docs/how-to/boards.md", "how-to/boards.md", "[a](../methods/index.md)"),
        ("[a](../leaderboards/schema.py)", "docs/x.md", "x.md", "[a](reference/record.md)"),
        ("[a](../datamodules/views.py)", "docs/x.md", "x.md", "[a](reference/datamodules.md#datamodules.views)"),
        ("[tuned/](../leaderboards/tuned)", "docs/x.md", "x.md", "`leaderboards/tuned`"),
        ("[one](../examples/sweep.yaml)", "docs/x.md", "x.md", "one (`examples/sweep.yaml`)"),
        ("![a](docs/pictures/concept.svg)", "README.md", "index.md", "![a](pictures/concept.svg)"),
        (f"![a]({FIGURE})", "leaderboards/README.md", "board.md", f"![a](leaderboards/{FIGURE})"),
        ("[a](../nowhere.py)", "docs/x.md", "x.md", "[a](../nowhere.py)"),
        ("[a](#here)", "docs/x.md", "x.md", "[a](#here)"),
        ("```\n[a](../README.md)\n```", "docs/x.md", "x.md", "```\n[a](../README.md)\n```"),
    ],
)
def test_links_lead_to_pages_of_the_site(text, source, page, expected):
    assert links.rewrite(text, source, page, public.place) == expected


def test_an_earlier_page_leads_to_the_one_that_has_its_subject_now():
    docs = ROOT / "docs"
    assert not [old for old, new in links.MOVED.items() if (docs / f"{old}.md").exists()]
    assert not [new for old, new in links.MOVED.items() if not (docs / f"{new}.md").exists()]


def test_a_methods_page_ends_with_its_papers_entry():
    assert tables.bibtex("ssd").startswith("\n## BibTeX\n\n```bibtex\n@inproceedings{ssd,\n")
    assert tables.bibtex("untrained") == ""


def test_the_page_of_kernels_has_what_was_measured():
    for name, now in json.loads((ROOT / "tests" / "kernels.json").read_text()).items():
        assert re.search(rf"^\| {name} \| (\d+ → )?{now['kernels']} \|", tables.kernels_page(), re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "parameters", "fields", "expected"),
    [
        ("Does.\n\nArgs:\n    a, b: text\n        more\n    c: x", "abc", "", "a: text more|b: text more|c: x"),
        ("Does.\n\na: text. b: other", "ab", "", "Args:|a: text.|b: other"),
        ("Does.\n\na: text\nof: two lines", "a", "", "Args:|a: text of: two lines"),
        ("Is.\n\na: text", "", "a", "Attributes:|a: text"),
        ("Is.\n\nArgs:\n    a, z: text", ("a", "kwargs"), "", "a: text|kwargs: `z`: text"),
        ("Does.\n\nArgs:\n    typo: text", "a", "", "typo: text"),
        ("Does.\n\nNote: text", "a", "", "Note: text"),
        ("Does.\n\n>>> f(1)\n[4, 3]\n\nMore.", "a", "", "Does.|```pycon|>>> f(1)|[4, 3]|```|More."),
    ],
)
def test_docstrings_are_read_as_google_style(text, parameters, fields, expected):
    lines = [line.strip() for line in docstrings.rewritten(text, [*parameters], [*fields]).splitlines() if line.strip()]
    assert "|".join(lines).endswith(expected)


def test_a_list_may_follow_a_paragraph_as_in_a_repository_viewer():
    text, fenced = "Decisions\n- one\n- two\n  lines\n", "```\na\n- b\n```"
    assert Markdown(extensions=[Viewer()]).convert(text).count("<li>") == 2
    shown = [Markdown(extensions=[*own, "fenced_code"]).convert(fenced) for own in ([Viewer()], [])]
    assert shown[0] == shown[1]
    fold = Markdown(extensions=[Viewer(), "md_in_html"]).convert(
        "<details open><summary>a</summary>\n\n**b**\n\n</details>"
    )
    assert "<strong>b</strong>" in fold


def test_the_sites_search_runs_from_disk(browser, tmp_path):
    shutil.copy(ROOT / "docs" / "assets" / "iframe-worker.js", tmp_path / "shim.js")
    (tmp_path / "worker.js").write_text("addEventListener('message', (event) => postMessage(event.data + 1))")
    (tmp_path / "index.html").write_text(
        "<!doctype html><script src='shim.js'></script><body><script>const worker = new Worker('worker.js');"
        "worker.addEventListener('message', (event) => document.title = event.data);"
        "worker.postMessage(41)</script></body>"
    )
    page = browser.new_page()
    page.goto((tmp_path / "index.html").as_uri())
    page.wait_for_function("document.title === '42'", timeout=10_000)
