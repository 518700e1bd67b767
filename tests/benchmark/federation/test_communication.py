"""The communication ledger against a count by hand: float32 is 4 bytes, bfloat16 2, int64 8."""

import torch

from benchmark.federation.communication import CommunicationLedger, sizes
from methods.base import Client, Mail
from tests.run_helpers import same

MEMBERS = [Client(0, 5), Client(3, 7)]
WEIGHTS = {"encoder": {"w": torch.zeros(2, 3), "b": torch.zeros(())}}  # 28 bytes


def scale(numbers):
    return {"d": torch.zeros(numbers, dtype=torch.bfloat16)}


def filled():
    ledger = CommunicationLedger()
    mail = Mail({"weights": WEIGHTS, "scale": scale(10)}, {3: {"scale": scale(4)}, 8: {"scale": scale(1000)}})
    ledger.record_downlink(0, "fit", MEMBERS, mail)
    for client in range(2):
        ledger.record_uplink(0, "fit", {"weights": 28, "c": 12 + client})
    ledger.record_uplink(0, "recalibrate", {"weights": 100})
    ledger.record_uplink(1, "fit", {"weights": 28})
    ledger.record_visits(0, 2)
    ledger.record_visits(1, 1)
    return ledger


def test_sizes_go_by_number_and_type():
    message = {"weights": WEIGHTS, "scale": scale(3), "ids": {"k": torch.zeros(2, dtype=torch.long)}, "none": {}}
    assert sizes(message) == {"weights": 28, "scale": 6, "ids": 16, "none": 0}


def test_a_view_is_billed_for_what_it_shows():
    assert sizes({"row": {"r": torch.zeros(100, 100)[0]}}) == {"row": 400}


def test_members_are_billed_common_and_private_mail_once():
    lines = filled().lines
    assert lines[0, "fit", "down", "weights"] == 2 * 28
    assert lines[0, "fit", "down", "scale"] == 20 + 8  # client 3's private entry replaces the common one


def test_replies_add_up_by_phase_and_round():
    lines = filled().lines
    assert {key: size for key, size in lines.items() if key[2] == "up"} == {
        (0, "fit", "up", "weights"): 56,
        (0, "fit", "up", "c"): 25,
        (0, "recalibrate", "up", "weights"): 100,
        (1, "fit", "up", "weights"): 28,
    }


def test_totals_of_a_round_and_of_the_run():
    ledger = filled()
    assert ledger.total("up") == {"c": 25, "weights": 184}
    assert ledger.total("up", 0) == {"c": 25, "weights": 156}
    assert ledger.total("up", 1) == {"weights": 28}
    assert ledger.total("down") == {"scale": 28, "weights": 56}
    assert ledger.total("down", 1) == {}
    assert ledger.visits == {0: 2, 1: 1}


def test_asking_changes_nothing():
    ledger = filled()
    before = ledger.state()
    ledger.total("up", 7)
    assert ledger.state() == before


def test_the_state_survives_a_checkpoint_file(tmp_path):
    ledger, again = filled(), CommunicationLedger()
    torch.save(ledger.state(), tmp_path / "state.pt")
    again.load(torch.load(tmp_path / "state.pt", weights_only=True))
    assert (again.lines, again.visits) == (ledger.lines, ledger.visits)
    for either in (ledger, again):
        either.record_uplink(1, "fit", {"weights": 2, "new": 1})
        either.record_visits(2, 1)
    assert same(again.state(), ledger.state())
    assert again.lines[1, "fit", "up", "weights"] == 30
