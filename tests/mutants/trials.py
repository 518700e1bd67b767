"""Trials of mutants: a copy of a checkout, which tests run which of its lines, and tests in a forked process."""

import hashlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import types
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import coverage
import pytest

PHASE = re.compile(r"(\|(run|setup|teardown)| \((call|setup|teardown)\))$")
"""What pytest-cov, or a process that a test started, writes behind a test's id."""
SETUP = ("|setup", " (setup)")
FIRST, GROWTH = 12, 4  # tests of the first call of pytest, and how many times more in the next


def snapshot(tree: Path, state: Path) -> Path:
    """The folder in `state` of a checkout of just this content; its `tree` is a copy, which edits do not reach."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout
    files = sorted({name for name in listed.split("\0") if name and (tree / name).is_file()})
    code = [name for name in files if Path(name).suffix in {".py", ".yaml", ".cfg"}]
    digest = hashlib.sha256(b"".join(name.encode() + b"\0" + (tree / name).read_bytes() for name in code))
    folder = state / digest.hexdigest()[:12]
    if not folder.is_dir():
        for name in files:
            copy = folder.with_suffix(".new") / "tree" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, copy)
        folder.with_suffix(".new").rename(folder)
    return folder


@dataclass
class Copy:
    """A copy of a snapshot in which mutants are planted."""

    source: Path
    folder: Path

    def restore(self) -> None:
        """Undoes a mutant, and whatever its trial did to the files."""
        for file in (path for path in self.source.rglob("*") if path.is_file()):
            copy, there = self.folder / file.relative_to(self.source), file.stat()
            here = copy.stat() if copy.is_file() else None
            if not here or (here.st_mtime_ns, here.st_size) != (there.st_mtime_ns, there.st_size):
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, copy)
                _forget(copy)

    def plant(self, file: str, text: str) -> None:
        """Writes a mutated file."""
        (self.folder / file).write_text(text, encoding="utf-8")
        _forget(self.folder / file)


def _forget(file: Path) -> None:
    """Removes a file's bytecode, which is told from that of another text by second and size only."""
    for code in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        code.unlink()


