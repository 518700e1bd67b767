"""Commands in this process, the folder of a finished run, and the state of a job."""

import shutil

import pytest

from benchmark.cli.main import main
from tests.command_helpers import Job
from tests.run_helpers import TINY


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory):
    """The state of an uninterrupted job on one device."""
    job = Job(tmp_path_factory.mktemp("unbroken") / "x", "devices=1")
    assert job.end() == [0]
    return job.state


@pytest.fixture
def call(tmp_path, capsys):
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def calling(*words, where="runs"):
        if words[:1] in (("run",), ("tune",)):
            words = (*words, f"output={tmp_path / where}", f"data.cache={tmp_path / 'cache'}", "logger=csv")
        capsys.readouterr()
        code = main(words)
        return code, *capsys.readouterr()

    return calling


@pytest.fixture
def refused(call):
    """Runs a command that has to fail with a one-line error; returns that line."""

    def refusing(*words):
        code, out, err = call(*words)
        assert (code, err[:7], err.count("\n"), "Traceback" in out) == (2, "error: ", 1, False), err
        return err

    return refusing


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The place of a finished run of FedAvg, not to be changed."""
    place = tmp_path_factory.mktemp("finished")
    words = (f"output={place}/runs", f"data.cache={place}/cache", "logger=csv", "threads=1")
    assert main(["run", TINY, "fedavg", *words]) == 0
    return place


@pytest.fixture
def folder(finished, tmp_path):
    """The folder of a finished run of FedAvg, where `call` would have put it."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path / "runs" / "tiny" / "fedavg" / "seed0"
