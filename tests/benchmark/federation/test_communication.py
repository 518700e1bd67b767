"""The communication ledger and a round's line against a count by hand: float32 is 4 bytes, bfloat16 2, int64 8."""

import torch

from benchmark.federation.communication import CommunicationLedger, sizes
from benchmark.federation.metrics import VisitReport, round_line
from methods.base import Client, Mail

WEIGHTS = {"encoder": {"w": torch.zeros(2, 3), "b": torch.zeros(())}}  # 28 bytes


def scale(numbers):
    return {"d": torch.zeros(numbers, dtype=torch.bfloat16)}


def filled():
    ledger = CommunicationLedger()
    mail = Mail({"weights": WEIGHTS, "scale": scale(10)}, {3: {"scale": scale(4)}, 8: {"scale": scale(1000)}})
    ledger.record_downlink(0, "fit", [Client(0, 5), Client(3, 7)], mail)
    for client in range(2):
        ledger.record_uplink(0, "fit", {"weights": 28, "c": 12 + client})
    ledger.record_uplink(0, "recalibrate", {"weights": 100})
    ledger.record_uplink(1, "fit", {"weights": 28})
    ledger.record_visits(0, 2)
    ledger.record_visits(1, 1)
    return ledger


def test_sizes_go_by_number_and_type_and_a_view_is_billed_for_what_it_shows():
    message = {"weights": WEIGHTS, "scale": scale(3), "ids": {"k": torch.zeros(2, dtype=torch.long)}, "none": {}}
    message["row"] = {"r": torch.zeros(100, 100)[0]}
    assert sizes(message) == {"weights": 28, "scale": 6, "ids": 16, "none": 0, "row": 400}


def test_mail_is_billed_to_each_member_and_replies_by_phase_and_round():
    assert filled().lines == {
        (0, "fit", "down", "weights"): 2 * 28,
        (0, "fit", "down", "scale"): 20 + 8,  # client 3's private entry replaces the common one
        (0, "fit", "up", "weights"): 56,
        (0, "fit", "up", "c"): 25,
        (0, "recalibrate", "up", "weights"): 100,
        (1, "fit", "up", "weights"): 28,
    }


def test_totals_of_a_round_and_of_the_run_change_nothing():
    ledger = filled()
    before = ledger.state()
    asked = [("up",), ("up", 0), ("up", 1), ("up", 7), ("down",), ("down", 1)]
    up, first, second = {"c": 25, "weights": 184}, {"c": 25, "weights": 156}, {"weights": 28}
    assert [ledger.total(*words) for words in asked] == [up, first, second, {}, {"scale": 28, "weights": 56}, {}]
    assert ledger.visits == {0: 2, 1: 1}
    assert ledger.state() == before


def test_the_state_comes_back(tmp_path):
    ledger, again = filled(), CommunicationLedger()
    torch.save(ledger.state(), tmp_path / "state.pt")
    again.load(torch.load(tmp_path / "state.pt", weights_only=True))
    for either in (ledger, again):
        either.record_uplink(1, "fit", {"weights": 2, "new": 1})
        either.record_visits(2, 1)
    assert again.state() == ledger.state()
    assert again.lines[1, "fit", "up", "weights"] == 30


def test_a_line_sums_its_visits_and_summarises_their_notes():
    ledger = CommunicationLedger()
    ledger.record_uplink(1, "fit", {"weights": 28})
    clients = [
        VisitReport(0, {}, None, 2.0, 8, 1.5, {"drift": 1.0}),
        VisitReport(1, {}, None, 4.0, 5, 0.5, {"drift": 4.0, "lambda": 3.0}),
        VisitReport(2, {}, None, None, 0, 0.25, {"drift": 1.0}),
    ]
    line = {"round": 2, "loss": 3.0, "images": 13, "client_seconds": 2.25, "bytes_up": {"weights": 28}}
    line |= {"bytes_down": {}}
    notes = {"drift": {"min": 1.0, "mean": 2.0, "max": 4.0}}
    notes |= {name: dict.fromkeys(("min", "mean", "max"), number) for name, number in (("lambda", 3.0), ("moved", 0.5))}
    assert round_line(1, clients, [], ledger, {"moved": 0.5}) == line | {"notes": notes}
    server = {"server_loss": None, "server_seconds": 0.25, "server_images": 0}
    nothing = {"loss": None, "images": 0, "client_seconds": 0, "bytes_up": {}}
    assert round_line(2, [], [VisitReport(-1, {}, None, None, 0, 0.25, {"a": 1.0})], ledger, {}) == (
        line | {"round": 3} | nothing | server
    )
