"""Compressed updates: unbiased, within their step, billed by hand; the contract, and a guarantee that stays."""

import pytest
import torch

from benchmark.errors import ConfigError
from benchmark.federation.compression import RESIDUAL, largest, multiples
from methods import trees
from methods.base import MethodError
from tests import run_helpers
from tests.methods.contract import ENCODER, PROJECTOR, STATISTICS, WEIGHTS, DurabilityContract, InterfaceContract

TENSORS = 2 * 3 + 3 + 2
"""Parameters of the tiny networks: two convolutions and a linear layer with BatchNorm, and a linear layer with bias."""


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_rounded_number_is_a_multiple_of_the_step_and_right_on_average(bits):
    values = torch.randn(20, generator=stream(1))
    step = values.abs().max() / (2 ** (bits - 1) - 1)
    draws = torch.stack([multiples(values, bits, stream(seed)) for seed in range(4000)])
    codes = draws / step
    assert torch.allclose(codes, codes.round(), atol=1e-4)
    assert codes.abs().max() < 2 ** (bits - 1)
    assert ((draws - values).abs() <= step * (1 + 1e-5)).all()
    error = (draws.mean(0) - values).abs()
    assert (error < 4 * step / 2 / 4000**0.5).all()  # the deviation of one draw is at most half a step


def test_zeros_and_nothing_are_themselves_and_no_number_is_rounded_beyond_the_largest():
    for numbers in (torch.zeros(3), torch.zeros(0)):
        assert torch.equal(multiples(numbers, 4, stream()), numbers)
    assert multiples(torch.full((1_000_000,), 1.0), 8, stream()).max() == 1


def test_the_largest_numbers_of_an_entry_are_sent_wherever_they_are():
    update = {"a": torch.tensor([[1.0, -9.0], [0.5, 3.0]]), "b": {"c": torch.tensor([4.0, -2.0])}}
    sent = {"a": torch.tensor([[0.0, -9.0], [0.0, 3.0]]), "b": {"c": torch.tensor([4.0, 0.0])}}
    assert run_helpers.same(dict(zip("st", largest(update, 0.5), strict=True)), {"s": sent, "t": 3 * 8})
    assert largest(update, 0.01)[1] == 8  # at least one


@pytest.mark.parametrize(("name", "bits"), [("float16", 16), ("int8", 8), ("int4", 4)])
def test_what_the_server_receives_is_the_update_up_to_its_step(tmp_path, name, bits):
    """The first visit's reply beside that of an uncompressed run."""
    replies = []
    for words in ((), (f"compression.name={name}",)):
        run = run_helpers.build_run(tmp_path / str(words), "fedavg", *words)
        seen = run_helpers.collect_visits(run, lambda done: (done.visit.message, trees.clone(done.message)))
        run.loop.restore()
        run.loop.run_round(0)
        replies.append({entry: dict(trees.leaves(tree["weights"])) for entry, tree in zip("sr", seen[0], strict=True)})
    (plain, received), exact = replies, {path for path, _ in trees.leaves(run.loop.method.statistics())}
    for path, leaf in plain["r"].items():
        got = received["r"][path]
        if path in exact or not leaf.is_floating_point():
            assert torch.equal(got, leaf)
            continue
        largest_change = (leaf - plain["s"][path]).abs().max()
        step = largest_change * 2**-10 if bits == 16 else largest_change / (2 ** (bits - 1) - 1)
        assert 0 < (got - leaf).abs().max() <= step * 1.01 + 1e-7


