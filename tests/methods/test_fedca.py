from typing import ClassVar

import pytest
import torch
from torch.nn.functional import normalize

from methods import trees
from methods.maths import byol_regression, nt_xent
from methods.networks import batch_statistics
from tests import run_helpers
from tests.methods.contract import WEIGHTS, InterfaceContract

QUICK = ("method.base_epochs=2",)
EVERYONE = "federation.participation=1"
D = 8
"""Width of an embedding in the tiny scenario."""


def of_round(run, round):
    """The clients of a round."""
    cohort = run.loop.cohort(round)
    return [run.loop.clients[k] for k in cohort]


class TestFedCA(InterfaceContract):
    method = "fedca"
    overrides = QUICK
    choices = ("method.dictionary=0", "method.dictionary=2", "method.alignment=0.5", "method.base_epochs=3")
    equals = (
        ("method.dictionary=0 method.alignment=0", "fedavg", "state"),
        *(  # with an empty dictionary the first round is FedAvg's
            (f"method.alignment=0 {words}", f"fedavg {words}", "weights")
            for words in (f"federation.rounds=1 federation.batch_norm={policy}" for policy in ("average", "local"))
        ),
    )
    refused: ClassVar = {
        "objective=byol": "FedCA adds negatives to SimCLR's, not to BYOL's: set objective=simclr",
        "method.dictionary=-1": "dictionary=-1: give a number of at least 0",
        "method.base_epochs=0": "at least 1",
        "method.stays=[projector]": "has to send the projector",
        "public.name=null": r"public\.name",
    }
    falls = False  # from the second round on there are more negatives

    def test_ledger_equals_a_hand_count(self, unbroken):
        """The dictionary that is received is what the last round's clients have sent."""
        loop, expected = unbroken.loop, {}
        public, last = 4 * D * len(unbroken.data.public), 0
        for round in range(loop.rounds):
            cohort = of_round(unbroken, round)
            expected[round, "fit", "down", "weights"] = len(cohort) * WEIGHTS
            expected[round, "fit", "down", "base"] = len(cohort) * public
            if last:
                expected[round, "fit", "down", "dictionary"] = len(cohort) * last
            last = 4 * D * sum(client.examples for client in cohort)
            expected[round, "share", "up", "weights"] = len(cohort) * WEIGHTS
            expected[round, "share", "up", "dictionary"] = last
        assert loop.ledger.lines == expected

    def test_a_client_keeps_its_networks_and_no_public_images(self, unbroken):
        for client in unbroken.loop.client_state:
            assert set(unbroken.loop.client_state[client]) == {"stays"}

    def test_the_server_keeps_projections_and_no_base_model(self, unbroken):
        server = unbroken.loop.server
        assert set(server) == {"weights", "base", "dictionary"}
        assert server["base"]["z"].shape == (len(unbroken.data.public), D)
        assert len(server["dictionary"]["z"]) == sum(client.examples for client in of_round(unbroken, 2))
        for entry in ("base", "dictionary"):
            torch.testing.assert_close(server[entry]["z"].norm(dim=1), torch.ones(len(server[entry]["z"])))


class TestWithoutAlignment(InterfaceContract):
    variant = True
    method = "fedca"
    overrides = ("method.alignment=0", "method.dictionary=3")
    falls = False

    def test_ledger_equals_a_hand_count(self, unbroken):
        bill = {("fit", "down", "weights"): WEIGHTS, ("share", "up", "weights"): WEIGHTS}
        bill |= {("share", "up", "dictionary"): 4 * D * 3}
        expected = {(round, *line): 2 * size for round in range(3) for line, size in bill.items()}
        expected |= {(round, "fit", "down", "dictionary"): 2 * (2 * 3 * 4 * D) for round in (1, 2)}
        assert unbroken.loop.ledger.lines == expected


# --- identities


def test_without_alignment_all_clients_train_and_there_are_no_public_images(tmp_path):
    run = run_helpers.build_run(tmp_path / "a", "fedca", "method.alignment=0")
    assert run.data.public is None
    assert [client.id for client in run.loop.clients] == [0, 1, 2, 3]
    aligned = run_helpers.build_run(tmp_path / "b", "fedca")
    assert [client.id for client in aligned.loop.clients] == [1, 2, 3]


# --- the base model


def public_images(run):
    (batch,) = run.data.batches(None, ("plain",), 1000, order=None, views=torch.Generator(), device="cpu")
    return batch.views[0]


def test_the_base_model_is_trained_on_the_public_images_alone_and_its_projections_are_sent(tmp_path):
    run = run_helpers.build_run(tmp_path, "fedca", "method.base_epochs=3", "federation.rounds=1", EVERYONE)
    seen = run_helpers.collect_visits(
        run, lambda done: (done.visit, trees.clone(done.visit.message), trees.clone(done.message), done.images)
    )
    run.loop.restore()
    start = trees.clone(run.loop.server["weights"])
    line = run.loop.run_round(0)
    by_phase = {}
    for visit, received, sent, images in seen:
        by_phase.setdefault(visit.phase.name, []).append((visit, received, sent, images))
    ((visit, received, trained, images),) = by_phase["base"]
    assert visit.client.id < 0
    assert images == 3 * len(run.data.public)
    assert line["server_images"] == images
    assert run_helpers.same(received["weights"], start)
    assert run_helpers.difference(trained["trained"], start) > 1e-3
    method = run.loop.method.eval()
    method.load(trained["trained"])
    with torch.no_grad():
        by_hand = normalize(method.objective.embed(public_images(run))[1], dim=1)
    for _, received, _, _ in by_phase["fit"]:
        torch.testing.assert_close(received["base"]["z"], by_hand)
        assert run_helpers.same(received["weights"], start)


