"""Replies watched client by client: class shares are found in them, masks hide them, the run does not change."""

import copy
from unittest.mock import Mock

import pytest
import torch

from benchmark.errors import ConfigError, DivergedError
from benchmark.evaluation.inversion import observe_step, step_unavailable
from benchmark.evaluation.shares import as_vector, observe_replies
from benchmark.federation.loop import FederatedLoop
from eval.features import EvalError
from eval.shares import shares
from methods import trees
from tests import run_helpers

EVERYONE = "federation.participation=1"
SKEWED = ("partition.name=dirichlet", "partition.alpha=0.2", "data.options={examples: 300, classes: 3}", EVERYONE)


def observed(method, *overrides):
    """A run that others may share, and what the server sees of its last round."""
    run = run_helpers.trained(method, *overrides)
    return run, observe_replies(run.loop, run.data)()


@pytest.mark.parametrize(
    ("method", "entries"),
    [
        ("fedavg", {"weights"}),
        ("fedsc", {"R", "weights"}),
        ("flesd method.distil_epochs=1", {"similarity"}),
        ("scaffold", {"delta_w", "delta_c"}),
        ("orchestra method.server_steps=5", {"weights", "centroids"}),
        *((method, {"weights"}) for method in ("fedema", "ssd")),
        *(pytest.param(method, {"weights"}, marks=pytest.mark.long) for method in ("ldawa", "calibre")),
        ("fedu2", {"delta", "running"}),
    ],
)
def test_every_client_of_the_cohort_is_seen_beside_one_of_each_class(method, entries):
    run, seen = observed(*method.split(), EVERYONE)
    assert set(seen.replies) == set(seen.references) == entries
    clients = len(run.loop.cohort(0))
    for entry in entries:
        assert seen.replies[entry].shape == (clients, seen.references[entry].shape[1])
        assert len(seen.references[entry]) == 3
    assert seen.shares.shape == (clients, 3)
    torch.testing.assert_close(seen.shares.sum(dim=1), torch.ones(clients, dtype=torch.float64))
    assert shares(seen)[0].keys() >= {"distance", "distance_blind"}


def test_fedscs_matrices_are_the_mix_of_their_classes():
    """R is a mean over images: that of a client is nearly the mix of the matrices of its classes."""
    scores, noisy = (shares(observed("fedsc", *SKEWED, *more)[1])[0] for more in ((), ("method.sigma=1",)))
    assert scores["distance_R"] < 0.5 * scores["distance_blind"]
    assert noisy["distance_R"] > scores["distance_R"]


def test_what_the_client_was_sent_is_taken_off():
    """At learning rate 0 weights without BatchNorm do not move."""
    words = ("optimizer.lr=0", "optimizer.momentum=0", "encoder.norm=group", "heads.head_norm=false", EVERYONE)
    _, seen = observed("fedavg", *words)
    assert not seen.replies["weights"].any()
    with pytest.raises(EvalError, match="nothing but zeros"):
        shares(seen)


def test_rows_count_by_their_mean_product():
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    expected = (rows.T @ rows / 2).flatten()
    assert torch.equal(as_vector({"rows": rows}, {}, is_rows=True), expected)
    assert torch.equal(as_vector({"rows": rows.flip(0)}, {}, is_rows=True), expected)
    assert torch.equal(as_vector({"w": rows, "n": torch.tensor(3)}, {"w": rows}, is_rows=False), torch.zeros(4))


CASES = [
    *("fedema", "fedsc", "ssd", "fedavg objective=protocl", "fedavg method.stays=[projector]"),
    *("fedavg federation.batch_norm=local", "fedavg compression.name=top-k compression.share=0.1"),
]


@pytest.mark.parametrize("case", CASES)
def test_the_run_is_left_as_it_was_and_after_resuming_the_same_is_seen(case, tmp_path):
    """Not only its state: the next round of the watched run is that of a run that nobody watched."""
    run = run_helpers.train_run(tmp_path / "a", *case.split())
    before = copy.deepcopy(run_helpers.state(run))
    first = observe_replies(run.loop, run.data)()
    if step_unavailable(run.loop) is None:
        observe_step(run.loop, run.data, images=3)()
    assert run_helpers.same(run_helpers.state(run), before)
    assert {file.name for file in run.loop.client_state.folder.parent.iterdir()} <= {"memory", "state.pt"}
    again = run_helpers.build_run(tmp_path / "a", *case.split())
    again.loop.restore()
    second = observe_replies(again.loop, again.data)()
    assert run_helpers.same(first.replies, {entry: second.replies[entry] for entry in first.replies})
    assert run_helpers.same(first.references, {entry: second.references[entry] for entry in first.references})
    assert run_helpers.same(next_replies(run), next_replies(again))


