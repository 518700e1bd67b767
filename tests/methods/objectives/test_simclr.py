import math

import pytest
import torch
from torch import Tensor

from methods.base import Outputs
from methods.maths import nt_xent
from methods.objectives.simclr import SimCLR
from tests.methods.objectives import ObjectiveContract, batch, encoder


class TestSimCLR(ObjectiveContract):
    contrastive = True

    def build(self) -> SimCLR:
        return SimCLR(encoder(), projector=(5, 4), temperature=0.2)

    def expected(self, out: Outputs) -> Tensor:
        return nt_xent(*out.embeddings, 0.2)

    def test_collapsed_embeddings_cost_the_log_of_the_others(self) -> None:
        z = torch.ones(5, 4)
        assert self.build().loss(Outputs((), (z, z)), batch()).item() == pytest.approx(math.log(9))

    def test_temperature_and_head(self) -> None:
        out = self.build()(*batch().views)
        warm = SimCLR(encoder(), projector=(5, 4))
        torch.testing.assert_close(warm.loss(out, batch()), nt_xent(*out.embeddings, 0.5))
        plain_head = SimCLR(encoder(), projector=(5, 4), head_norm=False)
        assert [name for name, _ in plain_head.projector.named_parameters()] == [
            "0.weight",
            "0.bias",
            "2.weight",
            "2.bias",
        ]
        assert list(plain_head.projector.buffers()) == []
