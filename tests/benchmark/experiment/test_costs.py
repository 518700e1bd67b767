"""What a client pays equals what real visits take, the suite's runs are the same with it, and faults are found."""

import math
import tracemalloc

import pytest

from benchmark.configuration.compose import compose
from benchmark.configuration.identity import identity
from benchmark.execution.counting import operations
from benchmark.execution.sequential import SequentialExecutor
from benchmark.experiment import costs as module
from benchmark.experiment import run as run_module
from benchmark.experiment.costs import VisitCost, costs, filled, groups
from benchmark.experiment.dry import dry_loop
from leaderboards import schema
from methods.base import Phase
from tests.run_helpers import TINY, build_experiment, execute_run, same, state

SIZE = {"images": 20, "shape": (3, 8, 8), "classes": 3}
VIT = ("encoder.class=methods.networks.vit", "encoder.width=12", "encoder.depth=3", "encoder.heads=3")
SHORT = ("federation.rounds=2", "training.batch_size=8")


class RealVisits(SequentialExecutor):
    """Counts the operations of real visits of clients, without the suite's own probe, and without the augmentation."""

    def begin(self, inputs, client):
        self.views = 0
        pending, flops = operations(lambda: super(RealVisits, self).begin(inputs, client))
        self.flops = flops - self.views
        return pending

    def _batches(self, *args, **kwargs):
        batches = super()._batches(*args, **kwargs)
        while True:
            batch, flops = operations(lambda: next(batches, None))
            self.views += flops
            if batch is None:
                return
            yield batch

    def finish(self, pending):
        result, flops = operations(lambda: super(RealVisits, self).finish(pending))
        if pending.visit.phase.where == "clients":
            self.counted[pending.visit.phase.name] = self.counted.get(pending.visit.phase.name, 0) + self.flops + flops
        return result

    def _probe(self, visit, batch):
        pass


def real_operations(config):
    """By phase, over all rounds."""
    with dry_loop(config, RealVisits, **SIZE) as loop:
        loop.executor.counted = {}
        for round in range(loop.rounds):
            loop.run_round(round)
        return loop.executor.counted


def config_of(method, *words):
    vit = [*VIT, "encoder.image_size=8"] if method in ("lwfedssl", "progfedssl") else []
    return compose(TINY, method, [*vit, *SHORT, *words])


def check(method, *words):
    config = config_of(method, *words)
    found, rounds = costs(config, **SIZE), config.federation.rounds
    real = real_operations(config)
    # SSD's clients make their basis at the start of a visit, which does not count
    assert found["flops"] * rounds == pytest.approx(sum(real.values()), rel=2e-3 if method == "ssd" else 1e-6)
    assert found["phases"].keys() == real.keys()


METHODS = [
    ("fedavg", "training.steps=5", "training.drop_last=true"),
    ("fedavg", "training.epochs=2", "objective=protocl"),
    ("fedsc",),
    ("lwfedssl", "method.calibration_epochs=0"),
]
OTHERS = [
    ("orchestra", "objective.bank=16"),
    ("fedavg", "objective=moco", "training.views=separate"),
    ("fedx", "training.precision=bf16-mixed"),
    *((name,) for name in ("calibre", "fedca", "fedema", "fedu2", "flesd", "scaffold", "ssd")),
]


@pytest.mark.parametrize(
    "words", [*METHODS, *(pytest.param(words, marks=pytest.mark.long) for words in OTHERS)], ids=" ".join
)
def test_operations_are_those_of_real_visits(words):
    check(*words)


@pytest.mark.parametrize("fault", ["no backward pass", "each size once"])
def test_a_planted_fault_is_found(fault, monkeypatch):
    if fault == "no backward pass":
        monkeypatch.setitem(module.WORK, "step", module.WORK["pass"])
    else:
        steps = module.CountingExecutor._steps
        monkeypatch.setattr(module.CountingExecutor, "_steps", lambda self, visit: dict.fromkeys(steps(self, visit), 1))
    with pytest.raises(AssertionError):
        check("fedavg")


