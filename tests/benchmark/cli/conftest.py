"""Commands in this process, and the folder of a finished run."""

import shutil
import signal

import pytest
import torch

from benchmark.cli.main import main
from tests.run_helpers import TINY


@pytest.fixture(autouse=True)
def _one_thread_and_the_old_signal():
    torch.set_num_threads(1)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def call(tmp_path, capsys):
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def calling(*words, where="runs"):
        if words[0] in ("run", "tune"):
            words = (*words, f"output={tmp_path / where}", f"data.cache={tmp_path / 'cache'}", "logger=csv")
        capsys.readouterr()
        code = main(words)
        return code, *capsys.readouterr()

    return calling


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The place of a finished run of FedAvg, not to be changed."""
    place = tmp_path_factory.mktemp("finished")
    assert main(["run", TINY, "fedavg", f"output={place}/runs", f"data.cache={place}/cache", "logger=csv"]) == 0
    return place


@pytest.fixture
def folder(finished, tmp_path):
    """The folder of a finished run of FedAvg, where `call` would have put it."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path / "runs" / "tiny" / "fedavg" / "seed0"


@pytest.fixture
def refused(call):
    """Runs a command that has to fail with a one-line error; returns that line."""

    def refusing(*words):
        code, out, err = call(*words)
        assert code == 2, err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert "Traceback" not in out + err
        return err

    return refusing
