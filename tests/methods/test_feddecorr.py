import pytest
import torch

from methods.base import MethodError, Outputs
from methods.feddecorr import Decorrelation
from methods.maths import decorrelation
from tests import run_helpers
from tests.methods.contract import WEIGHTS, MethodContract


class TestFedDecorr(MethodContract):
    method = "feddecorr"

    def bill(self, run):
        return {("fit", way, "weights"): WEIGHTS for way in ("up", "down")}

    def test_a_weight_of_zero_is_fedavg(self, tmp_path):
        none = run_helpers.train_run(tmp_path / "a", "feddecorr", "method.weight=0")
        plain = run_helpers.train_run(tmp_path / "b", "fedavg")
        assert run_helpers.same(none.loop.server, plain.loop.server)

    @pytest.mark.parametrize("override", ["method.weight=0", "method.on=z", "method.variant=paper"])
    def test_each_choice_changes_training(self, override, tmp_path, unbroken):
        other = run_helpers.train_run(tmp_path, "feddecorr", override)
        assert run_helpers.difference(other.loop.server, unbroken.loop.server) > 1e-6

    @pytest.mark.parametrize(("override", "message"), [("on=x", "h or z"), ("variant=x", "code or paper")])
    def test_what_cannot_be_is_refused(self, override, message, tmp_path):
        with pytest.raises(MethodError, match=message):
            run_helpers.build_run(tmp_path, "feddecorr", f"method.{override}")


@pytest.mark.parametrize("on", ["h", "z"])
def test_the_mean_over_the_views(on: str) -> None:
    generator = torch.Generator().manual_seed(0)
    h, z = (tuple(torch.randn(2, 6, 4, generator=generator)) for _ in range(2))
    chosen = h if on == "h" else z
    expected = 0.5 * (decorrelation(chosen[0]) + decorrelation(chosen[1])) / 2
    torch.testing.assert_close(Decorrelation(weight=0.5, on=on)(Outputs(h, z), None, None), expected)
