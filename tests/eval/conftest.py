import pytest
import torch
from threadpoolctl import threadpool_limits


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Run with one thread: problems this small gain nothing from more, and lose time where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(threads)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)
