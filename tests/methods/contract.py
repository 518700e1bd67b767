"""Contract between every method and the loop; the tests of a method inherit it and add what its paper defines.

class TestMyMethod(MethodContract):
    method = "mymethod"
    def bill(self, run): ...            # bytes one client sends and is sent, by (phase, direction, entry)

A new method inherits `MethodContract`, which is both parts: `InterfaceContract`, of every method and variant, and
`DurabilityContract`, whose docstring says for whom it runs in `make test`.
"""

import shlex
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from benchmark.configuration import files
from benchmark.execution.parallel import ParallelExecutor
from benchmark.experiment import factory
from benchmark.federation import loop
from benchmark.tracking import plots
from methods import trees
from methods.base import MethodError
from tests import run_helpers, tape
from tests.methods import toys

Bill = dict[tuple[str, str, str], int]

# numbers in the tiny scenario's networks, by hand: convnet 3-6-8 and projector 8-12-8, BatchNorm after every layer
# but the last: weights with affine parameters, then running means and variances
ENCODER = 6 * 3 * 9 + 2 * 6 + 8 * 6 * 9 + 2 * 8
PROJECTOR = 12 * 8 + 2 * 12 + 8 * 12 + 8
STATISTICS = 2 * (6 + 8 + 12)
WEIGHTS = 4 * (ENCODER + PROJECTOR + STATISTICS)
"""Bytes of the entry "weights" with SimCLR's, AlignUniform's and the spectral loss's networks."""

TABLES = {
    "test_a_choice_changes_training": "choices",
    "test_with_these_settings_it_is_another_method": "equals",
    "test_what_cannot_be_is_refused": "refused",
}
"""Test of the contract -> the attribute of a class that holds its cases."""


class Contract:
    """What both contracts are given: a method on the tiny scenario, 4 clients, 2 of them a round, 3 rounds.

    method: its config's name. overrides: for every test.
    """

    method: ClassVar[str]
    overrides: ClassVar[tuple[str, ...]] = ()

    @pytest.fixture(scope="class")
    @classmethod
    def unbroken(cls) -> Any:
        """The uninterrupted run that other runs are compared with, trained once; `seen` has its replies' entries."""
        return run_helpers.trained(cls.method, *cls.overrides)


