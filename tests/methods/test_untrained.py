import pytest

from benchmark.experiment import factory
from benchmark.tracking.record import POOLED_STATISTICS
from methods import trees
from methods.base import MethodError
from tests.methods import toys
from tests.methods.contract import STATISTICS, WEIGHTS
from tests.run_helpers import apart, build_run, execute_run, same, trained

CLIENTS = "method.statistics=clients"
IDLE = "encoder.norm=group heads.head_norm=false"


def statistics(run):
    return {path: leaf for path, leaf in trees.leaves(run.loop.server["weights"]) if "running" in path[-1]}


def test_the_floor_is_the_initial_encoder_measured_by_the_same_probes(tmp_path):
    start = build_run(tmp_path / "other", "fedavg").loop
    start.restore()
    record, run = execute_run(tmp_path, "untrained", CLIENTS)
    assert record["rounds"] == {"done": 3, "planned": 3}
    assert record["images"] == 0
    assert [line["loss"] for line in run.loop.history] == [None] * 3
    assert POOLED_STATISTICS not in record["deviations"]
    assert set(record["scores"]) == {"knn/v1"}
    names = {name for name, _ in run.loop.method.objective.encoder.named_parameters()}
    encoder, initial = (loop.server["weights"]["encoder"] for loop in (run.loop, start))
    assert names
    assert same({name: encoder[name] for name in names}, {name: initial[name] for name in names})


@pytest.mark.parametrize("words", [(), ("training.steps=3", "objective=byol", "training.views=separate")])
def test_its_statistics_are_those_of_fedavg_that_does_not_learn_bit_for_bit(words):
    ours, theirs = (
        statistics(trained("untrained", CLIENTS, *words)),
        statistics(trained("fedavg", "optimizer.lr=0", *words)),
    )
    assert len(ours) >= 6
    assert same({str(path): leaf for path, leaf in ours.items()}, {str(path): leaf for path, leaf in theirs.items()})


def test_it_costs_the_message_of_the_weights_and_the_reply_of_the_statistics():
    loop = trained("untrained", CLIENTS).loop
    visits = 2 * loop.rounds
    assert loop.ledger.total("down") == {"weights": visits * WEIGHTS}
    assert loop.ledger.total("up") == {"statistics": visits * 4 * STATISTICS}


@pytest.mark.parametrize(
    ("words", "pooled", "phases"),
    [
        ("federation.batch_norm=local", True, []),
        ("federation.batch_norm=recalibrate", False, ["recalibrate"]),
        ("federation.rounds=0", True, ["fit"]),
        ("method.statistics=pooled", True, []),
        (IDLE, False, []),
    ],
)
def test_under_every_policy_it_is_treated_like_a_row_that_trains(words, pooled, phases, tmp_path):
    given = words if "statistics" in words else f"{CLIENTS} {words}"
    record, run = execute_run(tmp_path, "untrained", *given.split())
    assert (POOLED_STATISTICS in record["deviations"]) == pooled
    assert [phase.name for phase in run.loop.plan(0)] == phases
    if words != "method.statistics=pooled":
        assert build_run(tmp_path / "fedavg", "fedavg", *words.split()).evaluator.recalibrated == pooled


def test_it_is_no_method_for_trainer(tmp_path):
    run = build_run(tmp_path, "untrained", CLIENTS)
    method = factory.method(run.config, run.data.source)  # not set up by Fabric
    with pytest.raises(MethodError, match=r"first phase trains; Untrained starts with 'fit' \(no steps\)"):
        toys.fit_pooled(method, run.data, tmp_path)


def test_pooled_statistics_are_others_and_other_words_are_refused(tmp_path):
    weights = trained("untrained", CLIENTS).loop.server["weights"]
    assert apart(weights, trained("untrained", "method.statistics=pooled").loop.server["weights"]) > 1e-3
    with pytest.raises(MethodError, match=r"method\.statistics='all': choose pooled or clients"):
        build_run(tmp_path, "untrained", "method.statistics=all")
