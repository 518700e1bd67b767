"""Encoders of the user's: what arguments they take, and one line where they do not fit the run's images."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from benchmark.errors import ConfigError
from benchmark.experiment.encoder import build
from methods.fedavg import FedAvg
from tests.run_helpers import same, train_run


class Plain(nn.Module):
    """As most networks are written: its arguments may be given by position."""

    def __init__(self, in_channels=3, width=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.dim = width

    def forward(self, images):
        return self.layers(images)


class Fixed(Plain):
    """Of three channels."""

    def __init__(self, channels=3):
        super().__init__(channels, 8)


class PassedOn(Plain):
    def __init__(self, **keywords):
        super().__init__(**keywords)


class Spatial(Plain):
    def forward(self, images):
        return self.layers[:2](images)


class Several(Plain):
    def forward(self, images):
        return (self.layers(images),)


class OtherWidth(Plain):
    def __init__(self, in_channels=3):
        super().__init__(in_channels)
        self.dim = 5


class NumPyWidth(Plain):
    def __init__(self, width):
        super().__init__(1, width)
        self.dim = np.prod([width])


class Computed(nn.Conv2d):
    def __init__(self):
        super().__init__(1, 4, 1)

    @property
    def dim(self):
        return np.prod([4])


class OfOneSize(nn.Module):
    """A linear layer of 8 x 8 pixels, and a shape that only lazy layers know."""

    def __init__(self, side=8, lazy=False):
        super().__init__()
        self.dim = 4
        self.layers = nn.Sequential(nn.Flatten(), nn.LazyLinear(4) if lazy else nn.Linear(side * side, 4))

    def forward(self, images):
        return self.layers(images)


class Counting(Plain):
    def __init__(self, in_channels: int = 3) -> None:
        super().__init__(in_channels)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        return super().forward(x)


class Broken(nn.Module):
    def __init__(self, first=1):
        raise KeyError("weights")


class NoWidth(nn.Module):
    def __init__(self, first=1):
        super().__init__()


def made(cls, channels=1, side=8, **arguments):
    section = {"class": f"{cls.__module__}.{cls.__qualname__}", **arguments}
    return build(section, "encoder", (channels, side, side), {})


@settings(derandomize=True)
@given(st.sampled_from([Plain, PassedOn]), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))
def test_arguments_that_may_be_given_by_position_count(cls, channels, width, side):
    """Channels are filled in by the run, whatever their default."""
    encoder = made(cls, channels, side, width=width)
    assert encoder(torch.zeros(3, channels, side, side)).shape == (3, width)


def test_a_width_that_numpy_has_computed_is_an_int():
    assert type(made(NumPyWidth, width=6).dim) is int


@pytest.mark.parametrize(
    ("cls", "arguments", "line"),
    [
        (Plain, {"widht": 3}, r"'encoder.widht' \(did you mean 'width'\?\); .* has: in_channels, width"),
        (Fixed, {}, r"encoder: .*Fixed cannot read images \[1, 8, 8\]: .* set data.channels=3"),
        (Plain, {"in_channels": 3}, "set data.channels=3"),
        (OfOneSize, {"side": 9}, "set data.image_size and data.channels to what it reads"),
        (Spatial, {}, r"\[2, 64, 8, 8\] for two images \[1, 8, 8\]: return floats \[N, dim\]"),
        (Several, {}, "returns a tuple: return one tensor"),
        (OtherWidth, {}, r"returns torch.float32 \[2, 64\] .*, \[2, 5\] for its dim=5"),
        (Broken, {}, r"cannot be built from {}: KeyError: 'weights' \(test_encoder.py, line \d+\)"),
        (NoWidth, {}, "makes a NoWidth without `dim`"),
        (Computed, {}, "makes a Computed without `dim`, an int"),
    ],
)
def test_what_does_not_fit_is_one_line(cls, arguments, line):
    with pytest.raises(ConfigError, match=line) as caught:
        made(cls, **arguments)
    assert "\n" not in str(caught.value)


def test_the_trial_changes_neither_its_state_nor_what_is_drawn():
    torch.manual_seed(1)
    reference = Plain(1)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    encoder = made(Plain)
    assert torch.equal(torch.rand(1), drawn)
    assert same(encoder.state_dict(), reference.state_dict())
    assert encoder.training
    assert made(Counting).seen == 0
    assert made(OfOneSize, lazy=True).layers[1].weight.shape == (4, 64)


class Weighed(FedAvg):
    """A method whose own argument may be given by position."""

    def __init__(self, objective, mu=0.1, **keywords):
        super().__init__(objective, **keywords)
        self.mu = mu


def test_a_run_of_an_encoder_and_a_method_of_the_users(tmp_path):
    encoder, method = (f"{cls.__module__}.{cls.__name__}" for cls in (Plain, Weighed))
    with pytest.raises(ConfigError, match=r"unknown key 'method.objective'; .* has: .*mu"):
        train_run(tmp_path, "fedavg", f"method={{class: {method}, objective: 3}}", "row=own")
    words = (f"method={{class: {method}, mu: 0.5}}", f"encoder={{class: {encoder}, width: 6}}", "row=own")
    run = train_run(tmp_path, "fedavg", *words, "federation.rounds=1")
    assert (run.loop.round, run.loop.method.mu, run.loop.method.objective.encoder.dim) == (1, 0.5, 6)
