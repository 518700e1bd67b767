"""The wheel: installed in an environment of its own, its command works anywhere, beside packages of its names.

The environment has this one's libraries by a path, so that nothing of theirs is downloaded; what builds the wheel is.
WHEEL=install (`make wheel`) installs all that the wheel asks for instead, prints what that downloads, and times a run.
"""

import json
import os
import re
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from benchmark.tracking.checkout import commit_of
from tests.run_helpers import TINY

ROOT = Path(__file__).parents[1]
PACKAGES = ("benchmark", "datamodules", "eval", "leaderboards", "methods")
INSTALLS = os.environ.get("WHEEL") == "install"
LIBRARIES = ("torch", "torchvision", "lightning", "torchmetrics", "wandb", "omegaconf")
"""What a download may bring, beside 60 MB."""
pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


def command(*words: object, cwd: Path, **variables: str) -> str:
    """What a command prints that ends well; it sees no other copy of the suite."""
    hidden = ("PYTHONPATH", "FULCRUM_COMMIT", "VIRTUAL_ENV")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}
    options = {"capture_output": True, "text": True, "check": False, "timeout": 3000, "env": environment}
    done = subprocess.run(list(map(str, words)), cwd=cwd, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that the tag of a release would give, or the one of WHEEL_FILE."""
    if given := os.environ.get("WHEEL_FILE"):
        return Path(given).resolve()
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    command(*pip, cwd=folder, SETUPTOOLS_SCM_PRETEND_VERSION="0.1.0")
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The interpreter of an environment that has the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    program = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", program, "install", "--quiet")
    if INSTALLS:
        command(*pip, wheel, cwd=folder)
    else:
        command(*pip, "--no-deps", wheel, cwd=folder)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "libraries.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")) + "\n")
    return program


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the commands run: empty before the first."""
    return tmp_path_factory.mktemp("empty")


@pytest.fixture(scope="module")
def fulcrum(python, folder):
    """Runs the installed command."""
    return lambda *words: command(python.with_name("fulcrum"), *words, cwd=folder)


@pytest.fixture(scope="module")
def finished(fulcrum, folder):
    """The folder, the record and the seconds of a short run on the embedded digits, the first command."""
    began = time.monotonic()
    fulcrum("run", "digits", "fedavg", "federation.rounds=2", "scenario=short", "logger=csv", "data.cache=cache")
    seconds = time.monotonic() - began
    return "runs/short/fedavg/seed0", json.loads((folder / "runs/short/fedavg/seed0/result.json").read_text()), seconds


@pytest.fixture(scope="module")
def version(wheel):
    """Of the wheel, by its name."""
    return wheel.name.split("-")[1]


def test_everything_lies_below_one_name(wheel, version):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"fulcrum", f"fulcrum_ful-{version}.dist-info"}
    tracked = command("git", "ls-files", *PACKAGES, cwd=ROOT).splitlines()
    left_out = {name for name in tracked if f"fulcrum/{name}" not in names}
    assert {name.split("/")[1] for name in left_out} == {"README.md", "figures", "results"}  # these are an archive
    assert not [name for name in names if name.startswith("fulcrum/tests/") and not name.endswith(".json")]


def test_the_first_row_is_there_within_three_minutes(finished):
    print(f"first row after {finished[2]:.0f} s")  # noqa: T201
    assert finished[2] < 180


def test_a_record_names_the_version_and_code_that_changed(python, finished, fulcrum, version):
    assert [finished[1]["provenance"][key] for key in ("git", "dirty")] == [commit_of(version), False]
    assert fulcrum("--version") == f"fulcrum {version}, commit {commit_of(version)}\n"
    (file,) = python.parents[1].glob("lib/python*/site-packages/fulcrum/methods/untrained.py")
    text = file.read_text()
    file.write_text(f"{text}\n# changed\n")
    assert fulcrum("--version") == f"fulcrum {version}, commit {commit_of(version)}+\n"
    file.write_text(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("list methods", "fedavg"),
        ("board", r"\d+ records, written into fulcrum-board"),
        ("board collect=runs", "written into runs-board/README.md"),
        ("compare runs/short/fedavg/seed0 runs/short/untrained/seed0", "figure: runs/short/compare.png"),
        ("tune short.yaml fedavg optimizer.lr=0.01,0.1 logger=csv", "optimizer.lr"),
        ("privacy fedavg", "weights"),
        ("cite ssd", "@inproceedings{ssd"),
        ("parity ldawa accelerator=cpu", "1 file, none of which the suite departs from"),
        ("export runs/short/fedavg/seed0 encoder.pt", "encoder global"),
        ("new method mine", "fulcrum run digits ./mine.yaml"),
        ("resume runs/short/fedavg/seed0", "already done"),
        ("run short.yaml fedavg devices=2 accelerator=cpu logger=csv row=two", "record, scores"),
    ],
)
def test_a_command_in_a_folder_without_a_checkout(words, said, finished, fulcrum, folder):
    (folder / "short.yaml").write_text(Path(TINY).read_text())
    if "untrained" in words:
        fulcrum("run", "digits", "untrained", "federation.rounds=2", "scenario=short", "logger=csv", "data.cache=cache")
    assert re.search(said, fulcrum(*words.split()))


