"""Operations by hand counts, memory by torch's own record of what it allocates, and faults that both find."""

import inspect
from functools import partial
from types import ModuleType

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from benchmark.execution import counting
from datamodules.federated import Batch
from methods import networks
from methods.fedavg import FedAvg
from methods.objectives.simclr import SimCLR

WIDTH, TOKENS = 192, 65
"""Of ViT-Tiny over images of 32 x 32 in patches of 4."""
DOWN = [(cin, 2 * cin, k, 32 * 64 // (2 * cin)) for cin in (64, 128, 256) for k in (3, 1)]
CONVOLUTIONS = {  # (channels in, out, side of the kernel, of the output)
    "convnet": [(3, 32, 3, 16), (32, 64, 3, 8), (64, 128, 3, 4), (128, 256, 3, 4)],
    "resnet18": [
        (3, 64, 3, 32),
        *[(64, 64, 3, 32)] * 4,
        *DOWN,
        *[(128, 128, 3, 16)] * 3,
        *[(256, 256, 3, 8)] * 3,
        *[(512, 512, 3, 4)] * 3,
    ],
    "vit_tiny": [(3, WIDTH, 4, 8)],
}
HEADS = {"convnet": 256, "resnet18": 512, "vit_tiny": WIDTH}
MATRICES = 12 * TOKENS * (3 * WIDTH * WIDTH + WIDTH * WIDTH + 2 * 4 * WIDTH * WIDTH)
"""Multiplications of ViT-Tiny's layers for an image, but for the attention."""
ATTENTION = 12 * TOKENS * TOKENS * WIDTH
"""One of its matrix products: two forward, and backward five, as the scores are made again."""


def by_hand(name, size):
    """Operations of a step of SimCLR on `size` images: forward once, backward by the weights and by the inputs."""
    each = [cin * out * k * k * side * side for cin, out, k, side in CONVOLUTIONS[name]]
    matrices = HEADS[name] * 512 + 512 * 256 + (MATRICES if name == "vit_tiny" else 0)
    image = 3 * (sum(each) + matrices) - each[0]  # nothing is before the first one
    image += 7 * ATTENTION if name == "vit_tiny" else 0
    return 2 * (2 * size * image + 3 * (2 * size) ** 2 * 256)


def method_of(name):
    torch.manual_seed(0)
    return FedAvg(SimCLR(getattr(networks, name)(), projector=(512, 256)))


def batch_of(size):
    return Batch((torch.randn(size, 3, 32, 32), torch.randn(size, 3, 32, 32)), torch.arange(size), None, None, {})


def step(method, batch):
    method.training_step(batch)["loss"].backward()


def check_flops(module, name, size=4):
    count = module.count(method_of(name), step, batch_of(size))
    assert count.flops == pytest.approx(by_hand(name, size), rel=0.01)


def check_evaluation(module):
    """A forward pass in eval mode, in which torch has a fused transformer layer."""
    method = method_of("vit_tiny").eval()

    @torch.no_grad()
    def forward(method, images):
        method.objective.encoder(images)

    expected = 2 * (MATRICES + 2 * ATTENTION + 48 * WIDTH * 64)
    assert module.count(method, forward, torch.randn(1, 3, 32, 32)).flops == pytest.approx(expected, rel=0.01)


def allocated(method, batch):
    """Bytes at most that a step adds, as torch's allocator for the CPU reports them."""
    step(method, batch)  # the first one allocates what stays
    method.zero_grad(set_to_none=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step(method, batch)
    live = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def check_memory(module, name, size):
    """With the networks and the momentum of SGD, which are there all the time."""
    method, batch = method_of(name), batch_of(size)
    held = 2 * sum(each.nbytes for each in method.parameters())
    count = module.count(method, step, batch)
    inputs = sum(each.nbytes for each in (*batch.views, batch.index))
    assert held + count.peak - inputs == pytest.approx(held + allocated(method, batch), rel=0.05)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_operations_of_a_step_are_those_of_a_hand_count(name):
    check_flops(counting, name)


def test_a_pass_in_eval_mode_counts_like_the_same_layers_in_training():
    check_evaluation(counting)


LARGE = [
    pytest.param(name, size, marks=pytest.mark.long) for name in ("resnet18", "vit_tiny") for size in (16, 64, 256)
]


@pytest.mark.parametrize(("name", "size"), [("convnet", 16), ("convnet", 64), ("convnet", 256), *LARGE])
def test_the_memory_of_a_step_is_what_the_process_allocates(name, size):
    check_memory(counting, name, size)


def test_a_count_changes_nothing_of_the_method_and_returns_the_activations():
    method, batch = method_of("convnet"), batch_of(4)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    count = counting.count(method, step, batch)
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.state_dict().items())
    assert all(parameter.grad is None for parameter in method.parameters())
    assert count.gradients == sum(each.nbytes for each in method.parameters())
    assert count.peak > count.activations > 4 * 2 * 32 * 16 * 16 * 4  # at least what the first convolution makes


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (
            ("Count(int(flops.get_total_flops())", "Count(int(flops.get_total_flops()) // 2"),
            partial(check_flops, name="convnet"),
        ),
        (
            ("self.live -= self.sizes.pop(place)", "self.sizes.pop(place)"),
            partial(check_memory, name="convnet", size=64),
        ),
        (("self.live + copies", "self.live"), partial(check_memory, name="convnet", size=16)),
    ],
    ids=["multiplications alone", "what dies counts on", "copies are missed"],
)
def test_a_planted_fault_is_found(fault, check):
    source = inspect.getsource(counting)
    assert source.count(fault[0]) == 1
    module = ModuleType("faulty")
    exec(source.replace(*fault), vars(module))
    with pytest.raises(AssertionError):
        check(module)
