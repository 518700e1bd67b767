"""The contract on a user's own data: a data set by import path, and clients of a file or of a function."""

from pathlib import Path

from tests.datamodules import own_data
from tests.methods import test_fedavg, test_flesd, test_orchestra
from tests.methods.contract import DurabilityContract, InterfaceContract

HERE = own_data.__name__
DATA = (f"data={{class: {HERE}.Blocks, name: blocks, options: {{count: 80}}}}",)
FILE = (*DATA, f"partition={{name: file, path: {Path(__file__).parents[1] / 'clients.json'}}}")
FUNCTION = (*DATA, f"partition={{class: {HERE}.by_turns}}")


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
        names = ("bern", "lima", "oslo", "rome") if self.own is FILE else ("a", "b", "c")
        assert unbroken.loop.clients.names == names


class TestFedAvg(OwnData, DurabilityContract):
    like = test_fedavg.TestFedAvg


class TestFedAvgByAFunction(OwnData):
    like, own = test_fedavg.TestFedAvg, FUNCTION


class TestFLESD(OwnData):
    like = test_flesd.TestFLESD


class TestOrchestra(OwnData):
    like = test_orchestra.TestOrchestra
