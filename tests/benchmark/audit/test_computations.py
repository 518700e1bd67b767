"""Our numbers without a run: a sample has its committed values, small forms of long ones hold, faults are found."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmark.audit import regression
from benchmark.audit.computations import fedsc, messages, orchestra
from benchmark.configuration.compose import compose
from leaderboards.papers import computed
from leaderboards.papers.tables import collect
from methods.base import Mail
from methods.lwfedssl import LWFedSSL
from methods.progfedssl import ProgFedSSL
from methods.ssd import SSD

ROOT = Path(__file__).parents[3]
SMALL = ["encoder.class=methods.networks.convnet", "heads.projector=[32,256]", "method.basis=axis"]
"""Overrides for a message of some hundred kilobytes."""
SAMPLE = (
    "partition/classes", "bytes/stages", "formula/", "simulated/orchestra-anonymity", "simulated/fedsc-decomposition",
)  # fmt: skip
"""Computations whose first two cells take less than a second."""


@pytest.fixture(scope="module")
def cells():
    return collect()


def of(cells, name, row=None):
    """The first cell of a computation, with this row."""
    cell = next(each for each in cells if each.computed == name)
    return cell if row is None else replace(cell, row=row)


@pytest.mark.parametrize("name", SAMPLE)
def test_cells_have_their_committed_values(cells, name):
    """A sample; `make regress` computes all but the stored ones."""
    committed = computed.read(ROOT / "leaderboards" / computed.FILE)
    for cell in [each for each in cells if each.computed.startswith(name)][:2]:
        assert computed.of(cell).compute(cell, {}) == pytest.approx(committed[cell.place], abs=1e-9)


def test_every_computation_has_a_cell_and_stored_values_are_kept_as_committed(cells, monkeypatch, tmp_path):
    assert {each.computed for each in cells if each.computed} == computed.COMPUTATIONS.keys()
    stored, of_ssd = of(cells, "simulated/fedsc-rate"), of(cells, "own/ssd-both")
    monkeypatch.setattr(regression, "FOLDER", tmp_path)
    printed = [each for each in cells if each.place.startswith("ssd, ablation")]
    computed.write(tmp_path / computed.FILE, {stored.place: [1.0], of_ssd.place: [7.0], "of no cell": [0.0]})
    assert regression.measured([stored, of_ssd, *printed]) == {stored.place: [1.0], of_ssd.place: [0.0] * 12}


def test_stages_send_fewer_bytes_and_a_method_that_sends_all_layers_is_found(cells, monkeypatch):
    ratio = messages.stages(of(cells, "bytes/stages", "LW-FedSSL"), {})[0]
    assert ratio == pytest.approx(2 * 12 / (6.5 + 1), abs=0.02)  # 12 layers of equal size
    monkeypatch.setattr(LWFedSSL, "trained", lambda self, visit: ProgFedSSL.trained(self, visit))
    assert messages.stages(of(cells, "bytes/stages", "LW-FedSSL"), {})[0] == pytest.approx(2 * 12 / 13, abs=0.02)


def test_ssd_sends_a_vector_once_and_a_later_one_is_found(monkeypatch):
    base = messages.exchanged(compose("reference", "fedavg", SMALL[:2]), 2)
    assert messages.exchanged(compose("reference", "ssd", SMALL), 2) == [base[0] + 256 * 4, base[1]]
    send = SSD.send

    def again(self, server, context):
        mail = send(self, server, context)
        return Mail({**mail.common, "scale": {"d": server["scales"][context.members[0].id]}}, mail.private)

    monkeypatch.setattr(SSD, "send", again)
    assert messages.exchanged(compose("reference", "ssd", SMALL), 2)[1] == base[1] + 256 * 4


def test_swav_exchanges_at_every_whole_batch_or_every_batch():
    config = compose(messages.DEVICE, "orchestra", ["partition.clients=10", "training.epochs=2"])
    config.training.drop_last = True
    assert messages.swav_exchanges(config) == 2 * (5_000 // 16)
    config.training.drop_last = False
    assert messages.swav_exchanges(config) == 2 * (5_000 // 16 + 1)


def test_gamma_has_a_pole_at_three_and_four_clusters_and_the_bound_is_that_of_equation_10(cells, monkeypatch):
    assert orchestra.gamma(3, np.array([0.0, 1.0])) == pytest.approx([1.0, -0.5])
    assert orchestra.gamma(4, np.array([0.0, 1.0])).tolist() == [pytest.approx(0.2), math.inf]
    against = orchestra.orchestra_gamma(of(cells, "formula/orchestra-gamma"), {})
    assert [clusters for clusters, each in zip(orchestra.GLOBAL, against, strict=True) if each] == [3, 4]
    monkeypatch.setattr(orchestra, "gamma", lambda clusters, shares: 1 / (clusters - shares))  # without poles
    assert sum(orchestra.orchestra_gamma(of(cells, "formula/orchestra-gamma"), {})) == 0
    assert orchestra.bound(5, 0.1) == pytest.approx(2 * 0.1 + 4 * 0.01)
    right, wrong = (of(cells, "formula/orchestra-bound", f"bound, equation {number}") for number in (1, 9))
    assert sum(orchestra.orchestra_bound(right, {})) == 0
    assert all(orchestra.orchestra_bound(wrong, {}))


def test_anonymity_is_the_smallest_cluster_and_that_of_an_empty_one_is_a_row(cells, monkeypatch):
    cell = of(cells, "simulated/orchestra-anonymity")
    assert max(orchestra.orchestra_anonymity(cell, {})) < orchestra.BANK / 8

    def one_cluster(rows, clusters, stream):
        return rows[:clusters], torch.zeros(len(rows), dtype=torch.int64)

    monkeypatch.setattr(orchestra, "equal_clusters", one_cluster)
    assert set(orchestra.orchestra_anonymity(cell, {})) == {1.0}


@pytest.fixture
def short(monkeypatch):
    """Two runs of some rounds, of one seed."""
    for name, value in {"SEEDS": 1, "ROUNDS": (4, 16), "IMAGES": 16, "SIZES": (16, 64)}.items():
        monkeypatch.setattr(fedsc, name, value)


def test_the_decomposition_holds_and_a_cross_term_without_its_weight_is_found(cells, monkeypatch):
    value, gradient = (of(cells, "simulated/fedsc-decomposition", row) for row in ("value", "gradient"))
    assert fedsc.decomposition(value, {})[0] < 1e-12
    assert fedsc.decomposition(gradient, {})[0] < 1e-12
    loss = fedsc.FedSC.loss

    def halved(self, out, batch):  # the factor that the paper leaves out
        whole, share = loss(self, out, batch), self.context.get("others")
        if share is None:
            return whole
        R = fedsc.correlation(torch.cat(out.embeddings))
        return whole - self.context["cross"]["weight"] * (R * share["R"]).sum()

    monkeypatch.setattr(fedsc.FedSC, "loss", halved)
    assert fedsc.decomposition(gradient, {})[0] > 0.05


def test_fedsc_converges_and_fedavg_has_a_floor(cells, short, monkeypatch):
    cell = of(cells, "simulated/fedsc-rate")
    assert fedsc.rate(cell, {}) == [0.0]
    assert fedsc.floor(cell, {})[1] == 0.0, "far above FedSC's"
    errors = fedsc.errors
    monkeypatch.setattr(fedsc, "errors", lambda made, rounds, shares, sigma=0.0: errors(made, rounds, False, sigma))
    assert fedsc.rate(cell, {}) == [1.0], "clients that share no matrices"
    assert fedsc.floor(cell, {})[1] == 1.0


def test_what_noise_adds_falls_with_the_images_and_fedavgs_error_does_not(cells, short):
    cell = of(cells, "simulated/fedsc-images")
    assert fedsc.with_images(replace(cell, row="FedSC"), {}) == [0.0]
    assert fedsc.with_images(replace(cell, row="FedAvg"), {}) == [1.0]


def test_mixing_that_rises_is_found_and_is_that_of_a_trained_round(cells, monkeypatch):
    short = ("federation.rounds=2", "training.steps=1", "partition.clients=2", "method.server_steps=1")
    with orchestra.run_of("orchestra", *short) as run:
        assert -1 <= orchestra.mixing_after(run, 0) <= 1
        assert run.loop.server["centroids"]["mu"].norm(dim=1).tolist() == pytest.approx([1.0] * 32)
    values = iter([0.9, 0.8, 0.85, 0.85])
    monkeypatch.setattr(orchestra, "ROUNDS", 4)
    monkeypatch.setattr(orchestra, "mixing_after", lambda *_: next(values))
    assert orchestra.orchestra_mixing(of(cells, "simulated/orchestra-mixing"), {}) == [0.0, 1.0, 0.0]


def test_the_share_of_clustering_is_of_all_steps_of_a_client(cells, monkeypatch):
    times = iter([2.0, 6.2])  # of a step and of a clustering: a client makes 10 epochs of 31 batches
    called = []
    network = "encoder.class=methods.networks.convnet"
    monkeypatch.setattr(orchestra, "compose", lambda name, method, words: compose(name, method, [*words, network]))
    monkeypatch.setattr(orchestra, "seconds", lambda work: called.append(work()) or next(times))
    (percent,) = orchestra.orchestra_clustering(of(cells, "simulated/orchestra-clustering"), {})
    assert percent == pytest.approx(100 * 6.2 / (6.2 + 620))
    assert called[1][0].shape == (8, 512), "the centroids of a client"
