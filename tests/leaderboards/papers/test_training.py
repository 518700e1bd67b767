"""How the papers trained: every compared number names it, and ours is trained like it."""

import pytest
import yaml

from leaderboards.papers.tables import collect, read
from leaderboards.papers.training import FIELDS, Given, differences
from leaderboards.papers.verdicts import OPEN, judged
from leaderboards.schema import RecordError
from tests.leaderboards.papers.test_tables import paper
from tests.leaderboards.papers.test_verdicts import published, runs

VIEWS = {"crop_scale": [0.2, 1.0], "flip": 0.5, "jitter_p": 0.0, "blur": 0.0}
WHOLE = {
    **{"optimizer": "SGD", "lr": 0.1, "sgd_momentum": 0.9, "weight_decay": 1e-4, "schedule": "constant"},
    **{"loss_temperature": 0.5, "augmentation": VIEWS, "head": [64, 32]},
}
SETTINGS = {
    **{"optimizer.class": "torch.optim.SGD", "optimizer.lr": 0.1, "optimizer.momentum": 0.9},
    **{"optimizer.weight_decay": 1e-4, "schedule.name": "constant", "objective.temperature": 0.5},
    **{"heads.projector": [64, 32]} | {f"views.{name}": value for name, value in VIEWS.items()},
}


def given(**values):
    return {key: Given(value, "paper", "*") for key, value in values.items()}


@pytest.fixture
def read_training(tmp_path):
    """The first cell of a paper that trained like this."""

    def reading(training):
        content = paper(scenario="s", row="fedavg", score="knn/v1 accuracy") | {"training": training}
        (tmp_path / "p.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return read(tmp_path / "p.yaml")[0]

    return reading


@pytest.fixture(scope="module")
def compared():
    """The cells of all papers that a run of ours is meant for."""
    return [cell for cell in collect() if cell.ours]


def test_a_run_that_trains_like_the_paper_differs_in_nothing():
    """Strengths of parts that are off, and what is open or does not apply, do not count."""
    assert set(WHOLE) == set(FIELDS)
    off = {"views.jitter": [0.4, 0.4, 0.4, 0.1], "views.blur_kernel": 3}
    weak = {"views.jitter": [0.0, 0.0, 0.0, 0.0], "views.jitter_p": 0.8}
    for settings in (SETTINGS, {**SETTINGS, **off}, {**SETTINGS, **weak}):
        assert not list(differences(given(**WHOLE), settings))
    unknown = {"lr": Given("not said", "open", "*"), "loss_temperature": Given(None, "paper", "*")}
    assert not list(differences({**given(**WHOLE), **unknown}, {**SETTINGS, "optimizer.lr": 9.0}))


@pytest.mark.parametrize(
    ("field", "other", "said"),
    [
        ("optimizer.class", "torch.optim.Adam", "optimizer Adam, not SGD"),
        ("optimizer.lr", 0.2, "lr 0.2, not 0.1"),
        ("optimizer.momentum", 0.0, "sgd_momentum 0.0, not 0.9"),
        ("optimizer.weight_decay", 0.0, "weight_decay 0.0, not 0.0001"),
        ("schedule.name", "cosine", "schedule cosine, not constant"),
        ("objective.temperature", 0.1, "loss_temperature 0.1, not 0.5"),
        ("heads.projector", [64], "head [64], not [64, 32]"),
        ("objective.projector", [8], "head [8], not [64, 32]"),  # an objective's own goes before the scenario's
        ("views.flip", 0.0, "augmentation crop_scale [0.2, 1.0], not crop_scale [0.2, 1.0], flip 0.5"),
        ("views.grayscale", 0.2, "augmentation crop_scale [0.2, 1.0], flip 0.5, grayscale 0.2, not crop_scale"),
        ("views.crop_scale", [0.08, 1.0], "augmentation crop_scale [0.08, 1.0], flip 0.5, not crop_scale"),
    ],
)
def test_every_setting_of_training_is_compared(field, other, said):
    (line,) = differences(given(**WHOLE), {**SETTINGS, field: other})
    assert line.startswith(said)
    cell = published(50.0, training=given(**WHOLE))
    (verdict,) = judged([cell], runs(50.0, **{**SETTINGS, field: other}))
    assert (verdict.kind, verdict.why) == (OPEN, f"run at another setting: {line}")


def test_a_later_pattern_replaces_what_an_earlier_one_gave_and_a_reason_is_compared_with_nothing(read_training):
    training = {"*": {**WHOLE, "lr": {"code": 0.3}}, "s fed*": {"head": {"open": "not said"}}, "* fedavg": {"lr": 0.2}}
    cell = read_training(training)
    assert cell.training["lr"] == Given(0.2, "paper", "* fedavg")
    assert cell.training["head"] == Given("not said", "open", "s fed*")
    assert cell.training["augmentation"] == Given(VIEWS, "paper", "*")
    assert cell.ours.scenario == "s"
    cell = read_training({"*": {**WHOLE, "lr": {"converted": 0.025}, "augmentation": {"differs": "a recipe a view"}}})
    assert cell.training["lr"] == Given(0.025, "converted", "*")
    (line,) = differences(cell.training, {**SETTINGS, "optimizer.lr": 0.1, "views.flip": 0.25})
    assert line == "lr 0.1, not 0.025"


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({}, "r, a: training has no optimizer for s fedavg: give the paper's value, "),
        ({"*": {key: value for key, value in WHOLE.items() if key != "head"}}, "training has no head for s fedavg"),
        ({"*": WHOLE, "s ssd": {"lr": 1}}, "p.yaml: training pattern 's ssd' sets nothing for any scenario and row"),
        ("open", "p.yaml: training is 'open', expected a mapping"),
        ({"*": {**WHOLE, "lr": {"cod": 0.1}}}, "lr is {'cod': 0.1}; give a number, {code: ...}, {open: why}, "),
        ({"*": {**WHOLE, "lr": {"code": 0.1, "open": "x"}}}, "lr is {'code': 0.1, 'open': 'x'}; give a number"),
        ({"*": {**WHOLE, "lr": "fast"}}, "lr is 'fast'; give a number"),
        ({"*": {**WHOLE, "lr": {"code": None}}}, "lr is None; give a number"),
        ({"*": {**WHOLE, "head": {"open": None}}}, "head is None; give words"),
        ({"*": {**WHOLE, "head": 512}}, "head is 512; give a list of widths"),
        ({"*": {**WHOLE, "rate": 1}}, "training *: rate is unknown; there are optimizer, lr"),
        ({"*": 0.1}, "training *: 0.1 is not a mapping"),
    ],
)
def test_what_is_not_named_is_asked_for(read_training, training, said):
    with pytest.raises(RecordError) as error:
        read_training(training)
    assert said in str(error.value)


