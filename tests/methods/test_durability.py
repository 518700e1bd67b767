"""The durability contract, in `make long`, of the methods and variants that have the interface contract alone."""

import importlib
import inspect
from pathlib import Path

import pytest

from tests.methods.contract import DurabilityContract, InterfaceContract

HERE = Path(__file__)
FILES = sorted({*HERE.parent.glob("test_*.py"), *HERE.parents[1].glob("benchmark/federation/test_*.py")} - {HERE})


def durable(made):
    """The durability contract of a class's method and overrides, without what the class leaves out."""
    left_out = {name: None for name in vars(DurabilityContract) if getattr(made, name, name) is None}
    settings = {"method": made.method, "overrides": made.overrides, **left_out}
    return pytest.mark.long(type(made.__name__, (DurabilityContract,), settings))


for _file in FILES:
    _module = ".".join(_file.relative_to(HERE.parents[2]).with_suffix("").parts)
    for _name, _made in inspect.getmembers(importlib.import_module(_module), inspect.isclass):
        _here = _made.__module__ == _module and _name.startswith("Test")
        if _here and issubclass(_made, InterfaceContract) and not issubclass(_made, DurabilityContract):
            globals()[f"{_name}Of{_file.stem.title().replace('_', '')}"] = durable(_made)
del _made
