"""The bibliography is whole, and pages, configs and CITATION.cff agree with it."""

import re
import unicodedata
from pathlib import Path
from typing import get_args

import pytest
import yaml

from benchmark.cli.reports import SERVER_OPTIMIZERS, papers_of
from benchmark.configuration.files import available, facts, summary
from leaderboards.papers import bibliography
from methods.server import ServerOptimizer

ROOT = Path(__file__).parents[3]


def plain(text):
    """Text without line breaks, emphasis, braces and accents, in small letters."""
    letters = unicodedata.normalize("NFKD", re.sub(r"[*{}]|\\.(?=\W*\w)", "", text))
    return " ".join("".join(letter for letter in letters if not unicodedata.combining(letter)).split()).lower()


def test_every_line_of_the_file_is_read_and_every_entry_is_cited():
    text, entries = bibliography.FILE.read_text().partition("\n\n")[2], bibliography.read()
    assert "\n".join(entry.text for entry in entries.values()) == text
    for key, entry in entries.items():
        assert entry.text.count("{") == entry.text.count("}")
        assert len(entry.fields) == entry.text.count("\n") - 2, key
    names = [name for group in ("method", "objective") for name in available(group)]
    cited = {key for name in (*names, *SERVER_OPTIMIZERS) for key in papers_of(name)}
    assert cited | {bibliography.SUITE} == entries.keys(), "papers.bib and the `paper` of the configs' heads differ"
    assert SERVER_OPTIMIZERS.keys() == {f"methods.server.{cls.__name__}" for cls in get_args(ServerOptimizer)}


@pytest.mark.parametrize("group", ["method", "objective"])
def test_a_config_with_a_paper_has_its_year_and_says_where_its_code_is_from(group):
    for name in available(group):
        head, years = facts(group, name), {bibliography.read()[key].fields["year"] for key in papers_of(name)}
        assert {*re.findall(r"\b20\d\d\b", summary(group, name))} <= years, f"{group}/{name}.yaml: `# paper: KEY`"
        if group == "method" and {"title", "paper"} <= head.keys():
            assert head.get("source") in ("code", "paper", "reconstructed"), f"{name}.yaml: `# source: code`"


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "methods").glob("*.md")), ids=lambda page: page.stem)
def test_a_methods_page_names_its_papers_as_the_bibliography_does(page):
    head = page.read_text().partition("\n## ")[0]
    for paper in (bibliography.read()[key] for key in papers_of(page.stem)):
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
    title = "FedX: Unsupervised Federated Learning with Cross Knowledge Distillation"
    assert entries["fedx"].line == f"Han et al., {title}, ECCV 2022"
    assert entries["flesd"].line.endswith("Ensemble Similarity Distillation, 2021")
