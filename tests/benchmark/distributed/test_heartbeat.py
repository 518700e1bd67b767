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
    """A dead rank ends the run with one line, and any number of ranks takes it up to the same bits."""

    GONE = "; every finished round is safe: run the same command again to go on, with any number of devices"

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

    def test_while_the_others_are_with_their_clients(self, tmp_path):
        """They come to no exchange that would fail."""
        job = Job(tmp_path / "x", "devices=2", FATE="kill", DEAD="1", BUSY="60", FULCRUM_SILENCE="1")
        assert job.end(20) == [1]
        assert job.errors == [f"error: rank 1 is gone (its process has ended){self.GONE}"]

    @pytest.mark.parametrize("busy", ["0", "3"])
    def test_one_that_was_told_to_end_is_gone_too(self, tmp_path, busy):
        """It says goodbye, but the others still need it."""
        job = Job(tmp_path / "x", "devices=2", FATE="term", DEAD="1", BUSY=busy, FULCRUM_SILENCE="1")
        assert job.end(20) == [1]
        assert job.errors == [f"error: rank 1 is gone (it has stopped){self.GONE}"]

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

    @pytest.mark.parametrize("given", ["soon", "0", "inf"])
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
        """The first one waits for it in an exchange, where Python hears of no signal."""
        job = Job(tmp_path / "x", "devices=2", FATE="sleep", DEAD="1", SECONDS="60").begun(2)
        time.sleep(1)
        os.kill(job.children[0].pid, signal.SIGTERM)
        assert job.end(20) == [130]
        assert job.errors == ["interrupted; every finished round is safe: run the same command again to go on"]


@pytest.fixture
def pulse(monkeypatch):
    """A first rank's, connected with one other, ten beats a second; it may not end this process."""
    left = []
    monkeypatch.setattr(heartbeat, "leave", lambda: left.append(True))
    monkeypatch.setattr(heartbeat.ranks, "end", lambda: None)
    mine, other = socket.socketpair()
    one = heartbeat.Heartbeat({1: mine}, limit=1.0)
    one.left, one.other = left, other
    one.start()
    yield one
    one.stop()
    other.close()


class TestPulse:
    def test_an_interrupted_process_does_not_bury_the_children_it_has_ended(self, pulse, capfd):
        pulse.waker.send(bytes([signal.SIGTERM]))
        pulse.other.close()
        time.sleep(0.6)
        assert not pulse.left
        assert capfd.readouterr().err == ""
        time.sleep(1.0)  # it hangs: whatever it wanted to do first, somebody waits for it
        assert pulse.left

    def test_who_parts_in_order_is_not_gone_before_it_is_needed(self, pulse, capfd):
        pulse.other.send(heartbeat.BYE)
        pulse.other.close()
        time.sleep(0.5)
        assert not pulse.left
        pulse.exchanging = True
        time.sleep(0.5)
        assert pulse.left
        assert "rank 1 is gone (it has stopped)" in capfd.readouterr().err
