"""The federated loop: a round is a few phases; in a phase the server sends, clients work and reply, the server updates.

No method's name stands here. State goes through as values; whatever a round changes counts only when its checkpoint is
on disk.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric

from benchmark.distributed.collectives import broadcast, gather, raise_on_all_ranks, run_and_gather
from benchmark.errors import OutOfTimeError
from benchmark.execution.base import Executor, PhaseInputs, VisitResult
from benchmark.execution.batch_norm import Recalibration
from benchmark.federation.accountant import DELTA, PrivacyAccountant
from benchmark.federation.aggregation import Aggregation, RankReplies
from benchmark.federation.checkpoint import Checkpoint
from benchmark.federation.client_state import ClientState
from benchmark.federation.communication import CommunicationLedger, sizes
from benchmark.federation.metrics import VisitReport, mean_loss, summaries
from benchmark.federation.scheduling import VisitCosts, assign_clients
from benchmark.rng import Streams
from methods import trees
from methods.base import Client, FederatedMethod, Mail, Message, MethodError, Phase, Tree, Turn

DIVERGENCE_HINT = "look at optimizer.lr (0, or too large) and training.clip_norm"


class DivergedError(ValueError):
    """A loss, a reply or a memory that is not finite; one line for the user."""


class FederatedLoop:
    """The rounds of one run.

    Args:
        fabric: devices and ranks.
        method: the resident model and its hooks.
        work: the executor.
        clients: everyone, by id.
        streams: generators of the run.
        rounds: to play in all. participation: share of the clients drawn for a round.
        folder: where checkpoint and memories live.
        config_hash: a checkpoint of another config is refused.
        execution_environment: by which code, where and how rounds are played now; `played` keeps those of all rounds.
        account: of what clients spend of their privacy; its budget may end the run before its last round.

    `callbacks` may be set to objects with any of `on_run_start`, `on_phase_start`, `on_visit_end`, `on_round_scored`
    (before the round is saved; may add to its line), `on_round_end` (after) and `on_pause` (no time for the next).
    """

    def __init__(
        self,
        fabric: Fabric,
        method: FederatedMethod,
        work: Executor,
        clients: Sequence[Client],
        streams: Streams,
        *,
        rounds: int,
        participation: float,
        folder: Path,
        config_hash: str,
        execution_environment: Callable[[], dict[str, Any]] = dict,
        account: PrivacyAccountant | None = None,
    ) -> None:
        self.fabric, self.method, self.work, self.clients, self.streams = fabric, method, work, clients, streams
        self.rounds, self.participation = rounds, participation
        self.callbacks: Sequence[object] = ()
        self.checkpoint = Checkpoint(folder, config_hash)
        self.memory = ClientState(folder / "memory", fabric.device)
        self.ledger = CommunicationLedger()
        self.costs = VisitCosts(work.images)
        self.history: list[dict[str, Any]] = []
        self.execution_environment = execution_environment
        self.account = account or PrivacyAccountant(method, delta=DELTA, budget=None)
        self.environments: list[dict[str, Any]] = []
        self.round = 0
        self.server: Tree = {}
        self.deadline: float | None = None  # by `time.monotonic`

    def fit(self) -> Tree:
        """Plays what is left of the rounds and returns the server Tree.

        Raises:
            OutOfTimeError: `deadline` comes before the next round's end.
        """
        self.start()
        if self.method.batch_norm == "recalibrate":
            Recalibration(self.method).exported(self.server)  # refuses now what it could not measure after the round
        if not self.environments:  # nor may anything ever be
            self.record_environment()
        self.call_callbacks("on_run_start")
        slowest = 0.0  # the first is begun as long as there is time at all: nobody knows how long it takes here
        while self.round < self.rounds and self.stop_reason() is None:
            self.check_deadline(slowest)
            began = time.perf_counter()
            row = self.run_round(self.round)
            row["seconds"] = time.perf_counter() - began
            self.history.append(row)
            self.round += 1
            self.call_callbacks("on_round_scored", row=row)
            self.save()
            self.call_callbacks("on_round_end", row=row)
            slowest = max(slowest, time.perf_counter() - began)
        return self.server

    def check_deadline(self, seconds: float) -> None:
        """OutOfTimeError where a round of so many seconds would end too late; the first rank decides for all."""
        if self.deadline is not None and gather(self.fabric, time.monotonic() + seconds > self.deadline)[0]:
            self.call_callbacks("on_pause")
            raise OutOfTimeError(f"{self.round} of {self.rounds} rounds are played, the next would not end in time")

    def stop_reason(self) -> str | None:
        """Why the next round may not be played, though some are left; None: it may."""
        if self.round >= self.rounds or self.account.budget is None:  # then nobody need be drawn
            return None
        return self.account.over_budget_reason(self.visits(self.round))

    def budget_infeasible_reason(self) -> str | None:
        """Why nobody will ever release anything: the first round with noise is beyond the budget; None: it is not."""
        for round in range(self.rounds if self.account.budget is not None else 0):
            visits = self.visits(round)
            if any(self.account.planned(*visit) for visit in visits):
                return self.account.over_budget_reason(visits)
        return None

    def visits(self, round: int) -> list[tuple[Phase, Sequence[Client]]]:
        """The phases of a round that clients take part in, and which."""
        cohort = self.cohort(round)
        return [(phase, self.members(phase, cohort)) for _, phase in self.plan(round) if phase.where == "clients"]

    def cohort(self, round: int) -> Sequence[int]:
        """Places among `clients` of those drawn for a round."""
        return self.streams.cohort(round, len(self.clients), self.participation)

    def run_round(self, round: int) -> dict[str, Any]:
        """One round; returns its line: loss, images, client seconds, bytes by entry, notes, epsilon of its clients."""
        cohort = self.cohort(round)
        inbox: dict[int, Message] = defaultdict(dict)
        visited: set[int] = set()
        reports: list[VisitReport] = []
        by_server: list[VisitReport] = []
        released: set[int] = set()
        for actor, phase in self.plan(round):
            members = self.members(phase, cohort)
            found = self.run_phase(actor, phase, round, members, inbox)
            if phase.where == "server":
                by_server += found
                continue
            visited |= {client.id for client in members}
            released |= self.account.record_releases(phase, members)
            reports += found
        self.ledger.attend(round, len(cohort) if visited else 0)  # a phase for all does not make the others take part
        row: dict[str, Any] = {
            "round": round + 1,
            "loss": mean_loss(reports),
            "images": sum(report.images for report in reports),
            "client_seconds": sum(report.seconds for report in reports),
            "bytes_up": self.ledger.total("up", round),
            "bytes_down": self.ledger.total("down", round),
        }
        if by_server:
            row["server_loss"] = mean_loss(by_server)
            row["server_seconds"] = sum(one.seconds for one in by_server)
            row["server_images"] = sum(one.images for one in by_server)
        if notes := summaries([report.notes for report in reports]):
            row["notes"] = notes
        if released:
            row["epsilon"] = {str(client): self.account.epsilon(client) for client in sorted(released)}
        return row

    def plan(self, round: int) -> list[tuple[Any, Phase]]:
        """The round's phases, each with who plays it: the method, and last BatchNorm's measuring where asked for."""
        phases: list[tuple[Any, Phase]] = [(self.method, phase) for phase in self.method.plan(round)]
        if self.method.batch_norm == "recalibrate":
            phases.append((Recalibration(self.method), Recalibration.phase))
        names = [phase.name for _, phase in phases]
        if len(set(names)) < len(names):  # streams and memories are told apart by these names
            raise MethodError(f"two phases of a round share a name ({', '.join(names)}): name them apart")
        return phases

    def members(self, phase: Phase, cohort: Sequence[int]) -> Sequence[Client]:
        """Who takes part in a phase: the cohort, everyone, or the server's seats."""
        if phase.where == "clients":
            return self.clients if phase.cohort == "all" else [self.clients[k] for k in cohort]
        seats = self.method.seats(self.server)
        for seat in seats:
            if seat.id >= 0:
                raise MethodError(f"seat {seat.id} bears a client's id: give the server's seats negative ids")
        return seats

    def run_phase(
        self, actor: Any, phase: Phase, round: int, members: Sequence[Client], inbox: dict[int, Message]
    ) -> list[VisitReport]:
        """One phase: send, work, reply, update. Ranks share the members and exchange only what this phase staged."""
        stream = self.streams.generator("server", round=round, phase=phase.name)
        turn = Turn(round, self.rounds, phase, members, self.clients, stream)
        mail: Mail = actor.hook("send", phase)(self.server, turn)
        for client in members:
            inbox[client.id].update(mail.to(client.id))
        totals = Aggregation(phase.uplink)
        block = assign_clients(members, self.fabric.global_rank, self.fabric.world_size, partial(self.costs.of, phase))
        self.call_callbacks("on_phase_start", phase=phase, visits=len(block))

        def work() -> tuple[list[VisitReport], RankReplies]:
            given = PhaseInputs(actor, phase, round, self.rounds, inbox, self.memory)
            done = [self.collect_result(one, totals) for one in self.work.run(given, block)]
            return done, totals.staged(self.fabric)

        told = run_and_gather(self.fabric, work)
        reports = sorted((line for part, _ in told for line in part), key=lambda line: line.client)
        if self.fabric.world_size > 1:
            seconds = {report.client: report.seconds for report in reports}
            for client in members:
                self.costs.record_seconds(phase, client, seconds[client.id])
        self.memory.stage({report.client: report.file for report in reports})
        if phase.where == "clients":
            self.ledger.down(round, phase.name, members, mail)
            for report in reports:
                self.ledger.up(round, phase.name, report.up)
        replies = totals.merged(self.fabric, [staged for _, staged in told])
        for entry in replies:
            if not trees.finite(replies[entry]):
                raise DivergedError(
                    f"what the clients replied as {entry!r} is not finite in round {round + 1}, phase {phase.name!r}; "
                    f"{self.last_good_round(round)}: {DIVERGENCE_HINT}"
                )
        self.server = broadcast(self.fabric, lambda: actor.hook("update", phase)(self.server, turn, replies))
        return reports

    def collect_result(self, done: VisitResult, totals: Aggregation) -> VisitReport:
        """Takes in a finished visit: its reply is added up, what stays with the client is on disk, not yet counting."""
        self.check_finite(done)
        visit = done.visit
        totals.add(visit, done.message, self.server)
        file = self.memory.write(visit.client.id, visit.round, visit.phase.name, done.kept)
        self.call_callbacks("on_visit_end", done=done)
        return VisitReport(
            visit.client.id, sizes(done.message), file, done.loss, done.images, done.seconds, dict(visit.notes)
        )

    def check_finite(self, done: VisitResult) -> None:
        """Refuses a visit whose loss, or what stays with its client, is not finite."""
        visit = done.visit
        where = f"in round {visit.round + 1}, phase {visit.phase.name!r}; {self.last_good_round(visit.round)}"
        if done.loss is not None and not math.isfinite(done.loss):
            raise DivergedError(
                f"the loss of client {visit.client.id} became {done.loss} {where}: "
                "lower optimizer.lr or set training.clip_norm"
            )
        if not trees.finite(done.kept):
            raise DivergedError(f"what client {visit.client.id} keeps is not finite {where}: {DIVERGENCE_HINT}")

    def last_good_round(self, round: int) -> str:
        """What is kept when this round cannot be finished."""
        return f"round {round} is safe" if round else "no round is done yet"

    def start(self) -> None:
        """The last whole round, or the state before round 0."""
        state = self.checkpoint.load(self.fabric.device)
        if state is not None:
            self.round, self.server, self.history = state["round"], state["server"], state["history"]
            self.ledger.load(state["ledger"])
            self.account.load(state.get("account", {"releases": [], "covers": []}))  # older ones knew no noise
            self.environments = state.get("played", [])  # older ones knew only commits
            self.memory.restore(state["memory"])
            self.fabric.barrier()
            return
        self.memory.restore({})
        self.fabric.barrier()  # no rank writes a memory while another still clears away old ones
        start, stream = Phase("start", work="none"), self.streams.generator("server")
        turn = Turn(0, self.rounds, start, self.clients, self.clients, stream)
        self.server = trees.to(self.method.init_server(turn), self.fabric.device)

    def call_callbacks(self, moment: str, **news: Any) -> None:
        """Calls every callback that has a hook for this moment."""
        for callback in self.callbacks:
            if (hook := getattr(callback, moment, None)) is not None:
                hook(loop=self, **news)

    def record_environment(self) -> None:
        """Keeps the present circumstances, where they are not those of before."""
        if (now := self.execution_environment()) not in self.environments[-1:]:
            self.environments.append(now)

    def save(self) -> None:
        """Makes the round count: the checkpoint first, then the memories it names."""
        self.record_environment()
        with raise_on_all_ranks(self.fabric):
            if self.fabric.global_rank == 0:
                self.checkpoint.save(
                    {"round": self.round, "server": self.server, "history": self.history}
                    | {"memory": self.memory.index, "ledger": self.ledger.state(), "account": self.account.state()}
                    | {"played": self.environments}
                )
                self.memory.commit()
