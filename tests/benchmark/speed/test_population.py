"""The peak memory of a run does not grow with the number of clients."""

import resource
from pathlib import Path

import pytest

from tests import run_helpers

OVERRIDES = (
    "data.options.examples=4000", "partition.name=iid", "federation.rounds=2", "training.steps=2",
    "training.batch_size=4", "encoder.widths=[32,64]", "heads.projector=[1024,256]",
)  # fmt: skip
"""3,200 training images; 350,000 weights, so that a copy for each of 1,000 clients would be 1.4 GB."""


def write_peak(folder: Path, method: str, clients: int) -> None:
    """Run two rounds of 10 clients each and write the process's largest resident set in MiB to a file."""
    run = run_helpers.train_run(
        folder, method, *OVERRIDES, f"partition.clients={clients}", f"federation.participation={10 / clients}"
    )
    assert run.loop.ledger.visits == {0: 10, 1: 10}
    (folder / "peak").write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


@pytest.mark.parametrize("method", [pytest.param("fedavg", marks=pytest.mark.long), "scaffold"])
def test_a_thousand_clients_take_the_memory_of_ten(tmp_path, method):
    measured = {}
    for clients in (10, 1000):
        folder = tmp_path / str(clients)
        assert run_helpers.finish(run_helpers.in_child(write_peak, folder, method, clients)) == 0
        measured[clients] = float((folder / "peak").read_text())
    few, many = measured.values()
    assert many < 1.1 * few, f"{method}: 10 clients peak at {few:.0f} MiB, 1,000 clients at {many:.0f} MiB"
    assert many > 0.9 * few, f"{method}: 10 clients peak at {few:.0f} MiB, 1,000 clients at {many:.0f} MiB"