def test_a_package_with_a_method_of_its_own(python, fulcrum, folder):
    """It is installed beside the suite; its row is submitted, verified and shown."""
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps")
    command(*pip, ROOT / "examples" / "plugin", cwd=folder)
    assert "fulcrum_example.methods.Cautious" in fulcrum("list", "methods")
    fulcrum("run", "digits", "cautious", "federation.rounds=1", "scenario=short", "logger=csv", "threads=1")
    fulcrum("submit", "runs/short/cautious/seed0", "chosen=its author", "output=rows/cautious.zip")
    assert "replayed" in fulcrum("verify", "rows/cautious.zip", "replay=0", "trust=true")
    fulcrum("board", "collect=rows")
    assert "cautious (replayed)" in (folder / "rows-board" / "README.md").read_text()


def test_the_records_that_it_ships(python, folder):
    code = "import fulcrum; from benchmark import api; print(len(api.load_records()))"
    committed = command("git", "ls-files", "leaderboards/results", cwd=ROOT).splitlines()
    assert int(command(python, "-c", code, cwd=folder)) == len(committed)


def test_beside_packages_of_its_names(python, fulcrum, finished, folder):
    """Theirs stay whole, and each process has the ones that it imports first; two ranks, one a new process."""
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    for name in PACKAGES:
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(f"theirs = {name!r}\n")
    theirs = "; ".join(f"import {name}; print({name}.theirs)" for name in PACKAGES)
    assert command(python, "-c", theirs, cwd=folder).split() == [*PACKAGES]
    assert "fedavg" in fulcrum("list", "methods")
    (folder / "mine.py").write_text("from methods.fedavg import FedAvg\nclass Own(FedAvg):\n    pass\n")
    (folder / "tiny.yaml").write_text(Path(TINY).read_text())
    words = ("data.cache=cache", "logger=csv", "devices=2", "accelerator=cpu")
    assert "record, scores" in fulcrum("run", "tiny.yaml", "mine.Own", *words)
    code = "import fulcrum, methods, benchmark.api; print(methods.__file__)"
    assert Path(command(python, "-c", code, cwd=folder).strip()).parent == site / "fulcrum" / "methods"
    before = "import methods\ntry:\n    import fulcrum\nexcept ImportError as error:\n    print(error)"
    assert "a module 'methods' was imported from" in command(python, "-c", before, cwd=folder)
    second = "import fulcrum\ntry:\n    import fulcrum.methods\nexcept ImportError as error:\n    print(error)"
    assert "No module named 'fulcrum.methods'" in command(python, "-c", second, cwd=folder)


def test_what_an_install_downloads(wheel, tmp_path):
    """At most 60 MB beside the libraries that every run needs."""

    def files(*required: object) -> dict[str, str]:
        report = tmp_path / "report.json"
        words = ("install", "--quiet", "--dry-run", "--ignore-installed", "--report", report)
        command(sys.executable, "-m", "pip", *words, *required, cwd=tmp_path)
        found = json.loads(report.read_text())["install"]
        return {each["metadata"]["name"]: each["download_info"]["url"] for each in found}

    def size(url: str) -> int:
        return int(urlopen(Request(url, method="HEAD" if url.startswith("http") else "GET")).headers["Content-Length"])

    if not INSTALLS:
        pytest.skip("it asks the index for every library: make wheel")
    base = files(*LIBRARIES)
    sizes = {name: size(url) for name, url in files(wheel).items() if name not in base}
    print(*(f"{name} {bytes_ / 1e6:.1f} MB" for name, bytes_ in sizes.items()), sep="\n")  # noqa: T201
    assert sum(sizes.values()) < 60e6
