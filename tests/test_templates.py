"""The forms for issues and the template of a pull request are valid, and name what there is."""

import re
from pathlib import Path

import pytest
import yaml

from benchmark.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
FORMS = sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))
ATTRIBUTES = {
    "input": {"label", "description", "placeholder", "value"},
    "textarea": {"label", "description", "placeholder", "value", "render"},
    "dropdown": {"label", "description", "options", "multiple"},
}
"""Type of a form's element -> attributes that GitHub's syntax has for it."""


@pytest.mark.parametrize("form", ["bug", "method", "number"])
def test_a_form_has_githubs_syntax(form):
    content = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / f"{form}.yml").read_text())
    assert content.keys() == {"name", "description", "labels", "body"}
    assert len({element["id"] for element in content["body"]}) == len(content["body"])
    for element in content["body"]:
        assert element.keys() <= {"type", "id", "attributes", "validations"}
        assert element["attributes"]["label"]
        assert element["attributes"].keys() <= ATTRIBUTES[element["type"]]
        assert element.get("validations", {}).keys() <= {"required"}
    assert any(element.get("validations", {}).get("required") for element in content["body"])


@pytest.mark.parametrize("page", [*FORMS, GITHUB / "pull_request_template.md"], ids=lambda page: page.stem)
def test_commands_targets_and_files_exist(page):
    text = page.read_text()
    assert set(re.findall(r"python -m benchmark (\w+)", text)) <= COMMANDS.keys()
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make (\w+)`", text)) <= set(targets)
    files = re.findall(r"(?:docs|leaderboards|\.ci)/[\w/.-]*\w|\b[A-Z]+\.md\b", text)
    assert all((ROOT / file).exists() for file in files)
    assert "python -m benchmark" in text or "docs/add-a-method.md" in files
