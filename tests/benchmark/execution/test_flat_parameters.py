"""Flat buffer of a model: the model is unchanged, and the weights it sends are one tensor."""

import pytest
import torch

from benchmark.execution.flat_parameters import FlatParameters
from methods import trees
from tests.run_helpers import build_run


def method(folder, *overrides):
    return build_run(folder, "fedavg", *overrides).loop.method


def test_the_model_is_the_same_and_what_travels_is_one_tensor(tmp_path):
    flat, plain = (method(tmp_path / name, "objective=byol", "training.channels_last=true") for name in "ab")
    before = {name: (tensor.clone(), tensor.stride()) for name, tensor in flat.state_dict().items()}
    resident = FlatParameters(flat)
    for name, tensor in flat.state_dict().items():
        assert torch.equal(tensor, before[name][0])
        assert tensor.stride() == before[name][1]
    x = torch.rand(4, 3, 8, 8)
    assert torch.equal(flat.objective.encoder(x), plain.objective.encoder(x))
    packed = trees.span(flat.weights())
    assert packed is not None
    assert packed.flat.data_ptr() == resident.flat.data_ptr()
    assert packed.flat.numel() < resident.flat.numel()  # targets lie behind the weights that are sent


def test_a_reset_puts_everything_back(tmp_path):
    module = method(tmp_path, "objective=byol")
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    resident = FlatParameters(module)
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data.fill_(7)
    resident.reset()
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert any("num_batches_tracked" in name for name in before)


def test_weights_that_are_loaded_next_are_not_reset_and_nothing_else_is_left(tmp_path):
    module = method(tmp_path, "objective=byol")
    resident = FlatParameters(module)
    coming = trees.map(lambda leaf: leaf + 1, trees.clone(module.weights()))
    for weights, left in ((trees.clone(coming), 7.0), ({"encoder": coming["encoder"]}, None), (None, None)):
        resident.flat.fill_(7)
        resident.reset(weights)
        expected = resident.pristine.clone()
        if left is not None:
            expected[: trees.span(weights).flat.numel()] = left
        assert torch.equal(resident.flat, expected)


def test_learning_moves_the_flat_tensor(tmp_path):
    module = method(tmp_path)
    resident = FlatParameters(module)
    module.objective.encoder(torch.rand(4, 3, 8, 8)).sum().backward()
    torch.optim.SGD(module.objective.encoder.parameters(), lr=0.1).step()
    assert not torch.equal(resident.flat, resident.pristine)


@pytest.mark.parametrize("words", [("federation.batch_norm=local",), ("training.precision=64-true",)])
def test_without_running_statistics_and_in_float64_what_travels_still_is_one_tensor(tmp_path, words):
    assert trees.span(method(tmp_path, *words).weights()) is not None


def test_scalars_do_not_move_weights_off_their_boundaries(tmp_path):
    """Fixup's scalars lie between its convolutions."""
    fixup = "encoder={class: methods.networks.fixup_resnet20}"
    module = method(tmp_path, fixup, "heads.projector=[16,8]", "objective=byol", "data.image_size=16")
    resident = FlatParameters(module)
    assert all(tensor.data_ptr() % 16 == 0 for tensor in module.parameters() if tensor.numel() > 1)
    packed = trees.span(module.weights())
    assert packed is not None
    assert packed.flat.data_ptr() == resident.flat.data_ptr()
