"""What `new` writes works at once, in a checkout and in a folder of one's own; it overwrites nothing."""

import importlib
import importlib.util
import inspect
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from benchmark.cli import new
from benchmark.cli.runs import configs_of
from benchmark.configuration import files
from benchmark.configuration.compose import compose
from benchmark.tracking import plots
from eval import protocol
from tests.test_shipping import ROOT, copy_of, python

PROTOCOLS, PINS = Path("eval/protocols.yaml"), Path("tests/eval/test_protocol.py")
OWN = {
    "method": ("own_fed.py", "own_fed.yaml", "test_own_fed.py"),
    "objective": ("own_fed.py", "own_fed.yaml", "test_own_fed.py"),
    "protocol": ("own_fed.py", "test_own_fed.py"),
    "scenario": ("own_fed.yaml", "test_own_fed.py"),
}
SUITE = {
    "method": (
        *("methods/own_fed.py", "benchmark/configs/method/own_fed.yaml", "tests/methods/test_own_fed.py"),
        "docs/methods/own_fed.md",
    ),
    "objective": (
        *("methods/objectives/own_fed.py", "benchmark/configs/objective/own_fed.yaml"),
        "tests/methods/objectives/test_own_fed.py",
    ),
    "protocol": ("eval/own_fed.py", f"{PROTOCOLS} (added to)", f"{PINS} (added to)"),
    "scenario": ("benchmark/configs/scenario/own_fed.yaml",),
}
"""Kind -> what is written, as it is printed."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of one's own, whose modules can be imported."""
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path / "own")
    monkeypatch.syspath_prepend(tmp_path / "own")
    monkeypatch.delitem(sys.modules, "own_fed", raising=False)
    monkeypatch.setattr(plots, "of_run", lambda *_: {})  # no template changes how figures are drawn
    return tmp_path / "own"


@pytest.fixture
def checkout(folder, monkeypatch):
    """What `new` reads of a checkout; the suite has the modules and configs that are written into it."""
    for file in (PROTOCOLS, PINS):
        (folder / file).parent.mkdir(parents=True)
        shutil.copy(ROOT / file, folder / file)
    shutil.copytree(ROOT / "benchmark" / "configs", folder / "benchmark" / "configs")
    monkeypatch.setattr(new, "ROOT", str(folder))
    monkeypatch.setattr(files, "CONFIGS", folder / "benchmark" / "configs")
    for name in ("methods", "methods.objectives", "eval"):
        package = importlib.import_module(name)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder / name.replace(".", "/"))])
        monkeypatch.delitem(sys.modules, f"{name}.own_fed", raising=False)
        monkeypatch.delattr(package, "own_fed", raising=False)
    return folder


