from typing import ClassVar

import pytest
import torch

from methods.base import Outputs
from methods.feddecorr import Decorrelation
from methods.maths import decorrelation
from tests.methods.contract import WEIGHTS, InterfaceContract


class TestFedDecorr(InterfaceContract):
    method = "feddecorr"
    choices = ("method.weight=0", "method.on=z", "method.variant=paper")
    equals = (("method.weight=0", "fedavg", "weights"),)
    refused: ClassVar = {"method.on=x": "h or z", "method.variant=x": "code or paper"}

    def bill(self, run):
        return {("fit", way, "weights"): WEIGHTS for way in ("up", "down")}


@pytest.mark.parametrize("on", ["h", "z"])
def test_the_mean_over_the_views(on: str) -> None:
    generator = torch.Generator().manual_seed(0)
    h, z = (tuple(torch.randn(2, 6, 4, generator=generator)) for _ in range(2))
    chosen = h if on == "h" else z
    expected = 0.5 * (decorrelation(chosen[0]) + decorrelation(chosen[1])) / 2
    torch.testing.assert_close(Decorrelation(weight=0.5, on=on)(Outputs(h, z), None, None), expected)
