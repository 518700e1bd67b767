"""Numbers as the pages show them."""

import pytest

from leaderboards.markdown import in_bytes, three_digits

DIGITS = {0: "0", 0.01234: "0.0123", 1.6: "1.6", 9.996: "10", 123.4: "123", 12345: "12,300", 1e9: "1,000,000,000"}
BYTES = {None: "–", 0: "0 B", 999: "999 B", 999.6: "1 kB", 1235: "1.24 kB", 46_800_000: "46.8 MB", 999_600_000: "1 GB"}
BYTES |= {7.25e12: "7.25 TB", 1.5e15: "1,500 TB"}


@pytest.mark.parametrize(("show", "texts"), [(three_digits, DIGITS), (in_bytes, BYTES)])
def test_numbers_have_three_digits_and_bytes_decimal_units(show, texts):
    assert {value: show(value) for value in texts} == texts
