"""Decoded images on disk: written whole or not at all, checked when they are opened, decoded again if damaged.

A folder has `{train,test}_{images,labels}.npy` and `meta.json`: the classes, the hashes of the content, and the hash of
every block of each file. Where the data have them, there are also `{train,test}_clients.npy` and
`{train,test}_paths.npy`, texts, and `{train,test}_positions.npy`, whole numbers.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from datamodules.damaged import refusal, without_damaged
from datamodules.errors import DataError, UnreadableError
from datamodules.order import Hashes, hashes, parts_of, threads
from datamodules.pictures import Findings, Picture, eight_bits, picture
from datamodules.raw import Raw, Rows
from datamodules.splits import SPLITS

CHUNK = 64  # images a thread decodes at a time, and between two calls of `progress`
BLOCK = 1 << 20  # bytes that have a hash of their own
CHECKED = 256  # blocks of a file that are compared at each start, evenly spread over it
ABANDONED = 3600.0  # seconds without progress after which an unfinished folder that no process holds is removed
ARRAYS = ("images", "labels")
Progress = Callable[[int, int], None]
Fit = Callable[[np.ndarray], np.ndarray]
"""See `datamodules.sizes.fitting`."""

log = logging.getLogger(__name__)


class Decoded(NamedTuple):
    """Arrays by name, images memory-mapped; the classes; the hashes of the content; the notes; `levels`.

    levels: the white that `data.levels` has given images of 16 bits; None: it has given none.
    """

    arrays: dict[str, np.ndarray]
    classes: tuple[str, ...]
    hashes: Hashes
    notes: tuple[str, ...]
    levels: int | None


def opened(
    folder: Path,
    read_raw: Callable[[], Raw],
    *,
    fit: Fit,
    verify: bool,
    progress: Progress | None,
    levels: int | str | None = None,
    skip_damaged: bool = False,
) -> Decoded:
    """The decoded images in `folder`; decoded now where they are missing or not as they were written.

    Args:
        read_raw: returns the images to decode.
        fit: gives an image its final size.
        verify: compare every block, not `CHECKED` of each file.
        levels: the white of images of 16 bits: a grey level, `max` for the largest of train, None for each one's own.
        skip_damaged: leave images out that cannot be read, with a note of how many.

    Raises DataError: images that cannot be read, or a folder that cannot be written.
    """
    reason = damage(folder, verify) if folder.exists() else "missing"
    if reason is not None:
        if reason != "missing":
            log.warning("%s is damaged (%s): its images are decoded again", folder, reason)
        raws = [read_raw()]  # taken out, so that `_build` can let its images go
        try:
            _build(folder, raws.pop(), fit, levels, verify, progress, skip_damaged)
        except OSError as error:  # reading has errors of its own
            raise DataError(
                f"decoded images cannot be written to {folder.parent} ({error.strerror}): "
                "set data.cache=... to a folder with room for them"
            ) from error
    try:
        return _read(folder)
    except FileNotFoundError:  # another process is replacing the folder by its own, of the same content
        time.sleep(1)
        return _read(folder)


def _read(folder: Path) -> Decoded:
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    names = [Path(file).stem for file in meta["blocks"]]
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in names if "labels" not in name}
    for name in filter(lambda name: "labels" in name, names):  # which torch takes only where one may write into them
        arrays[name] = np.load(folder / f"{name}.npy", mmap_mode="c").view(np.ndarray)
    return Decoded(arrays, tuple(meta["classes"]), Hashes(*meta["hashes"]), tuple(meta["notes"]), meta["levels"])


def damage(folder: Path, verify: bool = True) -> str | None:
    """What in the folder is not as it was written, in words; None where nothing is. verify: see `opened`."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if meta.pop("checksum") != _checksum(meta):
            return "meta.json has changed"
        for name, hashes in meta["blocks"].items():
            if (folder / name).stat().st_size != meta["bytes"][name]:
                return f"{name} has another size"
            every = 1 if verify else -(-len(hashes) // CHECKED)
            with (folder / name).open("rb") as stream:
                if any(_block(stream, index) != hashes[index] for index in range(0, len(hashes), every)):
                    return f"{name} has changed"
    except OSError as error:
        return f"{Path(error.filename or folder).name}: {error.strerror}"
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return "meta.json is not readable"
    return None


def _block(stream: Any, index: int) -> str:
    """Hash of a block of an open file."""
    stream.seek(index * BLOCK)
    return hashlib.sha256(stream.read(BLOCK)).hexdigest()[:16]


def _checksum(meta: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _build(
    target: Path,
    raw: Raw,
    fit: Fit,
    levels: int | str | None,
    verify: bool,
    progress: Progress | None,
    skip_damaged: bool,
) -> None:
    """Decode into a sibling folder and rename it: neither a crash nor a second process leaves a partial cache."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with _temporary_beside(target) as temporary:
        folder = temporary / "finished"  # the temporary folder itself is readable by its owner only
        folder.mkdir()
        alive = partial(os.utime, temporary)  # see ABANDONED
        raw = without_damaged(raw, alive) if skip_damaged else raw
        found, total = Findings(), sum(map(len, raw.labels.values()))
        try:
            white = _white_of(raw, levels, alive)
            for split in SPLITS:
                for kind, dtype in (("clients", str), ("paths", str), ("positions", np.int64)):
                    if split in (known := getattr(raw, kind)):
                        np.save(folder / f"{split}_{kind}.npy", np.asarray(known[split], dtype=dtype))
                for decoded in _decode(folder, split, raw, fit, white):
                    found.include(decoded)
                    alive()
                    if progress:
                        progress(found.images, total)
        except UnreadableError as error:
            raise refusal(raw) from error
        classes, notes = raw.classes, [*raw.notes, *found.notes(white, levels)]
        del raw  # hashing needs room
        _write_meta(folder, classes, notes, white if found.deep else None)
        if damage(target, verify) is None:  # another process was first, with the same content
            return
        with contextlib.suppress(FileNotFoundError):
            target.rename(temporary / "damaged")
        try:
            folder.rename(target)
        except OSError:
            if damage(target, verify) is not None:
                raise


def _white_of(raw: Raw, levels: int | str | None, alive: Callable[[], object]) -> int | None:
    """The grey level of 16 bits that `levels` makes white: of `max`, the largest of train, None without any.

    alive: called from time to time.
    """
    if levels != "max":
        return levels if isinstance(levels, int) else None
    items = raw.images["train"]

    def largest(start: int) -> int:
        images = (picture(raw.read(item)) for item in items[start : start + CHUNK])
        return max((int(image.values.max()) for image in images if image.deep), default=0)

    white = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for each in pool.map(largest, range(0, len(items), CHUNK)):
            white = max(white, each)
            alive()
    return white or None


@contextlib.contextmanager
def _temporary_beside(target: Path) -> Iterator[Path]:
    """A folder beside `target`, removed at the end; those that killed processes have left are removed too."""
    pattern = f".{target.name}-"
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=pattern, ignore_cleanup_errors=True) as name:
        held = os.open(name, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: nothing is removed there
                fcntl.flock(held, fcntl.LOCK_EX)
            for other in target.parent.glob(f"{pattern}*"):
                with contextlib.suppress(OSError):  # held by its process, or just removed
                    if time.time() - other.stat().st_mtime > ABANDONED:
                        descriptor = os.open(other, os.O_RDONLY)
                        try:
                            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                            shutil.rmtree(other, ignore_errors=True)
                        finally:
                            os.close(descriptor)
            yield Path(name)
        finally:
            os.close(held)


def _decode(folder: Path, split: str, raw: Raw, fit: Fit, levels: int | None) -> Iterator[Findings]:
    """Write a split's arrays, yielding what was found in the images of each finished chunk."""

    def image_of(of: str, position: int) -> tuple[Picture, np.ndarray]:
        read = picture(raw.read(raw.images[of][position]))
        return read, fit(eight_bits(read, levels, _name(raw, of, position)))

    labels = raw.labels[split].astype(np.int64)
    np.save(folder / f"{split}_labels.npy", labels)
    first, fitted = image_of("train", 0)  # test may be empty
    shape = (len(labels), *fitted.shape)  # one for both splits
    file = folder / f"{split}_images.npy"
    images = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=shape)
    if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and would kill the process while mapped
        with file.open("r+b") as stream:
            try:
                os.posix_fallocate(stream.fileno(), 0, file.stat().st_size)
            except OSError as error:  # others: the file system cannot reserve
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                    raise

    if (stored := _together(raw, split, fit, shape[1:])) is not None:
        with file.open("r+b") as stream:  # not mapped, so that no page of it is this process's memory
            stream.seek(images.offset)
            for part in parts_of(stored):
                stream.write(np.ascontiguousarray(fit(stored[part])).data)
                yield Findings(images=part.stop - part.start)
        return

    def fill(start: int) -> Findings:
        found = Findings()
        for position in range(start, min(start + CHUNK, len(labels))):
            read, image = image_of(split, position)
            found.add(read, levels)
            if image.shape != shape[1:]:
                raise DataError(_other_size(raw, split, position, image.shape, shape[1:]))
            images[position] = image
        return found

    with ThreadPoolExecutor(threads(first.values[0].size)) as pool:
        yield from pool.map(fill, range(0, len(labels), CHUNK))
    images.flush()


def _together(raw: Raw, split: str, fit: Fit, shape: Sequence[int]) -> np.ndarray | Rows | None:
    """A split's images where they are an array of 8 bits that keep their size, and are made many at a time.

    shape: that they have to get.
    """
    images = raw.images[split]
    if raw.read is not np.asarray or not isinstance(images, np.ndarray | Rows) or not len(images):
        return None
    first = images[0]  # all others are as it is
    if not isinstance(first, np.ndarray) or first.dtype != np.uint8 or first.shape[1:] != tuple(shape[1:]):
        return None
    return images if fit(first).shape == tuple(shape) else None


def _other_size(raw: Raw, split: str, position: int, shape: Sequence[int], first: Sequence[int]) -> str:
    """The message for an image that is not as the first of train."""
    other = shape[0] != first[0]
    texts = [
        f"{_name(raw, of, place)} is {width} x {height}{f' with {count} channels' if other else ''}"
        for of, place, (count, height, width) in (("train", 0, first), (split, position, shape))
    ]
    do = "set data.channels=1 or 3" if other else "set data.image_size=N (pixels) to resize all"
    return f"images differ in size: {' and '.join(texts)}; {do}"


def _name(raw: Raw, split: str, position: int) -> str:
    """An image in messages: its file, or its number."""
    return str(raw.images[split][position]) if split in raw.paths else f"{split} image {position}"


def _write_meta(folder: Path, classes: Sequence[str], notes: Sequence[str], levels: int | None) -> None:
    """`meta.json` of the arrays in a folder."""
    sizes = {file.name: file.stat().st_size for file in sorted(folder.glob("*.npy"))}
    blocks = {}
    for name, size in sizes.items():
        with (folder / name).open("rb") as stream:
            blocks[name] = [_block(stream, index) for index in range(-(-size // BLOCK))]
    images, labels = ([np.load(folder / f"{split}_{kind}.npy", mmap_mode="r") for split in SPLITS] for kind in ARRAYS)
    found = hashes(zip(images, labels, strict=True))
    meta: dict[str, Any] = {"classes": classes, "notes": notes, "levels": levels, "hashes": found}
    meta |= {"bytes": sizes, "blocks": blocks}
    text = json.dumps({**meta, "checksum": _checksum(meta)})
    (folder / "meta.json").write_text(text, encoding="utf-8")
