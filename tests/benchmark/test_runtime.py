"""Settings of the process: SciPy is imported where something of it is used, and is then itself."""

import importlib
import sys
from types import ModuleType

import pytest

from benchmark.runtime import PostponedSignal, postpone_scipy


@pytest.mark.parametrize("loaded", [False, True])
def test_scipy_is_postponed_until_something_of_it_is_used(loaded, monkeypatch):
    real = importlib.import_module("scipy.signal")
    monkeypatch.setattr(real, "hamming", real.windows.hamming, raising=False)
    monkeypatch.setitem(sys.modules, "scipy.signal", real)  # restored at the end
    if not loaded:
        monkeypatch.delitem(sys.modules, "scipy.signal")
    monkeypatch.setattr(importlib, "import_module", lambda name: sys.modules.setdefault(name, real))
    postpone_scipy()
    found = sys.modules["scipy.signal"]
    assert isinstance(found, ModuleType if loaded else PostponedSignal)
    assert (found is real) == loaded
    assert hasattr(found, "hamming")  # the alias of torchmetrics
    assert not hasattr(found, "__of_no_module__")
    assert (sys.modules["scipy.signal"] is real) == loaded
    assert found.windows is real.windows
    assert sys.modules["scipy.signal"] is real
