from typing import ClassVar

import pytest
import torch

from methods.base import Outputs
from methods.feddecorr import Decorrelation
from methods.maths import decorrelation
from tests.methods.contract import InterfaceContract


class TestFedDecorr(InterfaceContract):
    method = "feddecorr"
    choices = ("method.weight=0", "method.on=z", "method.variant=paper")
    equals = (("method.weight=0", "fedavg", "weights"),)
    refused: ClassVar = {"method.on=x": "h or z", "method.variant=x": "code or paper"}


@pytest.mark.parametrize("on", ["h", "z"])
def test_the_mean_over_the_views(on: str) -> None:
    h, z = torch.randn(2, 2, 6, 4, generator=torch.Generator().manual_seed(0))
    first, second = h if on == "h" else z
    expected = 0.5 * (decorrelation(first) + decorrelation(second)) / 2
    torch.testing.assert_close(Decorrelation(weight=0.5, on=on)(Outputs(tuple(h), tuple(z)), None, None), expected)
