"""`python -m benchmark.parity.libraries [newest=true]`: compares with the libraries, in an environment of their own.

Without a word it writes docs/reference/libraries.md and its data. newest=true: the newest version of each library; what
has changed is printed and nothing is written. The exit code is 1 where a comparison is not met.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from benchmark import environment
from benchmark.parity.libraries import results
from benchmark.parity.libraries.measure import distribution
from benchmark.parity.libraries.registry import cases
from leaderboards.markdown import rewrite

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
ROOT = Path(__file__).parents[3]
NEWEST = "newest=true"


def main(words: list[str], console: Console) -> int:
    """Compares by the environment's Python, then writes or tells what has changed; 2 for an unknown word."""
    if set(words) - {NEWEST}:
        console.print(f"error: unknown {words[0]!r}: give {NEWEST} or nothing")
        return 2
    try:
        python = prepared(console, newest=bool(words))
    except RuntimeError as error:
        console.print(f"error: {error}")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        command = [str(python), "-m", "benchmark.parity.libraries.measure", str(file)]
        if subprocess.run(command, env={**os.environ, **settings}, cwd=ROOT).returncode:
            return 1
        table = results.read(file)
    if words:
        console.print(*results.drift(results.read(ROOT / results.FILE), table), sep="\n")
    else:
        results.save(table, ROOT / results.FILE)
        rewrite(ROOT / results.PAGE, lambda page: results.filled(page, table))
        console.print(f"written into {results.PAGE}")
    return int(not all(result.met for result in table.results))


def prepared(console: Console, newest: bool) -> Path:
    """The Python of the libraries' environment, in versions that are pinned or the newest ones."""
    name = "libraries-newest" if newest else "libraries"
    # the libraries pin what the suite pins otherwise; what the comparisons import is listed, and goes with both
    python = environment.install(name, "the libraries", REQUIREMENTS, console.print, "--no-deps")
    if newest:
        compared = sorted({distribution(case.package) for case in cases()} - {"torch"})
        upgrade = (*environment.pip(python), "--upgrade", "--no-deps", *compared)
        environment.check_call(*upgrade, failed="the newest versions cannot be installed")
    return python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Console(highlight=False, markup=False, soft_wrap=True)))
