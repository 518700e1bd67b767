"""Parallel execution of clients: results equal to sequential execution, and the choice of the faster executor."""

import threading
from functools import partial
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import nn

from benchmark.execution.auto import AutotunedExecutor
from benchmark.execution.base import PhaseInputs
from benchmark.execution.cuda_graphs import RecordedSteps
from benchmark.execution.parallel import ParallelExecutor, has_random_steps
from benchmark.execution.sequential import SequentialExecutor
from methods import trees
from methods.base import Batch, Objective, Outputs, Phase, Visit
from methods.fedavg import FedAvg
from tests import tape
from tests.run_helpers import build_run, difference, same, state, train_run, trained


def test_networks_that_draw_are_known():
    vit, convnext = partial(timm.create_model, "vit_tiny_patch16_224", depth=2), torchvision.models.convnext_tiny
    drawing = [convnext(), vit(drop_path_rate=0.1)]  # ConvNeXt's stochastic depth has a rate of 0.1
    drawing += [nn.MultiheadAttention(4, 2, dropout=0.1), nn.Sequential(nn.AlphaDropout(0.1)), nn.RReLU()]
    others = [convnext(stochastic_depth_prob=0.0), vit(), torchvision.models.resnet18(), nn.Sequential(nn.Dropout(0.0))]
    assert [*map(has_random_steps, drawing), *map(has_random_steps, others)] == [True] * 5 + [False] * 4


EVERYONE, CPU = "federation.participation=1", torch.device("cpu")


def recorded(folder, lanes, *overrides, method="fedavg", recorder=None, prepare=lambda run: None):
    """A run with recorded steps, `prepare`d before, and its tapes; without lanes nothing is recorded."""
    tapes = []
    run = build_run(folder, method, EVERYONE, *overrides)
    prepare(run)
    if lanes:
        run.loop.executor = ParallelExecutor(run.loop.executor, lanes, recorder or tape.recorder(tapes))
    run.loop.fit()
    return run, tapes


def optimiser(make, **settings):
    """A preparation of a run: its optimiser."""
    return lambda run: setattr(run.loop.method, "make_optimizer", partial(make, **settings))


def refuse(*_):
    raise RuntimeError("operation not permitted when stream is capturing")


LARS = "optimizer={class: methods.optimizers.LARS, lr: 5.0, weight_decay: 0.01}"


