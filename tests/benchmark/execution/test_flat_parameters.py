"""Flat buffer of a model: the model is unchanged, and the weights it sends are one tensor."""

import pytest
import torch

from benchmark.execution.flat_parameters import FlatParameters
from methods import trees
from tests.run_helpers import build_run, same

FIXUP = ("encoder={class: methods.networks.fixup_resnet20}", "heads.projector=[16,8]", "data.image_size=16")


def flattened(folder, *overrides):
    """A method and its flat buffer, which holds the weights that it sends; its state before it had one."""
    method = build_run(folder, "fedavg", *overrides).loop.method
    before = trees.clone(method.state_dict())
    return method, FlatParameters(method), before


def test_the_model_is_the_same_and_what_travels_is_one_tensor(tmp_path):
    words = ("objective=byol", "training.channels_last=true")
    method, resident, _ = flattened(tmp_path / "flat", *words)
    plain = build_run(tmp_path / "plain", "fedavg", *words).loop.method
    for name, tensor in plain.state_dict().items():
        assert torch.equal(method.state_dict()[name], tensor)
        assert method.state_dict()[name].stride() == tensor.stride()
    x = torch.rand(4, 3, 8, 8)
    assert torch.equal(method.objective.encoder(x), plain.objective.encoder(x))
    packed = trees.span(method.weights())
    assert packed.flat.data_ptr() == resident.flat.data_ptr()
    assert packed.flat.numel() < resident.flat.numel()  # targets lie behind the weights that are sent


def test_a_reset_puts_everything_back(tmp_path):
    method, resident, before = flattened(tmp_path, "objective=byol")
    for tensor in (*method.parameters(), *method.buffers()):
        tensor.data.fill_(7)
    resident.reset()
    assert same(dict(method.state_dict()), dict(before))
    assert any("num_batches_tracked" in name for name in before)


def test_weights_that_are_loaded_next_are_not_reset_and_nothing_else_is_left(tmp_path):
    method, resident, _ = flattened(tmp_path, "objective=byol")
    coming = trees.map(lambda leaf: leaf + 1, trees.clone(method.weights()))
    for weights, left in ((trees.clone(coming), 7.0), ({"encoder": coming["encoder"]}, None), (None, None)):
        resident.flat.fill_(7)
        resident.reset(weights)
        expected = resident.pristine.clone()
        if left is not None:
            expected[: trees.span(weights).flat.numel()] = left
        assert torch.equal(resident.flat, expected)


@pytest.mark.parametrize("words", [("federation.batch_norm=local",), ("training.precision=64-true",), FIXUP])
def test_learning_moves_one_tensor_on_boundaries_without_running_statistics_in_float64_and_among_scalars(
    tmp_path, words
):
    """Fixup's scalars lie between its convolutions."""
    method, resident, _ = flattened(tmp_path, "objective=byol", *words)
    assert trees.span(method.weights()).flat.data_ptr() == resident.flat.data_ptr()
    aligned = [tensor.data_ptr() % 16 == 0 for tensor in method.parameters() if tensor.numel() > 1]
    assert all(aligned) or words is not FIXUP
    encoder = method.objective.encoder
    encoder(torch.rand(4, 3, 16, 16, dtype=next(encoder.parameters()).dtype)).sum().backward()
    torch.optim.SGD(encoder.parameters(), lr=0.1).step()
    assert not torch.equal(resident.flat, resident.pristine)
