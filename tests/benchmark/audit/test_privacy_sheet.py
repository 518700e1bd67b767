"""The privacy sheet against numbers worked out by hand, on shipped methods and on toys."""

from pathlib import Path
from statistics import fmean

import pytest
import torch

from benchmark.audit import privacy_sheet
from benchmark.configuration.compose import compose
from benchmark.configuration.files import available
from benchmark.configuration.files import read as read_config
from benchmark.configuration.instantiate import arguments, locate
from benchmark.errors import ConfigError
from benchmark.federation import client_state
from benchmark.federation.accountant import Release, epsilon
from benchmark.federation.checkpoint import Checkpoint
from leaderboards.pages.privacy import Entry, filled, read
from methods import trees
from methods.base import Cat, Client, FederatedMethod, Mean, MethodError, Phase, Sum
from tests import run_helpers
from tests.methods import test_measures

ROOT = Path(__file__).parents[3]
COMMITTED = {method.name: method for method in read(ROOT / "leaderboards" / "privacy.json").methods}
SMALL = ("encoder.class=methods.networks.convnet",)

# ResNet-18 with the CIFAR stem: parameters, and running means and variances of its 4,800 channels
RESNET, RUNNING = 11_168_832, 9_600
DEFAULT = 512 * 512 + 2 * 512 + 512 * 256 + 256  # projector 512-512-256, BatchNorm after the first layer
BYOL = 256 * 512 + 2 * 512 + 512 * 256 + 256 + 2 * 512  # the default predictor 256-512-256, with its statistics
FEDX = 512 * 256 + 256 + 256 * 256 + 256  # 512-256-256 without BatchNorm
FEDU2 = 512 * 2048 + 2 * 2048 + 2048 * 512 + 512  # 512-2048-512, as SSD's
FEDU = 512 * 4096 + 2 * 4096 + 4096 * 2048 + 2048  # 512-4096-2048
PREDICTOR = 2048 * 4096 + 2 * 4096 + 4096 * 2048 + 2048
ORCHESTRA = 512 * 512 + 2 * 512 + 512 * 512 + 2 * (512 + 512)  # 512-BN-512-BN without biases, and their statistics
TURNS = 512 * 4 + 4  # its rotation head
FEDSC = 512 * 1024 + 1024 + 1024 * 512 + 512  # 512-1024-512 without BatchNorm
LAYER, EMBEDDING = 12 * 192**2 + 13 * 192, (3 * 4**2 + 1) * 192 + 66 * 192  # of ViT-Tiny
VIT_ENDS = 2 * 192 + 192 * 512 + 4 * 512 + 512 * 256 + 256  # last LayerNorm; default projector with running statistics

