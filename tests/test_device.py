"""The simulated GPU: it refuses what a GPU refuses, and sees what costs time or goes wrong there."""

import os

import pytest
import torch
from torch import nn

from tests.device import DeviceTensor, SimulatedGPU, on_cpu


@pytest.fixture
def gpu():
    with SimulatedGPU() as gpu:
        yield gpu


@pytest.fixture
def x(gpu):
    return torch.arange(6.0).reshape(2, 3).to("cuda", non_blocking=True)


class TestDevices:
    def test_a_tensor_is_where_it_was_made(self, gpu, x):
        for made in (
            torch.ones(2, device="cuda"),
            torch.tensor([1.0, 2.0], device="cuda:0"),
            torch.ones(2).cuda(),
            torch.ones(2).to(torch.device("cuda")),
            torch.zeros(2, device="cuda").new_ones(2),
            torch.ones_like(torch.zeros(2, device="cuda")),
            nn.Linear(2, 2).to("cuda").weight,
            x + torch.ones(()),  # a number of the CPU is taken
            2 * x,
            torch.where(x > 1, x, torch.zeros(())),
        ):
            assert (made.is_cuda, made.device) == (True, torch.device("cuda", 0))
        there = torch.ones(2, device="cuda")
        assert not any(left.is_cuda for left in (torch.ones(2), there.cpu(), there.to("cpu")))

    def test_numbers_are_the_cpus(self, x):
        network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
        expected = network(on_cpu(x)).sum()
        expected.backward()
        gradients = [parameter.grad.clone() for parameter in network.parameters()]
        network.zero_grad(set_to_none=True)
        network[1].reset_running_stats()
        found = network.to("cuda")(x).sum()
        found.backward()
        assert torch.equal(on_cpu(found), expected)
        for parameter, gradient in zip(network.parameters(), gradients, strict=True):
            assert isinstance(parameter.grad, DeviceTensor)
            assert torch.equal(on_cpu(parameter.grad), gradient)

    def test_what_mixes_devices_is_refused(self, x):
        for refused in (
            lambda: x + torch.ones(2, 3),
            lambda: torch.ones(2, 3) + x,
            lambda: x.numpy(),
            lambda: torch.rand(2, device="cuda", generator=torch.Generator()),
            lambda: torch.stack([x.sum(), torch.ones(())]),
            lambda: torch.ones(2, 3).add_(x),
            lambda: torch.arange(3).index_select(0, x[0].long()),
            lambda: nn.Linear(3, 1)(x),
            lambda: torch.cat([x, torch.ones(1, 3)]),
        ):
            with pytest.raises((RuntimeError, TypeError)):
                refused()

    def test_afterwards_there_is_no_gpu(self):
        with SimulatedGPU():
            left = torch.ones(2, device="cuda")
            assert torch.cuda.is_available()
        assert not torch.cuda.is_available()
        with pytest.raises(RuntimeError, match="after the simulation"):
            left + 1


class TestCosts:
    def test_the_host_waits(self, gpu, x):
        for waiting, why in (
            (lambda: x.sum().item(), "item"),
            (lambda: float(x[0, 0]), "item"),
            (lambda: bool(x.isfinite().all()), "item"),
            (lambda: x.tolist(), "tolist"),
            (lambda: x.cpu(), "to the CPU"),
            (lambda: x.to("cpu"), "to the CPU"),
            (lambda: torch.ones(3).to("cuda"), "to the device"),
            (lambda: torch.tensor([1.0], device="cuda"), "tensor to the device"),
            (lambda: x[x > 2], "index by a mask"),
            (lambda: x.nonzero(), "nonzero"),
            (lambda: x[torch.tensor([0])], "index by an index on the CPU"),
            (lambda: torch.ones(2, 3).copy_(x), "copy_ to the CPU"),
            (lambda: x.long().flatten().bincount(), "bincount"),
        ):
            before = len(gpu.of("wait"))
            waiting()
            assert [event.detail for event in gpu.of("wait")[before:]] == [why]

    def test_it_does_not_and_uploads_have_their_bytes_and_draws_their_kind(self, gpu, x):
        assert [event.nbytes for event in gpu.of("upload")] == [24]
        for free in (
            lambda: x @ x.T,
            lambda: x.sum(),
            lambda: x[0],
            lambda: x[torch.tensor([0]).to("cuda", non_blocking=True)],
            lambda: x.masked_fill(x > 2, 0.0),
            lambda: torch.nn.functional.one_hot(x[0].long(), 5),
            lambda: torch.ones(3).to("cuda", non_blocking=True),
            lambda: torch.rand(2, device="cuda"),
        ):
            free()
            assert not gpu.of("wait")
        assert [event.detail for event in gpu.of("random")] == ["rand"]

    def test_kernels_are_counted_and_views_are_none(self, gpu, x):
        before = sum(gpu.kernels.values())
        ((x + 1).T.reshape(6)[2:] * 2).sum()
        assert sum(gpu.kernels.values()) - before == 4  # a sum, a copy of the transpose, a product, a sum


class TestGraphs:
    def record(self, step):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            step()
        return graph

    def test_recording_computes_nothing_and_a_replay_does(self, gpu, x):
        total = torch.zeros((), device="cuda")
        graph = self.record(lambda: total.add_(x.sum()))
        assert on_cpu(total) == 0
        graph.replay()
        x.mul_(2)
        graph.replay()
        assert on_cpu(total) == 15 + 30
        assert (gpu.captures, gpu.replays) == (1, 2)

    @pytest.mark.parametrize(
        "step", [lambda x: x.sum().item(), lambda x: x[x > 1], lambda x: torch.ones(2).to("cuda", non_blocking=True)]
    )
    def test_waits_and_uploads_cannot_be_recorded_nor_can_the_default_stream(self, gpu, x, step):
        with pytest.raises(RuntimeError, match="non-default stream"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            pass
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            self.record(lambda: step(x))

    def test_a_number_of_the_cpu_in_a_graph_is_named(self, gpu, x):
        self.record(lambda: x.mul_(torch.ones(())))
        assert [event.detail for event in gpu.of("constant")] == ["mul_"]


def sum_beside(x, waits=True):
    """Sums a tensor on another stream, which waits for the default one or does not."""
    stream = torch.cuda.Stream()
    if waits:
        stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        x.sum()
    return stream


class TestStreams:
    def test_a_read_after_an_unordered_write_and_a_write_after_an_unordered_read_are_races(self, gpu, x):
        sum_beside(x, waits=False)
        (race,) = gpu.races
        assert "read at sum" in race
        sum_beside(y := x + 1)
        y.add_(1)
        assert any("write at add_" in race for race in gpu.races)

    def test_waiting_orders_them(self, gpu, x):
        torch.cuda.current_stream().wait_stream(sum_beside(x))
        x.add_(1)
        other = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(other):
            x.sum()
        assert not gpu.races

    def test_memory_of_a_lost_tensor_goes_back_to_its_stream(self, gpu):
        lost = torch.ones(2, device="cuda")
        sum_beside(lost)
        del lost
        gpu.order.return_freed()
        torch.ones(2, device="cuda")
        assert "freed and taken again" in next(iter(gpu.races))


def test_the_machines_own_gpus_are_hidden_from_tests():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert not torch.cuda.is_available()
