import pytest

from tests.command_helpers import Job


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory):
    """The state of an uninterrupted job on one device."""
    job = Job(tmp_path_factory.mktemp("unbroken") / "x", "devices=1")
    assert job.end() == [0]
    return job.state
