"""What the tests catch: small faults (mutants) are planted into a copy of the code, one at a time; a test has to fail.

`make mutants` has its settings in `settings.yaml`; CONTRIBUTING.md tells how to read its result. The faults are those
of cosmic-ray. Its own runner starts one command for every mutant, the whole suite; here a mutant meets the tests that
run its line, cheapest first, in a fork of a process that has imported the libraries but nothing of the project: seconds
instead of minutes.
"""

import gc
import importlib
import json
import os
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from tests.mutants.places import OUTCOMES, Mutant, again, drawn
from tests.mutants.trials import Copy, Seen, Trial, measure, run, snapshot

Trials = dict[tuple[str, ...], dict[str, Any]]
SETTINGS = Path(__file__).with_name("settings.yaml")
say = partial(print, flush=True)


@dataclass
class Judge:
    """Tries mutants in its own copy of the code, and appends what becomes of them to a file that all judges share."""

    copy: Copy
    limits: Mapping[str, float]
    seconds: float
    results: Path

    def judge(self, mutant: Mutant) -> None:
        """Tries a mutant until its tests agree; one that fails without the mutant too has no say."""
        clean = read(self.results)[1]
        while True:
            tests = [test for test in mutant.tests if clean.get(test, True)]
            self.copy.plant(mutant.file, mutant.text)
            trial = self._run(tests)
            if not trial.test or self._passes(trial.test, tests, clean):
                return self._write({"key": mutant.key, "covering": len(tests), "seconds": self.seconds, **vars(trial)})

    def _run(self, tests: Sequence[str]) -> Trial:
        try:
            return run(self.copy.folder, tests, self.limits, self.seconds) if tests else Trial("survived", "", 0, 0)
        finally:
            self.copy.restore()

    def _passes(self, test: str, tests: Sequence[str], clean: dict[str, bool]) -> bool:
        """Whether a test, or the first one of a file that cannot be imported, passes without a mutant."""
        test = next((each for each in tests if each == test or each.startswith(f"{test}::")), tests[0])
        if test not in clean:
            clean[test] = self._run([test]).outcome == "survived"
            self._write({"clean": test, "passed": clean[test]})
        return clean[test]

    def _write(self, line: dict[str, Any]) -> None:
        with self.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read(results: Path) -> tuple[Trials, dict[str, bool]]:
    """Trials so far by the mutant's name, and tests by whether they pass without one."""
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    clean = {line["clean"]: line["passed"] for line in lines if "clean" in line}
    return {tuple(line["key"]): line for line in lines if "key" in line}, clean


def tried(mutant: Mutant, trials: Trials, seconds: float) -> bool:
    """Whether a mutant has a result; a survivor that met only some of its tests meets more when `seconds` is raised."""
    trial = trials.get(mutant.key)
    return trial is not None and (
        trial["outcome"] != "survived" or trial["ran"] >= trial["covering"] or trial["seconds"] >= seconds
    )


def see(mutant: Mutant, seen: Seen) -> None:
    """Finds a mutant's tests: of its statement, or of the smallest scope around it that has any, or of its folder."""
    file = Path(mutant.file)
    tests = next((tests for span in mutant.spans if (tests := seen.of(mutant.file, span))), [])
    beside = [each for each in seen.lines if Path(each).parent == file.parent] if not tests else []
    tests = tests or sorted({test for each in beside for test in seen.of(each, seen.lines[each])})
    mutant.tests = seen.ordered(tests, f"tests/{file.parent}/test_{file.name}::")


