"""The contract on a user's own data: a data set by import path, and clients of a file or of a function."""

from pathlib import Path

from tests.datamodules import own_data
from tests.methods import test_fedavg, test_flesd, test_orchestra
from tests.methods.contract import DurabilityContract, InterfaceContract

HERE = own_data.__name__
DATA = (f"data={{class: {HERE}.Blocks, name: blocks, options: {{count: 80}}}}",)
FILE = (*DATA, f"partition={{name: file, path: {Path(__file__).parents[1] / 'clients.json'}}}")
HELD_OUT = (f"data={{class: {HERE}.Natural, name: natural}}", "partition={name: folders, held_out: ['site 1']}")
FUNCTION = (*DATA, f"partition={{class: {HERE}.by_turns}}")


NAMES = {
    FILE: ("bern", "lima", "oslo", "rome"),
    FUNCTION: ("a", "b", "c"),
    HELD_OUT: ("site 0", "site 2", "site 3", "site 4"),
}
"""Of the clients that train."""


class OwnData(InterfaceContract):
    """`like` is the usual contract, `own` are the data and the clients."""

    variant = True
    like: type[InterfaceContract]
    own = FILE

    def __init_subclass__(cls):
        cls.method, cls.falls, cls.bill = cls.like.method, cls.like.falls, cls.like.bill
        cls.overrides = (*cls.like.overrides, *cls.own)
        super().__init_subclass__()

    def test_clients_have_the_names_they_were_given(self, unbroken):
        assert unbroken.loop.clients.names == NAMES[self.own]


class TestFedAvg(OwnData, DurabilityContract):
    like = test_fedavg.TestFedAvg


class TestFedAvgByAFunction(OwnData):
    like, own = test_fedavg.TestFedAvg, FUNCTION


class TestFLESD(OwnData):
    like = test_flesd.TestFLESD


class TestOrchestra(OwnData):
    like = test_orchestra.TestOrchestra


class TestFedAvgWithAClientHeldOut(OwnData, DurabilityContract):
    like, own = test_fedavg.TestFedAvg, HELD_OUT


class TestOrchestraWithAClientHeldOut(OwnData):
    like, own = test_orchestra.TestOrchestra, HELD_OUT
