"""Folders of images with damaged files, odd names and things that are no files."""

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.fuzz.outcome import Case, cases, empty_folder, tiny

SUFFIXES = (".png", ".jpg", ".bmp", ".gif", ".tif", ".webp", ".ppm")
NAMES = (
    "dog", "$x^2$", r"$\frac$", "a b", "é", "<b>", "&amp;", "[red]", "%s", "{}", "'", '"', "x" * 200, "-", "0", "null",
    ".hidden", "\x1b[31m", "a\nb", "\u202e", b"\xff\xfe".decode("utf-8", "surrogateescape"),
)  # fmt: skip
"""Names of classes."""


def pixels(mode: str, size: tuple[int, int]) -> Image.Image:
    shape = (*size[::-1], {"L": 1, "RGB": 3, "RGBA": 4, "CMYK": 4}.get(mode, 1))
    values = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    if mode in ("I;16", "F", "I"):
        return Image.fromarray(values[..., 0].astype({"I;16": np.uint16, "F": np.float32, "I": np.int32}[mode]))
    if mode in ("1", "P"):
        return Image.fromarray(values[..., 0]).convert(mode)
    return Image.fromarray(values[..., 0]) if mode == "L" else Image.fromarray(values, mode)


SPOILERS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda file: None,
    "cut": lambda file: file.write_bytes(file.read_bytes()[: max(1, file.stat().st_size // 2)]),
    "empty": lambda file: file.write_bytes(b""),
    "text": lambda file: file.write_bytes(b"not an image"),
    "flip": lambda file: file.write_bytes(bytes(byte ^ (i % 7 == 3) for i, byte in enumerate(file.read_bytes()))),
    "pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "loop": lambda file: (file.unlink(), file.symlink_to(file)),
    "dangling": lambda file: (file.unlink(), file.symlink_to("/nowhere")),
    "device": lambda file: (file.unlink(), file.symlink_to("/dev/zero")),
    "folder": lambda file: (file.unlink(), file.mkdir()),
    "unreadable": lambda file: file.chmod(0),
}


@cases("images")
@given(
    mode=st.sampled_from(["L", "RGB", "RGBA", "CMYK", "1", "P", "I;16", "I", "F"]),
    suffix=st.sampled_from(SUFFIXES),
    size=st.sampled_from([(8, 8), (1, 1), (9, 7), (40, 40)]),
    spoiler=st.sampled_from(sorted(SPOILERS)),
    names=st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)),
    word=st.sampled_from(["data.image_size=8", "data.image_size=null", "views.size=8"]),
)
def test_image_folders(tmp_path_factory, mode, suffix, size, spoiler, names, word) -> None:
    root = tmp_path_factory.mktemp("images")
    for split, name in itertools.product(("train", "test"), sorted(set(names))):
        (folder := root / "pets" / split / name).mkdir(parents=True)
        for index in range({"train": 24, "test": 6}[split]):
            try:
                pixels(mode, size).save(folder / f"{index}{suffix}")
            except (OSError, ValueError):  # the format has no such pixels
                pixels("RGB", size).save(folder / f"{index}{suffix}")
    SPOILERS[spoiler](root / "pets" / "train" / names[0] / f"3{suffix}")
    words = ("data.name=pets", word, "data.options={}", "partition.clients=2", "partition.min_size=2", "logger=csv")
    with empty_folder(root / "empty"):
        Case(tiny(root, f"data.root={root}", *words, "scenario=pets")).check()
    shutil.rmtree(root)
