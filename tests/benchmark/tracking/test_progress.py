"""Progress of long steps, on a terminal and elsewhere."""

import io

import pytest
from rich.console import Console

from benchmark.tracking import progress
from benchmark.tracking.progress import Display


def test_a_long_step_prints_a_line_now_and_then_where_there_is_no_terminal(monkeypatch):
    monkeypatch.setattr(progress, "LINE_INTERVAL", -1.0)
    console = Console(file=io.StringIO(), width=200)
    with Display(console) as display:
        display.begin("run")
        with display.counting("evaluating global", 2) as steps:
            steps("features")
            steps.progress(0.5)
            steps.progress(1.0)
    assert console.file.getvalue().splitlines() == [
        "run: evaluating global: features",
        "run: evaluating global: features 50 %",
    ]


def test_a_short_step_prints_its_name_alone():
    console = Console(file=io.StringIO(), width=200)
    with Display(console) as display, display.counting("evaluating global", 1) as steps:
        steps("knn/v1")
        steps.progress(0.5)
    assert console.file.getvalue().count("\n") == 1


def test_the_bar_moves_within_a_step():
    terminal = Display(Console(file=io.StringIO(), force_terminal=True))
    with terminal as display, display.counting("evaluating global", 4) as steps:
        steps("features")
        steps("linear/v1")
        steps.progress(0.25)
        (bar,) = [task for task in display.bars.tasks if "linear/v1" in task.description]
        assert bar.completed == pytest.approx(1.25)
        assert bar.total == 4
        assert bar.fields["note"] == "25 %"
