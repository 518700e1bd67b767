"""Known-bad versions are refused, and the list is of packages that are really used."""

import pytest
from packaging.requirements import Requirement

from benchmark.audit import dependencies
from benchmark.audit.dependencies import ROOT, advisories, pinned, problems, required


def test_this_checkout_and_its_environment_have_none_and_a_bad_pin_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert dependencies.main() == 0
    assert "packages, none of a version" in capsys.readouterr().out
    monkeypatch.setattr(dependencies, "pinned", lambda file: {"lightning": "2.6.3"})
    assert dependencies.main() == 1
    assert "lightning 2.6.3 is not to be used" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("bad", "pin"),
    [
        *((True, pin) for pin in ("lightning 2.6.2", "pytorch-lightning 2.6.3", "torch 2.5.1", "pillow 11.2.1")),
        *((True, "jinja2 3.1.5"), (False, "lightning 2.6.6"), (False, "torch 2.15.0"), (False, "pillow 13.0.0")),
    ],
)
def test_a_bad_version_alone_is_named_with_its_advisory(bad: bool, pin: str) -> None:
    lines = list(problems(advisories(), {"constraints.txt": dict([pin.split()])}, []))
    assert [line.partition("(")[0] for line in lines] == [f"constraints.txt: {pin} is not to be used "] * bad


def test_a_range_must_leave_out_an_attackers_release() -> None:
    (line,) = problems(advisories(), {}, [Requirement("lightning>=2.5,!=2.6.2")])
    assert "admits 2.6.3" in line
    assert not list(problems(advisories(), {}, [Requirement("lightning>=2.5,!=2.6.2,!=2.6.3")]))


def test_every_advisory_is_of_a_pinned_package() -> None:
    assert set(advisories()) <= set(pinned(ROOT / "constraints.txt"))
    assert {requirement.name for requirement in required(ROOT / "pyproject.toml")} >= {
        "lightning",
        "torch",
        "hypothesis",
    }
