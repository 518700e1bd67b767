"""The measure of what the tests catch, on code of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.mutants.places import found
from tests.mutants.trials import Seen

ROOT = Path(__file__).parents[2]
SETTINGS = OmegaConf.load(Path(__file__).with_name("settings.yaml"))


def changes(code, *operators):
    """What the mutants of a code change, and into what."""
    mutants = list(found("toy.py", code, operators or SETTINGS.operators, SETTINGS.ignored))
    assert all(mutant.mutate(code) for mutant in mutants)
    return {(mutant.function, mutant.before, mutant.after) for mutant in mutants}


def test_what_no_test_can_see_is_not_mutated():
    for code in (
        "Alias = int | None",
        "def f(x: int | None) -> int | None:\n    y: int | str\n    return x",
        "def f(x):\n    raise ValueError(f'{x + 1} is not {-x}')",
        "def f(x):\n    print(x, x + 1)",
        "def f(x):\n    warnings.warn(f'{x + 1}')",
        "class A:\n    def __repr__(self):\n        return str(self.x + 1)",
        "if TYPE_CHECKING:\n    x = 1",
        '"""Twice 2 is 4."""',
        "@cache\ndef f(x):\n    return x",
    ):
        assert changes(code) == set()


def test_each_kind_of_fault_is_planted():
    """But for the message of an assertion."""
    assert changes("def f(x):\n    assert x, x + 1") == {("f", "assert x, x + 1", "assert not x, x + 1")}
    head, loop = "def f(x, y=3):", "for i in range(x):"
    test, end = "if x < y and not i:", 'return {"x": True} | {"y": -x}'
    code = f"{head}\n    {loop}\n        {test}\n            continue\n    {end}\n"
    for operators, after in {
        "NumberReplacer": {("def f(x, y= 4):", head), ("def f(x, y= 2):", head)},
        "ReplaceBinaryOperator_BitOr_BitAnd": {(end.replace("|", "&"), end)},
        "ReplaceUnaryOperator_Delete_USub": {(end.replace("-", ""), end)},
        "ZeroIterationForLoop": {("for i in []:", loop)},
        "ReplaceContinueWithBreak": {("break", "continue")},
        "ReplaceAndWithOr": {(test.replace("and", "or"), test)},
    }.items():
        assert changes(code, operators) == {("f", before, made) for made, before in after}


def test_a_mutant_keeps_its_name_when_its_line_moves():
    code = "class A:\n    def f(self):\n        x = 1 + 1  # two\n        return x\n"
    moved = "import os\n\n\n" + code.replace("# two", "# the same")
    names = [[mutant.key for mutant in found("a.py", text, ["NumberReplacer"], ["raise"])] for text in (code, moved)]
    assert names[0] == names[1]
    assert names[0] == [("a.py", "A.f", f"NumberReplacer#{i}", "x = 1 + 1") for i in range(4)]


def test_tests_of_the_file_come_first_and_cases_of_one_test_do_not_crowd_out_others():
    seconds = {"tests/test_b.py::A::far[0]": 1, "tests/test_b.py::B::far[0]": 1, "tests/test_b.py::other": 1.5}
    seen = Seen({}, {**seconds, "tests/test_a.py::near": 9})
    assert seen.ordered([*seen.seconds], "tests/test_a.py::") == [
        "tests/test_a.py::near", "tests/test_b.py::A::far[0]", "tests/test_b.py::other", "tests/test_b.py::B::far[0]",
    ]  # fmt: skip


SOURCE = """
LIMIT = 7


def clipped(x):
    return LIMIT if x > LIMIT else x


def spent(n):
    while n:
        n -= 1
    return n


def third(x):
    return x // 3
"""
TESTS = """
import os

import pytest

from toy.maths import clipped, spent, third


def test_clipped():
    assert clipped(9) == 7 and clipped(3) == 3


def test_spent():
    assert spent(2) == 0


