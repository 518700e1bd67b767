"""The federated loop: a round is a few phases; in a phase the server sends, clients work and reply, the server updates.

No method's name appears here. The server's state is a plain Tree that hooks receive and return. A round is done once
its checkpoint is on disk; until then a crash repeats it.
"""

import copy
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric

from benchmark.distributed.collectives import broadcast_with_notes, gather, raise_on_all_ranks, run_and_gather
from benchmark.errors import OutOfTimeError
from benchmark.execution.base import Executor, PhaseInputs, VisitResult
from benchmark.federation.accountant import PrivacyAccountant
from benchmark.federation.aggregation import Aggregation, RankReplies
from benchmark.federation.callbacks import Callback
from benchmark.federation.checkpoint import Checkpoint
from benchmark.federation.client_state import ClientState, LocalParts
from benchmark.federation.communication import CommunicationLedger
from benchmark.federation.divergence import check_replies, check_visit
from benchmark.federation.metrics import VisitReport, round_line
from benchmark.federation.participation import Participation
from benchmark.federation.scheduling import VisitCosts, assign_clients
from benchmark.federation.uplink import PhaseUplink, Uplink
from benchmark.rng import Streams
from methods import trees
from methods.base import Client, FederatedMethod, Mail, Message, MethodError, Phase, RoundContext, Tree
from methods.core.recalibration import RECALIBRATE


