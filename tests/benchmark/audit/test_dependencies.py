"""Known-bad versions are refused, and the list is of packages that are really used."""

import pytest
from packaging.requirements import Requirement

from benchmark.audit import dependencies
from benchmark.audit.dependencies import ROOT, advisories, pinned, problems, required


def test_this_checkout_and_its_environment_have_none(capsys: pytest.CaptureFixture) -> None:
    assert dependencies.main() == 0
    assert "packages, none of a version" in capsys.readouterr().out


BAD = [
    ("lightning", "2.6.2"),
    ("pytorch-lightning", "2.6.3"),
    ("torch", "2.5.1"),
    ("pillow", "11.2.1"),
    ("jinja2", "3.1.5"),
]
GOOD = [("lightning", "2.6.6"), ("torch", "2.15.0"), ("pillow", "13.0.0")]


@pytest.mark.parametrize(("name", "version"), [*BAD, *GOOD])
def test_a_bad_version_alone_is_named_with_its_advisory(name: str, version: str) -> None:
    lines = list(problems(advisories(), {"constraints.txt": {name: version}}, []))
    assert len(lines) == ((name, version) in BAD)
    assert all(line.startswith(f"constraints.txt: {name} {version} is not to be used (") for line in lines)


def test_a_range_must_leave_out_an_attackers_release() -> None:
    (line,) = problems(advisories(), {}, [Requirement("lightning>=2.5,!=2.6.2")])
    assert "admits 2.6.3" in line
    assert not list(problems(advisories(), {}, [Requirement("lightning>=2.5,!=2.6.2,!=2.6.3")]))


def test_every_advisory_is_of_a_pinned_package() -> None:
    assert set(advisories()) <= set(pinned(ROOT / "constraints.txt"))
    assert {requirement.name for requirement in required(ROOT / "setup.cfg")} >= {"lightning", "torch", "hypothesis"}


def test_a_bad_pin_fails_the_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(dependencies, "pinned", lambda file: {"lightning": "2.6.3"})
    assert dependencies.main() == 1
    assert "lightning 2.6.3 is not to be used" in capsys.readouterr().out
