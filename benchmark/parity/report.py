"""What `python -m benchmark parity` prints of a file, and the file's line in docs/reference/parity.md."""

from collections.abc import Iterable, Iterator, Sequence

from omegaconf import OmegaConf

from benchmark.parity.case import Case
from benchmark.parity.compare import Comparison, Difference, differences, is_first_step
from benchmark.parity.files import KINDS, SERVER, Numbers
from benchmark.parity.replay import compose_case, replay
from leaderboards.pages.parity import Effect, Precision, Result

PRECISIONS = {"32-true": "float32", "64-true": "float64"}


def lines(case: Case, compared: list[Comparison]) -> Iterator[str]:
    """A file's lines: what it is, the largest differences of each round, and the first beyond what is allowed."""
    file = case.file
    commit = str(file.what.get("commit", ""))[:7]
    length = f"{len(file.sizes)} clients, {file.get('rounds')} rounds, {file.steps} steps"
    yield f"{file.path.name}: {file.what['repository']} {commit}, {length}; {case.scenario} {case.method}"
    for comparison in compared:
        for round in sorted({difference.at[0] for difference in comparison.differences}):
            of_round = [difference for difference in comparison.differences if difference.at[0] == round]
            largest = [
                f"{kind} {max(d.size for d in group):.1e} (allowed {max(map(comparison.limit, group)):.0e})"
                for kind in KINDS
                if (group := _of_kind(of_round, kind))
            ]
            yield f"  {PRECISIONS[comparison.precision]}, round {round}: {', '.join(largest)}"
        for kind in KINDS:
            if beyond := _of_kind(comparison.beyond, kind):
                yield f"  BEYOND {described(beyond[0], comparison)}; {len(beyond)} {kind} in all"


def effects(case: Case, ours: Numbers, precision: str, accelerator: str) -> Iterator[Effect]:
    """What each setting of the authors does to the run, beside the suite's default value."""
    config = compose_case(case, precision)
    for key, default in case.default.items():
        authors = OmegaConf.select(config, key)
        if authors == default:  # as short last batches, where the file keeps them
            continue
        all_differences = list(differences(replay(case, precision, accelerator, **{key: default}), ours))
        seen = [difference for difference in all_differences if difference.ours and difference.theirs]
        yield Effect(key, str(authors), str(default), *_largest_of_each(case, seen))


def result(case: Case, compared: list[Comparison], measured: Iterable[Effect] = ()) -> Result:
    """A file's line in the table, and the effects of its settings."""
    file, what = case.file, case.file.what
    driven = what.get("driven", "")
    return Result(
        file=file.path.stem,
        method=case.method,
        objective=compose_case(case, "32-true").objective.name,
        scenario=case.scenario,
        paper=str(what.get("paper", "")),
        repository=file.repository,
        commit=str(what.get("commit", ""))[:7],
        driven=driven if isinstance(driven, str) else "; ".join(driven),
        clients=len(file.sizes),
        rounds=file.get("rounds"),
        steps=file.steps,
        author_bugs=case.author_bugs,
        precisions={
            PRECISIONS[comparison.precision]: Precision(*_largest_of_each(case, comparison.differences))
            for comparison in compared
        },
        met=not any(comparison.beyond for comparison in compared),
        effects=tuple(measured),
    )


def _largest_of_each(case: Case, group: Sequence[Difference]) -> list[float | None]:
    """The largest of the first step's losses, of all losses and of all tensors, to two digits."""
    groups = ([each for each in group if is_first_step(case, each)], *(_of_kind(group, kind) for kind in KINDS))
    return [float(f"{max(each.size for each in some):.1e}") if some else None for some in groups]


def _of_kind(group: Iterable[Difference], kind: str) -> list[Difference]:
    return [difference for difference in group if difference.kind == kind]


def described(difference: Difference, comparison: Comparison) -> str:
    """A difference in words."""
    round, client = difference.at
    who = "the server" if client == SERVER else f"client {client}"
    what = difference.tensor or f"loss of step {difference.step}"
    ours, theirs = (", ".join(f"{value:.9g}" for value in side) or "missing" for side in difference[3:5])
    size = f"{difference.size:.1e}, allowed {comparison.limit(difference):.1e}"
    return f"round {round}, {who}, {what}: {ours} instead of {theirs} ({size})"