def test_every_compared_number_of_the_papers_names_its_training(compared):
    assert len(compared) > 500
    assert all(set(cell.training) >= set(FIELDS) for cell in compared)
    sources = {source for cell in compared for _, source, _ in cell.training.values()}
    assert sources == {"paper", "code", "converted", "open", "differs"}


CONSTANTS = {  # of the methods, read in the same places
    ("fedx/cifar10", "fedx-simclr"): {"method.temperature": 0.1, "method.global_relation": 1, "heads.predictor": 256},
    ("fedx/cifar10", "fedx-local"): {"method.temperature": 0.1, "method.global_relation": 0},
    ("flesd/cifar10-a1", "flesd"): {"method.teacher_temperature": 0.1, "method.anchors": 2048, "public.name": "client"},
    ("flesd/cifar100-a1", "flesd-cifar10-1"): {"method.anchors": 256, "public.name": None},
    ("orchestra/cifar10-cross-device", "orchestra"): {"objective.clusters": 32, "objective.momentum": 0.996},
    ("orchestra/cifar100-cross-silo", "orchestra"): {"method.local_clusters": 16, "objective.momentum": 0.99},
    ("orchestra/cifar10-cross-device", "orchestra-no-rotation"): {"objective.rotation_weight": 0},
    ("ssd/cifar10-cross-silo", "ssd"): {"method.alpha": 10, "method.pd_weight": 0.1, "objective.uniform_weight": 1},
}


def test_the_files_have_the_constants_of_the_methods_and_compare_them(compared):
    for place, constants in CONSTANTS.items():
        cells = [cell for cell in compared if cell.ours[:2] == place]
        assert cells, place
        for cell in cells:
            found = {key: cell.training[key] for key in constants}
            assert {key: value for key, (value, *_) in found.items()} == constants, place
            other = {key: "another" for key, value in constants.items() if value is not None}
            assert len(list(differences(found, {**constants, **other}))) == len(other), place


def test_a_constant_is_a_number_a_switch_or_words(read_training):
    cell = read_training({"*": {**WHOLE, "method.target": {"code": False}, "method.basis": "qr"}})
    settings = {**SETTINGS, "method.target": True, "method.basis": "qr"}
    assert list(differences(cell.training, settings)) == ["method.target True, not False"]
    with pytest.raises(RecordError, match=r"method.target is \[1\]; give a number, true, false or words, {code"):
        read_training({"*": {**WHOLE, "method.target": [1]}})


FACTS = {  # read in the papers and their codes; Orchestra's loss of BYOL is a quarter of ours
    ("fedx/cifar10", "fedx-simclr"): ("SGD", 0.01, 0.9, 1e-5, "constant", 0.1),
    ("flesd/cifar10-a1", "fedavg"): ("Adam", 1e-3, None, 1e-6, "constant", 0.4),
    ("orchestra/cifar10-cross-device", "orchestra"): ("SGD", 0.003, 0.9, 1e-4, "constant", 0.1),
    ("orchestra/cifar10-cross-silo", "orchestra"): ("SGD", 0.01, 0.9, 1e-4, "constant", 0.1),
    ("orchestra/cifar10-cross-device", "fedavg-simclr"): ("SGD", 0.003, 0.9, 1e-4, "constant", 0.1),
    ("orchestra/cifar10-cross-device", "fedavg-simsiam"): ("SGD", 0.01, 0.9, 1e-4, "constant", None),
    ("orchestra/cifar10-cross-device", "fedavg-byol"): ("SGD", 0.01 / 4, 0.9, 4 * 1e-4, "constant", None),
    ("orchestra/cifar10-cross-silo", "fedu"): ("SGD", 0.03 / 4, 0.9, 4 * 1e-4, "constant", None),
    ("ssd/cifar10-cross-silo", "ssd"): ("SGD", 0.2 * 128 / 256, 0.9, 1e-4, "constant", None),
}


def test_the_files_have_the_facts_of_the_papers(compared):
    for place, facts in FACTS.items():
        trained = [cell.training for cell in compared if cell.ours[:2] == place]
        assert {tuple(training[key].value for key in list(FIELDS)[:6]) for training in trained} == {facts}, place
