"""Privacy sheet: the data that leaves a client under a method, recorded from the method itself.

One client takes part in the rounds that differ, through the loop of any run, but does no work in them: it receives the
server's message, observes two images if a phase observes, and replies. Entries, shapes and bytes are those of a run;
the values mean nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from omegaconf import DictConfig

from benchmark.configuration.compose import compose
from benchmark.configuration.files import available, facts, read
from benchmark.errors import count
from benchmark.execution.base import VisitResult
from benchmark.experiment.dry import IMAGES, dry_loop
from benchmark.federation.accountant import epsilon
from benchmark.federation.callbacks import Callback
from benchmark.federation.compression import RESIDUAL
from benchmark.federation.loop import FederatedLoop
from benchmark.tracking.progress import Display
from leaderboards import store
from leaderboards.pages import privacy
from leaderboards.pages.privacy import Entry, Method
from methods import trees
from methods.base import Cat, Each, MethodError, Phase, Sum, Tree, Visit
from methods.core.types import Reduction

ENCODER, CLASS = "ResNet-18", "methods.networks.resnet18"
"""Of the methods whose file names no encoder."""
FILE = Path("leaderboards") / privacy.SHEET
KEPT = {"statistics": "running statistics", RESIDUAL: "what compression has left out"}
"""Words for what a client keeps beside parts and memory."""
WEIGHTS = {"examples": "by their images", "batches": "by their batches", "clients": "all alike"}
"""Description of a mean's weights, by its `by`."""


class ReplyRecorder(Callback):
    """Callback that records the entries of the client's replies by round, and the state it keeps at the end."""

    def __init__(self) -> None:
        self.entries: dict[int, list[Entry]] = {}
        self.client_state: Tree = {}

    def on_visit_end(self, loop: FederatedLoop, result: VisitResult) -> None:
        """Record every entry of a client's reply; replies of the server's workers stay on the server."""
        phase, round = result.visit.phase, result.visit.round
        if phase.where == "server":
            return
        self.client_state = result.client_state
        if missing := sorted(set(phase.uplink) - set(result.message)):
            raise MethodError(
                f"phase {phase.name!r} declares {', '.join(missing)}, but a client did not send it in round {round + 1}"
                ": the privacy sheet lacks its shape"
            )
        statistics = {path for path, _ in trees.leaves(loop.method.statistics())}
        uplink = loop.uplink.reductions(phase)
        for entry, size in result.nbytes.items():
            content = describe_content(result.message[entry], statistics)
            content += ", of public images" if phase.data == "public" else ""
            combined, alone = describe_reduction(uplink[entry])
            protected = protection(loop, entry, result.visit)
            record = Entry(phase.name, entry, content, size, combined, alone, protected)
            self.entries.setdefault(round, []).append(record)


def protection(loop: FederatedLoop, entry: str, visit: Visit) -> str | None:
    """The method's description of an entry's protection, and the epsilon of its release with noise."""
    account, phrases = loop.accountant, [loop.method.protections().get(entry)]
    releases = account.planned(visit.phase, [visit.client]).get(visit.client.id, {})
    release = releases.get(entry)
    if (updates := loop.uplink.updates) is not None and (described := updates.describe(visit.phase, entry)):
        phrases.append(described)
        release = next(iter(releases.values()), None)
    if loop.uplink.masks(visit.phase, entry):
        phrases.append("masked, so that the server sees the sum of all clients alone")
    if release:
        cost = epsilon(((release, 1),), account.delta, account.by)
        budget = "" if account.budget is None else f", all together at most {account.budget:g},"
        phrases.append(f"a release costs epsilon {cost:.3g}{budget} at delta {account.delta:g}")
    return "; ".join(filter(None, phrases)) or None


def record_method(name: str, overrides: Sequence[str] = ()) -> Method:
    """Data that leaves a client under a shipped method, or one by the path of its config."""
    known = Path(name).stem in available("method")
    scenario = facts("method", Path(name).stem).get("networks", "reference") if known else "reference"
    is_given = any(word.startswith("encoder") for word in overrides) or "encoder" in read("method", name)
    encoder = [] if is_given else [f"encoder.class={CLASS}"]
    config = compose(scenario, name, [*encoder, *overrides])
    entries: Sequence[Entry] = ()
    state: Tree = {}
    if config.partition.clients > 1:  # a single client has all images and sends nothing
        entries, state = record_replies(config)
    names = [*state.get("stays", {}), *state.get("memory", {})]
    names += [words for key, words in KEPT.items() if key in state]
    return Method(config.row, scenario, config.objective.name, tuple(entries), tuple(names), trees.nbytes(state))


def record(names: Iterable[str], display: Display, overrides: Sequence[str] = ()) -> list[Method]:
    """The sheets of several methods."""
    display.begin("privacy sheet")
    methods = []
    for name in names:
        with display.during(name):
            methods.append(record_method(name, overrides))
    return methods


def write(methods: Sequence[Method]) -> None:
    """Write the sheet of the board and of docs/reference/privacy-sheet.md."""
    store.write_table(FILE, privacy.Sheet(ENCODER, IMAGES, tuple(methods)))


