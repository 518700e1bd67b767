"""A round's line, from reports of visits that a hand can add up."""

from benchmark.federation.communication import CommunicationLedger
from benchmark.federation.metrics import VisitReport, round_line


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
    notes = {"drift": {"least": 1.0, "mean": 2.0, "most": 4.0}, "lambda": {"least": 3.0, "mean": 3.0, "most": 3.0}}
    assert round_line(1, clients, [], ledger) == line | {"notes": notes}
    server = {"server_loss": None, "server_seconds": 0.25, "server_images": 0}
    nothing = {"loss": None, "images": 0, "client_seconds": 0, "bytes_up": {}}
    assert round_line(2, [], [VisitReport(-1, {}, None, None, 0, 0.25, {"a": 1.0})], ledger) == (
        line | {"round": 3} | nothing | server
    )
