"""Settings of every test: the global random generators start from a fixed seed, and so do the drawn examples.

Tests are of the CPU, also on a machine with a GPU, which is hidden from them; `tests.device` simulates one.
"""

import gc
import os
import random
import shutil

import numpy as np
import pytest
import torch
from hypothesis import settings

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before anything asks CUDA for its devices

# the same examples in every run, and no limit on their time: machines may be busy
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=30)
settings.load_profile("ci")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """A third of its time was the search for garbage among modules and tests, which stay out of it from then on."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionfinish() -> None:
    """Bindings report what is left at the end."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _seeded():
    """A test that draws from a global generator draws the same in every run, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def browser():
    """Chromium, by Playwright; the test is skipped where there is none."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