def measure(tree: Path, into: Path, jobs: int) -> None:
    """Runs the suite with a line's tests as contexts of its coverage, processes that tests start included."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    names = ", ".join(sorted(file.parent.name for file in tree.glob("*/__init__.py") if file.parent.name != "tests"))
    lines = (
        *("[run]", f"source = {names}", f"data_file = {into / '.coverage'}", "parallel = True", "patch = subprocess"),
        *("concurrency = thread,multiprocessing", "context = ${PYTEST_CURRENT_TEST-}", "relative_files = True"),
    )
    (into / "coverage.ini").write_text("\n".join(lines), encoding="utf-8")
    words = ["--numprocesses", str(jobs), "--dist", "worksteal", "--cov", f"--cov-config={into / 'coverage.ini'}"]
    words += ["--cov-context=test", "--cov-report=", f"--junitxml={into / 'junit.xml'}"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=tree, env=environment, check=False)


@dataclass
class Seen:
    """What a run of the suite showed: which tests run a line, and how long each takes that passed.

    lines: file -> line -> tests. seconds: test -> wall time.
    """

    lines: dict[str, dict[int, set[str]]]
    seconds: dict[str, float]

    @classmethod
    def read(cls, folder: Path, files: Iterable[str], into: Path) -> "Seen":
        """folder: data of coverage, whose files are combined as `into`, and `junit.xml`.

        What a test's setup runs is seen by all tests of its class, or of its file where it has none.
        """
        if not into.is_file():
            combined = coverage.Coverage(data_file=str(into.with_suffix(".new")), config_file=False)
            combined.combine([str(file) for file in folder.glob(".coverage*")], keep=True)
            combined.save()
            into.with_suffix(".new").rename(into)
        seconds, scopes = {}, defaultdict(set)
        for case in ElementTree.parse(folder / "junit.xml").iter("testcase"):
            if not [part.tag for part in case if part.tag in {"failure", "error", "skipped"}]:
                test = _id(case.attrib["classname"], case.attrib["name"])
                seconds[test] = float(case.attrib["time"])
                scopes[_scope(test)].add(test)
        data = coverage.CoverageData(str(into))
        data.read()
        lines: dict[str, dict[int, set[str]]] = {}
        for file in files:
            found = lines[file] = defaultdict(set)
            for line, contexts in data.contexts_by_lineno(file).items():
                found[line] = {PHASE.sub("", context) for context in contexts if context}  # "" at import
                shared = {_scope(PHASE.sub("", each)) for each in contexts if each.endswith(SETUP)}
                found[line].update(test for scope in shared for test in scopes[scope])
        return cls(lines, seconds)

    def of(self, file: str, lines: Iterable[int]) -> list[str]:
        """The tests that run one of the lines of a file and passed."""
        return sorted({test for line in lines for test in self.lines[file].get(line, ()) if test in self.seconds})

    def ordered(self, tests: Sequence[str], near: str) -> list[str]:
        """The tests of the file `near` first; cheapest first, the n-th case of a test as if it took n times as long.

        Tests of one name are cases of one test: a contract is inherited by many classes.
        """
        turn: Counter[str] = Counter()
        cost = {}
        for test in sorted(tests, key=lambda test: (self.seconds[test], test)):
            name = test.partition("[")[0].rpartition("::")[2]
            turn[name] += 1
            cost[test] = self.seconds[test] * turn[name]
        return sorted(tests, key=lambda test: (not test.startswith(near), cost[test], test))


def _scope(test: str) -> str:
    """The class or the file of a test: what a fixture made for the first of its tests may serve the others too."""
    return test.partition("[")[0].rpartition("::")[0]


def _id(module: str, name: str) -> str:
    """The id of a test by its class and name in junit.xml."""
    parts = module.split(".")
    file = 1 + max(i for i, part in enumerate(parts) if part.startswith("test_"))
    return "::".join(["/".join(parts[:file]) + ".py", *parts[file:], name])


@dataclass(eq=False)  # pytest puts its plugins into sets
class Watch:
    """A plugin of pytest that runs `tests`, file by file, until one fails or `seconds` of CPU time are used.

    limits: wall time of each.
    """

    tests: Sequence[str]
    limits: Mapping[str, float]
    seconds: float
    note: int
    failed: bool = field(default=False, init=False)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session, items) -> None:
        self.session = session
        found = {item.nodeid: item for item in items}
        files = [*dict.fromkeys(test.partition("::")[0] for test in self.tests)]
        order = sorted(self.tests, key=lambda test: files.index(test.partition("::")[0]))
        items[:] = [found[test] for test in order if test in found]  # a mutant may have renamed its cases
        for item in items:
            item.add_marker(pytest.mark.timeout(self.limits[item.nodeid]), append=False)

    def pytest_runtest_logstart(self, nodeid) -> None:
        os.write(self.note, f"ran\t{nodeid}\n".encode())

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed and not self.failed:
            self.failed = True
            late = "from pytest-timeout" in report.longreprtext
            os.write(self.note, f"{'timeout' if late else 'killed'}\t{report.nodeid}\n".encode())

    pytest_collectreport = pytest_runtest_logreport

    def pytest_runtest_logfinish(self) -> None:
        if cpu() > self.seconds:
            self.session.shouldstop = "time"


def cpu() -> float:
    """CPU seconds of this process and the ended ones that it started."""
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


@dataclass(frozen=True)
class Trial:
    """What tests said. outcome: survived, killed or timeout. test: that failed. ran: tests that were started."""

    outcome: str
    test: str
    ran: int
    cpu: float


def run(folder: Path, tests: Sequence[str], limits: Mapping[str, float], seconds: float) -> Trial:
    """Runs tests of the checkout in `folder` in a fork of this process, which has none of the project's modules."""
    note = folder.with_suffix(".note")
    note.write_text("", encoding="utf-8")
    if not (child := os.fork()):
        try:
            _child(folder, tests, limits, seconds, note)
        finally:
            os._exit(0)
    end = time.monotonic() + 120 + 20 * seconds  # others may use the machine too
    try:
        while not (ended := os.wait4(child, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
            time.sleep(0.02)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # also what its tests started and left
    _, status, usage = ended
    lines = [line.split("\t") for line in note.read_text(encoding="utf-8").splitlines()]
    ran = [test for kind, test in lines if kind == "ran"]
    verdict = next(([kind, test] for kind, test in lines if kind != "ran"), ["survived", ""])
    if status and verdict[0] == "survived":  # ended by a signal: ours, the one of the limit, or a crash
        late = os.WTERMSIG(status) in {signal.SIGKILL, signal.SIGXCPU}
        verdict = ["timeout" if late else "killed", ran[-1] if ran else tests[0]]
    return Trial(*verdict, ran=len(ran), cpu=round(usage.ru_utime + usage.ru_stime, 1))


def _child(folder: Path, tests: Sequence[str], limits: Mapping[str, float], seconds: float, note: Path) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (int(60 + 5 * seconds),) * 2)
    output = os.open(folder.with_suffix(".output"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream, target in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
        os.dup2(target, stream)
    os.chdir(folder)
    os.environ.update(PYTHONPATH=str(folder), GIT_CEILING_DIRECTORIES=str(folder.parent))
    ours = {file.parent.name for file in folder.glob("*/__init__.py")}
    for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
        del sys.modules[name]
    others = [path for path in sys.path if path and not (Path(path) / "tests/__init__.py").exists()]
    sys.path[:] = [str(folder), *others]
    sys.modules["__main__"] = types.ModuleType("__main__")  # a spawned process would import this one's
    sys.argv[:] = ["pytest"]
    lines, left, size = os.open(note, os.O_WRONLY | os.O_APPEND), [*tests], FIRST
    base = [
        "-x",
        *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"),
        f"--rootdir={folder}",
        "-c",
        "setup.cfg",
    ]
    while left and cpu() < seconds:
        batch, left, size = left[:size], left[size:], size * GROWTH
        watch = Watch(batch, limits, seconds, lines)
        files = dict.fromkeys(test.partition("::")[0] for test in batch)
        code = pytest.main([*base, f"--basetemp={folder.with_suffix('.tmp')}", *files], plugins=[watch])
        broken = code in {pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR}
        if broken and not watch.failed:
            os.write(lines, f"killed\t{batch[0]}\n".encode())  # a conftest that cannot be imported
        if broken or watch.failed:
            return
