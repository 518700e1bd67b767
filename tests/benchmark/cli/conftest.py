import signal

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread_and_the_old_signal():
    torch.set_num_threads(1)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
