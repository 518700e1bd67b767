"""What a release needs is consistent: versions, supported Pythons, and the files that the workflows use."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_next_version_has_notes():
    version = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    assert f"\n## {version}\n" in (ROOT / "docs" / "explanation" / "releases.md").read_text()


def test_a_release_is_tested_on_every_python_that_it_names():
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    tested = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    assert tested["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_runs_what_there_is_with_few_rights(file):
    content = yaml.safe_load(file.read_text())
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for job in content["jobs"].values():
        assert job.get("permissions", content.get("permissions", {})).get("contents") in ("read", "write")
        for step in job["steps"]:
            if "checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False
            assert set(re.findall(r"\bmake (\w+)", step.get("run", ""))) <= set(targets)


def test_a_submission_is_verified_by_the_code_of_the_base_and_without_trust():
    text = (ROOT / ".github/workflows/submissions.yml").read_text()
    first, *others = yaml.safe_load(text)["jobs"]["verify"]["steps"]
    assert first["with"]["ref"] == "${{ github.event.pull_request.base.sha }}"
    assert others[0]["with"].items() >= {"path": "request", "sparse-checkout": "leaderboards/submissions"}.items()
    assert "trust" not in text


def test_an_extra_that_a_file_or_a_message_names_exists():
    sources = [
        *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmark/**/*.py"), *ROOT.glob("eval/*.py"), ROOT / "Dockerfile",
    ]  # fmt: skip
    named = {name for file in sources for name in re.findall(r"fulcrum(?:-ful)?\[([\w,]+)\]", file.read_text())}
    assert {"dp", "clusters", "export"} <= {extra for names in named for extra in names.split(",")}
    assert {extra for names in named for extra in names.split(",")} <= set(PROJECT["optional-dependencies"])
