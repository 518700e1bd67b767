"""What libraries have too: both contenders give one result, lines of code are counted, and the page judges each."""

import re
import textwrap
from pathlib import Path

import pytest
import torch

from benchmark.speed import libraries
from benchmark.speed.timing import ratio

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "performance.md"


@pytest.mark.parametrize("alternative", libraries.ALTERNATIVES, ids=lambda each: each.subject)
def test_both_give_one_result(alternative):
    ours, theirs = (run() for run in alternative.make())
    if alternative.subject == "views of a batch":  # each draws its own
        ours, theirs = ((each.shape, each.dtype) for each in (ours, theirs))
    if isinstance(ours, bool | dict) or alternative.subject == "views of a batch":
        assert ours == theirs
    elif isinstance(ours, torch.Tensor) and not ours.is_floating_point():
        assert (ours == theirs).float().mean() > 0.999  # of equal votes another class
    else:
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine.double(), other.double(), rtol=1e-3, atol=1e-3)


def test_lines_of_code_are_those_without_docstrings_comments_and_blank_ones(tmp_path, monkeypatch):
    (tmp_path / "counted_here.py").write_text(
        textwrap.dedent(
            '''
            """A docstring
            of two lines."""

            # a comment
            def f(x):
                """One."""
                text = """no
                docstring"""

                return text  # told
            '''
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    import counted_here

    assert libraries.code_lines(counted_here) == libraries.code_lines(counted_here.f) == 4


def test_a_subject_has_a_ratio_of_seconds_and_of_lines(monkeypatch):
    made = [libraries.Alternative("adding", (ratio,), "a library", lambda: (lambda: 1 + 1, lambda: sum([1, 1])))]
    monkeypatch.setattr(libraries, "ALTERNATIVES", made)
    monkeypatch.setattr(libraries, "REPEATED", 1e-4)
    seconds, lines = libraries.libraries(2, lambda line: None)
    assert (seconds.what, seconds.value.repetitions) == ("adding: seconds, ours / a library", 2)
    assert (lines.what, lines.value.median) == ("adding: lines of code, ours (2) / a library (1)", 2)


def test_the_page_says_of_each_why_it_was_kept():
    section = PAGE.read_text().partition("## What libraries have too")[2].partition("\n## ")[0]
    judged = re.findall(r"^- \*\*(.*?)\*\*: ", section, re.MULTILINE)
    assert judged == [each.subject.removesuffix(" of a batch") for each in libraries.ALTERNATIVES]