def next_replies(run):
    """Messages of the last round, made once more without anything that watches."""
    sent = {}

    def keep(result):
        sent[result.visit.phase.name, result.visit.client.id] = trees.clone(result.message)

    with run.loop.scratch_copy([run_helpers.OnVisitEnd(keep)]) as scratch:
        scratch.run_round(run.loop.round - 1)
    return sent


def test_what_is_seen_are_the_replies_of_the_last_round():
    run, seen = observed("fedavg", "objective=protocl", EVERYONE)
    start = run.loop.server["weights"]
    sent = next_replies(run)
    for row, client in enumerate(sorted(client for _, client in sent)):
        expected = as_vector(sent["fit", client]["weights"], start, is_rows=False)
        torch.testing.assert_close(seen.replies["weights"][row], expected, atol=0, rtol=0)


def test_the_servers_own_clients_have_random_numbers_of_their_own():
    """With noise far above the matrices, a client's looks like that of no class."""
    _, seen = observed("fedsc", EVERYONE, "method.sigma=100")
    cosines = torch.nn.functional.cosine_similarity(seen.replies["R"][:, None], seen.references["R"][None], dim=2)
    assert cosines.abs().max() < 0.9


@pytest.mark.parametrize("method", ["ssd", "fedsc", "fedema", "orchestra method.server_steps=5"])
def test_fewer_clients_than_classes_and_a_single_round(method):
    _, seen = observed(*method.split(), "partition.clients=2", "federation.rounds=1", EVERYONE)
    for entry, references in seen.references.items():
        assert (len(references), len(seen.replies[entry])) == (3, 2)
        assert len({tuple(row.tolist()) for row in references}) == 3


def test_clients_count_that_sent_all_entries_and_masked_ones_are_not_seen():
    """In FedSC's first round all clients send their matrices, and the cohort its weights."""
    run, seen = observed("fedsc", "federation.rounds=1", "federation.participation=0.5")
    assert set(seen.replies) == {"R", "weights"}
    assert len(seen.replies["R"]) == len(run.loop.cohort(0)) == 2
    assert set(observed("fedsc", EVERYONE, "privacy.secure_aggregation=true")[1].replies) == {"R"}


def test_a_client_of_the_servers_that_diverges_costs_this_score_alone(monkeypatch):
    run, error = run_helpers.trained("fedavg"), DivergedError("the loss of client 0 is nan")
    monkeypatch.setattr("benchmark.federation.loop.check_visit", Mock(side_effect=error))
    with pytest.raises(EvalError, match="shares: the loss of client 0 is nan"):
        observe_replies(run.loop, run.data)()


def test_the_server_does_not_distil(monkeypatch):
    """What it does after the last reply is not needed."""
    run = run_helpers.trained("flesd", "method.distil_epochs=1", "federation.rounds=1")
    played, run_phase = [], FederatedLoop.run_phase

    def watched(self, phase, *arguments):
        played.append(phase.name)
        return run_phase(self, phase, *arguments)

    monkeypatch.setattr(FederatedLoop, "run_phase", watched)
    observe_replies(run.loop, run.data)
    assert played == ["fit", "infer"] * 2


HALF = "{narrow: {clients: [0, 1], class: methods.networks.convnet, widths: [4, 8], strides: [2, 2]}}"


@pytest.mark.parametrize(
    ("method", "override", "reason"),
    [
        ("local", "seed=0", "the server sees no reply of a single client of Local"),
        ("fedavg", "privacy.secure_aggregation=true", "the server sees no reply of a single client of FedAvg"),
        ("flesd", f"federation.encoders={HALF}", "clients have several architectures"),
    ],
)
def test_what_shows_no_single_reply_is_refused_before_the_run(method, override, reason, tmp_path):
    with pytest.raises(ConfigError, match=f"shares/v1: {reason}"):
        run_helpers.build_run(tmp_path, method, override, "evaluation.protocols=[shares/v1]")


def test_clients_over_other_images_leave_the_data_as_it_is():
    data = run_helpers.trained("fedavg").data
    before = data.largest, len(data.parts)
    other = data.of_clients(data.source, [data.parts[0][:2], data.parts[0][:3]])
    assert (other.largest, len(other.parts)) == (3, 2)
    assert (data.largest, len(data.parts)) == before


def test_a_run_scores_it_and_draws_it(tmp_path):
    record, run = run_helpers.execute_run(tmp_path, "fedsc", EVERYONE, "evaluation.protocols=[shares/v1]")
    assert record["scores"]["shares/v1"].keys() >= {"distance", "distance_R", "distance_weights", "main_class"}
    assert (run.folder / "figures" / "shares.png").is_file()
