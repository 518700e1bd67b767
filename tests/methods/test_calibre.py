import math
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

from methods import trees
from methods.calibre import LEAST
from methods.maths import cluster_divergence, cluster_means, k_means, prototype_classification, prototype_contrast
from tests.methods.contract import WEIGHTS, MethodContract
from tests.methods.toys import first_round
from tests.run_helpers import difference, trained

PLAIN = "method.contrast_weight=0 method.meta_weight=0"
ALONE = "partition.clients=1 federation.participation=1"


class TestCalibre(MethodContract):
    method = "calibre"
    choices = ("method.contrast_weight=0", "method.meta_weight=0", "method.aggregation=mean", "method.clusters=3")
    equals = (
        (f"{PLAIN} method.aggregation=mean", "fedavg", "state"),
        (f"{PLAIN} {ALONE}", f"fedavg {ALONE}", "weights"),
    )
    refused: ClassVar = {
        "objective=rotation": "Rotation has not: choose another objective",
        "method.aggregation=x": "divergence or mean",
        "method.clusters=1": "clusters=1: give a number of at least 2",
        "method.temperature=0": "above 0",
    }

    def bill(self, run):
        measured = {("measure", "up", "weights"): WEIGHTS, ("measure", "up", "weight"): 4}
        return {("fit", "down", "weights"): WEIGHTS, **measured}

    @pytest.mark.parametrize("weighting", ["examples", "clients"])
    def test_the_mean_weighs_by_images_over_divergence_on_plain_images(self, tmp_path, weighting):
        """The divergence is that of the client's trained encoder."""
        words = ("calibre", f"method.weighting={weighting}", "federation.participation=1")
        run, _, sent = first_round(tmp_path, *words, phase="measure")
        counts = [visit.client.examples if weighting == "examples" else 1 for visit, _ in sent]
        shares = [count / visit.notes["divergence"] for count, (visit, _) in zip(counts, sent, strict=True)]
        mean = trees.map(torch.zeros_like, sent[0][1]["weights"])
        for share, (_, message) in zip(shares, sent, strict=True):
            mean = trees.add(mean, message["weights"], share / sum(shares))
        assert difference(run.loop.server["weights"], mean) < 1e-6
        assert len(set(shares)) == 4
        assert min(visit.notes["divergence"] for visit, _ in sent) > LEAST
        visit, message = sent[0]
        encoder = run.evaluator.encoder(message["weights"], recalibrated=False)
        images = run.data.source.train.images[run.data.parts[visit.client.id]]
        rows = F.normalize(run.evaluator.extract(encoder, images), dim=1)
        stream = run.loop.streams.generator("method", round=0, phase="measure", client=visit.client.id)
        centres, nearest = k_means(rows, min(10, len(rows) // 2), stream, iterations=10)
        assert visit.notes["divergence"] == pytest.approx(float(cluster_divergence(rows, centres, nearest)), rel=1e-4)

    @pytest.mark.parametrize("words", ["method.stays=[projector]", "objective=byol", "objective=moco"])
    def test_over_other_objectives_and_with_a_personal_projector(self, words):
        server = trained("calibre", words, "federation.rounds=2").loop.server
        assert all(leaf.isfinite().all() for _, leaf in trees.leaves(server))
        assert ("projector" in server["weights"]) == ("stays" not in words)


# --- the terms against slow retellings


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_means_of_clusters_and_which_are_empty():
    rows = normal(5, 3)
    means, valid = cluster_means(rows, F.one_hot(torch.tensor([0, 2, 0, 2, 2]), 3).double())
    by_hand = torch.stack([rows[[0, 2]].mean(0), torch.zeros(3).double(), rows[[1, 3, 4]].mean(0)])
    torch.testing.assert_close(means, by_hand)
    assert valid.tolist() == [True, False, True]


def test_the_contrast_of_prototypes_retold():
    first, second, valid = normal(4, 3), normal(4, 3, seed=1), torch.tensor([True, False, True, True])
    vectors = [F.normalize(rows[c], dim=0) for rows in (first, second) for c in (0, 2, 3)]
    terms = []
    for i, anchor in enumerate(vectors):
        scores = [float(anchor @ other) / 0.5 for other in vectors]
        others = math.log(sum(math.exp(score) for j, score in enumerate(scores) if j != i))
        terms.append(others - scores[(i + 3) % 6])
    assert float(prototype_contrast(first, second, valid, 0.5)) == pytest.approx(sum(terms) / 6)


def test_the_classification_among_prototypes_retold():
    queries, prototypes = normal(4, 3), normal(3, 3, seed=1)
    assigned, valid = [0, 1, 2, 0], torch.tensor([True, False, True])
    terms = []
    for query, own in zip(F.normalize(queries, dim=1), assigned, strict=True):
        if own == 1:
            continue  # its cluster has no prototype
        logits = {c: -float((query - F.normalize(prototypes[c], dim=0)).square().sum()) for c in (0, 2)}
        terms.append(math.log(sum(map(math.exp, logits.values()))) - logits[own])
    found = prototype_classification(queries, prototypes, torch.tensor(assigned), valid)
    assert float(found) == pytest.approx(sum(terms) / 3)


def test_with_fewer_than_two_prototypes_there_is_nothing_to_tell_apart():
    for valid in ([False, False], [True, False]):
        rows, chosen = normal(2, 3).requires_grad_(), torch.tensor(valid)
        loss = prototype_contrast(rows, rows.detach(), chosen, 0.5)
        loss = loss + prototype_classification(rows, rows.detach(), torch.tensor([0, 1]), chosen)
        loss.backward()
        assert float(loss.detach()) == pytest.approx(0, abs=1e-12)
        assert rows.grad.isfinite().all()


def test_the_divergence_retold_and_k_means_starts_at_the_rows_it_is_given():
    rows, centres, nearest = normal(5, 3), normal(3, 3, seed=1), [0, 2, 0, 2, 2]
    distances = {c: [float((rows[i] - centres[c]).norm()) for i in range(5) if nearest[i] == c] for c in (0, 2)}
    by_hand = sum(sum(each) / len(each) for each in distances.values()) / 2
    assert float(cluster_divergence(rows, centres, torch.tensor(nearest))) == pytest.approx(by_hand)
    starts = torch.randperm(5, generator=torch.Generator().manual_seed(5))[:3]
    drawn, given = k_means(rows, 3, torch.Generator().manual_seed(5)), k_means(rows, 3, starts=starts)
    assert all(map(torch.equal, drawn, given))
