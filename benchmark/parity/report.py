"""What `python -m benchmark parity` prints of a file."""

from benchmark.parity.codes import Case
from benchmark.parity.compare import Comparison, Difference
from benchmark.parity.files import SERVER, ParityFile

PRECISIONS = {"32-true": "float32", "64-true": "float64"}


def lines(file: ParityFile, case: Case, compared: list[Comparison]) -> list[str]:
    """A file's lines: what it is, the largest differences of each round, and the first beyond what is allowed."""
    steps = sum(map(len, next(iter(file.sections.values())).losses.values()))
    rounds = file.get("rounds")
    commit = str(file.what.get("commit", ""))[:7]
    text = [
        f"{file.path.name}: {file.what['repository']} {commit}, {len(file.sizes)} clients, {rounds} rounds, "
        f"{steps} steps; {case.scenario} {case.method}"
    ]
    for comparison in compared:
        for round, largest in comparison.largest.items():
            allowed = comparison.allowed[round]
            text.append(
                f"  {PRECISIONS[comparison.precision]}, round {round}: losses {_size(largest.losses, allowed.losses)}, "
                f"weights {_size(largest.weights, allowed.weights)}"
            )
        first = [next((d for d in comparison.beyond if (d.step is None) is tensor), None) for tensor in (False, True)]
        text += [f"  BEYOND {described(difference, comparison)}" for difference in first if difference is not None]
    return text


def described(difference: Difference, comparison: Comparison) -> str:
    """A difference in words."""
    round, client = difference.place
    who = "the server" if client == SERVER else f"client {client}"
    what = difference.tensor or f"loss of step {difference.step}"
    ours, theirs = (", ".join(f"{value:.9g}" for value in side) or "missing" for side in difference[3:5])
    size = f"{difference.size:.1e}, allowed {comparison.limit(difference):.1e}"
    return f"round {round}, {who}, {what}: {ours} instead of {theirs} ({size})"


def _size(largest: float, allowed: float) -> str:
    return f"{largest:.1e} (allowed {allowed:.0e})"