class TestRecordings:
    @pytest.mark.parametrize(
        "words",
        [
            "schedule.per=step", "training.clip_norm=0.1", "training.precision=bf16-mixed",
            "training.channels_last=true", "encoder.norm=group", "federation.batch_norm=local",
            "optimizer.nesterov=true", "optimizer.momentum=0.0", f"{LARS}; schedule.per=step",
            "optimizer.decay_norms_and_biases=false; optimizer.weight_decay=0.1; schedule.warmup=0.5",
            "objective=byol; objective.momentum=0.9", "objective=supervised",
            "objective.stateful=true; objective=byol; objective.first_target=online",
        ],
    )  # fmt: skip
    def test_they_equal_the_reference(self, tmp_path, words):
        run, tapes = recorded(tmp_path / "recorded", 2, *words.split("; "))
        plain = train_run(tmp_path / "plain", "fedavg", EVERYONE, *words.split("; "))
        bound = 1e-2 if "bf16" in words else 1e-5  # bf16 has 8 significant bits: roundings differ over 12 steps
        assert difference(run.loop.server, plain.loop.server) < bound
        assert difference(state(run)["memory"], state(plain)["memory"]) < bound
        assert sum(recording.replays for recording in tapes) > 10

    def test_a_step_is_recorded_once_for_a_shape_and_lane(self, tmp_path):
        _, tapes = recorded(tmp_path, 1, "training.steps=1")  # 3 rounds of 4 clients: 12 batches of 8 images
        assert [recording.replays for recording in tapes] == [11]  # the first step of a shape runs unrecorded

    def test_a_number_that_changes_is_recorded_anew(self, tmp_path):
        plain = train_run(tmp_path / "plain", "fedsc", EVERYONE, "partition.name=iid")
        run, tapes = recorded(tmp_path / "run", 1, "partition.name=iid", method="fedsc")  # alpha decreases every round
        assert difference(run.loop.server["weights"], plain.loop.server["weights"]) < 1e-5
        assert len(tapes) >= 3

    def test_what_the_server_sent_is_not_written_over(self, tmp_path):
        loop = build_run(tmp_path, "scaffold", EVERYONE).loop
        loop.executor = ParallelExecutor(loop.executor, 2, tape.recorder([]))
        loop.restore()
        loop.run_round(0)
        sent, before = loop.server, trees.clone(loop.server["c"])
        inbox = {client.id: {"weights": sent["weights"], "c": sent["c"]} for client in loop.clients}
        given = PhaseInputs(loop.method.phases[0], 1, 3, inbox, loop.client_state)
        list(loop.executor.run(given, loop.clients))
        assert difference(sent["c"], before) == 0

    @pytest.mark.parametrize(
        ("prepare", "replayed"),
        [
            *((optimiser(make, lr=1e-3, weight_decay=1e-2), True) for make in (torch.optim.Adam, torch.optim.AdamW)),
            (optimiser(torch.optim.SGD, lr=0.05, momentum=0.9, dampening=0.1), False),
            (optimiser(torch.optim.Rprop, lr=0.001), False),
            (lambda run: run.loop.method.objective.projector.append(nn.Dropout(0.1)), False),
        ],
        ids=["adam", "adamw", "dampening", "another", "dropout"],
    )
    def test_adam_is_recorded_and_other_optimisers_and_dropout_go_one_by_one(self, tmp_path, prepare, replayed):
        run, tapes = recorded(tmp_path / "recorded", 2, prepare=prepare)
        plain, _ = recorded(tmp_path / "plain", 0, prepare=prepare)
        assert (sum(recording.replays for recording in tapes) > 10) == bool(tapes) == replayed
        assert difference(run.loop.server, plain.loop.server) < 1e-4  # the sign of a tiny gradient may differ
        assert replayed or same(state(run), state(plain))

    @pytest.mark.parametrize(
        ("where", "replayed"),
        [*((k, True) for k in ("attribute", "_underscore", "number", "module")), ("list", False), ("mixed", False)],
    )
    def test_whatever_a_visit_leaves_is_seen(self, tmp_path, where, replayed):
        """State that cannot be copied in place prevents recording; a changed number or module is recorded again."""
        overrides = ("method.class=tests.benchmark.execution.test_parallel.Leaving", f"method.where={where}")
        run, tapes = recorded(tmp_path / "recorded", 1, *overrides)
        plain = train_run(tmp_path / "plain", "fedavg", EVERYONE, *overrides)
        assert difference(run.loop.server, plain.loop.server) < 1e-5
        assert bool(tapes) == replayed

    @pytest.mark.parametrize("fails", ["at once", "half way"])
    def test_a_step_that_cannot_be_recorded_runs_as_it_is_and_leaves_no_gradients(self, tmp_path, monkeypatch, fails):
        def record(function):
            with tape.Tape() as begun, monkeypatch.context() as patch:
                patch.setattr(torch.optim.SGD, "step", refuse)
                try:
                    function()
                finally:
                    begun.undo()

        run, _ = recorded(tmp_path, 2, recorder=lambda stream: refuse if fails == "at once" else record)
        assert difference(run.loop.server, trained("fedavg", EVERYONE).loop.server) < 1e-5

    def test_a_lane_copies_the_model_and_not_the_devices_and_says_why_no_step_was_recorded(self, tmp_path):
        loop = build_run(tmp_path, "fedavg").loop
        loop.fabric.lock = threading.Lock()  # a strategy that has started processes holds a lock
        bare, unused = (ParallelExecutor(loop.executor, 2, recorder) for recorder in (None, tape.recorder([])))
        assert all(lane.fabric is loop.fabric for lane in bare.lanes)
        assert len({id(lane.method) for lane in bare.lanes} | {id(loop.method)}) == 3
        assert bare.unrecorded_reason() == "there is nothing to record them with"
        assert unused.unrecorded_reason() == "no step was made"

    @pytest.mark.parametrize(("fails", "recorded", "tries"), [(False, 4, 4), (True, 0, 1)])
    def test_a_few_shapes_are_recorded_and_none_after_a_failure(self, fails, recorded, tries):
        """Clients may end in many sizes of short batches, and each recording has memory of its own."""
        tried = []
        steps = RecordedSteps(lambda: lambda step: tried.append(step) or (refuse() if fails else step), CPU)
        steps.rates = [torch.zeros(())]
        for size in (*range(1, 7), *range(1, 7)):
            steps.take(torch.ones(size), torch.optim.SGD([torch.ones(1)], lr=0.1), lambda batch: None)
        assert (sum(map(bool, steps.recorded.values())), len(tried)) == (recorded, tries)

    def test_seconds_are_those_of_the_visit(self, tmp_path):
        loop, clock = build_run(tmp_path, "fedavg", EVERYONE).loop, Clock()
        loop.executor = ParallelExecutor(loop.executor, 4, None)
        for lane in loop.executor.lanes:
            lane.clock = clock
            lane._train = lambda visit: (clock.pass_(1.0), (torch.zeros(()), 8))[1]
        loop.restore()
        assert loop.run_round(0)["client_seconds"] == 4.0


