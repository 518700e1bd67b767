import os
import signal
import socket
import time

import pytest

from benchmark.distributed import heartbeat
from tests import run_helpers
from tests.command_helpers import Job
from tests.run_helpers import by_hand, same


@pytest.mark.ranks
class TestDeath:
    """A dead rank ends the run with a one-line error; a resume on any number of ranks gives the same bits."""

    GONE = "; every finished round is safe: run the same command again to resume, with any number of devices"

    @pytest.mark.parametrize(
        ("count", "fate", "dead", "why", "again"),
        [
            (2, "kill", 1, "its process has ended", 1),
            (3, "kill", 2, "its process has ended", 2),
            (2, "stop", 1, "no sign for 1 s", 3),
        ],
    )
    def test_a_forked_rank(self, tmp_path, unbroken, count, fate, dead, why, again):
        job = Job(tmp_path / "x", f"devices={count}", FATE=fate, DEAD=str(dead), FULCRUM_SILENCE="1")
        assert job.end(20) == [1], job.out.read_text()
        assert job.errors == [f"error: rank {dead} is gone ({why}){self.GONE}"]
        assert job.state["round"] == 1
        job = Job(tmp_path / "x", f"devices={again}")
        assert job.end() == [0], job.out.read_text()
        assert same(job.state, unbroken)

    @pytest.mark.parametrize(
        ("fate", "busy", "why"),
        [("kill", "60", "its process has ended"), ("term", "0", "it has stopped"), ("term", "2", "it has stopped")],
    )
    def test_while_the_others_are_with_their_clients_or_still_need_one_that_was_told_to_end(
        self, tmp_path, fate, busy, why
    ):
        """A rank that is busy with a client calls no collective that would fail."""
        job = Job(tmp_path / "x", "devices=2", FATE=fate, DEAD="1", BUSY=busy, FULCRUM_SILENCE="1")
        assert job.end(20) == [1]
        assert job.errors == [f"error: rank 1 is gone ({why}){self.GONE}"]

    def test_the_first_of_the_forked_takes_the_others_along(self, tmp_path):
        job = Job(tmp_path / "x", "devices=2", FATE="kill", DEAD="0", BUSY="60")
        assert job.end(20) == [-signal.SIGKILL]
        assert len(job.pids()) == 2

    @pytest.mark.parametrize("fate", ["kill", "stop"])
    @pytest.mark.parametrize("dead", [0, 1])
    def test_ranks_that_somebody_else_started(self, tmp_path, fate, dead):
        environments = by_hand({"LOCAL_RANK": "0"}, {"LOCAL_RANK": "1"})
        job = Job(tmp_path / "x", environments=environments, FATE=fate, DEAD=str(dead), FULCRUM_SILENCE="1")
        assert run_helpers.finish(job.children[1 - dead], 20) == 1
        job.children[dead].kill()
        job.end()
        (line,) = job.errors
        assert line.startswith(f"error: rank {dead} is gone (")
        assert job.state["round"] == 1

    @pytest.mark.parametrize("given", ["soon", "0", "inf", "1_0"])
    def test_a_limit_that_is_none_is_refused_in_one_line(self, tmp_path, given):
        job = Job(tmp_path / "x", "devices=2", FULCRUM_SILENCE=given)
        assert job.end(20) == [2]
        assert job.errors == [f"error: FULCRUM_SILENCE='{given}': give seconds, above 0"]


@pytest.mark.ranks
class TestLife:
    def test_a_rank_that_takes_long_is_not_dead(self, tmp_path, unbroken):
        job = Job(tmp_path / "x", "devices=2", FATE="sleep", DEAD="1", SECONDS="1", FULCRUM_SILENCE="1")
        assert job.end() == [0], job.out.read_text()
        assert same(job.state, unbroken)

    def test_terminated_while_another_rank_is_with_its_clients(self, tmp_path):
        """Rank 0 gets SIGTERM while it waits for rank 1 in a collective, where Python runs no signal handler."""
        job = Job(tmp_path / "x", "devices=2", FATE="sleep", DEAD="1", SECONDS="60").begun(2)
        time.sleep(1)
        os.kill(job.children[0].pid, signal.SIGTERM)
        assert job.end(20) == [130]
        assert job.errors == ["interrupted; every finished round is safe: run the same command again to resume"]


@pytest.fixture
def first_rank():
    """Heartbeat of rank 0, connected with one other rank; records a call of `end_process` instead of exiting."""
    mine, other = socket.socketpair()
    beating = heartbeat.Heartbeat({1: mine}, limit=1.0, kill_children=lambda: None)
    beating.other, beating.ended = other, False
    beating.end_process = lambda: setattr(beating, "ended", True)
    yield beating
    if beating.previous_wakeup is not None:  # else a later test's signal would be written to a closed socket
        signal.set_wakeup_fd(beating.previous_wakeup)
    beating.other.close()
    for connection in (beating.waker, beating.wakened, *beating.peers.values()):
        connection.close()


def beat(heartbeat, count):
    """Runs `count` beats directly, without the heartbeat's thread and clock."""
    for _ in range(count):
        for rank in heartbeat.peers:
            heartbeat.silent_beats[rank] += 1
        heartbeat.receive(send=b".")
        heartbeat.check_peers()


def test_an_interrupted_process_does_not_announce_the_children_it_has_killed(first_rank, capfd):
    first_rank.interrupted = True
    first_rank.other.close()
    beat(first_rank, heartbeat.BEATS)
    assert (first_rank.failure_announced, capfd.readouterr().err) == (False, "")
    beat(first_rank, 2)  # its signal handler hangs, so the silent rank counts as dead
    assert first_rank.failure_announced


def test_a_rank_that_leaves_in_order_is_gone_once_it_is_needed(first_rank, capfd):
    first_rank.other.send(heartbeat.LEAVING)
    first_rank.other.close()
    beat(first_rank, 2 * heartbeat.BEATS)
    assert not first_rank.failure_announced
    first_rank.in_collective = True
    beat(first_rank, 2)
    assert first_rank.failure_announced
    assert "rank 1 is gone (it has stopped)" in capfd.readouterr().err


def test_the_thread_ends_the_process_after_an_announcement(first_rank):
    first_rank.other.close()
    first_rank.start()
    deadline = time.monotonic() + 60
    while not first_rank.ended and time.monotonic() < deadline:
        time.sleep(0.01)
    first_rank.stop()
    assert first_rank.ended