BY_HAND = {
    "centralized": {},
    "fedavg": {"weights": RESNET + RUNNING + DEFAULT + 2 * 512},
    "fedca": {"weights": RESNET + RUNNING + DEFAULT + 2 * 512, "dictionary": 5_000 * 256},
    "fedema": {"weights": RESNET + RUNNING + FEDU + PREDICTOR + 4 * 4096},
    "fedmkd": {"model": RESNET + RUNNING + DEFAULT + 2 * 512 + BYOL},
    "fedsc": {"R": 512**2, "weights": RESNET + RUNNING + FEDSC},
    "fedu2": {"delta": RESNET + FEDU2, "running": RUNNING + 2 * 2048, "mean_weight": 1},
    "fedx": {"weights": RESNET + RUNNING + FEDX + 2 * (256 * 256 + 256)},
    "flesd": {"similarity": 5_000**2},
    "lwfedssl": {"weights": (EMBEDDING + 12 * LAYER) / 12 + VIT_ENDS},  # the mean of twelve stages
    "progfedssl": {"weights": EMBEDDING + 6.5 * LAYER + VIT_ENDS},
    "orchestra": {"weights": 2 * (RESNET + RUNNING + ORCHESTRA) + TURNS, "centroids": 8 * 512},
    "ldawa": {"weights": RESNET + RUNNING + 512 * 128 + 128},
    "local": {},
    "scaffold": {"delta_w": RESNET + RUNNING + DEFAULT + 2 * 512, "delta_c": RESNET + DEFAULT},
    "ssd": {"weights": RESNET + RUNNING + FEDU2 + 2 * 2048},
    "untrained": {},
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread_and_no_checkpoints():
    """A dry run is not resumed: the checkpoints and hashes of ResNet-18 would take a third of its time."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "save", lambda self, state: None)
        patch.setattr(client_state, "_hash", lambda content: "0" * 16)
        yield


def test_bytes_are_those_counted_by_hand():
    for name, numbers in BY_HAND.items():
        recorded = {(entry.entry, entry.bytes) for entry in COMMITTED[name].entries}
        assert recorded == {(entry, 4 * count) for entry, count in numbers.items()}, name


@pytest.mark.parametrize(("stages", "layers"), [(12, 1), (4, 3)])
@pytest.mark.parametrize("name", ["lwfedssl", "progfedssl"])
def test_a_model_in_stages_has_its_first_bytes_its_last_and_their_mean(name, stages, layers):
    (entry,) = privacy_sheet.record_method(name, [f"method.stages={stages}"]).entries
    block = layers * LAYER
    sent = [stage * block + EMBEDDING for stage in range(1, stages + 1)]
    if name == "lwfedssl":
        sent = [block + EMBEDDING] * (12 // stages) + [block] * (12 - 12 // stages)
    first, last = (4 * (numbers + VIT_ENDS) for numbers in (sent[0], sent[-1]))
    assert entry.when == f"every round, from {first:,} bytes in round 1 to {last:,} in round 12"
    assert entry.bytes == round(4 * (fmean(sent) + VIT_ENDS))


def test_a_quantised_matrix_is_values_and_columns():
    (entry,) = privacy_sheet.record_method("flesd", ["method.kept=0.01"]).entries
    k = 51  # a hundredth of 5,000 images, and the image itself
    assert entry.bytes == 5_000 * k * (4 + 4)
    assert "the 1 % largest of each row" in entry.protected


def test_every_shipped_method_is_on_the_sheet():
    assert list(COMMITTED) == available("method"), "add what is missing: make pages"


DISTINCT = {"fedavg", "fedsc", "fedu2", "flesd", "orchestra", "scaffold", "ssd"}
"""Methods whose entries are of unlike kinds; those of the others are counted by hand above, and in their contracts."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in DISTINCT else pytest.mark.long) for name in available("method")]
)
def test_the_committed_sheet_is_up_to_date(name):
    assert privacy_sheet.record_method(name) == COMMITTED.get(name), "make pages, or all anew: make privacy"


def test_the_page_is_rendered_from_the_committed_sheet():
    page = (ROOT / "docs" / "reference" / "privacy-sheet.md").read_text()
    assert page == filled(page, read(ROOT / "leaderboards" / "privacy.json")), "python -m benchmark privacy"


PARTS, ROWS = "encoder, projector: {} numbers, {} of them running statistics", "all rows together"
DESCRIBED = [  # an entry of a method: its shape, when it is sent, how it is combined, whether the server needs it alone
    ("fedavg", 0, PARTS.format("11,573,952", "10,624"), "every round", "mean over clients, by their images", False),
    ("fedsc", 0, "512 x 512", "every round, in the first by all clients", "one by one", True),
    ("fedsc", 1, PARTS.format("12,228,544", "9,600"), "every round", "mean over clients, all alike", False),
    ("fedu2", 1, "encoder, projector: 13,696 running statistics", "every round", "mean over clients, by their batches",
     False),
    ("ldawa", 0, PARTS.format("11,244,096", "9,600"), "in rounds 1 to 3", "mean over clients, by their images", False),
    ("ldawa", 1, PARTS.format("11,244,096", "9,600"), "from round 4 on", "mean over clients, weighed by what is in it",
     True),
    ("orchestra", 0, "8 x 512", "once, in round 1, by all clients", ROWS, True),
    ("orchestra", 2, "8 x 512", "every round", ROWS, True),
]  # fmt: skip
KEPT = [
    ("fedavg", (), 0),
    ("scaffold", ("c",), 4 * (RESNET + DEFAULT)),
    ("ssd", ("scale", "basis"), 4 * (512 + 512**2)),
    ("fedu", ("target_encoder", "target_projector", "predictor", "d"),
     4 * (RESNET + RUNNING + FEDU + PREDICTOR + 4 * 4096 + 1)),
]  # fmt: skip