def test_the_loss_with_alignment_by_hand(tmp_path):
    """The term is the distance of a step's public images, which BatchNorm normalises by themselves."""
    run = run_helpers.build_run(tmp_path, "fedca", "method.alignment=0.7", *QUICK)
    method = run.loop.method.train()
    x, target = torch.randn(6, 3, 8, 8), normalize(torch.randn(6, D), dim=1)
    dictionary = normalize(torch.randn(5, D), dim=1)
    method.context = {"public": {"x": x}, "base": {"z": target}, "dictionary": {"z": dictionary}}
    views, rows = (torch.randn(4, 3, 8, 8), torch.randn(4, 3, 8, 8)), torch.tensor([5, 0, 3])
    out = method.objective(*views)
    before = trees.clone(method.statistics())
    found = method.loss(out, Step({"public": {"rows": rows}}))
    with batch_statistics(method.objective):
        z = method.objective.embed(x[[5, 0, 3]])[1]
    term = byol_regression(z, target[[5, 0, 3]])
    objective = method.objective
    plain = nt_xent(*out.embeddings, objective.temperature, "full", dictionary)
    assert float(found.detach()) == pytest.approx(float((plain + 0.7 * term).detach()), rel=1e-6)
    assert run_helpers.same(method.statistics(), before)
    found.backward()
    assert all(value.grad is not None for value in method.objective.parameters())
    assert target.grad is None


class Step:
    """A batch of which only the draws are read."""

    def __init__(self, draws):
        self.draws = draws


def test_a_step_embeds_as_many_public_images_as_the_batch_has(tmp_path):
    run = run_helpers.build_run(tmp_path, "fedca")
    method = run.loop.method
    method.context = {"public": {"x": torch.zeros(6, 3, 8, 8)}}
    for size in (4, 9):
        (batch,) = run.data.batches(
            1, ("plain", "plain"), size, order=None, views=torch.Generator(), device="cpu", steps=1
        )
        rows = method.draw_fit(batch, torch.Generator().manual_seed(size))["public"]["rows"]
        assert len(set(rows.tolist())) == len(rows) == min(size, 6)


def test_a_model_that_is_the_base_model_is_aligned(tmp_path):
    run = run_helpers.build_run(tmp_path, "fedca")
    method = run.loop.method.train()
    x = torch.randn(6, 3, 8, 8)
    with batch_statistics(method.objective), torch.no_grad():
        target = normalize(method.objective.embed(x)[1], dim=1)
    method.context = {"public": {"x": x}, "base": {"z": target}}
    out = method.objective(torch.randn(4, 3, 8, 8), torch.randn(4, 3, 8, 8))
    found = method.loss(out, Step({"public": {"rows": torch.arange(6)}}))
    plain = nt_xent(*out.embeddings, method.objective.temperature)
    assert float((found - plain).detach()) == pytest.approx(0, abs=1e-6)


# --- the dictionary


def test_the_dictionary_is_what_the_trained_networks_make_of_the_clients_images(tmp_path):
    run = run_helpers.build_run(tmp_path, "fedca", *QUICK, EVERYONE, "federation.rounds=1")
    seen = run_helpers.collect_visits(
        run, lambda done: (done.visit.client.id, trees.clone(done.message)), phase="share"
    )
    run.loop.fit()
    method = run.loop.method.eval()
    seen.sort(key=lambda visited: visited[0])
    assert [client for client, _ in seen] == [1, 2, 3]
    for client, sent in seen:
        method.load(sent["weights"])
        (batch,) = run.data.batches(client, ("plain",), 1000, order=None, views=torch.Generator(), device="cpu")
        with torch.no_grad():
            by_hand = normalize(method.objective.embed(batch.views[0])[1], dim=1)
        torch.testing.assert_close(sent["dictionary"]["z"], by_hand, atol=1e-5, rtol=1e-4)
    rows = torch.cat([sent["dictionary"]["z"] for _, sent in seen])
    assert torch.equal(run.loop.server["dictionary"]["z"], rows)


def test_a_client_sends_at_most_so_many_different_rows(tmp_path):
    run = run_helpers.build_run(tmp_path, "fedca", *QUICK, EVERYONE, "method.dictionary=24")
    seen = run_helpers.collect_visits(
        run, lambda done: (done.visit.client.examples, done.message["dictionary"]["z"].clone()), phase="share"
    )
    run.loop.fit()
    assert {len(z) < images for images, z in seen} == {True, False}
    for images, z in seen:
        assert len(z.unique(dim=0)) == len(z) == min(24, images)


def test_the_servers_optimiser_steps_towards_the_mean(tmp_path):
    run = run_helpers.train_run(tmp_path, "fedca", *QUICK, "server_optimizer.class=methods.server.Adam")
    assert {"weights", "optimizer", "base", "dictionary"} == set(run.loop.server)
