"""Keywords that stand for several protocols, combined scores, and features that are extracted once, where used."""

import pytest

from benchmark.evaluation.protocols import OPTIONAL, combine, expanded, transfer_targets
from eval.clients import summary
from eval.protocol import PROTOCOLS, find
from tests.run_helpers import build_run


def test_one_encoder_stands_for_itself_and_of_several_the_worst_accuracy_counts_and_the_mean_of_all_else():
    first = {"knn/v1": {"accuracy": 50.0, "k": 200}, "transfer-digits/v1": {"accuracy_knn": 80.0}}
    second = {"knn/v1": {"accuracy": 40.0, "k": 100}, "transfer-digits/v1": {"accuracy_knn": 90.0}}
    assert combine({"global": first}) == first
    assert combine({"client0": first, "client1": second}) == {
        "knn/v1": {"accuracy": 40.0, "accuracy_mean": 45.0},
        "transfer-digits/v1": {"accuracy_knn": 80.0, "accuracy_knn_mean": 85.0},
    }


def test_what_was_chosen_alike_stands_and_else_has_no_mean():
    first, second = ({"linear-sweep/v1": {"accuracy": 50.0, "rate": rate}} for rate in (0.01, 0.03))
    assert "rate" not in combine({"a": first, "b": second})["linear-sweep/v1"]
    assert combine({"a": first, "b": first})["linear-sweep/v1"]["rate"] == 0.01


def test_encoders_of_two_widths_have_fewer_metrics_in_common():
    wide = {"spectrum/v1": {"dimensions_90": 20.0, "decay_64": -1.0, "decay_128": -2.0}}
    narrow = {"spectrum/v1": {"dimensions_90": 10.0, "decay_64": -3.0}}
    both = {"spectrum/v1": {"dimensions_90": 15.0, "decay_64": -2.0}}
    assert combine({"a": wide, "b": narrow}) == combine({"b": narrow, "a": wide}) == both


def test_accuracies_of_clients_by_their_own_encoders_are_one_score_over_the_clients():
    def own(name, accuracy):
        return {"knn/v1": {"accuracy": 50.0}, "clients/v1": summary({name: accuracy})}

    untested = {"knn/v1": {"accuracy": 40.0}}  # a client without test images
    encoders = {"client0": untested, "client1": own("lima", 60.0), "client2": own("oslo", 90.0)}
    combined = combine(encoders)
    assert combined["clients/v1"] == summary({"lima": 60.0, "oslo": 90.0})
    assert (combined["clients/v1"]["accuracy"], combined["knn/v1"]["accuracy"]) == (75, 40)


def test_accuracies_of_all_clients_by_several_encoders_are_combined_like_others():
    first, second = ({"clients/v1": summary({"lima": 60.0, "oslo": value})} for value in (80.0, 90.0))
    combined = combine({"global": first, "wide": second})["clients/v1"]
    assert (combined["accuracy"], combined["accuracy_mean"]) == (70, 72.5)
    one, other = ({"clients/v1": summary({"lima": value})} for value in (60.0, 70.0))
    assert combine({"global": one, "wide": other})["clients/v1"]["accuracy_mean"] == 65


def test_all_are_the_short_ones_and_papers_the_long_ones():
    everything, papers = (expanded([word], "cifar10", OPTIONAL) for word in ("all", "papers"))
    replaced = {name for name in PROTOCOLS if find(name).replaced_by}
    assert replaced == {"clients/v1"}
    assert set(everything) | set(papers) == {*PROTOCOLS, "transfer-digits/v1"} - replaced
    assert not set(everything) & set(papers)
    few = {"drift/v1", "by-client/v1", "clients/v2", "membership/v1", "transfer-digits/v1"}
    assert set(everything) - set(expanded(["all"], "digits", {"projector"})) == few
    inputs = {"local_models", "members", "test_clients"}
    assert set(everything) - set(expanded(["all"], "cifar10", inputs)) == {"projected/v1"}
    without = set(everything) - set(expanded(["all"], "cifar10", OPTIONAL, labelled=False))
    assert without == {name for name in everything if find(name).uses_labels}
    more = {"inversion/v1", "shares/v1", "semi-orchestra/v2", "attentive/v1"}
    assert set(papers) - set(expanded(["papers"], "cifar10")) == more
    assert expanded(["knn/v1", "all", "knn/v1"], "cifar10", OPTIONAL)[0] == "knn/v1"
    assert len(expanded(["knn/v1", "all"], "cifar10", OPTIONAL)) == len(everything)


def test_what_is_transferred_to_is_in_the_name():
    assert transfer_targets(["knn/v1", "transfer-svhn/v1", "transfer-my.folder/v1"]) == ["svhn", "my.folder"]


@pytest.fixture
def evaluator(tmp_path):
    return build_run(tmp_path, "fedavg").evaluator


def images_encoded(evaluator, protocols, **callbacks):
    """How many images pass the encoder where these protocols are scored."""
    encoder = evaluator.encoder(evaluator.method.weights(), recalibrated=False)
    batches = []
    encoder.register_forward_hook(lambda module, args, output: batches.append(len(output)))
    evaluator.scores(encoder, protocols, **callbacks)
    return sum(batches)


@pytest.mark.parametrize(("protocols", "views"), [(["knn/v1"], 0), (["geometry/v1"], 2), (["label-free/v1"], 2)])
def test_two_views_are_encoded_only_where_a_protocol_uses_them(evaluator, protocols, views):
    train, test = evaluator.data.source.train.labels, evaluator.data.source.test.labels
    assert images_encoded(evaluator, protocols) == len(train) + len(test) + views * len(train)


def test_the_fraction_of_features_done_rises_to_one(evaluator):
    steps, done = [], []
    images_encoded(evaluator, ["geometry/v1"], on_start=steps.append, on_progress=done.append)
    assert steps == ["features", "geometry/v1"]
    assert done == sorted(done)
    assert 0 < done[0] < done[-1] == 1
