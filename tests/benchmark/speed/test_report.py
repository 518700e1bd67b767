"""Measurements: contenders in turn, ratios, goals, and the page of their results; a probe's steps on all threads."""

import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from benchmark.api import compose
from benchmark.cli.main import COMMANDS
from benchmark.runtime import spin_briefly
from benchmark.speed import __main__, evaluation, report
from benchmark.speed.__main__ import MEASUREMENTS, main
from benchmark.speed.timing import Line, Spread, interleaved, ratio, run_process, spread
from eval import linear
from tests.run_helpers import TINY


def test_contenders_run_in_turn_and_in_reverse_order_every_other_time():
    order = []
    contenders = {name: (lambda name=name: order.append(name) or float(len(order))) for name in "ab"}
    values = interleaved(contenders, 3, lambda line: None)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert values == {"a": [1, 4, 5], "b": [2, 3, 6]}
    assert ratio(values, "b", "a") == spread([2, 3 / 4, 6 / 5])


def test_a_goal_is_met_by_the_median():
    cases = {("<= 1.10", 1.10): True, ("<= 1.10", 1.11): False, (">= 9", 9.0): True, (">= 9", 8.9): False}
    for (goal, median), met in {**cases, ("", 1.0): None}.items():
        assert Line("x", Spread(median, 0.0, 100.0, 5), goal=goal).met is met


def test_the_page_has_the_saved_results_and_its_prose_is_unchanged(tmp_path):
    text = "# Page\n\nBefore.\n\n<!-- floor -->\nold\n<!-- end -->\n\nAfter.\n\n<!-- ranks -->\n<!-- end -->\n"
    (tmp_path / "performance.md").write_text(text)
    lines = [
        Line("a round", Spread(1.2, 1.0, 1.4, 5), goal="<= 1.10"),
        Line("time", Spread(1234.5, 1000, 2000, 3), "s"),
    ]
    report.save(tmp_path, "floor", "Floor", lines)
    report.write(tmp_path)
    made = (tmp_path / "performance.md").read_text()
    ratio = "| a round | 1.20 | 1.00 - 1.40 | 5 | x | **<= 1.10: missed** |"
    time = "| time | 1,234 | 1,000 - 2,000 | 3 | s |  |"
    prose = ("Before.", "After.\n\n<!-- ranks -->\nNot measured yet.\n<!-- end -->")
    assert all(text in made for text in (ratio, *prose))
    assert not [text for text in ("old", time) if text in made]
    assert {ratio, time} <= set(report.measurement_table(report.read(tmp_path)["floor"]).splitlines())
    assert (tmp_path / "performance" / "ratios.svg").read_text().count("a round") >= 1
    report.write(tmp_path)
    assert (tmp_path / "performance.md").read_text() == made
    assert report.read(tmp_path)["floor"]["lines"] == lines


def test_memory_is_that_of_the_whole_tree_and_a_failed_command_an_error_with_its_exit_code():
    hold = "import sys, time; block = bytearray(60 << 20); block[::4096] = b'x' * len(block[::4096]); time.sleep(4)"
    both = f"import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {hold!r}]); {hold}; child.wait()"
    done = run_process([sys.executable, "-c", both], env={"PYTHONDONTWRITEBYTECODE": "1"})
    assert 120 < done.peak_mib < 200
    with pytest.raises(RuntimeError, match="ended with 3"):
        run_process([sys.executable, "-c", "import sys; sys.exit(3)"])


def test_the_committed_pages_are_rendered_from_their_data():
    docs = report.Path(__file__).parents[3] / "docs" / "reference"
    text = "".join((docs / page).read_text() for page in report.PAGES)
    assert report.render(text, report.read(docs)) == text
    assert all(text.count(f"<!-- {name} -->") == 1 for name in MEASUREMENTS)


class Module:
    @staticmethod
    def floor(repetitions, log):
        return [Line("a ratio", spread([1.0] * repetitions), goal="<= 2")]


def test_fewer_than_five_repetitions_write_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    (tmp_path / "docs" / "reference" / "performance.md").write_text("<!-- floor -->\n<!-- end -->\n")
    monkeypatch.setattr(__main__, "importlib", SimpleNamespace(import_module=lambda name: Module))
    for words, written in ((["floor", "repetitions=4"], False), (["floor"], True)):
        assert main(words) == 0
        assert (tmp_path / "docs" / "reference" / "performance" / "floor.json").exists() == written
        output = capsys.readouterr().out
        assert ("printed only" in output, "<= 2: met" in output) == (not written, True)


