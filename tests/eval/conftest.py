import pytest
import torch
from threadpoolctl import threadpool_limits


@pytest.fixture
def one_thread():
    """Problems this small gain nothing from threads, and lose much where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(threads)