class InterfaceContract(Contract):
    """What a method says and does in a visit: every method's tests inherit it, and those of its variants.

    batch_norm: supported policies. variant: whether another class tests the method by its shipped config.
    shipped: overrides of the two rounds on digits. falls: whether the loss has to be lower in the second.
    accuracy: of kNN after them, in percent, above that of a collapsed encoder, 10 to 30.
    choices: settings that each change the training. equals: settings with which it is another method, that method, and
    what of the two runs is equal: all of their "state", their "weights", or these within a difference.
    refused: settings -> what the error says. sent: bytes of the weights, both ways, where `bill` is not overridden.
    """

    batch_norm: ClassVar[tuple[str, ...]] = ("average", "local", "recalibrate")
    variant: ClassVar[bool] = False
    shipped: ClassVar[tuple[str, ...]] = ()
    falls: ClassVar[bool] = True
    accuracy: ClassVar[float] = 70
    choices: ClassVar[tuple[str, ...]] = ()
    equals: ClassVar[tuple[tuple[str, str, str | float], ...]] = ()
    refused: ClassVar[dict[str, str]] = {}
    sent: ClassVar[int] = WEIGHTS

    def __init_subclass__(cls) -> None:
        """The shipped config is that of the method's own class; a table without rows has no test."""
        super().__init_subclass__()
        given = {name: getattr(cls, table) for name, table in TABLES.items()}
        for name, wanted in {**given, "test_two_rounds_of_the_shipped_config": not cls.variant}.items():
            if not wanted:
                setattr(cls, name, None)
            elif getattr(cls, name) is None and name not in vars(cls):
                setattr(cls, name, getattr(InterfaceContract, name))

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """A case of each row of the class's tables."""
        if table := TABLES.get(metafunc.function.__name__):
            rows = list(getattr(self, table))
            metafunc.parametrize("row", rows, ids=[row if isinstance(row, str) else row[0] for row in rows])

    def with_row(self, row: str) -> tuple[str, ...]:
        """The overrides with those of a row, which has the last word on a key."""
        given = shlex.split(row)
        keys = {word.partition("=")[0] for word in given}
        return (*(word for word in self.overrides if word.partition("=")[0] not in keys), *given)

    def bill(self, run: Any) -> Bill:
        """Bytes, counted by hand, that one client sends ("up") and receives ("down") in each phase it takes part in."""
        return {("fit", way, "weights"): self.sent for way in ("up", "down")}

    def test_replies_hold_exactly_the_declared_entries(self, unbroken: Any) -> None:
        assert unbroken.seen
        assert all(sent == declared for sent, declared in unbroken.seen)

    def test_ledger_equals_a_hand_count(self, unbroken: Any) -> None:
        loop, expected = unbroken.loop, {}
        for round in range(loop.rounds):
            for phase in loop.method.plan(round):
                members = len(loop.clients if phase.cohort == "all" else loop.cohort(round))
                for (name, direction, entry), size in self.bill(unbroken).items():
                    if name == phase.name and members:  # a Poisson sample may draw nobody
                        expected[round, name, direction, entry] = members * size
        assert loop.ledger.lines == expected

    def test_what_builds_on_another_row_says_in_every_run_how_much_its_own_idea_moved(self, unbroken: Any) -> None:
        lines = [row.get("notes", {}) for row in unbroken.loop.history]
        activity, noted = unbroken.loop.method.own_activity, {name for notes in lines for name in notes}
        assert activity.keys() <= noted
        assert all(
            0 <= notes[name]["min"] <= notes[name]["max"] <= 1 for notes in lines for name in activity & notes.keys()
        )
        shipped = (files.CONFIGS / "method" / f"{self.method}.yaml").exists()
        assert activity or not (shipped and "over" in files.facts("method", self.method))

    def test_memory_never_travels(self, tmp_path: Path) -> None:
        run = run_helpers.build_run(tmp_path, self.method, *self.overrides, "federation.participation=1")
        loop, canary = run.loop, 12345.678
        loop.restore()
        loop.run_round(0)
        for client in (client.id for client in loop.clients):
            stored = loop.client_state.get(client, {})
            marked = {**stored, "memory": {**stored.get("memory", {}), "canary": {"leaf": torch.full((3,), canary)}}}
            loop.client_state.stage({client: loop.client_state.write(client, 0, "canary", marked)})

        def look(done: Any) -> trees.Tree:
            assert (
                "canary" in done.visit.memory or done.visit.phase.where == "server"
            )  # server workers belong to no client
            return trees.clone({"up": done.message, "down": done.visit.message})

        sent = run_helpers.collect_visits(run, look)
        loop.run_round(1)
        assert sent
        assert not any((leaf == canary).any() for tree in (*sent, loop.server) for _, leaf in trees.leaves(tree))

    def test_a_step_recorded_for_one_client_serves_the_others_and_waits_for_no_value(
        self, tmp_path: Path, unbroken: Any
    ) -> None:
        tapes: list[tape.Tape] = []
        run = run_helpers.build_run(tmp_path, self.method, *self.overrides)
        run.loop.executor = ParallelExecutor(run.loop.executor, lanes=2, recorder=tape.recorder(tapes))
        run.loop.fit()
        recorded, plain = run_helpers.state(run), run_helpers.state(unbroken)
        assert all(run_helpers.difference(recorded[part], plain[part]) < 1e-5 for part in ("server", "memory"))
        assert recorded["ledger"] == plain["ledger"]
        assert bool(tapes) == any(phase.work == "train" for phase in run.loop.method.plan(1))
        assert sum(recorded_tape.replays for recorded_tape in tapes) >= len(tapes)
        assert [recorded_tape.looks for recorded_tape in tapes] == [[]] * len(tapes)

    def test_trainer_fits_pooled_data_where_training_comes_first(self, tmp_path: Path) -> None:
        run = run_helpers.build_run(tmp_path, self.method, *self.overrides)
        method = factory.method(run.config, run.data.source)  # not set up by Fabric
        start = trees.clone({name: method.tensors(name) for name in method.objective.travels})
        if trains := method.plan(0)[0].work == "train":
            images = sum(len(indices) for indices in run.data.parts)
            steps = toys.fit_pooled(method, run.data, tmp_path).global_step
            assert steps == (images // 8 if run.data.drop_last else -(-images // 8))
        else:
            with pytest.raises(MethodError, match="first phase trains"):
                toys.fit_pooled(method, run.data, tmp_path)
        assert (run_helpers.difference(start, {name: method.tensors(name) for name in start}) > 0) == trains

    def test_batch_norm_policies(self, tmp_path: Path, unbroken: Any) -> None:
        """`average` is the unbroken run; where `local` is not refused `MethodContract` tries it."""
        runs, words = (
            [unbroken],
            {each: self.with_row(f"federation.batch_norm={each}") for each in ("local", "recalibrate")},
        )
        for policy in words.keys() - set(self.batch_norm):
            with pytest.raises(MethodError, match="batch_norm"):
                run_helpers.train_run(tmp_path / policy, self.method, *words[policy])
        if "recalibrate" in self.batch_norm:
            runs.append(run_helpers.train_run(tmp_path, self.method, *words["recalibrate"]))
        for run in runs:
            sent = {entry for direction in ("up", "down") for entry in run.loop.ledger.total(direction)}
            assert ("statistics" in sent) == (run is not unbroken)
            assert all(leaf.isfinite().all() for _, leaf in trees.leaves(run.loop.server))

    def test_two_rounds_of_the_shipped_config(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plots, "of_run", lambda *_: {})  # no method changes how figures are drawn
        settings = ("federation.rounds=2", "evaluation.protocols=[knn/v1]", *self.shipped)
        record, run = run_helpers.execute_run(tmp_path, self.method, *settings, scenario="digits")
        assert record["rounds"]["done"] == 2
        first, second = (row["loss"] for row in run.loop.history)
        assert second < first or not self.falls
        assert record["scores"]["knn/v1"]["accuracy"] > self.accuracy

    def test_a_choice_changes_training(self, row: str, unbroken: Any) -> None:
        other = run_helpers.trained(self.method, *self.with_row(row))
        assert run_helpers.apart(other.loop.server["weights"], unbroken.loop.server["weights"]) > 1e-6

    def test_with_these_settings_it_is_another_method(self, row: tuple[str, str, str | float]) -> None:
        own, other, what = row
        ours, theirs = run_helpers.trained(self.method, *self.with_row(own)), run_helpers.trained(*shlex.split(other))
        if what == "state":
            assert run_helpers.same(*(run_helpers.state(run, activity=False) for run in (ours, theirs)))
        elif what == "weights":
            assert run_helpers.same(ours.loop.server["weights"], theirs.loop.server["weights"])
        else:
            assert run_helpers.difference(ours.loop.server["weights"], theirs.loop.server["weights"]) < what

    def test_what_cannot_be_is_refused(self, row: str, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=self.refused[row]) as error:
            run_helpers.build_run(tmp_path, self.method, *shlex.split(row)).loop.fit()
        assert error.value.exit_code == 2
        assert "\n" not in str(error.value)


class DurabilityContract(Contract):
    """What may interrupt or reorder a run changes none of its bits.

    That depends on what a method keeps, where, and in which phases, so in `make test` one method has it for each way:
    FedAvg (nothing kept), SCAFFOLD (memory, an entry of the server's), FedEMA (networks that stay), Local (nothing
    travels), Orchestra (phases that differ by round, rows that are joined), FLESD (public images, server workers,
    no weights), SSD (what is sent once and remembered), FedSC (all clients in the first round, a reply kept for each),
    Calibre (a phase that observes after training), LW-FedSSL (a model that grows, a server that trains). For the others
    `test_measures.py` combines it with dropouts, noise and secure aggregation; what has the interface contract alone
    has all of it in `make long` (`test_durability.py`).
    """

    @pytest.mark.parametrize("moment", ["visit", "reply"])
    def test_a_killed_run_resumed_is_the_unbroken_one(self, moment: str, tmp_path: Path, unbroken: Any) -> None:
        """In each phase of the second round, and in those of the first that the second has not."""
        first, second = (unbroken.loop.method.plan(round) for round in (0, 1))
        phases = [*((0, phase) for phase in first if phase not in second), *((1, phase) for phase in second)]
        for round, phase in phases:
            folder = tmp_path / f"{round}-{phase.name}"
            run_helpers.run_until_killed(folder, self.method, moment, round, phase.name, *self.overrides)
            run_helpers.check_resumed(folder, unbroken, self.method, *self.overrides)

    @pytest.mark.ranks
    def test_one_rank_equals_two(self, tmp_path: Path, unbroken: Any) -> None:
        run_helpers.on_two_ranks(tmp_path, self.method, *self.overrides)
        both = run_helpers.build_run(tmp_path, self.method, *self.overrides)
        both.loop.restore()
        assert both.loop.round == unbroken.loop.rounds
        assert run_helpers.same(run_helpers.state(both), run_helpers.state(unbroken))

    def test_the_order_of_the_cohort_does_not_matter(self, tmp_path: Path, unbroken: Any, monkeypatch: Any) -> None:
        assign_clients = loop.assign_clients
        monkeypatch.setattr(loop, "assign_clients", lambda *args: assign_clients(*args)[::-1])
        reversed_run = run_helpers.train_run(tmp_path, self.method, *self.overrides)
        assert run_helpers.same(run_helpers.state(reversed_run), run_helpers.state(unbroken))

    def test_clients_side_by_side_give_the_bits_of_one_by_one(self, tmp_path: Path, unbroken: Any) -> None:
        run = run_helpers.build_run(tmp_path, self.method, *self.overrides)
        run.loop.executor = ParallelExecutor(run.loop.executor, lanes=3, recorder=None)
        run.loop.fit()
        assert run_helpers.same(run_helpers.state(run), run_helpers.state(unbroken))

    def test_the_same_seed_gives_the_same_bits_and_another_seed_others(self, tmp_path: Path, unbroken: Any) -> None:
        for seed, equal in ((), True), (("seed=1",), False):
            again = run_helpers.train_run(tmp_path / str(equal), self.method, *self.overrides, *seed)
            assert run_helpers.same(run_helpers.state(again), run_helpers.state(unbroken)) == equal


class MethodContract(InterfaceContract, DurabilityContract):
    """All of it: what a method of your own has to pass."""

    def test_statistics_of_clients_may_stay_with_them(self, tmp_path: Path) -> None:
        if "local" in self.batch_norm:
            run = run_helpers.train_run(tmp_path, self.method, *self.with_row("federation.batch_norm=local"))
            assert all(leaf.isfinite().all() for _, leaf in trees.leaves(run.loop.server))
            assert not any("running" in str(path) for path, _ in trees.leaves(run.loop.server))
