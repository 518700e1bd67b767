"""A command on hostile input, and what has to hold of every one: it succeeds, or ends in one line, and loses nothing.

`FUZZ`, 50 by default and more in `make fuzz`, says how many cases are generated, of each kind its share. They are
drawn from the seed `FUZZ_SEED`, which is printed with a failing case.
"""

import contextlib
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st

from benchmark.cli.main import main
from benchmark.errors import EX_TEMPFAIL
from tests.run_helpers import TINY

SECONDS = 10.0
"""Most time that a case may compute, on however busy a machine; one that hangs runs into the test's own limit."""
SHARES = {
    "words": 0.5, "commands": 0.2, "yaml": 0.3, "records": 0.7, "bytes of records": 0.3, "folders": 0.1, "images": 0.5,
}  # fmt: skip
"""Kind of input -> its cases, as a share of FUZZ."""
CASES = int(os.environ.get("FUZZ", "50"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))


def cases(kind: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a test of generated cases: as many as the kind's share, the same ones for one FUZZ_SEED."""
    chosen = settings(
        max_examples=round(CASES * SHARES[kind]),
        derandomize=False,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: seed(SEED)(chosen(test))


NUMBERS = (
    -1, 0, -3, 1.5, -0.0, 1e-320, 1e308, 10**30, -(10**25), 10**400, ".nan", ".inf", "-.inf", "0x1F", "1_0", "1e5",
)  # fmt: skip
TEXTS = (
    "", " ", "x", "null", "true", "no", "~", "[]", "{}", "[1]", "[[1],[2]]", "{a: b}", "{1: 2}", "[a,b", "{a",
    "${nope}", "${seed}", "${oc.env:HOME}", "${", "$${x}", "\x1b[31m", "a\nb", "é", "\u202e", "\udcff", "../x",
    "/dev/null", "..", "a" * 5000, "!!python/object/apply:os.system [x]", "!!set {a, b}", "!!binary aGk=", "2020-01-01",
    "&a [*a]", "*a", "? a", "- a", "os.system", "methods.fedavg", "methods.fedavg.FedAvg", "torch.optim.LBFGS",
    "torch.optim.SparseAdam", "builtins.exec", "methods.objectives.byol.BYOL", "torch.nn.Linear", "a.b.c", ".", "..a",
    "[" * 200, "{a: " * 200, "'", '"', "%s", "{0}", "\\", "=", "-x", "--help",
)  # fmt: skip
"""Values as they are typed; some are right for one key and wrong for all others."""

hostile = st.sampled_from([*map(str, NUMBERS), *TEXTS])


class Case:
    """A command in this process: its words, exit code, output, errors and seconds."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words, started = list(words), time.process_time()
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.code = main(self.words)
        self.out, self.err, self.seconds = out.getvalue(), err.getvalue(), time.process_time() - started

    def check(self) -> "Case":
        """Success, time that is up, or one line with exit code 2; at once, and without a traceback."""
        context = f"{self.words!r} (FUZZ_SEED={SEED}) -> {self.code}\n{self.out}\n{self.err}"
        assert self.code in (0, 2, EX_TEMPFAIL), context
        assert "Traceback" not in self.out + self.err, context
        if self.code == 2:
            assert self.err.startswith("error: "), context
            assert self.err.count("\n") == 1, context
            assert len(self.err) > len("error: \n") + 5, context
        assert self.seconds < SECONDS, context
        return self


@contextlib.contextmanager
def empty_folder(path: Path) -> Iterator[None]:
    """Works in an empty folder, and checks that nothing is written there."""
    path.mkdir(exist_ok=True)
    with contextlib.chdir(path):
        yield
    assert list(path.iterdir()) == []


def content(folder: Path) -> dict[str, bytes]:
    """File under a folder -> its bytes."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def tiny(root: Path, *overrides: str, scenario: str = TINY, method: str = "fedavg") -> list[str]:
    """Words of a run of a second in `root`, with the overrides in place of its own."""
    own = {"output": root / "runs", "data.cache": root / "cache", "logger": "csv", "threads": 1, "federation.rounds": 1}
    own |= {"minutes": 0.1, "accelerator": "cpu"}
    keys = {override.partition("=")[0] for override in overrides}
    return ["run", scenario, method, *(f"{key}={value}" for key, value in own.items() if key not in keys), *overrides]