def test_what_is_not_sent_is_added_to_the_next_update(tmp_path, monkeypatch):
    """A client alone: the sum of what the server received and of what is left is the sum of its updates."""
    words = ("partition.clients=1", "federation.participation=1", "compression.name=top-k", "compression.share=0.1")
    run = run_helpers.build_run(tmp_path, "fedavg", *words)
    loop, most = run.loop, round(0.1 * (ENCODER + PROJECTOR))
    loop.restore()
    (stage,) = loop.uplink.stages
    inner, updates = stage.client, []
    look = lambda reply, *given: (updates.append(trees.clone(reply.message["weights"])), inner(reply, *given))[1]  # noqa: E731
    monkeypatch.setattr(stage, "client", look)
    seen = run_helpers.collect_visits(run, lambda done: trees.clone(done.message["weights"]))
    for played in range(2):
        before = trees.clone(loop.server["weights"])
        kept = loop.client_state.get(0, {}).get(RESIDUAL, {}).get("weights", {})
        loop.run_round(played)
        sent, trained, start, kept = (dict(trees.leaves(t)) for t in (seen[-1], updates[-1], before, kept))
        left = dict(trees.leaves(loop.client_state[0][RESIDUAL]["weights"]))
        for path, leaf in left.items():
            whole = (trained[path] - start[path]) + kept.get(path, torch.zeros_like(leaf))
            torch.testing.assert_close((sent[path] - start[path]) + leaf, whole, atol=1e-6, rtol=1e-5)
        assert sum(int((sent[path] != start[path]).sum()) for path in left) <= most


def test_a_clipped_update_stays_within_the_clip(tmp_path):
    words = ("privacy.mechanism=central", "privacy.clip=0.5", "privacy.noise_multiplier=0.1")
    words += ("federation.batch_norm=local", "compression.name=int4")
    run = run_helpers.build_run(tmp_path, "fedavg", *words)

    def norm(done):
        sent = done.message["weights"]
        update = trees.subtract(sent, trees.select(done.visit.message["weights"], sent))
        return float(trees.squared_norm(trees.to(update, dtype=torch.float64))) ** 0.5

    norms = run_helpers.collect_visits(run, norm)
    run.loop.fit()
    assert max(norms) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize(
    ("method", "words", "line"),
    [
        ("fedavg", ["name=int2"], "compression.name='int2': choose none or float16 or int8 or int4 or top-k"),
        ("fedavg", ["name=top-k", "share=0"], r"compression.share=0.0: give a share in \(0, 1\]"),
        ("fedavg", ["name=top-k", "share=1.5"], r"give a share in \(0, 1\]"),
        ("fedavg", ["name=int8", "share=0.1"], r"compression\.share needs compression\.name=top-k"),
        ("flesd", ["name=int8"], "no update that is averaged or summed"),
        ("local", ["name=int8"], "no update that is averaged or summed"),
        ("fedu2", ["name=int8"], "only running statistics are averaged or summed"),
    ],
)
def test_what_cannot_be_compressed_is_refused(tmp_path, method, words, line):
    with pytest.raises((ConfigError, MethodError), match=line):
        run_helpers.train_run(tmp_path, method, *(f"compression.{word}" for word in words))


class TestInt8(InterfaceContract):
    variant = True
    method = "fedavg"
    overrides = ("compression.name=int8",)

    def bill(self, run):
        up = ENCODER + PROJECTOR + 4 * TENSORS + 4 * STATISTICS
        return {("fit", "down", "weights"): WEIGHTS, ("fit", "up", "weights"): up}


class TestTopK(InterfaceContract, DurabilityContract):
    """A client keeps what it has not sent."""

    variant = True
    method = "fedavg"
    overrides = ("compression.name=top-k", "compression.share=0.1")
    falls = False

    def bill(self, run):
        count = round(0.1 * (ENCODER + PROJECTOR))
        return {("fit", "down", "weights"): WEIGHTS, ("fit", "up", "weights"): 8 * count + 4 * STATISTICS}


class TestScaffoldInt4(InterfaceContract):
    variant = True
    method = "scaffold"
    overrides = ("compression.name=int4",)
    falls = False

    def bill(self, run):
        sizes = [leaf.numel() for _, leaf in trees.leaves(run.loop.method.trainable())]
        packed = sum(-(-size // 2) + 4 for size in sizes)
        return {
            ("fit", "down", "weights"): WEIGHTS,
            ("fit", "down", "c"): 4 * (ENCODER + PROJECTOR),
            ("fit", "up", "delta_w"): packed + 4 * STATISTICS,
            ("fit", "up", "delta_c"): packed,
        }
