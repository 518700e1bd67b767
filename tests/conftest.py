"""What holds for every test: the global random generators begin at the same place."""

import random

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded():
    """A test that draws from a global generator draws the same in every run, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
