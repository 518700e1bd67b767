"""The contract under settings of released codes: separate views, no short last batch, float64."""

import pytest
import torch

from methods import trees
from tests.methods import test_fedavg, test_fedema, test_fedu2, test_flesd, test_orchestra
from tests.methods.contract import DurabilityContract, InterfaceContract
from tests.run_helpers import difference, trained

DOUBLE = "training.precision=64-true"
SETTINGS = ("training.views=separate", "training.drop_last=true", DOUBLE)


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
        return {key: 2 * size for key, size in self.like().bill(run).items()}

    def test_every_number_is_double(self, unbroken):
        state = (unbroken.loop.server, *(unbroken.loop.client_state[k] for k in unbroken.loop.client_state.index))
        floating = [leaf for tree in state for _, leaf in trees.leaves(tree) if leaf.is_floating_point()]
        assert {leaf.dtype for leaf in floating} == {torch.float64}


class TestFedAvg(Double):
    like = test_fedavg.TestFedAvg


class TestFedEMA(Double, DurabilityContract):
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


def test_without_the_short_last_batch_training_is_another():
    plain, other = (trained("fedavg", "training.batch_size=7", *words).loop for words in ((), SETTINGS[1:2]))
    assert difference(plain.server, other.server) > 1e-4


def test_double_precision_rounds_less_and_does_the_same():
    words = ("fedavg", "federation.rounds=1", "optimizer.lr=0.01")
    assert 0 < difference(trained(*words).loop.server, trained(*words, DOUBLE).loop.server) < 1e-5


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_without_batch_statistics_separate_views_are_joint_ones(norm):
    words = ("fedavg", f"encoder.norm={norm}", "heads.head_norm=false", "federation.rounds=1", DOUBLE)
    joint, separate = (trained(*words, *own).loop.server for own in ((), SETTINGS[:1]))
    assert (difference(joint, separate) < 1e-12) == (norm == "group")
