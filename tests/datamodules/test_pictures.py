"""Pictures as they are shown, and depth: the same by every way into the suite; and their sizes."""

import struct
from pathlib import Path

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from datamodules import sources
from datamodules.pictures import as_image, read_image
from datamodules.sizes import MODES, fitting, with_channels
from tests.datamodules.own_data import RNG, load, make, picture, refused, save

SHOWN = {
    1: lambda stored: stored, 2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1], 4: lambda stored: stored[::-1],
    5: lambda stored: stored.swapaxes(0, 1), 6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: np.rot90(stored, 2).swapaxes(0, 1), 8: lambda stored: np.rot90(stored),
}  # fmt: skip
"""EXIF orientation -> the picture `[H, W, C]` that is shown, of the stored one."""
generated = settings(derandomize=True, deadline=None, max_examples=30)


def exif(orientation: int) -> Image.Exif:
    made = Image.Exif()
    made[274] = orientation
    return made


def ways(files: list[Path], root: Path) -> dict[str, dict]:
    """Way into the suite -> the arguments of `load` for the images of these files."""
    (root / "table.csv").write_text("path\n" + "\n".join(str(file.relative_to(root)) for file in files))
    content = {"image": [{"bytes": file.read_bytes(), "path": None} for file in files]}
    features = datasets.Features({"image": datasets.Image()})
    datasets.Dataset.from_dict(content, features=features).save_to_disk(str(root / "stored"))
    return {
        "folder": {"name": files[0].parent.name},
        "table": {"name": "table"},
        "huggingface": {"name": "stored"},
        "dataset": {"name": "items", "dataset": (lambda: [Image.open(file) for file in files], {})},
    }


def images_of(root: Path, given: dict, **more) -> tuple[np.ndarray, tuple[str, ...]]:
    """All images of a data set, in the order of train and test, and its notes."""
    source = load(root, **given, channels=1, **more)
    return np.concatenate([source.train.images, source.test.images])[:, 0], source.notes


class TestOrientation:
    @generated
    @given(st.sampled_from(["png", "jpg", "webp", "tif"]), st.sampled_from(list(SHOWN)), st.integers(1, 9))
    def test_a_file_is_the_picture_that_is_shown(self, tmp_path_factory, suffix, orientation, width):
        folder = tmp_path_factory.mktemp("exif")
        flagged, plain = folder / f"flagged.{suffix}", folder / f"plain.{suffix}"
        stored = Image.fromarray(picture((5, width)))
        options = {"lossless": True} if suffix == "webp" else {}
        stored.save(plain, **options)
        stored.save(flagged, exif=exif(orientation), **options)
        expected = SHOWN[orientation](np.asarray(Image.open(plain).convert("RGB"))).transpose(2, 0, 1)
        assert np.array_equal(read_image(str(flagged)).values, expected)
        with Image.open(flagged) as opened:
            assert np.array_equal(as_image(opened, "it").values, expected)

    def test_so_it_is_in_every_data_set(self, tmp_path):
        shown, back = picture((8, 8)), {6: 8, 8: 6}
        files = [tmp_path / "mine" / f"{orientation}.png" for orientation in SHOWN]
        files[0].parent.mkdir()
        for orientation, file in zip(SHOWN, files, strict=True):
            stored = np.ascontiguousarray(SHOWN[back.get(orientation, orientation)](shown))
            Image.fromarray(stored).save(file, exif=exif(orientation))
        for given_ in ways(files, tmp_path).values():
            images, notes = images_of(tmp_path, given_)
            assert len(images) == 8
            assert all(np.array_equal(image, images[0]) for image in images)
            assert notes == (sources.HELD_OUT,)

    def test_what_is_no_orientation_or_broken_is_left_out(self, tmp_path):
        image = picture((3, 4))
        for flags in (exif(0), exif(9), exif(65535), b"Exif\0\0II*\0\xff\xff\xff\xff\x01"):
            Image.fromarray(image).save(tmp_path / "it.png", exif=flags)
            assert np.array_equal(read_image(str(tmp_path / "it.png")).values, image.transpose(2, 0, 1))


