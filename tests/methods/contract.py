"""Contract between every method and the loop; the tests of a method inherit it and add what its paper defines.

class TestMyMethod(MethodContract):
    method = "mymethod"
    def bill(self, run): ...            # bytes one client sends and is sent, by (phase, direction, entry)
"""

import os
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from lightning.pytorch import Trainer

from benchmark.execution.parallel import ParallelExecutor
from benchmark.experiment import factory
from benchmark.federation import loop
from methods import trees
from methods.base import MethodError
from tests import run_helpers, tape

Bill = dict[tuple[str, str, str], int]

# numbers in the tiny scenario's networks, by hand: convnet 3-6-8 and projector 8-12-8, BatchNorm after every layer
# but the last: weights with affine parameters, then running means and variances
ENCODER = 6 * 3 * 9 + 2 * 6 + 8 * 6 * 9 + 2 * 8
PROJECTOR = 12 * 8 + 2 * 12 + 8 * 12 + 8
STATISTICS = 2 * (6 + 8 + 12)
WEIGHTS = 4 * (ENCODER + PROJECTOR + STATISTICS)
"""Bytes of the entry "weights" with SimCLR's, AlignUniform's and the spectral loss's networks."""


class MethodContract:
    """The tests every method passes on the tiny scenario: 4 clients, 2 of them a round, 3 rounds.

    method: its config's name. overrides: for every test. batch_norm: supported policies.
    variant: whether another class tests the method by its shipped config, and kills it in its first round.
    falls: whether the loss has to be lower in the second round than in the first.
    least: kNN accuracy on digits after two rounds, in percent, above that of a collapsed encoder, 10 to 30.
    """

    method: ClassVar[str]
    overrides: ClassVar[tuple[str, ...]] = ()
    batch_norm: ClassVar[tuple[str, ...]] = ("average", "local", "recalibrate")
    variant: ClassVar[bool] = False
    falls: ClassVar[bool] = True
    least: ClassVar[float] = 70

    def __init_subclass__(cls) -> None:
        """A variant is not trained by the shipped config, which is that of the method's own class."""
        if cls.variant:
            cls.test_two_rounds_of_the_shipped_config = None  # type: ignore[method-assign, assignment]

    def bill(self, run: Any) -> Bill:
        """Bytes, counted by hand, that one client sends ("up") and receives ("down") in each phase it takes part in."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def unbroken(cls, tmp_path_factory: pytest.TempPathFactory) -> Any:
        """The uninterrupted run that other runs are compared with, trained once."""
        return run_helpers.train_run(tmp_path_factory.mktemp("unbroken"), cls.method, *cls.overrides)

    def test_replies_hold_exactly_the_declared_entries(self, tmp_path: Path) -> None:
        run = run_helpers.build_run(tmp_path, self.method, *self.overrides)
        declared = run.loop.uplink.reductions
        seen = run_helpers.collect_visits(run, lambda done: (set(done.message), set(declared(done.visit.phase))))
        run.loop.fit()
        assert seen
        assert all(sent == declared for sent, declared in seen)

    def test_ledger_equals_a_hand_count(self, unbroken: Any) -> None:
        loop, bill = unbroken.loop, self.bill(unbroken)
        expected: dict[tuple[int, str, str, str], int] = {}
        for round in range(loop.rounds):
            cohort = loop.cohort(round)
            for phase in loop.method.plan(round):
                members = len(loop.clients) if phase.cohort == "all" else len(cohort)
                for (name, direction, entry), size in bill.items():
                    if name == phase.name and members:  # a Poisson sample may draw nobody
                        expected[round, name, direction, entry] = members * size
        assert loop.ledger.lines == expected

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
            if done.visit.phase.where == "clients":  # seats on the server belong to no client
                assert "canary" in done.visit.memory
            return trees.clone({"up": done.message, "down": done.visit.message})

        sent = run_helpers.collect_visits(run, look)
        loop.run_round(1)
        leaves = [leaf for tree in (*sent, loop.server) for _, leaf in trees.leaves(tree)]
        assert sent
        assert not any((leaf == canary).any() for leaf in leaves)

    @pytest.mark.parametrize("moment", run_helpers.KILLS)
    def test_a_killed_run_resumed_is_the_unbroken_one(self, moment: str, tmp_path: Path, unbroken: Any) -> None:
        for round in (1,) if self.variant else (0, 1):
            for phase in unbroken.loop.method.plan(round):
                folder = tmp_path / f"{round}-{phase.name}"
                run_helpers.run_until_killed(folder, self.method, moment, round, phase.name, *self.overrides)
                resumed = run_helpers.train_run(folder, self.method, *self.overrides)
                assert run_helpers.same(run_helpers.state(resumed), run_helpers.state(unbroken))
                left = {file.name for file in (resumed.folder / "checkpoint" / "memory").glob("*")}
                assert left == set(resumed.loop.client_state.index.values())
                if moment in ("written", "renamed"):
                    break  # there is one checkpoint per round, not per phase

    @pytest.mark.ranks
    def test_one_rank_equals_two(self, tmp_path: Path, unbroken: Any) -> None:
        run_helpers.on_two_ranks(tmp_path, self.method, *self.overrides)
        both = run_helpers.build_run(tmp_path, self.method, *self.overrides)
        both.loop.restore()
        assert both.loop.round == unbroken.loop.rounds
        assert run_helpers.same(run_helpers.state(both), run_helpers.state(unbroken))

    def test_the_order_of_the_cohort_does_not_matter(
        self, tmp_path: Path, unbroken: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assign_clients = loop.assign_clients
        monkeypatch.setattr(loop, "assign_clients", lambda *args: assign_clients(*args)[::-1])
        reversed_run = run_helpers.train_run(tmp_path, self.method, *self.overrides)
        assert run_helpers.same(run_helpers.state(reversed_run), run_helpers.state(unbroken))

    def test_clients_side_by_side_give_the_bits_of_one_by_one(self, tmp_path: Path, unbroken: Any) -> None:
        run = run_helpers.build_run(tmp_path, self.method, *self.overrides)
        run.loop.executor = ParallelExecutor(run.loop.executor, lanes=3, recorder=None)
        run.loop.fit()
        assert run_helpers.same(run_helpers.state(run), run_helpers.state(unbroken))

    def test_a_step_recorded_for_one_client_serves_the_others_and_waits_for_no_value(
        self, tmp_path: Path, unbroken: Any
    ) -> None:
        tapes: list[tape.Tape] = []
        run = run_helpers.build_run(tmp_path, self.method, *self.overrides)
        run.loop.executor = ParallelExecutor(run.loop.executor, lanes=2, recorder=tape.recorder(tapes))
        run.loop.fit()
        recorded, plain = run_helpers.state(run), run_helpers.state(unbroken)
        assert run_helpers.difference(recorded["server"], plain["server"]) < 1e-5
        assert run_helpers.difference(recorded["memory"], plain["memory"]) < 1e-5
        assert recorded["ledger"] == plain["ledger"]
        trains = any(phase.work == "train" for phase in run.loop.method.plan(1))
        assert bool(tapes) == trains
        assert sum(recorded_tape.replays for recorded_tape in tapes) >= len(tapes)
        assert [recorded_tape.looks for recorded_tape in tapes] == [[]] * len(tapes)

    def test_the_same_seed_gives_the_same_bits_and_another_seed_others(self, tmp_path: Path, unbroken: Any) -> None:
        again = run_helpers.train_run(tmp_path / "again", self.method, *self.overrides)
        assert run_helpers.same(run_helpers.state(again), run_helpers.state(unbroken))
        other = run_helpers.train_run(tmp_path / "other", self.method, *self.overrides, "seed=1")
        assert not run_helpers.same(run_helpers.state(other), run_helpers.state(unbroken))

    def test_trainer_fits_pooled_data_where_training_comes_first(self, tmp_path: Path) -> None:
        run = run_helpers.build_run(tmp_path, self.method, *self.overrides)
        method = factory.method(run.config, run.data.source)  # not set up by Fabric
        start = trees.clone({name: method.tensors(name) for name in method.objective.travels})
        trainer = Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        if method.plan(0)[0].work == "train":
            trainer.fit(method, run.data)
            images = sum(len(indices) for indices in run.data.parts)
            assert trainer.global_step == (images // 8 if run.data.drop_last else -(-images // 8))
            assert run_helpers.difference(start, {name: method.tensors(name) for name in start}) > 0
        else:
            with pytest.raises(MethodError, match="first phase trains"):
                trainer.fit(method, run.data)
            assert run_helpers.difference(start, {name: method.tensors(name) for name in start}) == 0

    @pytest.mark.parametrize("policy", ["average", "local", "recalibrate"])
    def test_batch_norm_policies(self, policy: str, tmp_path: Path) -> None:
        overrides = (*self.overrides, f"federation.batch_norm={policy}")
        if policy not in self.batch_norm:
            with pytest.raises(MethodError, match="batch_norm"):
                run_helpers.train_run(tmp_path, self.method, *overrides)
            return
        run = run_helpers.train_run(tmp_path, self.method, *overrides)
        sent = {entry for direction in ("up", "down") for entry in run.loop.ledger.total(direction)}
        assert ("statistics" in sent) == (policy == "recalibrate")
        assert all(leaf.isfinite().all() for _, leaf in trees.leaves(run.loop.server))

    @pytest.mark.timeout(120)
    def test_two_rounds_of_the_shipped_config(self, tmp_path: Path) -> None:
        record, run = run_helpers.execute_run(
            tmp_path, self.method, "federation.rounds=2", "evaluation.protocols=[knn/v1]", scenario="digits"
        )
        assert record["rounds"]["done"] == 2
        first, second = (row["loss"] for row in run.loop.history)
        assert second < first or not self.falls
        assert record["scores"]["knn/v1"]["accuracy"] > self.least
        assert os.path.getsize(run.folder / "figures" / "partition.png") > 1000
