"""Progress of long steps, on a terminal and elsewhere."""

import io
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console

from benchmark.federation.divergence import collapses
from benchmark.tracking import progress
from benchmark.tracking.progress import Display


@pytest.mark.parametrize("also", [["run: evaluating global: features 50 %"], []])
def test_without_a_terminal_a_step_prints_its_name_and_a_long_one_a_line_now_and_then(monkeypatch, also):
    if also:
        monkeypatch.setattr(progress, "LINE_INTERVAL", -1.0)
    console = Console(file=io.StringIO(), width=200)
    with Display(console) as display:
        display.begin("run")
        with display.counting("evaluating global", 2) as steps:
            steps("features")
            steps.progress(0.5)
            steps.progress(1.0)
    assert console.file.getvalue().splitlines() == ["run: evaluating global: features", *also]


def test_the_bar_moves_within_a_step():
    terminal = Display(Console(file=io.StringIO(), force_terminal=True))
    with terminal as display, display.counting("evaluating global", 4) as steps:
        steps("features")
        steps("linear/v1")
        steps.progress(0.25)
        (bar,) = [task for task in display.bars.tasks if "linear/v1" in task.description]
        assert (bar.completed, bar.total, bar.fields["note"]) == (pytest.approx(1.25), 4, "25 %")


def test_boards_stay_above_the_bars_and_a_pause_ends_their_thread():
    console, others = Console(file=io.StringIO(), force_terminal=True), set(threading.enumerate())
    with Display(console, 2) as display:
        (thread,) = set(threading.enumerate()) - others
        display.bars.boards = ["the board so far"]
        display.overview(1, "run 2 of 2", {"tiny fedavg seed 0": (1, 3)})
        display.bars.refresh()
        with display.paused():
            thread.join(5)
            assert set(threading.enumerate()) <= others  # of which some may have ended
        assert set(threading.enumerate()) - others
    shown = console.file.getvalue()
    assert 0 < shown.index("the board so far") < shown.index("tiny fedavg seed 0") < shown.index("run 2 of 2")


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ({"loss": 0.00004}, "loss 0.0000 (collapsed? loss of 0)"),
        ({"loss": -0.0}, "loss -0.0000 (collapsed? loss of 0)"),
        ({"loss": 0.0001}, "loss 0.0001  "),
        ({"loss": 0.3, "effective_rank": 1.0}, "loss 0.3000 (collapsed? features are all alike)"),
        ({"loss": 0.3, "effective_rank": 0.0}, "loss 0.3000 (collapsed? features are all alike)"),
        ({"loss": 0.3, "effective_rank": 1.5}, "loss 0.3000  "),
        ({"loss": None}, "round 2/2    "),
    ],
)
def test_a_collapsed_round_is_remarked_on(numbers, shown):
    """In its line, and in the record with the number of such rounds."""
    console = Console(file=io.StringIO(), width=200)
    line = {"round": 2, "images": 5, "seconds": 1.0, **numbers}
    with Display(console) as display:
        display.begin("run")
        display.on_round_end(SimpleNamespace(rounds=2), line)
    assert shown in console.file.getvalue()
    lines = collapses([{"round": 1, "loss": 1.0}, line])
    assert len(lines) == ("collapsed" in shown)
    assert not lines or lines[0].endswith("in 1 of 2 rounds, first in round 2")