class FederatedLoop:
    """The rounds of one run.

    Args:
        fabric: devices and ranks.
        method: the resident model and its hooks.
        executor: visits the clients.
        clients: those that train, in the order of their ids; an index is not always an id.
        streams: random generators of the run.
        rounds: R. participation: which clients are drawn for a round, and which of them reply.
        folder: of checkpoint and client states.
        config_hash: a checkpoint of another config is refused.
        uplink: what replies pass on their way to the server.
        accountant: of what clients spend of their privacy; its budget may end the run before its last round.
        execution_environment: commit, hardware and ranks of now, given the executor; `environments` has all so far.
    """

    def __init__(
        self,
        fabric: Fabric,
        method: FederatedMethod,
        executor: Executor,
        clients: Sequence[Client],
        streams: Streams,
        *,
        rounds: int,
        participation: Participation,
        folder: Path,
        config_hash: str,
        accountant: PrivacyAccountant,
        uplink: Uplink,
        execution_environment: Callable[[Executor], dict[str, Any]] = lambda executor: {},
    ) -> None:
        self.fabric, self.method, self.executor, self.clients = fabric, method, executor, clients
        self.streams, self.rounds, self.participation = streams, rounds, participation
        self.accountant, self.execution_environment = accountant, execution_environment
        self.uplink = uplink
        self.checkpoint = Checkpoint(folder, config_hash)
        self.client_state = ClientState(folder / "memory", fabric.device)
        self.ledger = CommunicationLedger({k: trees.nbytes(each.frozen()) for k, each in method.architectures.items()})
        self.costs = VisitCosts(executor.images)
        self.history: list[dict[str, Any]] = []
        self.environments: list[dict[str, Any]] = []
        self.callbacks: Sequence[Callback] = ()
        self.round = 0  # completed ones
        self.server: Tree = {}
        self.common: Message = {}  # what all clients were sent alike in the present round
        self.notes: dict[str, float] = {}  # what its updates have measured

    def fit(self, deadline: float | None = None) -> Tree:
        """Runs the remaining rounds and returns the server Tree.

        deadline: time by which the last round has to end, by `time.monotonic`.

        Raises:
            OutOfTimeError: the next round would end after the deadline.
            DivergedError: a loss, a reply or a client's state is not finite.
        """
        self.restore()
        if self.method.batch_norm == RECALIBRATE:
            self.method.check_recalibration(self.server)  # refuses now what it could not measure after the round
        if not self.environments:  # a run of no rounds is recorded with one too
            self.record_environment()
        for callback in self.callbacks:
            callback.on_run_start(self)
        slowest = 0.0  # nobody knows yet how long a round takes here
        while self.round < self.rounds and self.stop_reason() is None:
            self.check_deadline(deadline, slowest)
            started = time.perf_counter()
            line = self.run_round(self.round)
            line["seconds"] = time.perf_counter() - started
            self.history.append(line)
            self.round += 1
            for callback in self.callbacks:
                callback.on_round_trained(self, line)
            self.save()
            for callback in self.callbacks:
                callback.on_round_end(self, line)
            slowest = max(slowest, time.perf_counter() - started)
        return self.server

    def check_deadline(self, deadline: float | None, seconds: float) -> None:
        """OutOfTimeError where a round that takes `seconds` would end too late; the first rank decides for all."""
        if deadline is not None and gather(self.fabric, time.monotonic() + seconds > deadline)[0]:
            for callback in self.callbacks:
                callback.on_pause(self)
            raise OutOfTimeError(f"{self.round} of {self.rounds} rounds are done, the next would not end in time")

    def stop_reason(self) -> str | None:
        """Why the run stops before its last round (the next would exceed the privacy budget), else None."""
        if self.round >= self.rounds or self.accountant.budget is None:  # no need to draw a cohort
            return None
        return self.accountant.over_budget_reason(self.client_phases(self.round))

    def budget_infeasible_reason(self) -> str | None:
        """Reason the privacy budget cannot cover even the first noisy round, else None."""
        for round in range(self.rounds if self.accountant.budget is not None else 0):
            phases = self.client_phases(round)
            if any(self.accountant.planned(*phase) for phase in phases):
                return self.accountant.over_budget_reason(phases)
        return None

    def client_phases(self, round: int) -> list[tuple[Phase, Sequence[Client]]]:
        """The phases of a round that clients take part in, each with those clients."""
        replying = self.replying(round, self.cohort(round))
        return [(phase, self.members(phase, replying)) for phase in self.plan(round) if phase.where == "clients"]

    def cohort(self, round: int) -> Sequence[int]:
        """Indices into `clients` of those drawn for a round."""
        return self.participation.drawn(self.streams, round, len(self.clients))

    def drawn(self, round: int) -> list[int]:
        """Ids of the clients drawn for a round, in order; none where the round has no phase of clients."""
        asked = any(phase.where == "clients" for phase in self.plan(round))
        return [self.clients[k].id for k in self.cohort(round)] if asked else []

    def replying(self, round: int, cohort: Sequence[int]) -> Sequence[int]:
        """Indices into `clients` of those of a round's cohort that reply."""
        return self.participation.replying(self.streams, round, cohort, self.late)

    @cached_property
    def late(self) -> frozenset[int]:
        """Indices of the clients that miss the deadline, in every round."""
        sampled = [phase for phase in self.plan(0) if phase.where == "clients" and phase.cohort != "all"]
        if self.participation.deadline is None or not sampled:
            return frozenset()
        work = [sum(self.executor.images(phase, client) for phase in sampled) for client in self.clients]
        return self.participation.late(self.streams, work)

    @property
    def expected_replies(self) -> float:
        """The mean number of replies in a round whose cohort is a Poisson sample."""
        return self.participation.expected(len(self.clients) - len(self.late))

    def run_round(self, round: int, plan: Sequence[Phase] | None = None) -> dict[str, Any]:
        """One round; returns its line: loss, images, client seconds, bytes by entry, notes, epsilon of its clients.

        plan: the phases to run; None: those of the round.
        """
        cohort = self.cohort(round)
        replying = self.replying(round, cohort)
        absent = [self.clients[k] for k in sorted(set(cohort) - set(replying))]
        inbox: dict[int, Message] = defaultdict(dict)
        self.common, self.notes, contacted = {}, {}, False
        client_reports: list[VisitReport] = []
        server_reports: list[VisitReport] = []
        released: set[int] = set()
        for phase in self.plan(round) if plan is None else plan:
            members = self.members(phase, replying)
            lost, absent = (absent, []) if phase.where == "clients" and phase.cohort != "all" else ([], absent)
            reports = self.run_phase(phase, round, members, inbox, lost)
            if phase.where == "server":
                server_reports += reports
                continue
            contacted, client_reports = True, client_reports + reports
            released |= self.accountant.record_releases(phase, members)
        # one for each client of the cohort, even where a phase reached all clients
        self.ledger.record_visits(round, len(cohort) if contacted else 0)
        line = round_line(round, client_reports, server_reports, self.ledger, self.notes)
        if len(replying) < len(cohort):
            line["lost"] = len(cohort) - len(replying)
        if (updates := self.uplink.updates) is not None and updates.clipping.adaptive:
            line["clip"] = updates.clipping.norm
        if released:
            line["epsilon"] = {str(client): self.accountant.epsilon(client) for client in sorted(released)}
        return line

    def plan(self, round: int) -> list[Phase]:
        """The round's phases: the method's, and last the measurement of BatchNorm's statistics, by that policy."""
        last = [self.method.recalibration] if self.method.batch_norm == RECALIBRATE else []
        phases = [*self.method.plan(round), *last]
        names = [phase.name for phase in phases]
        if len(set(names)) < len(names):  # random streams and client states are keyed by these names
            raise MethodError(f"two phases of a round share a name ({', '.join(names)}): name them apart")
        return phases

    def members(self, phase: Phase, cohort: Sequence[int]) -> Sequence[Client]:
        """Members of a phase: the cohort, all clients, or the server workers, in the server's own phases."""
        if phase.where == "clients":
            return self.clients if phase.cohort == "all" else [self.clients[k] for k in cohort]
        workers = self.method.server_workers(self.server)
        for worker in workers:
            if worker.id >= 0:
                raise MethodError(f"server worker {worker.id} has a client's id: give server workers negative ids")
        return workers

    def run_phase(
        self,
        phase: Phase,
        round: int,
        members: Sequence[Client],
        inbox: dict[int, Message],
        lost: Sequence[Client] = (),
    ) -> list[VisitReport]:
        """One phase: send, visit, reply, update. Ranks divide the members and exchange only this phase's results.

        lost: clients that are sent the phase's message too, and never reply.
        """
        stream = self.streams.generator("server", round=round, phase=phase.name)
        round_context = RoundContext(round, self.rounds, phase, members, self.clients, stream)
        reached = sorted([*members, *lost], key=attrgetter("id"))
        mail: Mail = self.method.hook("send", phase)(self.server, replace(round_context, members=reached))
        for client in members:
            inbox[client.id].update(mail.to(client.id))
        private = {entry for message in mail.private.values() for entry in message}
        self.common = {entry: tree for entry, tree in {**self.common, **mail.common}.items() if entry not in private}
        uplink = self.uplink.of_phase(phase, round, reached, self.common, self.client_state, self.expected_replies)
        aggregation = Aggregation(uplink.received_reductions)
        cost = partial(self.costs.of, phase)
        assigned = assign_clients(members, self.fabric.global_rank, self.fabric.world_size, cost)
        for callback in self.callbacks:
            callback.on_phase_start(self, phase, len(assigned))

        def visit_assigned() -> tuple[list[VisitReport], RankReplies]:
            probed = members[round % len(members)].id if members else None  # each in turn
            inputs = PhaseInputs(phase, round, self.rounds, inbox, self.client_state, probed)
            visits = self.executor.run(inputs, assigned)
            reports = [self.collect_result(result, aggregation, uplink) for result in visits]
            return reports, aggregation.staged(self.fabric)

        rank_reports, rank_replies = zip(*run_and_gather(self.fabric, visit_assigned), strict=True)
        reports = sorted(itertools.chain(*rank_reports), key=attrgetter("client"))
        if self.fabric.world_size > 1:
            seconds = {report.client: report.seconds for report in reports}
            for client in members:
                self.costs.record_seconds(phase, client, seconds[client.id])
        self.client_state.stage({report.client: report.file for report in reports})
        if phase.where == "clients":
            self.ledger.record_downlink(round, phase.name, reached, mail)
            for report in reports:
                self.ledger.record_uplink(round, phase.name, report.bytes_up)
        replies = uplink.combined(aggregation.merged(self.fabric, rank_replies))
        check_replies(replies, round, phase)
        if not members and not replies:  # a Poisson sample may draw nobody
            return reports
        update = partial(self.method.hook("update", phase), self.server, round_context, replies)
        self.server, notes = broadcast_with_notes(self.fabric, update, round_context.notes)
        self.notes |= notes
        return reports

    def collect_result(self, result: VisitResult, aggregation: Aggregation, uplink: PhaseUplink) -> VisitReport:
        """Adds a visit's reply to the aggregate and writes the client's new state to a file, not yet in use."""
        check_visit(result)
        visit, sent = result.visit, uplink.sent(result)
        aggregation.add(visit, sent.received, self.server)
        file = self.client_state.write(visit.client.id, visit.round, visit.phase.name, sent.state)
        seen = replace(result, message=sent.message, client_state=sent.state, nbytes=sent.nbytes)
        for callback in self.callbacks:
            callback.on_visit_end(self, seen)
        return VisitReport(visit.client.id, sent.nbytes, file, seen.loss, seen.images, seen.seconds, dict(visit.notes))

    def restore(self) -> None:
        """Loads the last completed round, or initialises the state before the first one."""
        state = self.checkpoint.load(self.fabric.device)
        self.client_state.restore(state["memory"] if state is not None else {})
        self.fabric.barrier()  # no rank writes a client's state while another still deletes old ones
        if state is not None:
            self.round, self.server, self.history = state["round"], state["server"], state["history"]
            self.environments = state["environments"]
            self.ledger.load(state["ledger"])
            self.accountant.load(state["account"])
            return
        start, stream = Phase("start", work="none"), self.streams.generator("server")
        round_context = RoundContext(0, self.rounds, start, self.clients, self.clients, stream)
        self.server = trees.to(self.method.init_server(round_context), self.fabric.device, self.method.dtype)

    def record_environment(self) -> None:
        """Appends the present execution environment where it differs from the last one."""
        if (present := self.execution_environment(self.executor)) not in self.environments[-1:]:
            self.environments.append(present)

    def save(self) -> None:
        """Saves the round: writes the checkpoint, then deletes the client states it does not name."""
        self.record_environment()
        with raise_on_all_ranks(self.fabric):
            if self.fabric.global_rank == 0:
                self.checkpoint.save(
                    {
                        "round": self.round,
                        "server": trees.move(self.server, "cpu"),
                        "history": self.history,
                        "environments": self.environments,
                        "ledger": self.ledger.state(),
                        "account": self.accountant.state(),
                        "memory": self.client_state.index,
                    }
                )
                self.client_state.commit()

    def export(self) -> Mapping[str, Tree]:
        """The encoders to evaluate: name -> weights Tree, see `FederatedMethod.export`."""
        return self.method.export(self.server, LocalParts(self.client_state))

    @contextmanager
    def scratch_copy(self, callbacks: Sequence[Callback] = ()) -> Iterator["FederatedLoop"]:
        """A copy with its own client states and accounts, whose `run_round` leaves this loop as it is.

        It shares the history and the checkpoint, so do not call its `fit`. Its client states are deleted at the end.
        """
        _ = self.late  # by this loop's executor: a copy may have another
        scratch = copy.copy(self)
        scratch.callbacks = callbacks
        scratch.client_state = self.client_state.scratch_copy()
        scratch.ledger = CommunicationLedger()
        scratch.accountant = self.accountant.empty()
        scratch.uplink = copy.deepcopy(self.uplink)  # with a clip of its own, which may move
        try:
            yield scratch
        finally:
            scratch.client_state.clear()
