"""The suite computes what the authors' codes do, and a setting that is not theirs shows.

All files: `make parity` and `make long`; here first rounds, and of SSD the first visit.
"""

from pathlib import Path

import pytest
import torch

from benchmark.parity.case import Case
from benchmark.parity.codes import case
from benchmark.parity.compare import Comparison, compare, needed
from benchmark.parity.files import SERVER, read
from benchmark.parity.replay import replay

FOLDER = Path(__file__).parent
DOUBLE = "64-true"
ALL = sorted(file.stem for file in FOLDER.glob("*.json"))


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def of(name: str) -> Case:
    return case(read(FOLDER / f"{name}.json"))


def compared(each: Case, precision: str | None = None) -> list[Comparison]:
    """The comparisons of a case, in its precisions or in one of them."""
    file = each.file
    if precision is not None:
        for other in set(file.sections) - {precision}:
            del file.sections[other]
    return compare(each, {one: replay(each, one, "cpu") for one in needed(file)})


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_it_computes_what_the_authors_code_does(name: str) -> None:
    """L-DAWA, and FedSC but for one number, are compared in `test_command` too."""
    comparisons = compared(of(name))
    assert comparisons
    for comparison in comparisons:
        assert comparison.differences
        assert comparison.beyond == []


@pytest.mark.parametrize(
    ("name", "precision", "clients", "steps"),
    [("feddecorr", DOUBLE, (0, 1, SERVER), [0, 1, 0, 1, 2]), ("ssd", "32-true", (0,), [0, 1, 2])],
)
def test_the_first_round(name: str, precision: str, clients: tuple[int, ...], steps: list[int]) -> None:
    """Steps of these ResNet-18 in float64 take seconds each: of SSD the first client alone, and what it sends."""
    each = first_round(of(name), clients)
    each.absent = 1 if clients == (0,) else None
    (comparison,) = compared(each, precision)
    assert [difference.step for difference in comparison.differences if difference.step is not None] == steps
    assert len(comparison.differences) > 100
    assert comparison.beyond == []


def first_round(each: Case, clients: tuple[int, ...] = (0, 1, SERVER)) -> Case:
    """The case without its further rounds and other clients."""
    for numbers in each.file.sections.values():
        for places in (numbers.losses, numbers.weights):
            for place in [place for place in places if place[0] > 0 or place[1] not in clients]:
                del places[place]
    return with_settings(each, federation__rounds=1)


def with_settings(each: Case, **settings: object) -> Case:
    """The case under other settings, whose dots are spelled as two underscores."""
    own = each.overrides() | {key.replace("__", "."): value for key, value in settings.items()}
    each.overrides = lambda: own  # type: ignore[method-assign]
    return each


SHORT = ("fedsc", "32-true", {"training__clip_norm": 1.0})
MUTANTS = [
    SHORT,
    ("fedsc", "32-true", {"training__clip_norm": 2.9}),
    ("feddecorr", DOUBLE, {"method__weight": 0.11}),
    ("feddecorr", DOUBLE, {"optimizer__momentum": 0.89}),
    ("feddecorr", DOUBLE, {"method__weighting": "clients"}),
    ("feddecorr", DOUBLE, {"training__drop_last": True}),
    ("fedsc", "32-true", {"schedule__name": "cosine"}),
    ("ldawa", "32-true", {"method__statistics": "mean"}),
    ("ssd", "32-true", {"method__weighting": "examples"}),
    ("ssd", "32-true", {"training__views": "joint"}),
    ("fedu-byol-float64", DOUBLE, {"optimizer__weight_decay": 4.9e-4}),
    ("fedu-byol-float64", DOUBLE, {"method__threshold": 100}),
    ("fedu-byol-float64", DOUBLE, {"objective__first_target": "copy"}),
    ("fedema-byol-float64", DOUBLE, {"objective__momentum": 0.98}),
    ("fedema-byol-float64", DOUBLE, {"method__tau": 0.69}),
    ("fedema-byol-float64", DOUBLE, {"method__keep_statistics": False}),
    ("fedema-byol-float64", DOUBLE, {"schedule__name": "constant"}),
    ("fedavg-byol-easyfl", "32-true", {"objective__stateful": False, "objective__first_target": "copy"}),
    ("fedu2-simclr-float64", DOUBLE, {"objective__temperature": 0.0701}),
    ("fedu2-simclr-float64", DOUBLE, {"method__solver": "exact"}),
    ("fedu2-simclr-float64", DOUBLE, {"method__weighting": "examples"}),
    ("fedu2-simclr-float64", DOUBLE, {"training__max_epochs": None}),
    ("fedx-simclr", DOUBLE, {"objective__temperature": 0.101}),
    ("fedx-simclr", DOUBLE, {"method__variant": "paper"}),
    ("orchestra", DOUBLE, {"objective__momentum": 0.997}),
    ("orchestra", DOUBLE, {"objective__target_first": False}),
    ("orchestra", DOUBLE, {"method__weighting": "examples"}),
    ("orchestra", DOUBLE, {"method__start_rows": "random"}),
    ("flesd", DOUBLE, {"method__momentum": 0.99}),
    ("flesd", DOUBLE, {"method__fill_anchors": False}),
    ("flesd", DOUBLE, {"method__drop_last": False}),
    ("flesd", DOUBLE, {"optimizer__weight_decay": 0.0}),
]


@pytest.mark.parametrize(
    ("name", "precision", "settings"),
    [pytest.param(*mutant, marks=() if mutant is SHORT else pytest.mark.long) for mutant in MUTANTS],
)
def test_a_setting_that_is_not_the_authors_departs(name: str, precision: str, settings: dict[str, object]) -> None:
    each = first_round(of(name)) if settings is SHORT[2] else of(name)
    (comparison,) = compared(with_settings(each, **settings), precision)
    assert comparison.beyond


@pytest.mark.long
@pytest.mark.parametrize(("name", "precision"), [("ssd", "32-true"), ("fedu-byol-float64", DOUBLE)])
def test_views_in_another_order_depart(name: str, precision: str) -> None:
    each = of(name)
    prepare = each.prepare

    def reverse(method, data):
        prepare(method, data)
        batches = data.batches
        data.batches = lambda *args, **kwargs: (b._replace(views=b.views[::-1]) for b in batches(*args, **kwargs))

    each.prepare = reverse  # type: ignore[method-assign]
    (comparison,) = compared(each, precision)
    assert comparison.beyond