def loaded(file):
    """The module of a file."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_tests(tests, given):
    """Runs the tests of a module or of an instance of a class, and returns how many they are."""
    found = [each for name, each in inspect.getmembers(tests, inspect.isroutine) if name.startswith("test_")]
    for test in found:
        test(**{name: given[name] for name in inspect.signature(test).parameters})
    return len(found)


def commands(out):
    """The commands that are printed for what is next."""
    return [shlex.split(line, comments=True) for line in out.partition("next:\n")[2].splitlines()]


@pytest.mark.parametrize("kind", new.KINDS)
def test_in_a_folder_of_ones_own(kind, folder, call, tmp_path):
    """Its tests train two rounds on digits."""
    code, out, err = call("new", kind, "Own_Fed")
    assert (code, err) == (0, "")
    assert tuple(out.partition("\nnext:")[0].splitlines()) == OWN[kind]
    assert {file.name for file in folder.iterdir()} == set(OWN[kind])
    assert run_tests(loaded(folder / "test_own_fed.py"), {"tmp_path": tmp_path}) >= 1
    for command in commands(out):
        if command[3] == "run":
            ((config,), _) = configs_of(command[4:])
            assert "own_fed" in f"{config.scenario} {config.row} {config.evaluation.protocols}"
    assert ["python", "-m", "pytest", "-q", "test_own_fed.py"] in commands(out)


def test_the_written_test_passes_by_its_command(folder, call):
    """A process imports torch and pytest: some seconds."""
    (command, *_) = commands(call("new", "protocol", "own_fed")[1])
    done = subprocess.run([sys.executable, *command[1:]], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize("kind", new.KINDS)
def test_in_a_checkout(kind, checkout, call):
    before = {file: (checkout / file).read_text() for file in (PROTOCOLS, PINS)}
    code, out, err = call("new", kind, "own_fed")
    assert (code, err) == (0, "")
    assert tuple(out.partition("\nnext:")[0].splitlines()) == SUITE[kind]
    for file, text in before.items():
        lines = iter((checkout / file).read_text().splitlines())
        assert all(line in lines for line in text.splitlines())  # in this order, comments too
    written = [checkout / line.split()[0] for line in SUITE[kind]]
    code = [file for file in written if file.suffix == ".py"]
    for words in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *words, "--no-cache", "--config", ROOT / "pyproject.toml", *code]
        assert not code or subprocess.run(ruff, capture_output=True, check=False).returncode == 0, words
    IN_THE_SUITE[kind](checkout)


def the_method(checkout):
    contract = loaded(checkout / "tests/methods/test_own_fed.py").TestOwnFed()
    contract.test_with_these_settings_it_is_another_method(contract.equals[0])
    assert files.facts("method", "own_fed") == {"title": "OwnFed", "over": "fedavg-simclr"}
    defaults = re.findall(r"^\| `(\S+)` \| (\S+) ", (checkout / "docs/methods/own_fed.md").read_text(), re.MULTILINE)
    config = compose("digits", "own_fed")
    assert dict(defaults) == {"objective": config.objective["name"], "method.share": str(config.method["share"])}


def the_objective(checkout):
    contract = loaded(checkout / "tests/methods/objectives/test_own_fed.py").TestOwnFed()
    assert run_tests(contract, {}) > 5
    assert files.facts("objective", "own_fed").keys() == {"title", "loss"}
    assert compose("digits", "fedavg", ["objective=own_fed"]).objective["name"] == "own_fed"


def the_protocol(checkout):
    entries = yaml.safe_load((checkout / PROTOCOLS).read_text())
    assert list(entries)[-1] == "own-fed/v1"
    made = protocol.Protocol("own-fed/v1", **entries["own-fed/v1"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(protocol.PROTOCOLS, made.id, made)
        tests = loaded(checkout / PINS)
        tests.test_own_fed()
        tests.test_every_protocol_is_pinned_and_versioned()


def the_scenario(checkout):
    assert compose("own_fed", "fedavg").partition.clients == 20
    assert files.summary("scenario", "own_fed").startswith("Digits of 20 clients")


IN_THE_SUITE = {kind: globals()[f"the_{kind}"] for kind in new.KINDS}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("method my-method", "'my-method' is no name of a module: give letters, digits and underscores, such as my_m"),
        ("method 2fast.py", "such as method_2fast"),
        ("method é", "such as own"),
        ("method ../x", "such as x"),
        ("protocol lambda", "lambda is a word of Python's own: give another name, such as lambda2"),
        ("method none", "none is a word of Python's own"),
        ("method FedAvg", "FedAvg is taken by a shipped method: give another name, such as FedAvg2"),
        ("objective alignuniform", "alignuniform is taken by a shipped objective"),
        ("protocol label_free", "label_free is taken by a shipped protocol"),
        ("method json", "json is an installed module, which would be imported instead"),
        ("objective outputs", "Outputs means something else in the new file"),
        ("protocol float", "float means something else in the new file"),
        ("scenario taken", "taken.yaml exists already and is not overwritten: give another name, such as taken2"),
        ("methd x", "there is no kind 'methd' (did you mean 'method'?): choose method, objective, protocol, scenario"),
        ("method", "usage: python -m benchmark new method|objective|protocol|scenario NAME; got method"),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_is_refused_with_another(words, line, folder, refused):
    (folder / "taken.yaml").symlink_to("nowhere")
    assert line in refused("new", *words.split())
    assert [file.name for file in folder.iterdir()] == ["taken.yaml"]


def test_a_second_one_changes_nothing_and_a_file_without_the_place_is_named(checkout, call, refused):
    assert call("new", "protocol", "own_fed")[0] == 0
    before = {file: file.read_bytes() for file in checkout.rglob("*") if file.is_file()}
    assert "ownfed is taken by a shipped protocol" in refused("new", "protocol", "ownfed")
    (checkout / PINS).write_text("PINNED = dict()\n")
    assert f"{PINS} has no dict PINNED to add to" in refused("new", "protocol", "own_other")
    (checkout / PINS).write_bytes(before[checkout / PINS])
    assert {file: file.read_bytes() for file in checkout.rglob("*") if file.is_file()} == before


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_what_is_written_into_a_checkout_passes_the_suites_tests(tmp_path):
    checkout = copy_of(tmp_path)
    out = {kind: python(checkout, "-m", "benchmark", "new", kind, f"own_{kind}") for kind in new.KINDS}
    tests = [command[4:] for text in out.values() for command in commands(text) if "pytest" in command]
    assert len(tests) == len(new.KINDS)
    for words in (*tests, ["tests/test_docs.py", "-k", "methods_page or composes"]):
        python(checkout, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words)
    python(checkout, "-m", "ruff", "check", ".")
    python(checkout, "-m", "ruff", "format", "--check", ".")
