"""Settings of every test: the global random generators start from a fixed seed, and so do the drawn examples.

Tests are of the CPU, also on a machine with a GPU, which is hidden from them; `tests.device` simulates one.
"""

import os
import random

import numpy as np
import pytest
import torch
from hypothesis import settings

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before anything asks CUDA for its devices

# the same examples in every run, and no limit on their time: machines may be busy
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=30)
settings.load_profile("ci")


@pytest.fixture(autouse=True)
def _seeded():
    """A test that draws from a global generator draws the same in every run, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
