"""Output that nobody reads, that no disk takes, or that cannot be encoded, ends no command."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

SCRIPT = """
import os, sys
from benchmark.runtime import open_standard_streams
open_standard_streams()
{body}
"""

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="the shell's redirections are Linux's")


def shell(command, **environment):
    """The completed shell command, in which $PYTHON is Python; the exit code is that of a pipe's first failure."""
    python = {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
    words = ["bash", "-c", f"set -o pipefail; {command}"]
    return subprocess.run(words, env=os.environ | python | environment, capture_output=True, check=False, timeout=120)


def script(body, tail="", options=""):
    """A light program that opens its streams as the command does."""
    text = SCRIPT.format(body=body)
    return shell(f"$PYTHON {options} -c '{text}' {tail}")


PRINTS = """
for number in range(3000):
    print("line", number, flush=number % 2 == 0)
    print("line", number, file=sys.stderr)
sys.stdout.buffer.write(b"bytes")
open(sys.argv[1], "w").write("whole")
print("the end")
"""


@pytest.mark.parametrize(
    "tail", ["| head -1", "2>&1 | true", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>&1"]
)
@pytest.mark.parametrize("options", ["", "-u"])
def test_a_program_goes_on_without_its_streams(tmp_path, tail, options):
    done = script(PRINTS, f"{tmp_path}/file {tail}", options)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "file").read_text() == "whole"
    assert not re.search(b"Error|Exception", done.stderr)


def test_a_file_opened_later_does_not_become_a_standard_stream(tmp_path):
    body = 'file = open(sys.argv[1], "w"); print("x"); os.write(1, b"y"); os.system("echo z"); assert file.fileno() > 2'
    assert script(body, f"{tmp_path}/file <&- >&- 2>&-").returncode == 0
    assert (tmp_path / "file").read_text() == ""


def test_streams_that_work_are_as_python_makes_them():
    body = """
sys.stderr.write("now")
sys.stdout.write("later\\n")
os.write(1, b"first\\n")
assert sys.stdin.read() == "typed"
assert (sys.stdout.name, sys.stdout.fileno(), sys.stdout.isatty()) == ("<stdout>", 1, False)
"""
    done = script(body, "< <(printf typed)")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"first\nlater\n", b"now")


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "ascii:strict"}])
def test_characters_that_the_terminal_has_not_are_replaced(environment):
    text = SCRIPT.format(body='print("1 \\u00b1 2"); print("\\u2013", file=sys.stderr)')
    done = shell(f"$PYTHON -c '{text}'", **environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1 ? 2\n", b"\\u2013\n")


@pytest.mark.parametrize("options", ["", "-u"])
def test_a_pipe_that_is_full_and_does_not_block_loses_nothing(options):
    body = 'os.set_blocking(1, False); print("x" * 300_000); print("end")'
    done = script(body, "| (sleep 0.3; cat)", options)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) == 300_005


def run(tmp_path, tail, before="", **words):
    """A tiny run by the command; its exit code, what is left of its output, and whether it has a record."""
    settings = {"output": tmp_path / "runs", "data.cache": tmp_path / "cache", "logger": "csv", "threads": 1}
    settings |= {"federation.rounds": 1, "accelerator": "cpu", "devices": 1} | words
    options = " ".join(f"{key}={value}" for key, value in settings.items())
    done = shell(f"cd {tmp_path}; {before} $PYTHON -m benchmark run {ROOT}/tests/tiny.yaml fedavg {options} {tail}")
    return done.returncode, (done.stdout + done.stderr).decode(), len(list(tmp_path.rglob("result.json")))


def test_a_run_of_which_nobody_reads_the_first_line_goes_on(tmp_path):
    """Nor do matplotlib's settings of the user and an encoding without the characters of its tables end it."""
    before = "MPLBACKEND=junk PYTHONIOENCODING=ascii"
    assert run(tmp_path, "2>&1 | true", before) == (0, "", 1)


@pytest.mark.ranks
def test_two_ranks_go_on_without_any_stream(tmp_path):
    assert run(tmp_path, "<&- >&- 2>&-", devices=2) == (0, "", 1)


def test_a_command_whose_error_cannot_be_printed_has_its_code():
    done = shell("$PYTHON -m benchmark list nosuch >/dev/full 2>&1")
    assert (done.returncode, done.stderr) == (2, b"")
