"""The contract under settings of released codes: separate views, no short last batch, float64."""

import pytest
import torch

from methods import trees
from tests import run_helpers
from tests.methods import test_fedavg, test_fedema, test_fedu2, test_flesd, test_orchestra
from tests.methods.contract import InterfaceContract

SETTINGS = ("training.views=separate", "training.drop_last=true", "training.precision=64-true")


class Double(InterfaceContract):
    """Numbers have eight bytes; `like` is the usual contract, `own` are settings of the method's released code."""

    variant = True
    like: type[InterfaceContract]
    own: tuple[str, ...] = ()

    def __init_subclass__(cls):
        cls.method, cls.falls = cls.like.method, cls.like.falls
        cls.overrides = (*cls.like.overrides, *SETTINGS, *cls.own)
        super().__init_subclass__()

    def bill(self, run):
        return {key: 2 * size for key, size in self.like.bill(self, run).items()}

    def test_every_number_is_double(self, unbroken):
        state = (unbroken.loop.server, *(unbroken.loop.client_state[k] for k in unbroken.loop.client_state.index))
        floating = [leaf for tree in state for _, leaf in trees.leaves(tree) if leaf.is_floating_point()]
        assert floating
        assert {leaf.dtype for leaf in floating} == {torch.float64}


class TestFedAvg(Double):
    like = test_fedavg.TestFedAvg


class TestFedEMA(Double):
    like = test_fedema.TestFedEMA
    own = ("objective.first_target=online", "method.keep_statistics=true")


class TestFedU2(Double):
    like = test_fedu2.TestFedU2
    own = ("method.solver=descent", "method.draws=view", "method.weighting=batches")

    def bill(self, run):
        return super().bill(run) | {("fit", "up", "mean_weight"): 8}


class TestFLESD(Double):
    like = test_flesd.TestFLESD
    own = ("method.fill_anchors=true", "method.drop_last=true", "public.client=2")


class TestOrchestra(Double):
    like = test_orchestra.TestOrchestra
    own = ("objective.target_first=true", "method.start_rows=first", "method.weighting=batches")


@pytest.mark.parametrize("setting", SETTINGS[:2])
def test_each_setting_changes_training(setting, tmp_path):
    plain = run_helpers.train_run(tmp_path / "plain", "fedavg", "training.batch_size=7")
    other = run_helpers.train_run(tmp_path / "other", "fedavg", "training.batch_size=7", setting)
    assert run_helpers.difference(plain.loop.server, other.loop.server) > 1e-4


def test_double_precision_rounds_less_and_does_the_same(tmp_path):
    single = run_helpers.train_run(tmp_path / "single", "fedavg", "federation.rounds=1", "optimizer.lr=0.01")
    double = run_helpers.train_run(
        tmp_path / "double", "fedavg", "federation.rounds=1", "optimizer.lr=0.01", "training.precision=64-true"
    )
    assert 0 < run_helpers.difference(single.loop.server, double.loop.server) < 1e-5


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_without_batch_statistics_separate_views_are_joint_ones(norm, tmp_path):
    settings = (f"encoder.norm={norm}", "heads.head_norm=false", "federation.rounds=1", "training.precision=64-true")
    joint = run_helpers.train_run(tmp_path / "joint", "fedavg", *settings)
    separate = run_helpers.train_run(tmp_path / "separate", "fedavg", *settings, "training.views=separate")
    assert (run_helpers.difference(joint.loop.server, separate.loop.server) < 1e-12) == (norm == "group")