def write_grey(file: Path, levels: np.ndarray, kind: str, bits: int) -> int:
    """Write grey levels `[H, W]` of so many bits, as a file of 16 bits or as one that says how many; -> its white."""
    if kind[:3] == "pgm":
        white = max(2**bits - 1, 256) if kind == "pgm" else 65_535  # below 256, a level has one byte
        header = f"P5\n{levels.shape[1]} {levels.shape[0]}\n{white}\n".encode()
        file.with_suffix(".pgm").write_bytes(header + levels.astype(">u2").tobytes())
        return white
    if kind == "signed tif":
        file.with_suffix(".tif").write_bytes(tiff(levels // 2, 16, levels // 2, sample=2))
        return 32_767
    Image.fromarray(levels).save(file.with_suffix(f".{kind}"))
    return 65_535


def tiff(levels: np.ndarray, bits: int, content: np.ndarray, sample: int = 1) -> bytes:
    """A TIFF file of one strip. sample: 1 for whole numbers without a sign, 2 with one."""
    data, (height, width) = content.tobytes(), levels.shape
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: 1, 273: 134, 277: 1, 278: height}
    tags |= {279: len(data), 339: sample}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + b"\0" * 4 + data


def eight(levels: np.ndarray, white: int) -> np.ndarray:
    """Grey levels in 8 bits, where this one is white."""
    return np.rint(np.clip(levels / white, 0, 1) * 255)


class TestDepth:
    @settings(generated, max_examples=12)
    @given(
        st.sampled_from(["png", "pgm", "pgm, 65535", "tif", "signed tif"]),
        st.integers(9, 16),
        st.sampled_from([None, "max", 255, 4095, 50_000]),
    )
    def test_one_rule_for_all_files_and_ways(self, tmp_path_factory, kind, bits, levels):
        root = tmp_path_factory.mktemp("depth")
        (root / "mine").mkdir()
        content = np.random.default_rng(bits).integers(0, 2**bits, (5, 4, 4), dtype=np.uint16)
        for index, each in enumerate(content):
            white = write_grey(root / "mine" / str(index), each, kind, bits)
        content = content // 2 if kind == "signed tif" else content
        train = sources.load("mine", root=root, cache=root / "first").train.paths
        order = [int(path[0]) for path in train] + [k for k in range(5) if k not in {int(path[0]) for path in train}]
        used = {None: white, "max": content[order[:4]].max()}.get(levels, levels)
        for given_ in ways(sorted((root / "mine").iterdir()), root).values():
            images, notes = images_of(root, given_, levels=levels, order="source")
            assert np.array_equal(images, eight(content[order], used))
            dark = [note for note in notes if "darker than an eighth of the range" in note]
            assert len(dark) == (levels is None and int(content.max()) * 8 < white)
            above = [note for note in notes if "have grey levels above data.levels" in note]
            assert bool(above) == (levels is not None and content.max() > used)

    @generated
    @given(st.integers(9, 16), st.sampled_from([None, "max", 4095]), st.sampled_from([(), (3,)]), st.sampled_from("<>"))
    def test_so_are_arrays_and_items(self, tmp_path_factory, bits, levels, channels, order):
        root = tmp_path_factory.mktemp("arrays")
        content = np.random.default_rng(bits).integers(0, 2**bits, (6, 5, 4, *channels)).astype(f"{order}u2")
        np.savez(root / "mine.npz", train_images=content[:4], test_images=content[4:])
        used = {None: 65_535, "max": content[:4].max()}.get(levels, levels)
        expected = eight(content.reshape(6, 5, 4, -1), used).transpose(0, 3, 1, 2)
        items = (lambda split: list(content[:4] if split == "train" else content[4:]), {})
        for given_ in ({"name": "mine"}, {"name": "items", "dataset": items}):
            source = load(root, **given_, levels=levels, order="source")
            assert np.array_equal(np.concatenate([source.train.images, source.test.images]), expected)
            assert source.levels == (None if levels is None else used)

    def test_twelve_bits_of_a_tiff_are_its_range_and_levels_below_0_are_refused(self, tmp_path):
        levels, file = RNG.integers(0, 4096, (4, 8), dtype=np.uint16), tmp_path / "it.tif"
        bits = np.unpackbits(levels.astype(">u2").view(np.uint8).reshape(4, 8, 2), axis=2)[:, :, 4:]
        file.write_bytes(tiff(levels, 12, np.packbits(bits.reshape(4, -1), axis=1)))
        read = read_image(str(file))
        assert read.white == 4095
        assert np.array_equal(read.values, [levels] * 3)
        levels = np.array([[-1, 5]], dtype="<i2")
        file.write_bytes(tiff(levels, 16, levels, sample=2))
        with refused("it has grey levels below 0: shift them"):
            read_image(str(file))

    def test_the_largest_is_that_of_train_and_what_is_above_it_is_said(self, tmp_path):
        for split, level in (("train", 1000), ("test", 2000)):
            save(tmp_path / "mine" / split / "a.png", np.full((4, 4), level, dtype=np.uint16))
        source = load(tmp_path, levels="max")
        assert source.notes == (
            "white is grey level 1,000, the largest of the training images (data.levels=max)",
            "1 of 2 images have grey levels above data.levels=1000, which are white",
        )

    def test_colours_of_16_bits_that_pillow_reads_as_8(self, tmp_path):
        (tmp_path / "mine").mkdir()
        for index in range(3):
            dark = RNG.integers(0, 4096, (4, 4, 3)).astype(">u2").tobytes()
            (tmp_path / "mine" / f"{index}.ppm").write_bytes(b"P6\n4 4\n65535\n" + dark)
        (note,) = load(tmp_path).notes[1:]
        assert note.startswith("all 3 images of 16 bits are darker")
        assert note.endswith("convert them to 8 bits, or give arrays of uint16")
        with refused(r"data\.levels: .*mine/\d\.ppm has 16 bits a channel and colours"):
            load(tmp_path, levels=4095)

    def test_labelled_images_beside_them_have_the_same_white(self, tmp_path):
        make(tmp_path / "mine", "probe", "train test", "cat dog")
        for index in range(5):
            save(tmp_path / "mine" / "train" / f"{index}.png", np.full((8, 8), 900, dtype=np.uint16))
        save(tmp_path / "mine" / "probe" / "train" / "cat" / "0.png", np.full((8, 8), 450, dtype=np.uint16))
        source = load(tmp_path, levels="max")
        assert np.all(source.train.images == 255)
        assert np.all(source.probe.train.images[0] == 128)

    def test_what_is_no_grey_level(self, tmp_path):
        for levels in (0, -1, 65_536, 0.5, True, "most", [4095]):
            with refused(r"data\.levels=.*give the grey level of 16-bit images that is white"):
                load(tmp_path, "digits", levels=levels)


class TestLeftOut:
    @pytest.mark.parametrize("suffix", ["gif", "tif", "png", "webp"])
    def test_further_pages_are_counted(self, tmp_path, suffix):
        first, *others = (Image.fromarray(picture()) for _ in range(3))
        (tmp_path / "mine").mkdir()
        for index in range(5):
            options = {"lossless": True} if suffix == "webp" else {}
            options |= {"save_all": True, "append_images": others} if index else {}
            first.save(tmp_path / "mine" / f"{index}.{suffix}", **options)
        for given_ in ways(sorted((tmp_path / "mine").iterdir()), tmp_path).values():
            images, notes = images_of(tmp_path, given_)
            assert notes[1:] == ("4 of 5 images have further pages or frames, which are left out",)
            assert all(np.array_equal(image, images[0]) for image in images)  # all have the same first page

    @pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
    def test_so_are_transparent_pixels(self, tmp_path, mode):
        (tmp_path / "mine").mkdir()
        for index in range(5):
            image = Image.new("RGBA", (8, 8), (9, 9, 9, 255))
            image.putpixel((0, 0), (9, 9, 9, 0 if index == 2 else 255))
            (image.quantize() if mode == "P" else image.convert(mode)).save(tmp_path / "mine" / f"{index}.png")
        source = load(tmp_path)
        assert source.notes[1:] == ("1 of 5 images have transparent pixels, whose transparency is left out",)


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


@pytest.mark.parametrize("side", [1, 3, 5, 8])
def test_many_images_are_as_each_of_them_bit_by_bit(side):
    """Also where a grey level lies in the middle of two: sums of one image and of many differ there."""
    colours = np.stack(np.meshgrid(*[np.arange(0, 256, 5)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    between = colours[colours @ [299, 587, 114] % 1000 == 500]
    assert len(between) > 100
    rng = np.random.default_rng(side)
    many = np.concatenate([rng.choice(between, (500, side, side)), rng.integers(0, 256, (100, side, side, 3))])
    many = many.astype(np.uint8).transpose(0, 3, 1, 2)
    for request_ in ((None, None, 1), (side, None, 1), (side + 1, None, 1), (None, None, 3), (2, "pad", None)):
        fit = fitting(*request_)
        assert np.array_equal(fit(many), np.stack([fit(image) for image in many]))
    grey = fitting(None, None, 3)
    assert np.array_equal(grey(many[:, :1]), np.stack([grey(image[:1]) for image in many]))


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


def test_channels_and_sizes_are_part_of_what_is_cached_and_a_name_leads_nowhere_else(tmp_path):
    """`synthetic` has an option `channels` too."""
    requests = ({}, {"channels": 1}, {}, {"image_size": 5})
    shapes = [load(tmp_path, "synthetic", **each).train.images.shape[1:] for each in requests]
    assert shapes == [(3, 8, 8), (1, 8, 8), (3, 8, 8), (3, 5, 5)]
    for name in ("", ".", "..", "../x"):
        with refused("is not a plain name"):
            load(tmp_path, name)
