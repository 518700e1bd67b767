"""Lists of what is shipped are as the configs' heads have them, and each head is one."""

from pathlib import Path

import pytest

from benchmark.audit import pages
from benchmark.configuration.files import available, facts
from benchmark.errors import ConfigError

ROOT = Path(__file__).parents[3]


def test_nothing_is_missing_in_pages_and_data(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert pages.missing() == [], f"write it: {pages.COMMAND}"


def test_a_head_names_rows_and_scenarios_that_there_are_and_a_misspelt_key_is_one_line(tmp_path, monkeypatch):
    for name in available("method"):
        head = facts("method", name)
        assert head.get("networks", "reference") in available("scenario"), name
    monkeypatch.setattr("benchmark.configuration.files.CONFIGS", tmp_path)
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "own.yaml").write_text("# Own: a summary\n# titel: Own\n")
    with pytest.raises(ConfigError, match=r"own\.yaml: its head has 'titel' \(did you mean 'title'\?\)"):
        facts("method", "own")
