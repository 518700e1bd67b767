"""A reconstructed method is called so wherever it is named."""

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from benchmark.audit import pages
from benchmark.configuration import files
from benchmark.configuration.files import RECONSTRUCTED, available, facts, source, summary
from benchmark.tracking import comparison
from benchmark.tracking.comparison import Pool, RunContent
from leaderboards import sources
from leaderboards.pages import methods

ROOT = Path(__file__).parents[2]
TITLES = sources.reconstructed()
NAMED = re.compile(rf"(?<![\w/.-])(?:{'|'.join([*TITLES, *TITLES.values()])})(?![\w-])")
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "leaderboards" / "README.md"]
NAMING = {str(page.relative_to(ROOT)): text for page in PAGES if NAMED.search(text := page.read_text("utf-8"))}


def test_the_four_are_those_whose_heads_say_so():
    assert set(TITLES.values()) == {"FedCA", "FedMKD", "LW-FedSSL", "Prog-FedSSL"}
    assert sources.RECONSTRUCTED == RECONSTRUCTED
    for name in available("method"):
        assert summary("method", name).endswith(f", {RECONSTRUCTED}") == (name in TITLES)
        assert facts("method", name).get("source") in ("code", "paper", RECONSTRUCTED, None)


def test_a_variant_is_from_where_its_method_is(tmp_path, monkeypatch):
    (tmp_path / "method").mkdir()
    head = "# FedCA\n# title: FedCA\n# source: reconstructed\n"
    (tmp_path / "method" / "fedca.yaml").write_text(f"{head}method:\n  class: methods.fedca.FedCA\n")
    (tmp_path / "method" / "fedca-two.yaml").write_text("# Twice\nmethod:\n  class: methods.fedca.FedCA\n")
    monkeypatch.setattr(files, "CONFIGS", tmp_path)
    assert source("fedca-two") == RECONSTRUCTED
    assert '"fedca-two": {"over": [], "paper": [], "source": "reconstructed", "title": null}' in pages.methods()


@pytest.mark.parametrize("page", sorted(NAMING))
def test_a_page_that_names_one_says_so(page):
    assert RECONSTRUCTED in NAMING[page].lower()


@pytest.mark.parametrize("page", ["README.md", "docs/explanation/results.md", "docs/explanation/scope.md"])
def test_so_does_every_paragraph_and_item_on_results(page):
    blocks = re.split(r"\n(?=\n|- |\| )", NAMING[page])
    assert not [block for block in blocks if NAMED.search(block) and RECONSTRUCTED not in block]


def test_the_lists_of_README_and_tables_of_rows_have_it_in_the_name():
    listed = re.search(r"^\| methods \|.*$", NAMING["README.md"], re.MULTILINE)[0]
    assert all(f"{title} (*{RECONSTRUCTED}*)" in listed for title in TITLES.values())
    assert f"({len(TITLES)} of them *{RECONSTRUCTED}*)" in NAMING["README.md"]
    lines = NAMING["leaderboards/README.md"].splitlines()
    rows = [re.split(r"\s*\|\s*", line)[1:3] for line in lines if line.startswith("|")]
    cells = [cell for row in rows for cell in row if re.match(rf"({'|'.join(TITLES)})\b", cell)]
    assert len(cells) == 10
    assert all(cell.endswith(f" ({RECONSTRUCTED})") for cell in cells)


def test_a_page_without_the_mark_gets_it_below_its_paper():
    page = methods.filled("# FedCA\n\nZhang: *FedCA*. 2020.\n\nText.\n", "fedca", {}, [])
    assert page.index("2020.") < page.index("*Reconstructed*: neither") < page.index("Text.")
    assert methods.filled(page, "fedca", {}, []) == page
    assert RECONSTRUCTED not in methods.filled("# FedSC\n\nJing.\n\nText.\n", "fedsc", {}, []).lower()


def test_compare_labels_its_columns_so():
    configs = [{"row": name, "scenario": "digits", "seed": 0, "method": {"name": name}} for name in ("fedca", "fedavg")]
    pools = [Pool((RunContent(Path(), OmegaConf.create(config), [], {}, []),)) for config in configs]
    assert comparison.names(pools) == ["fedca (reconstructed)", "fedavg"]
