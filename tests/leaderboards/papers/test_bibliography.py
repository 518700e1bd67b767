"""The bibliography is whole, and pages, configs and CITATION.cff agree with it."""

import re
import unicodedata
from pathlib import Path

import pytest
import yaml

from benchmark.configuration.files import available, summary
from leaderboards.papers import bibliography

ROOT = Path(__file__).parents[3]
WITHOUT = {"centralized", "local", "supervised", "untrained"}
"""Baselines and references, which are of no paper."""
NAMED = [name for group in ("method", "objective") for name in available(group) if name not in WITHOUT]


def plain(text):
    """Text without line breaks, emphasis, braces and accents, in small letters."""
    letters = unicodedata.normalize("NFKD", re.sub(r"[*{}]|\\.(?=\W*\w)", "", text))
    return " ".join("".join(letter for letter in letters if not unicodedata.combining(letter)).split()).lower()


def test_every_line_of_the_file_is_read():
    text = bibliography.FILE.read_text().partition("\n\n")[2]
    blocks = [f"for: {', '.join(entry.names)}\n{entry.text}" for entry in bibliography.read().values()]
    assert "\n".join(blocks) == text
    for key, entry in bibliography.read().items():
        assert entry.text.count("{") == entry.text.count("}")
        assert len(entry.fields) == entry.text.count("\n") - 2, key


def test_every_method_objective_and_server_optimizer_has_its_paper_and_its_config_the_same_year():
    for name in NAMED:
        papers = bibliography.named(name)
        group = "method" if name in available("method") else "objective"
        assert papers, name
        assert {*re.findall(r"\b20\d\d\b", summary(group, name))} <= {paper.fields["year"] for paper in papers}, name
    for name in ("Momentum", "Adam", "Yogi"):
        assert bibliography.named(f"methods.server.{name}")


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "methods").glob("*.md")), ids=lambda page: page.stem)
def test_a_methods_page_has_its_papers_title_authors_and_year(page):
    text, papers = page.read_text(), bibliography.named(page.stem)
    head = text.partition("\n## ")[0]
    for paper in papers:
        written = plain(re.search(r"\n\n(.*?): \*", head, re.DOTALL)[1])
        authors = [plain(author.partition(",")[0]) for author in paper.fields["author"].split(" and ")]
        assert written in (f"{authors[0]} et al.", ", ".join(authors))
        venue = paper.fields.get("booktitle", "").rpartition("(")[2].strip(")")
        assert plain(f"{paper.fields['title']}. {venue} {paper.fields['year']}") in plain(head)


def test_the_suites_entry_is_that_of_the_citation_file_and_a_papers_is_a_line():
    citation, entries = yaml.safe_load((ROOT / "CITATION.cff").read_text()), bibliography.read()
    fields = entries[bibliography.SUITE].fields
    assert re.sub("[{}]", "", fields["title"]) == citation["title"]
    assert fields["author"] == f"{{{citation['authors'][0]['name']}}}"
    assert fields["note"].endswith(f"version {citation['version']}")
    assert f"version = {citation['version']}" in (ROOT / "setup.cfg").read_text()
    title = "FedX: Unsupervised Federated Learning with Cross Knowledge Distillation"
    assert entries["fedx"].line == f"Han et al., {title}, ECCV 2022"
    assert entries["flesd"].line.endswith("Ensemble Similarity Distillation, 2021")
