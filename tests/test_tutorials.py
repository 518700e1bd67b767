"""The tutorials are committed as they ran, with figures and without what only one machine prints, and run again."""

import base64
import re

import nbformat
import pytest

from benchmark.cli.main import COMMANDS
from generate import notebooks
from generate.links import ROOT
from generate.run_notebooks import SPEED, executed

FILES = sorted(notebooks.FOLDER.glob("*.ipynb"))
MACHINE = re.compile(r"/(?:home|root|tmp|work|usr|Users)/|\x1b|\r|\berror:|Traceback|Warning")
"""Paths of a machine, colours, bars of progress, and what a reader should not meet."""
each = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def cells_of(file):
    return nbformat.read(file, as_version=4).cells


def outputs_of(cells):
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    return outputs


def figures(cells) -> list[bytes]:
    """What cells drew, as PNG."""
    data = [output.get("data", {}) for output in outputs_of(cells)]
    return [base64.b64decode(each["image/png"]) for each in data if "image/png" in each]


def texts(cells) -> list[str]:
    """What cells printed or returned."""
    outputs = [output for output in outputs_of(cells) if "image/png" not in output.get("data", {})]
    return [output.get("text") or output.data["text/plain"] for output in outputs]


def headings(cells) -> list[str]:
    """The words at the beginnings of lines: names of rows and runs, without rounds, whose lines depend on the time."""
    lines = [line for text in texts(cells) for line in text.splitlines() if not re.search(r": round \d", line)]
    return [found[0] for line in lines if (found := re.match(r" *[a-z][a-z_./]*(?: [a-z]+)*", line))]


@each
def test_it_is_committed_as_it_ran_with_small_figures_and_short_prose(file):
    cells = cells_of(file)
    code = [cell for cell in cells if cell.cell_type == "code"]
    prose = [cell.source for cell in cells if cell.cell_type == "markdown"]
    assert 6 <= len(cells) <= 12
    assert prose[0].startswith("# ")
    assert max(len(text.split()) for text in prose) <= 60
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]  # once, from the first to the last
    assert 1 <= len(figures(cells)) <= 2
    assert max(map(len, figures(cells))) <= 30_000
    printed = "".join(texts(cells))
    assert printed
    assert not MACHINE.search(printed + str([cell.metadata for cell in cells]))
    assert not SPEED.search(printed)


@each
def test_its_links_and_commands_lead_somewhere(file):
    source = "\n".join(cell.source for cell in cells_of(file))
    links = re.findall(r"\]\(([^)\s]+)\)", source)
    assert len(links) >= 2
    assert [link for link in links if not (file.parent / link).is_file()] == []
    assert {*re.findall(r"python -m benchmark (\w+)", source)} <= COMMANDS.keys()


def test_what_only_one_machine_prints_is_seen():
    assert all(MACHINE.search(text) for text in ("/home/anna/runs", "\x1b[2K", "error: no such key", "a\rb"))
    printed = "round 1  1,445 images/s\n  training   s   3.2\n  rounds   6\nknn 9 %  (3 s training, 1 s evaluation)"
    assert SPEED.sub("", printed) == "round 1\n  rounds   6\nknn 9 %"


def test_the_site_has_each_as_a_page_with_its_figures():
    pages = notebooks.pages()
    assert [*pages] == [f"tutorials/{file.stem}.md" for file in FILES]
    assert {*re.findall(r"tutorials/[\w-]+\.md", (ROOT / "mkdocs.yml").read_text())} == pages.keys()
    for file, text in zip(FILES, pages.values(), strict=True):
        cells = cells_of(file)
        shown = [base64.b64decode(data) for data in re.findall(r'src="data:image/png;base64,([^"]*)"', text)]
        assert shown == figures(cells)
        assert all(printed.rstrip() in text for printed in texts(cells))
        assert "!python" not in text
        assert ".ipynb" not in text.replace(f"[{file.name}]({file.name})", "")
        assert text.count("```") % 2 == 0


@pytest.mark.long
@each
def test_it_runs_again_to_the_same_rows_and_as_many_figures(file, tmp_path):
    """Numbers, the best of a row and the worst client depend on the processor."""
    cells, again = cells_of(file), executed(file, tmp_path).cells
    assert [len(figures([cell])) for cell in again] == [len(figures([cell])) for cell in cells]
    assert headings(again) == headings(cells)
    assert len(headings(cells)) > 3
    assert not MACHINE.search("".join(texts(again)))
