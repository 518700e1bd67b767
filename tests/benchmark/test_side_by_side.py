"""Executors of several clients at once: the same results as one by one, and the choice between them."""

import pytest
import torch
from torch import nn

from benchmark.recording import recordable
from benchmark.side_by_side import Measured, SideBySide
from methods.base import Phase
from tests import tape
from tests.playing import difference, played, prepared, state

EVERYONE = "federation.participation=1"


def recorded(folder, lanes, *overrides):
    """A run of FedAvg with recorded steps, and its tapes."""
    tapes = []
    run = prepared(folder, "fedavg", EVERYONE, *overrides)
    run.federation.work = SideBySide(run.federation.work, lanes, tape.recorder(tapes))
    run.federation.fit()
    return run, tapes


class TestRecordings:
    @pytest.mark.parametrize(
        "overrides",
        [
            ("schedule.per=step",),
            ("training.clip_norm=0.1",),
            ("training.precision=bf16-mixed",),
            ("training.channels_last=true",),
            ("encoder.norm=group",),
            ("federation.batch_norm=local",),
            ("optimizer.nesterov=true",),
            ("optimizer.momentum=0.0",),
            ("objective=byol", "objective.momentum=0.9"),
            ("objective=supervised",),
        ],
        ids=lambda overrides: overrides[0],
    )
    def test_they_equal_the_reference(self, tmp_path, overrides):
        run, tapes = recorded(tmp_path / "recorded", 2, *overrides)
        plain = played(tmp_path / "plain", "fedavg", EVERYONE, *overrides)
        bound = 1e-2 if "bf16" in overrides[0] else 1e-5  # bf16 has 8 bits: one rounding apart, 12 steps on
        assert difference(run.federation.server, plain.federation.server) < bound
        assert difference(state(run)["memory"], state(plain)["memory"]) < bound
        assert sum(one.replays for one in tapes) > 10

    def test_a_step_is_recorded_once_for_a_shape_and_lane(self, tmp_path):
        _, tapes = recorded(tmp_path, 1, "training.steps=1")  # 3 rounds of 4 clients: 12 batches of 8 images
        assert len(tapes) == 1
        assert tapes[0].replays == 11  # the first one is taken as it is

    def test_a_number_that_changes_is_recorded_anew(self, tmp_path):
        overrides = (EVERYONE, "partition.name=iid")
        plain = played(tmp_path / "plain", "fedsc", *overrides)
        tapes = []
        run = prepared(tmp_path / "recorded", "fedsc", *overrides)  # alpha falls from round to round
        run.federation.work = SideBySide(run.federation.work, 1, tape.recorder(tapes))
        run.federation.fit()
        assert difference(run.federation.server["weights"], plain.federation.server["weights"]) < 1e-5
        assert len(tapes) >= 3

    def test_what_the_server_sent_is_not_written_over(self, tmp_path):
        run = prepared(tmp_path, "scaffold", EVERYONE)
        run.federation.work = SideBySide(run.federation.work, 2, tape.recorder([]))
        run.federation.start()
        run.federation.play(0)
        sent = run.federation.server
        before = {name: tree.copy() for name, tree in sent["c"].items()}
        before = {part: {name: leaf.clone() for name, leaf in tree.items()} for part, tree in before.items()}
        cohort = run.federation.clients
        phase = run.federation.method.phases[0]
        inbox = {client.id: {"weights": sent["weights"], "c": sent["c"]} for client in cohort}
        list(run.federation.work.run(run.federation.method, phase, 1, 3, cohort, inbox, run.federation.memory))
        assert difference(sent["c"], before) == 0

    def test_dropout_and_unknown_optimisers_go_one_by_one(self, tmp_path):
        run = prepared(tmp_path, "fedavg")
        method, phase = run.federation.method, run.federation.method.phases[0]
        assert recordable(method, phase)
        method.make_optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.1)
        assert not recordable(method, phase)
        method.make_optimizer = lambda parameters: torch.optim.Rprop(parameters, lr=0.1)
        assert not recordable(method, phase)
        method.make_optimizer = lambda parameters: torch.optim.AdamW(parameters, lr=0.1)
        assert recordable(method, phase)
        method.objective.projector.append(nn.Dropout(0.1))
        assert not recordable(method, phase)


class Named:
    """An executor that hands out its name for each client, and takes some time for each."""

    def __init__(self, name, seconds, clock, lanes=2):
        self.name, self.seconds, self.clock, self.lanes = name, seconds, clock, [None] * lanes

    def run(self, actor, phase, round, rounds, block, inbox, memory):
        for client in block:
            self.clock.now += self.seconds
            yield self.name, client


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class TestMeasured:
    def visits(self, one, several, block, phase=None, rounds=1):
        clock = Clock()
        measured = Measured(Named("one", one, clock), Named("several", several, clock), clock)
        phase = phase or Phase("fit")
        return [list(measured.run(None, phase, round, rounds, block, {}, {})) for round in range(rounds)]

    def test_the_faster_is_kept(self):
        first, second = self.visits(1.0, 0.4, list(range(10)), rounds=2)
        assert [client for _, client in first] == list(range(10))
        assert [name for name, _ in first] == ["one"] * 2 + ["several"] * 8
        assert [name for name, _ in second] == ["several"] * 10

    def test_the_reference_is_kept_where_it_is_faster(self):
        first, second = self.visits(0.4, 1.0, list(range(10)), rounds=2)
        assert [name for name, _ in first] == ["one"] * 2 + ["several"] * 4 + ["one"] * 4
        assert [name for name, _ in second] == ["one"] * 10

    @pytest.mark.parametrize(("block", "phase"), [(range(6), Phase("fit")), (range(20), Phase("look", work="observe"))])
    def test_too_few_visits_or_none_that_train_stay_with_the_reference(self, block, phase):
        (visits,) = self.visits(1.0, 0.1, list(block), phase)
        assert {name for name, _ in visits} == {"one"}