def test_a_name_asks_for_the_measurements_of_its_subject_too(monkeypatch, capsys):
    """Each is a function of its module, with a title."""
    measured = []

    def measure(name, repetitions, log):
        measured.append(name)
        return Module.floor(repetitions, log)

    for name, (module, title) in MEASUREMENTS.items():
        assert title
        monkeypatch.setattr(f"benchmark.speed.{module}.{name}", partial(measure, name))
    assert main(["evaluation", "threads", "views", "repetitions=1"]) == 0
    assert measured == ["evaluation", "threads", "views"]


def test_threads_spin_briefly_unless_the_user_set_it(monkeypatch):
    for given, expected in (({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)):
        monkeypatch.setattr(os, "environ", dict(given))
        spin_briefly()
        assert os.environ.get("GOMP_SPINCOUNT") == expected


def test_a_mistake_is_one_line(capsys):
    for word in ("flor", "repetitions=0", "speed=3"):
        assert main([word]) == 2
        assert capsys.readouterr().out.startswith("error: ")


def test_busy_processes_end_with_the_block():
    with evaluation.busy_cores() as processes:
        assert [process.poll() for process in processes] == [None] * os.cpu_count()
    assert None not in [process.poll() for process in processes]


def test_the_contenders_differ_in_the_threads_of_a_step_alone(monkeypatch):
    monkeypatch.setattr(evaluation, "TRAIN", 600)
    used, shipped, gradient, before = [], linear.SHARED_STEP, linear.gradient_of, torch.get_num_threads()
    monkeypatch.setattr(linear, "gradient_of", lambda *args: used.append(torch.get_num_threads()) or gradient(*args))
    torch.set_num_threads(2)
    try:
        contenders = evaluation._thread_contenders()
        assert all(contenders[name]() > 0 for name in (evaluation.ONE, evaluation.ALL))
    finally:
        torch.set_num_threads(before)
    assert used == [1] * (len(used) // 2) + [2] * (len(used) // 2)
    assert shipped == linear.SHARED_STEP


IMPORTS = """
import os, runpy, sys
from benchmark import runtime

runtime.keep_freed_memory = lambda: print("BEFORE", "torch" in sys.modules, os.environ["GOMP_SPINCOUNT"])
for words, unneeded in {commands}:
    sys.argv = ["benchmark", *words]
    try:
        runpy.run_module("benchmark", run_name="__main__")
    except SystemExit as done:
        print("ENDED", done.code, [name for name in unneeded if name in sys.modules])
"""
RUN = ["run", TINY, "fedavg", "logger=csv", "federation.rounds=1", "evaluation.protocols=[]"]


def test_a_command_imports_what_it_needs_and_bounds_spinning_before_that(tmp_path):
    """One process, in which each command needs more than the one before."""
    (tmp_path / "results").mkdir()
    begun = [tmp_path / "begun" / method / "seed0" for method in ("fedavg", "ssd")]
    for run in begun:
        run.mkdir(parents=True)
        OmegaConf.save(compose(TINY, run.parent.name), run / "config.yaml")
    nowhere = str(tmp_path / "nowhere")
    mistakes = [
        ["run", "digits", "fedvag"],
        ["run", "suite=digits", "methods=fedvag"],
        ["run", "digits", "ssd", "federation.round=3"],
        *([command, nowhere] for command in ("resume", "evaluate", "submit", "verify", "parity", "tune", "campaign")),
        *([command, "fedvag"] for command in ("cite", "costs", "privacy", "list", "boad")),
        ["submit", nowhere, "chosen=x"],
        ["export", nowhere, "x.pt"],
        ["compare", nowhere, str(tmp_path)],
    ]
    light = [*([command, "--help"] for command in COMMANDS), ["--help"], ["list"], ["cite", "ssd", "fedavg-byol"]]
    heavy = ["torch", "lightning", "torchvision", "sklearn", "pandas", "wandb", "matplotlib", "scipy.stats"]
    done_by = [
        *((words, heavy, 2) for words in mistakes),
        *((words, heavy, 0) for words in light),
        (["compare", *map(str, begun), f"output={tmp_path}"], [*heavy[:-2], "scipy.stats", "matplotlib.pyplot"], 0),
        (["board", f"folder={tmp_path}"], heavy[:-2], 0),
        ([*RUN, f"output={tmp_path}/x"], ["wandb", "sklearn", "pandas"], 0),
    ]
    commands = [(words, unneeded) for words, unneeded, _ in done_by]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS.format(commands=commands)],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    ended = [line for line in lines if line.startswith("ENDED")]
    assert ended == [f"ENDED {code} []" for *_, code in done_by], done.stdout + done.stderr
    assert next(line for line in lines if line.startswith("BEFORE")) == "BEFORE False 10000"
