"""Files of the user's that have names of the suite's packages, of libraries or of Python's own modules."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run_helpers import TINY

ROOT = Path(__file__).parents[2]
OURS = ("datamodules", "eval", "leaderboards", "methods")
THEIRS = ("datasets", "queue", "random", "wandb")
"""Names that libraries or Python have too; the user's are found after those."""

OWN = """
import helper
from methods.fedavg import FedAvg


class Own(FedAvg):
    pass
"""
ANEW = """
import sys
from benchmark.distributed.launch import RankProcesses
start = RankProcesses.start
RankProcesses.start = lambda self, count, fork: start(self, count, fork=False)
from benchmark.__main__ import main
sys.exit(main())
"""
"""The command, whose second rank is a new process instead of a fork."""


def foreign(folder, name, form):
    """A module of this name that ends the program which imports it; as a bare folder it has nothing to import."""
    text = f'raise SystemExit("{name} of the user")\n'
    if form == "script":
        (folder / f"{name}.py").write_text(text)
    else:
        (folder / name).mkdir()
        (folder / name / ("__init__.py" if form == "package" else "train.py")).write_text(text)


FORMS = ("script", "package", "folder")


@pytest.fixture
def folder(tmp_path):
    """A working folder with such files, of each form some, and with modules of the user's that a config names."""
    for number, name in enumerate((*OURS, *THEIRS)):
        foreign(tmp_path, name, FORMS[(number + 1) % 3])
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "helper.py").write_text("")
    return tmp_path


def python(folder, *words):
    """What Python prints, started with these words in the folder; it ends well and imports nothing of the user's."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of the user" not in done.stdout + done.stderr
    return done.stdout


def run(devices=1):
    common = (f"devices={devices}", "accelerator=cpu", "threads=1", "logger=csv", "data.cache=cache")
    own = ("method.class=mine.Own", "row=own", "scenario=tiny", "evaluation.protocols=[]")
    return ("run", TINY, "fedavg", *common, *own)


def ranks(folder):
    return json.loads((folder / "runs/tiny/own/seed0/result.json").read_text())["world_size"]


class TestTheCommand:
    @pytest.mark.parametrize("form", FORMS)
    def test_names(self, tmp_path, form):
        for name in (*OURS, *THEIRS):
            foreign(tmp_path, name, form)
        assert "fedavg" in python(tmp_path, "-m", "benchmark", "list", "methods")

    @pytest.mark.ranks
    def test_two_ranks_and_a_resumed_run(self, folder):
        python(folder, "-m", "benchmark", *run(devices=2))
        assert ranks(folder) == 2
        (folder / "runs/tiny/own/seed0/result.json").unlink()
        python(folder, "-m", "benchmark", "resume", "runs/tiny/own/seed0", "trust=true")
        assert ranks(folder) == 2

    @pytest.mark.ranks
    def test_a_rank_that_is_a_new_process(self, folder):
        """It is started in a folder that has a package `benchmark` as well."""
        (folder / "started.py").write_text(f"import sys\ndel sys.path[0]\n{ANEW}")
        foreign(folder, "benchmark", "package")
        python(folder, "started.py", *run(devices=2))
        assert ranks(folder) == 2

    @pytest.mark.parametrize(
        ("form", "words"),
        [
            ("folder", ("-m", "benchmark")),
            ("package", (str(ROOT / "fulcrum.py"),)),
            ("script", ("-P", "-m", "benchmark")),
        ],
    )
    def test_a_benchmark_of_the_users(self, tmp_path, form, words):
        """Python itself finds a folder after the suite; of a script or a package `fulcrum` and -P are independent."""
        foreign(tmp_path, "benchmark", form)
        assert "fedavg" in python(tmp_path, *words, "list", "methods")


class TestFromPython:
    def test_a_notebook(self, folder):
        """The working folder is first on its path, and stays there: the rest of the path is the user's own."""
        (folder / "beside.py").write_text("")
        for name in THEIRS:
            for file in (folder / f"{name}.py", folder / name / "__init__.py"):
                file.unlink(missing_ok=True)
        code = (
            f"from benchmark import api; import beside, sys; config = api.compose({str(TINY)!r}, 'fedavg', "
            "{'method.class': 'mine.Own'}); print(config.method['class'], sys.path[0] == '')"
        )
        assert python(folder, "-c", code) == "mine.Own True\n"

    def test_a_benchmark_of_the_users(self, tmp_path):
        foreign(tmp_path, "benchmark", "package")
        code = f"import sys; sys.path.append({str(ROOT)!r}); import fulcrum; from benchmark import api; print(1)"
        assert python(tmp_path, "-c", code) == "1\n"

    def test_a_module_that_was_imported_before_is_named(self, tmp_path):
        (tmp_path / "eval.py").write_text("")
        code = "import eval\ntry:\n    import benchmark\nexcept ImportError as error:\n    print(error)"
        (line,) = python(tmp_path, "-c", code).splitlines()
        assert line.startswith(f"a module 'eval' was imported from {tmp_path / 'eval.py'} before the suite")
