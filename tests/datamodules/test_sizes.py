import numpy as np
import pytest
from PIL import Image

from datamodules.sizes import MODES, fitting, with_channels
from tests.datamodules.own_data import load, picture, refused

WIDE = picture((6, 12)).transpose(2, 0, 1)


def resized(width: int, height: int) -> np.ndarray:
    """WIDE, by Pillow."""
    image = Image.fromarray(WIDE.transpose(1, 2, 0)).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def test_a_crop_is_the_middle_padding_keeps_the_whole_and_squashing_changes_the_aspect_ratio():
    assert np.array_equal(fitting(4, "shorter_side_crop", None)(WIDE), resized(8, 4)[:, :, 2:6])
    padded = np.pad(resized(8, 4), ((0, 0), (2, 2), (0, 0)))  # between black borders
    assert np.array_equal(fitting(8, "pad", None)(WIDE), padded)
    assert np.array_equal(fitting(4, "squash", None)(WIDE), resized(4, 4))


@pytest.mark.parametrize("mode", [None, *MODES])
def test_every_mode_makes_squares_and_square_images_are_the_same_by_all(mode):
    square = picture((8, 8)).transpose(2, 0, 1)
    assert np.array_equal(fitting(4, mode, None)(square), fitting(4, "squash", None)(square))
    for size in ((5, 3), (3, 5), (4, 9), (1, 7)):
        assert fitting(4, mode or "pad", None)(picture(size).transpose(2, 0, 1)).shape == (3, 4, 4)


def test_channels_on_request():
    grey = picture((8, 8), channels=1)[None]
    assert np.array_equal(with_channels(grey, 3), np.repeat(grey, 3, axis=0))
    colour = picture().transpose(2, 0, 1)
    reference = np.asarray(Image.fromarray(colour.transpose(1, 2, 0)).convert("L"))
    assert np.abs(with_channels(colour, 1)[0].astype(int) - reference).max() <= 1  # Pillow's weights are fixed-point
    assert np.array_equal(with_channels(with_channels(grey, 3), 1), grey)


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        ((0, None, None), "data.image_size=0: give a number of pixels"),
        ((4, "stretch", None), "data.resize='stretch': choose shorter_side_crop, squash, pad"),
        ((None, "pad", None), "data.resize=pad needs a size"),
        ((None, None, 2), "data.channels=2: give 1"),
        ((4, None, None), r"12 x 6, not square: set data\.resize"),  # not squashed in silence
        ((None, None, 3), "the images have 4 channels"),
    ],
)
def test_impossible_requests(request_, line):
    with refused(line):
        fitting(*request_)(np.zeros((4, 2, 2), dtype=np.uint8) if request_[2] == 3 else WIDE)


def test_channels_and_sizes_are_part_of_what_is_cached(tmp_path):
    """`synthetic` has an option `channels` too."""
    requests = ({}, {"channels": 1}, {}, {"image_size": 5})
    shapes = [load(tmp_path, "synthetic", **each).train.images.shape[1:] for each in requests]
    assert shapes == [(3, 8, 8), (1, 8, 8), (3, 8, 8), (3, 5, 5)]


@pytest.mark.parametrize("name", ["", ".", "..", "../x"])
def test_a_name_that_leads_elsewhere(tmp_path, name):
    with refused("is not a plain name"):
        load(tmp_path, name)
