"""The way of a reply: noise by its client before it is masked, a clip by a bound, and nothing that is missing."""

import pytest
import torch

from benchmark.execution.base import VisitResult
from benchmark.federation.clipping import Clipping
from benchmark.federation.secure_sums import SecureSums
from benchmark.federation.update_privacy import WITHIN, UpdatePrivacy
from benchmark.federation.uplink import Uplink
from benchmark.rng import Streams
from methods.base import Client, Mean, MethodError, Phase, Visit

FIT, CLIENT = Phase("fit", uplink={"weights": Mean("clients")}), Client(0, 10)
START, REPLY = {"weights": {"w": torch.zeros(2)}}, {"weights": {"w": torch.tensor([3.0, 4.0])}}
MASKS = SecureSums(8.0, {"clients": 1}, torch.float32, Streams(0))


def sent(uplink, message=REPLY):
    visit = Visit(0, 3, FIT, CLIENT, START, {}, torch.Generator())
    return uplink.of_phase(FIT, 0, [CLIENT], START).sent(VisitResult(visit, message, {}, 1.0, 8, 0.1), {})


def updates(mechanism, clipping="flat", noise=1.0):
    return UpdatePrivacy(mechanism, Clipping(clipping, 1.0), noise, Streams(0))


def test_a_client_clips_its_reply_and_adds_its_own_noise():
    given = [updates("central"), updates("local"), updates("local", noise=0.0)]
    clipped, noisy, silent = (sent(Uplink(made)).received["weights"]["w"] for made in given)
    torch.testing.assert_close(clipped, torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(silent, clipped)
    assert (noisy - clipped).abs().min() > 0.01


def test_a_reply_without_what_all_are_counted_for_is_refused():
    for uplink, key in ((Uplink(updates("central")), "mechanism"), (Uplink(None, None, MASKS), "secure_sums")):
        with pytest.raises(MethodError, match=f"privacy.{key}: client 0 sends no weights in phase 'fit'"):
            sent(uplink, {})


def test_an_adaptive_clip_is_masked_and_billed_too():
    way = sent(Uplink(updates("central", "adaptive"), None, MASKS))
    assert way.nbytes == {"weights": 2 * 4 + 4, WITHIN: 4}
    assert set(way.message) == set(way.received) == {"weights", WITHIN}
    assert way.received["weights"]["sum"]["w"].dtype == torch.int64