def frozen(value: torch.Tensor) -> nn.Module:
    teacher = nn.Linear(1, 1, bias=False).requires_grad_(False)
    teacher.weight.fill_(value)
    return teacher


PLACES: dict[str, tuple[str, Any, Any]] = {  # the attribute, what is put there, and how it is read
    "attribute": ("left", lambda value: value, lambda left: left),
    "_underscore": ("_left", lambda value: value, lambda left: left),
    "number": ("left", lambda value: [float(value)], lambda left: left[0]),
    "module": ("left", frozen, lambda left: left.weight.sum()),
    "list": ("left", lambda value: [value], lambda left: left[0]),
    "mixed": ("left", lambda value: {"value": value, "why": "because"}, lambda left: left["value"]),
}


class Leaving(FedAvg):
    """FedAvg whose loss is scaled by a number of the client; `where` chooses the place that stores it."""

    def __init__(self, objective: Objective, *, where: str = "attribute", **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        self.where = where

    def receive(self, visit: Visit) -> None:
        super().receive(visit)
        name, make, _ = PLACES[self.where]
        setattr(self, name, make(torch.tensor(1.0 + visit.client.id)))

    def loss(self, out: Outputs, batch: Batch) -> torch.Tensor:
        name, _, read = PLACES[self.where]
        return super().loss(out, batch) * read(getattr(self, name))


class Named:
    """An executor that yields its name with each client; the clock moves by `seconds`, on one lane by `alone`."""

    def __init__(self, name, seconds, clock, lanes=2, alone=100.0):
        self.name, self.seconds, self.clock, self.lanes, self.alone = name, seconds, clock, [None] * lanes, alone

    def free(self):
        self.lanes.clear()

    def run(self, given, block, lanes=None):
        seconds = self.alone if lanes == 1 else self.seconds
        for client in block:
            self.clock.pass_(seconds(client) if callable(seconds) else seconds)
            yield "alone" if lanes == 1 else self.name, client


class Clock:
    now = 0.0

    def __call__(self):
        return self.now

    def pass_(self, seconds):
        self.now += seconds


class TestMeasured:
    """Executors of two lanes: warm-up is two sequential visits, then two parallel visits in each of two rounds."""

    def visits(self, sequential, parallel, blocks, phase=None, sizes=None, alone=100.0):
        clock = Clock()
        executors = Named("one", sequential, clock), Named("several", parallel, clock, alone=alone)
        for executor in executors:
            executor.images = lambda phase, client: (sizes or {}).get(client, 1)
        self.measured = measured = AutotunedExecutor(*executors, clock)
        phase = phase or Phase("fit")
        return [list(measured.run(PhaseInputs(phase, round, 9, {}, {}), block)) for round, block in enumerate(blocks)]

    def test_the_faster_is_kept(self):
        one, several, alone = ["one"], ["several"], ["alone"]
        tried = [one * 4 + several * 2 + one * 2, several * 2 + one * 6, several * 2 + one * 6]
        for seconds, kept in (((1.0, 0.4, 0.5), several), ((1.0, 0.4, 0.3), alone), ((0.4, 1.0, 0.5), one)):
            *pair, single = seconds
            rounds = self.visits(*pair, [range(8)] * 5, alone=single)
            assert all([client for _, client in visits] == list(range(8)) for visits in rounds)
            names = [[name for name, _ in visits] for visits in rounds]
            assert names == [*tried, alone * 2 + kept * 6, kept * 8]

    def test_small_cohorts_are_tried_over_rounds_and_fewer_clients_than_lanes_too(self):
        rounds, (one, several) = self.visits(1.0, 0.4, [range(3)] * 7), (["one"], ["several"])
        tried = [one * 3, one * 3, *[several * 2 + one] * 3, ["alone"] * 2 + several]
        assert [[name for name, _ in visits] for visits in rounds] == [*tried, several * 3]
        rounds = self.visits(1.0, 0.4, [range(1)] * 8)
        assert [name for visits in rounds for name, _ in visits] == [*one * 2, *several * 3, "alone", *several * 2]

    @pytest.mark.parametrize(("fails_at", "parallel"), [(4, 0), (5, 1), (6, 10)], ids=["first", "second", "chosen"])
    def test_without_memory_for_the_lanes_the_run_goes_on_one_by_one(self, fails_at, parallel, caplog):
        def seconds(client):
            if client == fails_at:
                raise torch.OutOfMemoryError
            return 0.1

        rounds = self.visits(1.0, seconds, [range(8)] * 4)
        assert all([client for _, client in visits] == list(range(8)) for visits in rounds)
        assert [name for visits in rounds for name, _ in visits].count("several") == parallel
        assert caplog.text.count("too small for 2 visits at once") == 1

    def test_the_first_visits_and_larger_clients_do_not_mislead(self):
        sizes = dict.fromkeys(range(4), 10)  # the costliest clients come first
        ones = lambda client: 5.0 if client == 0 else 0.1 * sizes.get(client, 1)  # noqa: E731
        several = lambda client: 0.2 * sizes.get(client, 1)  # noqa: E731
        *_, last = self.visits(ones, several, [range(8)] * 5, sizes=sizes)
        assert {name for name, _ in last} == {"one"}

    def test_what_is_recorded_anew_each_round_counts(self):
        """The parallel executor is faster except for one slow visit per round, which its trial includes."""
        began = {"round": 0}

        def several(client):
            began["round"] += client == 0
            return 3.0 if client == 0 else 0.1

        *_, last = self.visits(1.0, several, [range(4), *[range(20)] * 5])
        assert {name for name, _ in last} == {"one"}
        assert began["round"] == 3

    def test_only_the_last_trial_counts_by_seconds_an_image(self):
        """The lanes warm up for two trials of two visits, and have the larger clients afterwards."""
        seen, sizes = [], {0: 10, 1: 10}

        def several(client):
            seen.append(client)
            return 50.0 if len(seen) <= 4 else 0.4 * sizes.get(client, 1)

        ones = lambda client: 1.0 * sizes.get(client, 1)  # noqa: E731
        *_, last = self.visits(ones, several, [range(2, 8), *[range(2)] * 4], sizes=sizes)
        assert {name for name, _ in last} == {"several"}

    @pytest.mark.parametrize(("recorded", "rounds", "exact"), [(True, 1, False), (False, 1, True), (True, 0, True)])
    def test_it_is_exact_until_a_client_is_visited_by_recorded_steps(self, recorded, rounds, exact):
        self.visits(1.0, 0.4, [range(8)] * rounds)
        self.measured.parallel.bitwise_exact = not recorded
        assert self.measured.bitwise_exact is exact

    def test_visits_that_do_not_train_stay_with_the_reference(self):
        for visits in self.visits(1.0, 0.1, [range(20)] * 3, Phase("look", work="observe")):
            assert {name for name, _ in visits} == {"one"}


def test_the_config_chooses(tmp_path):
    for name, words in (("a", ()), ("b", ("executor=sequential",))):
        work = build_run(tmp_path / name, "fedavg", *words).loop.executor
        assert (type(work), work.bitwise_exact) == (SequentialExecutor, True)
    work = build_run(tmp_path / "c", "fedavg", "executor=parallel", "lanes=3").loop.executor
    assert (type(work), work.bitwise_exact) == (ParallelExecutor, True)
    assert [lane.recorder for lane in work.lanes] == [None] * 3
