"""The committed cost sheet: its numbers by hand, and as the methods give them."""

from pathlib import Path

import pytest

from benchmark.audit import cost_sheet
from benchmark.configuration.files import available
from leaderboards.pages import costs
from tests.benchmark.execution.test_counting import by_hand

LINES = costs.read(Path(__file__).parents[3] / cost_sheet.FILE).lines
QUICK = "ssd"  # over one encoder, in two rounds


@pytest.mark.parametrize(("encoder", "network"), [("ResNet-18", "resnet18"), ("ViT-Tiny", "vit_tiny")])
def test_operations_of_an_epoch_are_those_of_a_hand_count(encoder, network):
    (line,) = (each for each in LINES if (each.name, each.encoder) == ("fedavg", encoder))
    full, rest = divmod(line.images, line.batch)
    assert line.flops == pytest.approx(full * by_hand(network, line.batch) + by_hand(network, rest), rel=0.01)
    assert line.up == line.down >= line.gradients == line.optimizer
    assert line.memory > line.activations + line.weights + line.optimizer


@pytest.mark.parametrize(
    "name", [QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in sorted({*available("method")} - {QUICK}))]
)
def test_the_committed_sheet_is_up_to_date(name):
    lines = [] if name in cost_sheet.IDLE else cost_sheet.lines_of(name)
    assert lines == [each for each in LINES if each.name == name], "make pages, or all anew: make costs"
