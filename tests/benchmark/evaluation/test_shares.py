"""Replies watched client by client: class shares are found in them, masks hide them, the run does not change."""

import pytest
import torch

from benchmark.errors import ConfigError
from benchmark.evaluation.shares import as_vector, observe_replies
from benchmark.experiment.factory import local_training
from datamodules.federated import FederatedDataModule
from eval.features import EvalError
from eval.shares import shares
from methods import trees
from tests import run_helpers

EVERYONE = "federation.participation=1"
SKEWED = ("partition.name=dirichlet", "partition.alpha=0.2", "data.options={examples: 300, classes: 3}", EVERYONE)


def observed(tmp_path, method, *overrides):
    run = run_helpers.train_run(tmp_path, method, *overrides)
    return run, observe_replies(run.loop, run.data, local_training(run.config))()


@pytest.mark.parametrize(
    ("method", "entries"),
    [
        ("fedavg", {"weights"}),
        ("fedsc", {"R", "weights"}),
        ("flesd", {"similarity"}),
        ("scaffold", {"delta_w", "delta_c"}),
        ("orchestra", {"weights", "centroids"}),
        ("fedema", {"weights"}),
        ("ldawa", {"weights"}),
        ("ssd", {"weights"}),
        ("fedu2", {"delta", "running"}),
        ("calibre", {"weights", "weight"}),
    ],
)
def test_every_client_of_the_cohort_is_seen_beside_one_of_each_class(method, entries, tmp_path):
    run, seen = observed(tmp_path, method, EVERYONE)
    assert set(seen.replies) == set(seen.references) == entries
    clients = len(run.loop.cohort(0))
    for entry in entries:
        assert seen.replies[entry].shape == (clients, seen.references[entry].shape[1])
        assert len(seen.references[entry]) == 3
    assert seen.shares.shape == (clients, 3)
    torch.testing.assert_close(seen.shares.sum(dim=1), torch.ones(clients, dtype=torch.float64))
    assert shares(seen)[0].keys() >= {"distance", "distance_blind"}


def test_fedscs_matrices_are_the_mix_of_their_classes(tmp_path):
    """R is a mean over images: that of a client is nearly the mix of the matrices of its classes."""
    _, seen = observed(tmp_path, "fedsc", *SKEWED)
    scores, _ = shares(seen)
    assert scores["distance_R"] < 0.5 * scores["distance_blind"]
    _, noisy = observed(tmp_path / "noisy", "fedsc", *SKEWED, "method.sigma=1")
    assert shares(noisy)[0]["distance_R"] > scores["distance_R"]


def test_what_the_client_was_sent_is_taken_off(tmp_path):
    """At learning rate 0 the weights do not move, and what is left are BatchNorm's statistics."""
    words = ("optimizer.lr=0", "optimizer.momentum=0", "encoder.norm=group", "heads.head_norm=false", EVERYONE)
    _, seen = observed(tmp_path, "fedavg", *words)
    assert not seen.replies["weights"].any()
    with pytest.raises(EvalError, match="nothing but zeros"):
        shares(seen)


def test_rows_count_by_their_mean_product():
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    expected = (rows.T @ rows / 2).flatten()
    assert torch.equal(as_vector({"rows": rows}, {}, is_rows=True), expected)
    assert torch.equal(as_vector({"rows": rows.flip(0)}, {}, is_rows=True), expected)
    assert torch.equal(as_vector({"w": rows, "n": torch.tensor(3)}, {"w": rows}, is_rows=False), torch.zeros(4))


def test_masked_entries_are_not_seen(tmp_path):
    _, seen = observed(tmp_path, "fedsc", EVERYONE, "privacy.secure_sums=true")
    assert set(seen.replies) == {"R"}


def test_the_run_is_left_as_it_was_and_a_second_time_sees_the_same(tmp_path):
    run, first = observed(tmp_path, "fedema", EVERYONE)
    before = run_helpers.state(run)
    before = {**before, "server": trees.clone(before["server"])}
    again = observe_replies(run.loop, run.data, local_training(run.config))()
    assert run_helpers.same(run_helpers.state(run), before)
    assert torch.equal(first.replies["weights"], again.replies["weights"])
    assert torch.equal(first.references["weights"], again.references["weights"])
    assert {file.name for file in run.loop.client_state.folder.parent.iterdir()} == {"memory", "state.pt"}


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (("local",), "the server sees no reply of a single client of Local"),
        (("fedavg", "privacy.secure_sums=true"), "the server sees no reply of a single client of FedAvg"),
        (("ssd", "partition.clients=2"), "it takes a client for each of 3 classes, and the run has 2"),
        (("flesd", "federation.encoders=HALF"), "clients of several architectures send replies"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_shows_no_single_reply_is_refused_before_the_run(case, reason, tmp_path):
    method, *words = case
    half = "{narrow: {clients: [0, 1], class: methods.networks.convnet, widths: [4, 8], strides: [2, 2]}}"
    words = [*(word.replace("HALF", half) for word in words), "evaluation.protocols=[shares/v1]"]
    with pytest.raises(ConfigError, match=f"shares/v1: {reason}"):
        run_helpers.build_run(tmp_path, method, *words)


def test_clients_over_other_images_leave_the_data_as_it_is(tmp_path):
    data: FederatedDataModule = run_helpers.build_run(tmp_path, "fedavg").data
    largest, before = data.largest, len(data.parts)
    rows = [data.parts[0][:2], data.parts[0][:3]]
    other = data.of_clients(data.source, rows)
    assert (other.largest, len(other.parts)) == (3, 2)
    assert (data.largest, len(data.parts)) == (largest, before)


def test_a_run_scores_it_and_draws_it(tmp_path):
    record, run = run_helpers.execute_run(tmp_path, "fedsc", EVERYONE, "evaluation.protocols=[shares/v1]")
    assert record["scores"]["shares/v1"]["distance"] <= 1
    assert (run.folder / "figures" / "shares.png").is_file()