def test_entries_and_the_state_that_stays_with_the_client_are_described_as_by_hand():
    for name, k, *wanted in DESCRIBED:
        entry = COMMITTED[name].entries[k]
        assert [entry.shape, entry.when, entry.combined, entry.alone] == wanted
        assert entry.recurs == (not entry.when.startswith("once"))
    assert [(name, COMMITTED[name].keeps, COMMITTED[name].kept_bytes) for name, *_ in KEPT] == KEPT


def test_compressed_entries_have_the_bytes_that_are_sent_and_what_is_left_out_stays():
    record = privacy_sheet.record_method
    whole, part = (record("fedavg", [*SMALL, *words]) for words in ([], ["compression.name=top-k"]))
    numbers, running = whole.entries[0].bytes // 4, 2 * 992
    sent = round(0.01 * (numbers - running))
    assert f"{numbers:,} numbers, {running:,} of them running" in whole.entries[0].shape
    assert part.entries[0].bytes == 8 * sent + 4 * running
    assert (whole.keeps, whole.kept_bytes) == ((), 0)
    assert (part.keeps, part.kept_bytes) == (("what compression has left out",), 4 * (numbers - running))


def test_noise_on_a_matrix_is_described_with_the_epsilon_of_a_release():
    plain, weights = COMMITTED["fedsc"].entries
    other, _ = privacy_sheet.record_method("fedsc", [*SMALL, "method.sigma=0.002", "privacy.delta=1e-4"]).entries
    for entry, sigma, delta in ((plain, 0.00104, 1e-5), (other, 0.002, 1e-4)):
        cost = epsilon(((Release(sigma * 5_000 / (2**0.5 * 4)), 1),), delta)  # sigma N / (sqrt(2) mu), as in the code
        noise = f"Gaussian noise of {sigma} on every entry; a release costs epsilon {cost:.3g} at delta {delta:g}"
        assert entry.protected == f"mean over the client's images, rows clipped to norm 2, {noise}"
    assert weights.protected is None


def test_clipped_and_noisy_updates_are_described_with_their_epsilon():
    words = ["privacy.mechanism=central", "privacy.clip=2", "privacy.noise_multiplier=1.5"]
    words += ["federation.batch_norm=local"]
    method = privacy_sheet.record_method("fedavg", [*SMALL, *words])
    assert method.keeps == ("running statistics",)
    (weights,) = method.entries
    assert weights.combined == "mean over clients, all alike"
    assert weights.protected == (
        "a client's update clipped to norm 2, Gaussian noise of 3 on the sum, by the server; "
        f"a release costs epsilon {epsilon(((Release(1.5), 1),), 1e-5):.3g} at delta 1e-05"
    )
    (weights,) = privacy_sheet.record_method("fedavg", [*SMALL, *words[:2], "privacy.epsilon=8", words[3]]).entries
    assert weights.protected.endswith(", all together at most 8, at delta 1e-05")
    for entry in privacy_sheet.record_method("scaffold", [*SMALL, *words]).entries:
        assert "together with delta_" in entry.protected
    with pytest.raises(ConfigError, match="noise of its own"):
        privacy_sheet.record_method("fedsc", [*SMALL, *words[:3], "method.sigma=0.01"])