class TestThird:
    @pytest.fixture(scope="class")
    @classmethod
    def shared(cls):
        return third(7)

    def test_its_type(self, shared):
        assert isinstance(shared, int)

    def test_its_value(self, shared):
        assert shared == 2


def test_that_passes_in_the_suite_only():
    assert clipped(3) == 3 and "PYTEST_XDIST_WORKER" in os.environ
"""
KILLED = [["toy/maths.py", "", f"NumberReplacer#{i}", "LIMIT = 7", f"LIMIT = {n}"] for i, n in enumerate((8, 6))]
# its line is run in the setup of the first test of a class, and the second notices
SHARED = [
    ["toy/maths.py", "third", f"NumberReplacer#{i}", "return x // 3", f"return x // {n}"] for i, n in enumerate((4, 2))
]
CLIP = ["return LIMIT if x > LIMIT else x", "return LIMIT if x >= LIMIT else x"]
EQUAL = ["toy/maths.py", "clipped", "ReplaceComparisonOperator_Gt_GtE#0", *CLIP]
TWICE = ["toy/maths.py", "spent", "NumberReplacer#0", "n -= 1", "n -= 2"]
ENDLESS = ["toy/maths.py", "spent", "NumberReplacer#1", "n -= 1", "n -= 0"]


@pytest.fixture
def toy(tmp_path):
    """A checkout with one module and its tests."""
    files = {"toy/maths.py": SOURCE, "tests/toy/test_maths.py": TESTS, "setup.cfg": "[tool:pytest]\naddopts = -q\n"}
    files |= dict.fromkeys(("toy/__init__.py", "tests/__init__.py", "tests/toy/__init__.py"), "")
    for name, text in files.items():
        (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkout" / name).write_text(text, encoding="utf-8")
    subprocess.run(["git", "init", "--quiet", tmp_path / "checkout"], check=True)
    return tmp_path / "checkout"


def measured(toy):
    """The exit code, the output and the result of the command."""
    into = toy.parent / "results.json"
    words = [f"tree={toy}", f"state={toy.parent / 'state'}", f"into={into}", "targets=[toy/maths.py]"]
    words += ["operators=[NumberReplacer,ReplaceComparisonOperator_Gt_GtE]", "libraries=[hypothesis.strategies]"]
    words += ["patience=1", "seconds=20"]
    command = [sys.executable, "-m", "tests.mutants", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert into.is_file(), done.stdout + done.stderr
    return done.returncode, done.stdout, json.loads(into.read_text(encoding="utf-8"))


def test_a_fault_that_no_test_notices_survives_and_one_that_was_noticed_before_is_lost(toy):
    code, output, result = measured(toy)
    assert code == 0, output
    assert result["killed"] == [*KILLED, *SHARED]
    assert result["timeout"] == [ENDLESS]
    # the test that fails without a fault too has no say
    assert result["survived"] == [[*EQUAL, "1 of 1 tests", ""], [*TWICE, "1 of 1 tests", ""]]
    assert result["files"] == {"toy/maths.py": {"killed": 4, "mutants": 7, "survived": 2, "timeout": 1}}

    assert measured(toy)[2] == result  # what is known is not tried again
    assert len(list(toy.parent.glob("state/*/results.jsonl"))) == 1

    file = toy.parent / "results.json"
    file.write_text(file.read_text().replace('"1 of 1 tests", ""', '"1 of 1 tests", "it is the same"', 1))
    (toy / "toy/maths.py").write_text("import math\n\n" + SOURCE)
    (toy / "tests/toy/test_maths.py").write_text(TESTS.replace("clipped(9) == 7 and ", "").replace("(2)", "(3)"))
    code, output, result = measured(toy)
    assert code == 1
    assert [line for line in output.splitlines() if line.startswith("lost")] == [
        "lost: toy/maths.py : LIMIT = 7  ->  LIMIT = 8",
        "lost: toy/maths.py : LIMIT = 7  ->  LIMIT = 6",
    ]
    assert result["timeout"] == [TWICE, ENDLESS]
    assert result["survived"][-1] == [*EQUAL, "1 of 1 tests", "it is the same"]
