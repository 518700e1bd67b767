"""A run that was killed and resumed has each round once on W&B, whatever the kill has kept from its files."""

import os
import signal
import sys

import pytest
import wandb
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.cli.main import main
from benchmark.tracking import logged, wandb_files, wandb_run
from benchmark.tracking.callbacks import RoundLog
from benchmark.tracking.logged import EARLIER_STEP, STEP
from benchmark.tracking.wandb_run import WandbRun
from tests.benchmark.tracking.test_wandb_dashboard import items, segments
from tests.run_helpers import TINY, finish, in_child


def killed_after(round, logged, words):
    """The command, which kills itself when a round's checkpoint is on disk: before its row is logged, or after it."""
    log = RoundLog.on_round_end

    def on_round_end(self, loop, line):
        if logged or line["round"] != round:
            log(self, loop, line)
        if line["round"] == round:
            os.kill(os.getpid(), signal.SIGKILL)

    RoundLog.on_round_end = on_round_end
    main(words)


def command(words):
    code = main(words)
    wandb.teardown()  # the files are written by W&B's own process, which may lag behind
    sys.exit(code)


def rows(folder):
    """The rows of a run's segments, one segment after the other."""
    logged = [message.history for _, messages in segments(folder) for message in messages if message.history.item]
    return [(history.step.num, items(history.item)) for history in logged]


def test_each_round_is_in_one_row_with_growing_steps(tmp_path):
    """Killed between two rounds, and between a checkpoint and its row."""
    environment = {"WANDB_MODE": "offline", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "WANDB_SILENT": "true"}
    here = ["threads=1", "devices=1"]
    words = ["run", TINY, "fedavg", f"output={tmp_path / 'runs'}", f"data.cache={tmp_path / 'cache'}", *here]
    words += ["accelerator=cpu", "federation.rounds=4", "logger=wandb"]
    for kill in ((2, True, words), (3, False, words)):
        assert finish(in_child(killed_after, *kill, environment=environment)) == -signal.SIGKILL
    (folder,) = tmp_path.glob("runs/*/*/seed0")
    for more in (["resume", str(folder), *here], ["evaluate", str(folder), "protocols=geometry/v1", "threads=1"]):
        assert finish(in_child(command, more, environment=environment)) == 0
        found = rows(folder)
        steps = [step for step, _ in found]
        assert steps == sorted(set(steps))
        assert [(step, row[STEP]) for step, row in found if "train/loss" in row] == [(n, n) for n in (1, 2, 3, 4)]
        assert [row[STEP] for _, row in found if STEP in row] == [1, 2, 3, 4]  # the figures have no round
        if more[0] == "resume":
            assert len({file.parent.name[-12:] for file in folder.glob("wandb/offline-run-*/*.wandb")}) == 1


@pytest.fixture(scope="module")
def segment(tmp_path_factory):
    """A segment of forty rounds of an earlier version, some of whose rows lie in two blocks of the file."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        for module in (logged, wandb_run):
            patch.setattr(module, "STEP", EARLIER_STEP)
        logger = WandbRun(folder, {"project": "p", "name": "n", "id": "abc", "dir": str(folder)})
        for n in range(1, 41):
            logger.log_metrics({f"eval/number{k}": k / 7 for k in range(50)}, step=n)
        logger.finalize("success")
        wandb.teardown()
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    return file


@settings(derandomize=True, deadline=None, max_examples=40)
@given(share=st.floats(0, 1))
def test_a_segment_that_ends_anywhere_has_the_rounds_up_to_there(segment, share):
    whole, folder = segment.read_bytes(), segment.parents[2]
    assert list(wandb_files.logged_rows(folder, "abc", (STEP, EARLIER_STEP))) == [(n, n) for n in range(1, 41)]
    try:
        segment.write_bytes(whole[: int(share * len(whole))])
        found = list(wandb_files.logged_rows(folder, "abc", (STEP, EARLIER_STEP)))
    finally:
        segment.write_bytes(whole)
    assert found == [(n, n) for n in range(1, len(found) + 1)]
    assert share < 1 or len(found) == 40


def test_a_link_out_of_the_run_folder_is_not_read(segment, tmp_path):
    place = tmp_path / "wandb" / segment.parent.name
    place.mkdir(parents=True)
    (place / segment.name).symlink_to(segment)
    assert not list(wandb_files.logged_rows(tmp_path, "abc", (STEP, EARLIER_STEP)))