def record_replies(config: DictConfig) -> tuple[list[Entry], Tree]:
    """Each entry that leaves a client, with a description of its rounds; and the state that stays with the client."""
    recorder = ReplyRecorder()
    with dry_loop(config, images=IMAGES) as loop:
        loop.callbacks = [recorder]
        plans = [loop.plan(round) for round in range(loop.rounds)]
        run_instead = representatives(plans)
        last = loop.rounds - 1
        for round in sorted({*run_instead, last} if plans else ()):
            loop.run_round(round)
        state = recorder.client_state
        if plans and recorder.entries.get(last) != recorder.entries.get(run_instead[last]):
            # of a model in stages, rounds of one plan differ in bytes
            for round in sorted({*range(last)} - {*run_instead}):
                loop.run_round(round)
            run_instead = [*range(loop.rounds)]
    rounds: dict[Entry, dict[int, Entry]] = {}  # of an entry whatever its size: round -> the entry
    for round, representative in enumerate(run_instead):
        for entry in recorder.entries.get(representative, ()):
            rounds.setdefault(replace(entry, shape="", bytes=0), {})[round] = entry
    return [describe_entry(sent, plans) for sent in rounds.values()], state


def representatives(plans: Sequence[Sequence[Phase]]) -> list[int]:
    """For each round the round that is run instead: the first with the same plan; round 0 stands for itself alone.

    A client that returns may send entries that it did not send at first.
    """
    outlines = []
    for plan in plans:
        sent = [[(name, describe_reduction(how)) for name, how in phase.uplink.items()] for phase in plan]
        outlines.append([(phase.name, phase.data, phase.where, sent) for phase in plan])
    return [0, *(1 + outlines[1:].index(outline) for outline in outlines[1:])][: len(plans)]


def describe_reduction(how: Reduction) -> tuple[str, bool]:
    """How the server combines the clients' replies, and whether it needs each reply by itself."""
    if isinstance(how, Sum):
        return "sum", False
    if isinstance(how, Cat):
        return "all rows together", True
    if isinstance(how, Each):
        return "one by one", True
    from_reply = callable(how.by)  # a weight that is computed from the reply
    return f"mean over clients, {'weighed by what is in it' if from_reply else WEIGHTS[str(how.by)]}", from_reply


def describe_content(tree: Tree, statistics: Collection[tuple]) -> str:
    """Content of an entry: its tensors' dimensions, as 512 x 512, or parts of networks with the count of their numbers.

    statistics: paths of BatchNorm's running statistics.
    """
    leaves = list(trees.leaves(tree))
    if all(len(path) == 1 for path, _ in leaves):
        several, shapes = len(leaves) > 1, []
        for (name, *_), leaf in leaves:
            shape = " x ".join(f"{size:,}" for size in leaf.shape) if leaf.dim() > 1 else count(leaf.numel(), "number")
            shapes.append(f"{name} {shape}" if several else shape)
        return ", ".join(shapes)
    total = sum(leaf.numel() for _, leaf in leaves)
    running = sum(leaf.numel() for path, leaf in leaves if path in statistics)
    among = f", {running:,} of them running statistics" if 0 < running < total else ""
    kind = "running statistics" if running == total else "numbers"
    return f"{', '.join(tree)}: {total:,} {kind}{among}"


def describe_entry(sent: Mapping[int, Entry], plans: Sequence[Sequence[Phase]]) -> Entry:
    """One entry for all rounds that send it; where its size changes, the last shape and the mean of the bytes."""
    rounds, entries = list(sent), list(sent.values())
    last, sizes = entries[-1], [entry.bytes for entry in entries]
    described = replace(last, bytes=round(fmean(sizes)), **describe_rounds(last, rounds, plans))
    if len(set(sizes)) == 1:
        return described
    change = f", from {sizes[0]:,} bytes in round {rounds[0] + 1} to {sizes[-1]:,} in round {rounds[-1] + 1}"
    return replace(described, when=described.when + change)


def describe_rounds(entry: Entry, rounds: Sequence[int], plans: Sequence[Sequence[Phase]]) -> dict[str, Any]:
    """The rounds and clients that send an entry (`when`), and whether it is sent more than once (`recurs`)."""
    first, last, total = rounds[0], rounds[-1], len(plans)
    if len(rounds) == total:
        when = "every round"
    elif len(rounds) == 1:
        when = f"once, in round {first + 1}"
    elif len(rounds) < last - first + 1:
        when = f"in {len(rounds)} of {total} rounds"
    else:
        when = f"from round {first + 1} on" if last + 1 == total else f"in rounds {first + 1} to {last + 1}"
    cohorts = [phase.cohort for round in rounds for phase in plans[round] if phase.name == entry.phase]
    if "all" in cohorts:
        when += ", by all clients" if set(cohorts) == {"all"} else ", in the first by all clients"
    return {"when": when, "recurs": len(rounds) > 1 or total == 1}
