"""The examples in docstrings print what they say; every function of `methods.maths` has one."""

import doctest
import importlib
import math
import pkgutil
import re
from types import ModuleType

import pytest
import torch

from methods import maths

NUMBER = re.compile(r"(?<![\w.])[+-]?\d+\.\d*(?:e[+-]?\d+)?")


class Checker(doctest.OutputChecker):
    """Compares numbers with a decimal point to 1e-4, as processors round differently, and all other text exactly."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Whether the text around the numbers is the same and each number is as near as that."""
        shapes = ["".join(NUMBER.sub("#", text).split()) for text in (want, got)]
        pairs = zip(NUMBER.findall(want), NUMBER.findall(got), strict=False)
        return shapes[0] == shapes[1] and all(math.isclose(float(a), float(b), abs_tol=1e-4) for a, b in pairs)


def modules() -> list[ModuleType]:
    """All modules of the packages whose functions are called from elsewhere."""
    packages = [importlib.import_module(name) for name in ("methods", "eval", "datamodules")]
    names = [
        found.name for package in packages for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    return [importlib.import_module(name) for name in sorted(names)]


def examples() -> list[doctest.DocTest]:
    """The docstrings with examples; their names are those of their module, and `torch`."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for module in modules() for test in finder.find(module, extraglobs={"torch": torch})]
    return [test for test in found if test.examples]


EXAMPLES = examples()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_prints_what_it_says(example: doctest.DocTest) -> None:
    torch.manual_seed(0)
    printed: list[str] = []
    runner = doctest.DocTestRunner(checker=Checker(), verbose=False)
    runner.run(example, out=printed.append)
    assert runner.failures == 0, "".join(printed)


def test_every_function_of_maths_has_an_example() -> None:
    named = {example.name.rsplit(".", 1)[-1] for example in EXAMPLES}
    assert sorted(name for name, value in vars(maths).items() if callable(value) and name not in named) == []