@pytest.mark.parametrize(
    ("words", "more", "moments"),
    [
        (("scaffold",), 3, 1),  # c, the client's own, and where the visit has started
        (("fedavg", "optimizer.class=torch.optim.Adam", "optimizer.lr=0.001"), 0, 2),
    ],
)
def test_the_parts_of_the_memory_are_counted_by_hand(words, more, moments):
    config = config_of(*words)
    with dry_loop(config, **SIZE) as loop:
        method = loop.method
        held = sum(each.nbytes for each in (*method.parameters(), *method.buffers()))
        trained, tensors = sum(each.nbytes for each in method.parameters()), len(list(method.parameters()))
    found = costs(config, **SIZE)
    parts = found["parts"]
    assert (parts["weights"], parts["gradients"]) == (held + more * trained, trained)
    assert parts["optimizer"] == moments * trained + (4 * tensors if moments == 2 else 0)  # Adam counts its steps
    assert found["kept"] == (trained if more else 0)
    assert parts["weights"] + parts["optimizer"] + parts["activations"] < found["memory"]


def test_a_count_takes_memory_for_a_batch_whatever_the_client_holds():
    config, size = config_of("fedavg", "training.steps=2"), SIZE | {"shape": (3, 32, 32)}
    few = costs(config, **size)["memory"]
    tracemalloc.start()
    many = costs(config, **size | {"images": 100_000})["memory"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert many == few
    assert peak < 100_000 * math.prod(size["shape"]) / 4


def test_work_before_an_epoch_has_one_batch_of_the_client_at_a_time():
    config = config_of("fedavg", "objective=protocl", "objective.clusters=[2]", "objective.queue_size=8")
    found = costs(config, **SIZE | {"images": 320})
    assert found["parts"]["activations"] > 0  # the largest work is a step
    assert found["memory"] < 320 * math.prod(SIZE["shape"]) * 4  # bytes of all its images


def test_a_run_is_the_same_with_it_and_without_it_nothing_is_counted(tmp_path, monkeypatch):
    with_it, run = execute_run(tmp_path / "a", "fedavg", "costs=true")
    monkeypatch.setattr(run_module, "costs", lambda *args: pytest.fail("counted"))
    without, plain = execute_run(tmp_path / "b", "fedavg")
    assert same(state(run), state(plain))
    assert identity(run.config) == identity(plain.config)
    assert "costs" not in without
    assert with_it.keys() - without.keys() == {"costs"}
    assert all(with_it[key] == without[key] for key in ("scores", "bytes", "images", "settings"))
    schema.validate(with_it, "here")
    assert with_it["costs"]["images"] == round(run.data.examples / 4)
    assert with_it["costs"]["phases"].keys() == {"fit"}


def test_a_later_evaluation_keeps_it(tmp_path):
    record, _ = execute_run(tmp_path, "fedavg", "costs=true")
    with build_experiment(tmp_path, "fedavg").open(training=False) as run:
        run.loop.restore()
        assert run.evaluate(["geometry/v1"]).record["costs"] == record["costs"]


@pytest.fixture(scope="module")
def plain():
    return costs(compose(TINY, "fedavg"), **SIZE)


PROTECTED = ("privacy.mechanism=central", "privacy.clip=1", "privacy.noise_multiplier=1", "compression.name=int8")


@pytest.mark.parametrize(
    "words",
    [PROTECTED, ("privacy.secure_aggregation=true",), ("federation.batch_norm=recalibrate",), ("federation.rounds=0",)],
    ids=lambda words: words[0],
)
def test_what_protects_or_scores_a_run_stops_no_count(words, plain):
    found = costs(compose(TINY, "fedavg", words), **SIZE)
    assert (found == {}) == (words == ("federation.rounds=0",))
    if found:
        assert found["phases"]["fit"]["flops"] == plain["phases"]["fit"]["flops"]


def test_few_rounds_are_run_where_all_cost_the_same():
    fit, warm = Phase("fit"), Phase("warm", work="observe")
    assert [*groups([[warm, fit], [fit], [fit], [fit]])] == [[0], [1, 2, 3]]
    assert [*groups([[fit], [warm], [fit], [warm]])] == [[0], [1, 3], [2]]
    seen = []

    def of(round):
        seen.append(round)
        return VisitCost(round // 50, 0, 0)

    assert [cost.flops for cost in filled(range(100), of)] == [0] * 50 + [1] * 50
    assert len(set(seen)) < 2 + 2 * math.log2(100)
