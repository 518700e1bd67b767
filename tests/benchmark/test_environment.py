"""The environment beside the suite's own: made once, and again after a change or a failure."""

import sys

import pytest

from benchmark import environment


def test_installed_once_for_the_same_requirements_and_again_after_a_failure(tmp_path, monkeypatch):
    commands, broken, requirements = [], [], tmp_path / "requirements.txt"

    def check_call(*command, failed):
        commands.append(command)
        if "venv" in command:
            site = tmp_path / "home/lib/python{}.{}/site-packages".format(*sys.version_info)
            site.mkdir(parents=True, exist_ok=True)
        elif broken:
            raise RuntimeError(broken.pop())

    def install(*options):
        return environment.install("home", "two libraries", requirements, print, *options)

    monkeypatch.setattr(environment, "CACHE", tmp_path)
    monkeypatch.setattr(environment, "check_call", check_call)
    requirements.write_text("one==1\n")
    assert install() == install() == tmp_path / "home/bin/python"
    assert len(commands) == 2
    requirements.write_text("one==2\n")
    broken.append("no network")
    with pytest.raises(RuntimeError, match="no network"):
        install()
    install()
    assert len(commands) == 6
    install("--no-deps")
    assert len(commands) == 8
    assert "--no-deps" in commands[-1]


def test_of_the_output_of_pip_only_the_error_is_told():
    program = "print('WARNING: a'); print('ERROR: no such thing'); print('notice: b'); raise SystemExit(1)"
    with pytest.raises(RuntimeError, match=r"^not installed: ERROR: no such thing$"):
        environment.check_call(sys.executable, "-c", program, failed="not installed")
