"""Texts of messages."""

import pytest

from benchmark.errors import count


@pytest.mark.parametrize(("number", "text"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (1200, "1,200 runs")])
def test_a_count_has_its_noun_in_the_right_number(number, text):
    assert count(number, "run") == text
