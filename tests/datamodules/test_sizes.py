import numpy as np
import pytest
from PIL import Image

from datamodules import sources
from datamodules.errors import DataError
from datamodules.sizes import MODES, fitting, with_channels
from tests.datamodules.own_data import picture

WIDE = picture((6, 12)).transpose(2, 0, 1)


def test_a_crop_is_the_middle_of_the_image_at_its_aspect_ratio():
    resized = np.asarray(Image.fromarray(WIDE.transpose(1, 2, 0)).resize((8, 4), Image.Resampling.BILINEAR))
    assert np.array_equal(fitting(4, "shorter_side_crop", None)(WIDE), resized[:, 2:6].transpose(2, 0, 1))


def test_padding_keeps_the_whole_image_between_black_borders():
    resized = np.asarray(Image.fromarray(WIDE.transpose(1, 2, 0)).resize((8, 4), Image.Resampling.BILINEAR))
    padded = fitting(8, "pad", None)(WIDE)
    assert padded.shape == (3, 8, 8)
    assert np.array_equal(padded[:, 2:6], resized.transpose(2, 0, 1))
    assert not padded[:, :2].any()
    assert not padded[:, 6:].any()


def test_squashing_changes_the_aspect_ratio():
    resized = np.asarray(Image.fromarray(WIDE.transpose(1, 2, 0)).resize((4, 4), Image.Resampling.BILINEAR))
    assert np.array_equal(fitting(4, "squash", None)(WIDE), resized.transpose(2, 0, 1))


@pytest.mark.parametrize("mode", [None, *MODES])
def test_square_images_are_the_same_by_every_mode(mode):
    square = picture((8, 8)).transpose(2, 0, 1)
    assert np.array_equal(fitting(4, mode, None)(square), fitting(4, "squash", None)(square))


@pytest.mark.parametrize("size", [(5, 3), (3, 5), (4, 9), (1, 7)])
@pytest.mark.parametrize("mode", MODES)
def test_odd_sizes_become_squares_too(size, mode):
    assert fitting(4, mode, None)(picture(size).transpose(2, 0, 1)).shape == (3, 4, 4)


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
    ],
)
def test_impossible_requests(request_, line):
    with pytest.raises(DataError, match=line):
        fitting(*request_)


def test_channels_are_part_of_what_is_cached(tmp_path):
    """`synthetic` has an option of the same name."""
    shapes = [
        sources.load("synthetic", root=tmp_path, cache=tmp_path, channels=channels).train.images.shape[1]
        for channels in (None, 1, None)
    ]
    assert shapes == [3, 1, 3]


@pytest.mark.parametrize("name", ["", ".", "..", "../x"])
def test_a_name_that_leads_elsewhere(tmp_path, name):
    with pytest.raises(DataError, match="is not a plain name"):
        sources.load(name, root=tmp_path, cache=tmp_path / "cache")


def test_an_image_that_is_not_square_is_not_squashed_in_silence():
    with pytest.raises(DataError, match=r"12 x 6, not square: set data\.resize"):
        fitting(4, None, None)(WIDE)
    with pytest.raises(DataError, match="the images have 4 channels"):
        fitting(None, None, 3)(np.zeros((4, 2, 2), dtype=np.uint8))
