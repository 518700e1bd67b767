"""The contract of methods over an encoder that is frozen in part, which a client is sent before its first visit."""

from typing import Any, ClassVar

from tests.methods.contract import InterfaceContract
from tests.run_helpers import build_run, same, state, train_run


class FrozenContract(InterfaceContract):
    """down: bytes of the weights down, up where it is None. frozen: bytes of what is frozen."""

    method, variant = "fedavg", True
    down: ClassVar[int | None] = None
    frozen: ClassVar[int]

    def test_ledger_equals_a_hand_count(self, unbroken: Any) -> None:
        ledger = unbroken.loop.ledger
        setup = {line: size for line, size in ledger.lines.items() if line[1] == "setup"}
        sizes = {"up": self.sent, "down": self.sent if self.down is None else self.down}
        expected = {(r, "fit", way, "weights"): 2 * size for r in range(3) for way, size in sizes.items()}
        assert {line: size for line, size in ledger.lines.items() if line not in setup} == expected
        new, known = {}, set()
        for round in range(3):
            drawn = {unbroken.loop.clients[k].id for k in unbroken.loop.cohort(round)}
            if drawn - known:
                new[round, "setup", "down", "frozen"] = len(drawn - known) * self.frozen
            known |= drawn
        assert setup == new


def check_interrupted(folder: Any, method: str, *words: str) -> Any:
    """A run of two rounds, which is the same when it is saved and built anew between them; returns it."""
    whole, first = train_run(folder / "whole", method, *words), build_run(folder / "again", method, *words)
    first.loop.restore()
    first.loop.history.append(first.loop.run_round(0))
    first.loop.round = 1
    first.loop.save()
    assert same(state(train_run(folder / "again", method, *words)), state(whole))
    return whole