def work(judge: Judge, mutants: Sequence[Mutant], total: int) -> int:
    """The id of a process that tries mutants, and says how far all judges are."""
    if child := os.fork():
        return child
    try:
        start = time.monotonic()
        judge.copy.restore()
        for i, mutant in enumerate(mutants, start=1):
            judge.judge(mutant)
            trials = read(judge.results)[0]
            ends = Counter(trial["outcome"] for trial in trials.values())
            left = (time.monotonic() - start) / i * (len(mutants) - i) / 60
            counts = f"killed {ends['killed'] + ends['timeout']}, survived {ends['survived']}, minutes left {left:.0f}"
            say(f"{len(trials)} of {total}: {counts} ({mutant.file}:{mutant.line} {trials[mutant.key]['outcome']})")
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def written(mutants: Sequence[Mutant], trials: Trials, settings: Any) -> str:
    """The result as JSON, a mutant a line."""
    rows: dict[str, list[str]] = {outcome: [] for outcome in OUTCOMES}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant in mutants:
        trial = trials[mutant.key]
        notes = [f"{trial['ran']} of {trial['covering']} tests", mutant.why] if trial["outcome"] == "survived" else []
        rows[trial["outcome"]].append(json.dumps([*mutant.key, mutant.after, *notes], ensure_ascii=False))
        counts[mutant.file] += Counter({"mutants": 1, trial["outcome"]: 1})
    files = ",\n ".join(f"{json.dumps(file)}: {json.dumps(counts[file], sort_keys=True)}" for file in sorted(counts))
    parts = [f'"seed": {settings.seed}', f'"seconds": {settings.seconds}', f'"files": {{\n {files}\n}}']
    parts += ['"{}": [\n {}\n]'.format(outcome, ",\n ".join(sorted(lines))) for outcome, lines in rows.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def compared(mutants: Sequence[Mutant], trials: Trials) -> tuple[list[str], bool]:
    """Lines that show, file by file, what died before and what dies now; and whether a mutant is lost."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    lost = []
    for mutant in mutants:
        dies, died = trials[mutant.key]["outcome"] != "survived", mutant.earlier in {"killed", "timeout"}
        for file in (mutant.file, "all"):
            table[file] += Counter({"mutants": 1, "before": died, "after": dies, "lost": died and not dies})
        if died and not dies:
            lost.append(f"lost: {mutant.file} {mutant.function}: {mutant.before}  ->  {mutant.after}")
    lines = [f"{'':42}mutants  killed before  killed after  lost"]
    for file, each in sorted(table.items(), key=lambda item: item[0] == "all"):
        lines.append(f"{file:42}{each['mutants']:7}{each['before']:15}{each['after']:14}{each['lost']:6}")
    return [*lines, *lost], bool(lost)


def main(words: Sequence[str]) -> int:
    """Measures a checkout; exit code 1 where a mutant survives that died in the result before."""
    defaults = OmegaConf.load(SETTINGS)
    OmegaConf.set_struct(defaults, True)
    settings = OmegaConf.merge(defaults, OmegaConf.from_dotlist([*words]))
    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    folder = snapshot(Path(settings.tree).resolve(), Path(settings.state).resolve())
    tree, into, results = folder / "tree", Path(settings.into), folder / "results.jsonl"
    files = [file for each in settings.targets for file in sorted([*(tree / each).rglob("*.py")] or [tree / each])]
    sources = {str(file.relative_to(tree)): file.read_text(encoding="utf-8") for file in files}
    data = Path(settings.coverage or folder / "coverage")
    if not (data / "junit.xml").is_file():
        say("running the suite with coverage first: twice as long as `make test`")
        copy = Copy(tree, folder / "measured")
        copy.restore()
        measure(copy.folder, data, settings.jobs)
    earlier = json.loads(into.read_text(encoding="utf-8")) if into.is_file() else None
    mutants, gone = again(sources, settings, earlier) if earlier else (drawn(sources, settings), [])
    seen = Seen.read(data, sources, folder / "seen.coverage")
    for mutant in mutants:
        see(mutant, seen)
    results.touch()
    trials = read(results)[0]
    todo = [mutant for mutant in mutants if not tried(mutant, trials, settings.seconds)]
    say(f"{len(mutants)} mutants, {len(todo)} of them to try; what is known of them is in {results}")
    for library in settings.libraries if todo else ():
        with suppress(ImportError):
            importlib.import_module(library)
    limits = {test: settings.patience + 10 * seconds for test, seconds in seen.seconds.items()}
    seen.lines.clear()
    gc.freeze()
    judges = [Judge(Copy(tree, folder / f"copy{i}"), limits, settings.seconds, results) for i in range(settings.jobs)]
    children = [work(judge, todo[i :: settings.jobs], len(mutants)) for i, judge in enumerate(judges)]
    failed = sum(os.waitpid(child, 0)[1] for child in children)
    gc.unfreeze()
    if failed:
        return 1
    trials = read(results)[0]
    into.write_text(written(mutants, trials, settings), encoding="utf-8")
    lines, lost = compared(mutants, trials)
    for line in (*lines, *(f"gone: {line}" for line in gone)):
        say(line)
    return int(lost)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
