"""Files of the user's that have names of the suite's packages, of libraries or of Python's own modules."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.run_helpers import TINY, same, train_run

ROOT = Path(__file__).parents[2]
OURS = ("datamodules", "eval", "leaderboards", "methods")
THEIRS = ("datasets", "queue", "random", "wandb")
"""Names that libraries or Python have too; the user's are found after those."""
FORMS = ("script", "package", "folder")

ANEW = """
import sys
del sys.path[0]
from benchmark.distributed.launch import RankProcesses
start = RankProcesses.start
RankProcesses.start = lambda self, count, fork: start(self, count, fork=False)
from benchmark.__main__ import main
sys.exit(main())
"""
"""The command, whose second rank is a new process instead of a fork."""
IMPORTED = f"""
import sys
sys.path.append({str(ROOT)!r})
import fulcrum
from benchmark import api
sys.exit(fulcrum.main())
"""
"""The command from Python, where a package `benchmark` of the user's is first on the path."""


def foreign(folder, name, form):
    """A module of this name that ends the program which imports it; as a bare folder it has nothing to import."""
    text = f'raise SystemExit("{name} of the user")\n'
    if form == "script":
        (folder / f"{name}.py").write_text(text)
    else:
        (folder / name).mkdir()
        (folder / name / ("__init__.py" if form == "package" else "train.py")).write_text(text)


@pytest.fixture
def folder(tmp_path):
    """A working folder with such scripts and packages in turn, and with modules of the user's that a config names."""
    for number, name in enumerate((*OURS, *THEIRS)):
        foreign(tmp_path, name, FORMS[number % 2])
    (tmp_path / "mine.py").write_text(
        "import helper\nfrom methods.fedavg import FedAvg\nclass Own(FedAvg):\n    pass\n"
    )
    (tmp_path / "helper.py").write_text("")
    return tmp_path


def python(folder, *words):
    """What Python prints, started with these words in the folder; it ends well and imports nothing of the user's."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    options = {"capture_output": True, "text": True, "check": False, "timeout": 120}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of the user" not in done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("form", "names", "words"),
    [
        ("folder", (*OURS, *THEIRS, "benchmark"), ("-m", "benchmark")),
        ("package", (*OURS, "benchmark"), ("-c", IMPORTED)),
        pytest.param("script", (*OURS, *THEIRS, "benchmark"), ("-P", "-m", "benchmark"), marks=pytest.mark.long),
        *(pytest.param(form, (*OURS, *THEIRS), ("-m", "benchmark"), marks=pytest.mark.long) for form in FORMS),
    ],
)
def test_names(tmp_path, form, names, words):
    """Python itself finds a folder after the suite; of a script or a package `fulcrum` and -P are independent."""
    for name in names:
        foreign(tmp_path, name, form)
    assert "fedavg" in python(tmp_path, *words, "list", "methods")


@pytest.mark.ranks
def test_two_ranks_and_a_resumed_run(folder):
    """The second is a new process, as on GPUs, where there is a package `benchmark` too; of the resumed run a fork."""
    alone = train_run(folder / "alone", "fedavg", "devices=1").loop.server
    (folder / "started.py").write_text(ANEW)
    foreign(folder, "benchmark", "package")
    common = ("devices=2", "accelerator=cpu", "threads=1", "logger=csv", "data.cache=cache")
    own = ("method.class=mine.Own", "row=own", "scenario=tiny", "evaluation.protocols=[]")
    result = folder / "runs/tiny/own/seed0/result.json"
    python(folder, "started.py", "run", TINY, "fedavg", *common, *own)
    assert json.loads(result.read_text())["world_size"] == 2
    assert same(torch.load(result.parent / "checkpoint" / "state.pt", weights_only=True)["server"], alone)
    result.unlink()
    shutil.rmtree(folder / "benchmark")
    python(folder, "-m", "benchmark", "resume", "runs/tiny/own/seed0", "trust=true")
    assert json.loads(result.read_text())["world_size"] == 2


def test_a_notebook(folder):
    """The working folder is first on its path, and stays there: the rest of the path is the user's own."""
    (folder / "beside.py").write_text("")
    for name in THEIRS:
        for file in (folder / f"{name}.py", folder / name / "__init__.py"):
            file.unlink(missing_ok=True)
    code = (
        f"from benchmark import api; import beside, sys; config = api.compose({TINY!r}, 'fedavg', "
        "{'method.class': 'mine.Own'}); print(config.method['class'], sys.path[0] == '')"
    )
    assert python(folder, "-c", code) == "mine.Own True\n"


def test_a_module_that_was_imported_before_is_named(tmp_path):
    (tmp_path / "eval.py").write_text("")
    code = "import eval\ntry:\n    import benchmark\nexcept ImportError as error:\n    print(error)"
    (line,) = python(tmp_path, "-c", code).splitlines()
    assert line.startswith(f"a module 'eval' was imported from {tmp_path / 'eval.py'} before the suite")
