from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch.nn.functional import normalize

from methods import trees
from methods.maths import byol_regression, nt_xent
from methods.networks import batch_statistics
from tests.methods.contract import WEIGHTS, InterfaceContract
from tests.methods.toys import EVERYONE, embedded, replies, shown
from tests.run_helpers import build_run, collect_visits, difference, same

QUICK = ("method.base_epochs=2",)
D = 8
"""Width of an embedding in the tiny scenario."""


class TestFedCA(InterfaceContract):
    method = "fedca"
    overrides = QUICK
    choices = (
        "server_optimizer.class=methods.server.Adam", "method.dictionary=0", "method.dictionary=2",
        "method.alignment=0.5", "method.base_epochs=3",
    )  # fmt: skip
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
        expected, last = {}, 0
        for round in range(3):
            cohort = unbroken.loop.cohort(round)
            expected |= {(round, phase, way, "weights"): len(cohort) * WEIGHTS for phase, way in FITS}
            expected[round, "fit", "down", "base"] = len(cohort) * 4 * D * len(unbroken.data.public)
            if last:
                expected[round, "fit", "down", "dictionary"] = len(cohort) * last
            images = sum(unbroken.loop.clients[k].examples for k in cohort)
            last = expected[round, "share", "up", "dictionary"] = 4 * D * images
        assert unbroken.loop.ledger.lines == expected

    def test_a_client_keeps_its_networks_and_the_server_projections_alone(self, unbroken):
        """No public images and no base model."""
        loop, server = unbroken.loop, unbroken.loop.server
        assert all(set(loop.client_state[client]) == {"stays"} for client in loop.client_state)
        assert set(server) == {"weights", "base", "dictionary"}
        rows = {"base": len(unbroken.data.public), "dictionary": sum(loop.clients[k].examples for k in loop.cohort(2))}
        for entry, count in rows.items():
            assert server[entry]["z"].shape == (count, D)
            torch.testing.assert_close(server[entry]["z"].norm(dim=1), torch.ones(count))


FITS = (("fit", "down"), ("share", "up"))
"""Phase and direction in which the weights travel."""


class TestWithoutAlignment(InterfaceContract):
    variant = True
    method = "fedca"
    overrides = ("method.alignment=0", "method.dictionary=3")
    falls = False

    def test_ledger_equals_a_hand_count(self, unbroken):
        bill = {(*way, "weights"): WEIGHTS for way in FITS} | {("share", "up", "dictionary"): 4 * D * 3}
        expected = {(round, *line): 2 * size for round in range(3) for line, size in bill.items()}
        expected |= {(round, "fit", "down", "dictionary"): 2 * (2 * 3 * 4 * D) for round in (1, 2)}
        assert unbroken.loop.ledger.lines == expected
        assert unbroken.data.public is None
        assert [client.id for client in unbroken.loop.clients] == [0, 1, 2, 3]


# --- the base model


def by_networks(run, weights, client=None):
    """The projections of the public images, or of a client's, without augmentation."""
    run.loop.method.load(weights)
    return normalize(embedded(run.loop.method, shown(run, "plain", client=client).views[0]), dim=1)


def test_the_base_model_is_trained_on_the_public_images_alone_and_its_projections_are_sent(tmp_path):
    run = build_run(tmp_path, "fedca", "method.base_epochs=3", "federation.rounds=1", EVERYONE)
    seen = collect_visits(run, lambda d: (d.visit, trees.clone(d.visit.message), trees.clone(d.message), d.images))
    run.loop.restore()
    start = trees.clone(run.loop.server["weights"])
    line = run.loop.run_round(0)
    ((visit, received, sent, images),) = (each for each in seen if each[0].phase.name == "base")
    assert visit.client.id < 0
    assert line["server_images"] == images == 3 * len(run.data.public)
    assert same(received["weights"], start)
    assert difference(sent["trained"], start) > 1e-3
    by_hand = by_networks(run, sent["trained"])
    fits = [received for visit, received, *_ in seen if visit.phase.name == "fit"]
    assert len(fits) == 3
    for received in fits:
        torch.testing.assert_close(received["base"]["z"], by_hand)
        assert same(received["weights"], start)


def test_the_loss_with_alignment_by_hand(tmp_path):
    """The term is the distance of a step's public images, which BatchNorm normalises by themselves."""
    method = build_run(tmp_path, "fedca", "method.alignment=0.7", *QUICK).loop.method.train()
    x, target = torch.randn(6, 3, 8, 8), normalize(torch.randn(6, D), dim=1)
    dictionary = normalize(torch.randn(5, D), dim=1)
    method.context = {"public": {"x": x}, "base": {"z": target}, "dictionary": {"z": dictionary}}
    out = method.objective(torch.randn(4, 3, 8, 8), torch.randn(4, 3, 8, 8))
    before = trees.clone(method.statistics())
    found = method.loss(out, SimpleNamespace(draws={"public": {"rows": torch.tensor([5, 0, 3])}}))
    with batch_statistics(method.objective):
        z = method.objective.embed(x[[5, 0, 3]])[1]
    plain = nt_xent(*out.embeddings, method.objective.temperature, "full", dictionary)
    by_hand = plain + 0.7 * byol_regression(z, target[[5, 0, 3]])
    assert float(found.detach()) == pytest.approx(float(by_hand.detach()), rel=1e-6)
    assert same(method.statistics(), before)
    found.backward()
    assert all(value.grad is not None for value in method.objective.parameters())
    assert target.grad is None


def test_a_step_embeds_as_many_public_images_as_the_batch_has(tmp_path):
    method = build_run(tmp_path, "fedca").loop.method
    method.context = {"public": {"x": torch.zeros(6, 3, 8, 8)}}
    for size in (4, 9):
        batch = SimpleNamespace(index=torch.arange(size), views=(torch.zeros(size, 3, 8, 8),) * 2)
        rows = method.draw_fit(batch, torch.Generator().manual_seed(size))["public"]["rows"]
        assert len(set(rows.tolist())) == len(rows) == min(size, 6)


# --- the dictionary


@pytest.mark.parametrize("limit", [None, 24])
def test_the_dictionary_is_what_the_trained_networks_make_of_the_clients_images(limit, tmp_path):
    """Of so many different ones at most."""
    own = (f"method.dictionary={limit}",) if limit else ()
    run = build_run(tmp_path, "fedca", *QUICK, EVERYONE, *own, "federation.rounds=1")
    seen = replies(run, "share")
    run.loop.fit()
    seen.sort(key=lambda reply: reply[0].client.id)
    assert [visit.client.id for visit, _ in seen] == [1, 2, 3]
    for visit, sent in seen:
        by_hand, z = by_networks(run, sent["weights"], visit.client.id), sent["dictionary"]["z"]
        assert len(z.unique(dim=0)) == len(z) == min(limit or 100, visit.client.examples)
        nearest = (z[:, None] - by_hand).norm(dim=2).min(dim=1)
        assert nearest.values.max() < 1e-4
        assert limit or nearest.indices.tolist() == [*range(len(z))]
    assert len({len(sent["dictionary"]["z"]) for _, sent in seen}) > 1
    assert torch.equal(run.loop.server["dictionary"]["z"], torch.cat([sent["dictionary"]["z"] for _, sent in seen]))