FEW = {
    "orchestra": ["method.local_clusters=4", "method.server_steps=5"],
    "fedca": ["method.dictionary=4", "method.base_epochs=1"],  # clients hold unequal numbers of images
    "flesd": ["method.distil_epochs=1"],
    "flesd-cc": ["method.distil_epochs=1"],
    "flesd-two": ["method.distil_epochs=1", "federation.encoders.half.clients=[3]"],
    "fedu2": ["method.solver=descent"],  # as in its scenario
    "lwfedssl": ["method.stages=1"],  # so that all rounds have the same bytes
    "progfedssl": ["method.stages=1"],
}


SENDING = [name for name in available("method") if name != "centralized"]


@pytest.mark.parametrize(
    "name", [pytest.param(m, marks=pytest.mark.long) if m in test_measures.LIKE_OTHERS else m for m in SENDING]
)
def test_bytes_equal_those_of_a_run_in_which_clients_train(name, tmp_path, monkeypatch):
    """The tiny scenario: its clients hold few images, hence fewer clusters and public images than by default."""
    few = [*FEW.get(name, [])]
    encoder = "encoder={class: methods.networks.convnet, widths: [6, 8], strides: [2, 2]}"
    if "encoder" in read_config("method", name):
        encoder = "encoder={class: tests.methods.vits.small}"
        few += [encoder, "views.size=8"]  # the images of the sheet are larger
    known = arguments(locate(compose("digits", name).objective, "objective"))
    widths = {"projector": "[12,8]", "predictor": "4", "head_norm": "true"}.items()
    heads = [f"heads.{key}={value}" for key, value in widths if key in known]
    run = run_helpers.train_run(tmp_path, name, "federation.rounds=2", "federation.participation=1", *few)
    if run.data.public is not None:
        monkeypatch.setattr(privacy_sheet, "IMAGES", len(run.data.public))
    method = privacy_sheet.record_method(name, [encoder, *heads, *(word for word in few if word != encoder)])
    lines, clients = run.loop.ledger.lines.items(), run.loop.clients
    billed = {(phase, entry): size / len(clients) for (_, phase, way, entry), size in lines if way == "up"}
    assert billed == {(entry.phase, entry.entry): entry.bytes for entry in method.entries}
    assert method.kept_bytes == trees.nbytes(run.loop.client_state.get(clients[0].id, {}))


@pytest.mark.parametrize(
    ("rounds", "cohorts", "words"),
    [
        ([0, 1, 2, 3], ["sampled"] * 4, "every round"),
        ([0, 1, 2, 3], ["all"] * 4, "every round, by all clients"),
        ([0, 1, 2, 3], ["all", *["sampled"] * 3], "every round, in the first by all clients"),
        ([2], ["sampled"] * 4, "once, in round 3"),
        ([1, 2, 3], ["sampled"] * 4, "from round 2 on"),
        ([1, 2], ["sampled"] * 4, "in rounds 2 to 3"),
        ([0, 2], ["sampled"] * 4, "in 2 of 4 rounds"),
    ],
)
def test_rounds_are_described(rounds, cohorts, words):
    entry = Entry("fit", "x", "1 number", 4, "sum", False, None)
    described = privacy_sheet.describe_rounds(entry, rounds, [[Phase("fit", cohort=cohort)] for cohort in cohorts])
    assert described == {"when": words, "recurs": len(rounds) > 1}


def test_rounds_of_one_plan_are_run_once_and_round_0_by_itself():
    plans = {"": [], "a": [0], "aaabab": [0, 1, 1, 3, 1, 3]}
    for letters, instead in plans.items():
        plan = [[Phase("fit", uplink={letter: Sum()})] for letter in letters]
        assert privacy_sheet.representatives(plan) == instead


def test_a_method_outside_the_packages_and_the_extra_exchanges_of_a_batch_norm_policy_are_there():
    recalibrated = [*SMALL, "federation.batch_norm=recalibrate"]
    method = privacy_sheet.record_method("examples/fedexp.yaml", recalibrated)
    weights, norm, statistics = method.entries
    assert method.name == "fedexp"
    assert (norm.entry, norm.shape, norm.bytes) == ("norm", "1 number", 4)
    assert (statistics.phase, statistics.entry) == ("recalibrate", "statistics")
    assert "running statistics" in statistics.shape
    assert "statistics" not in weights.shape
    assert (weights, statistics) == privacy_sheet.record_method("fedavg", recalibrated).entries


class Public(FederatedMethod):
    """Clients send their last rows, then compare public images; the server has a third phase and entry."""

    phases = (
        Phase("rows", work="observe", gather={"h": Cat(last=7), "n": Sum()}, uplink={"rows": Cat()}, views=("plain",)),
        Phase("compare", work="observe", gather={"h": Cat()}, uplink={"likeness": Mean("clients")}, data="public",
              views=("plain",)),
        Phase("distil", where="server", views=("plain",), uplink={"own": Mean("examples")}, data="public"),
    )  # fmt: skip

    def observe(self, batch):
        h = self.objective.encoder(batch.views[0])
        return {"h": {"h": h}, "n": {"n": torch.ones(())}} if self.phase.name == "rows" else {"h": {"h": h}}

    def reply(self, visit):
        if visit.phase.where == "server":
            return {"own": {"x": torch.ones(3)}}, {}
        h = visit.observed["h"]["h"]
        return {"rows": {"h": h}} if visit.phase.name == "rows" else {"likeness": {"S": h @ h.T}}, {}

    def server_workers(self, server):
        return (Client(-1, 5_000),)

    def protections(self):
        return {"likeness": "of public images alone"}


def overrides_for(cls):
    return (*SMALL, f"method.class={cls.__module__}.{cls.__name__}", f"row={cls.__name__.lower()}")


def test_public_images_and_the_last_rows_but_nothing_that_stays_on_the_server():
    rows, likeness = privacy_sheet.record_method("fedavg", overrides_for(Public)).entries
    assert rows.shape == "7 x 256"
    assert (likeness.shape, likeness.bytes) == ("5,000 x 5,000, of public images", 4 * 5_000**2)
    assert likeness.protected == "of public images alone"


class Warm(FederatedMethod):
    """Sends a name once in a warm-up phase, then weights and the filled rows of its queue; keeps one number."""

    warmup = (Phase("hello", work="none", uplink={"name": Sum()}, cohort="all"),)
    phases = (Phase("fit", uplink={"weights": Mean("batches"), "queue": Sum()}),)

    def reply(self, visit):
        if visit.phase.name == "hello":
            return {"name": {"a": torch.zeros(4), "b": torch.zeros(2, 3)}}, {}
        objective = self.objective
        filled = objective.queue[: int(objective.queue_filled)]
        return {"weights": self.weights(), "queue": {"rows": filled}}, {"seen": torch.ones(())}


def test_queues_are_full_and_a_warmup_comes_once():
    method = privacy_sheet.record_method("fedavg", [*overrides_for(Warm), "objective=moco", "objective.queue_size=64"])
    hello, weights, queue = method.entries
    assert (hello.shape, hello.when) == ("a 4 numbers, b 2 x 3", "once, in round 1, by all clients")
    assert weights.combined == "mean over clients, by their batches"
    assert queue.shape.startswith("64 x ")
    assert "seen" in method.keeps


class Undeclared(FederatedMethod):
    def reply(self, visit):
        return {"weights": self.weights(), "secret": {"x": torch.ones(1)}}, {}


class Silent(FederatedMethod):
    phases = (Phase("fit", uplink={"weights": Mean("examples"), "rare": Sum()}),)


@pytest.mark.parametrize(
    ("cls", "line"),
    [
        (Undeclared, "replied with secret, which phase 'fit' does not declare"),
        (Silent, "phase 'fit' declares rare, but a client did not send it in round 1"),
    ],
)
def test_undeclared_and_missing_entries_are_refused(cls, line):
    with pytest.raises(MethodError, match=line):
        privacy_sheet.record_method("fedavg", overrides_for(cls))
