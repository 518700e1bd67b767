"""Natural clients: those that the data or a file name, and partitions of a user's own function.

As in `datamodules.partition`, a partition is one sorted int64 index array a client; here each client has a name too.
"""

import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from datamodules import tables
from datamodules.errors import PartitionError, first, nearest, one_line
from datamodules.listing import LONGEST
from datamodules.parts import Partition
from datamodules.splits import split_of

PICKLES = (".pkl", ".pickle", ".pt", ".pth")
"""Suffixes of files that are not opened."""
ABSENT = {
    "num_clients": "set partition.clients=N",
    "clients": "the data name none",
    "paths": "the data have no files",
}
"""What a user's function may ask for -> why it is not there."""


class NamedPartition(NamedTuple):
    """Image indices of each client, and the clients' names; no names where they are only numbered.

    notes: what a reader of its scores has to know, a line each. held_out: indices of the images of clients that are
    held out.
    """

    parts: Partition
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    held_out: np.ndarray | None = None

    def chosen(self, clients: Sequence[int], *notes: str) -> "NamedPartition":
        """Some of the clients, with further notes."""
        names = tuple(self.names[k] for k in clients) if self.names else ()
        return NamedPartition([self.parts[k] for k in clients], names, (*self.notes, *notes))


def by_folder(clients: np.ndarray | None, data: str, key: str = "partition.name=folders") -> NamedPartition:
    """The clients that the data name: each image's first folder, or the column `client`. data, key: for messages."""
    if clients is None:
        raise PartitionError(
            f"{key}: data set {data} names no clients: its images have to lie in "
            "<client>/<class>/<image> or <client>/<image>, or its table needs a column `client`"
        )
    return _grouped(dict(enumerate(clients.tolist())))


def by_file(
    file: Path,
    paths: np.ndarray | None,
    total: int,
    *,
    order: np.ndarray | None = None,
    partial: bool = False,
    held_out: np.ndarray | None = None,
) -> NamedPartition:
    """The clients that a file names.

    Args:
        file: CSV with a column `client` and either `path` (of the image within its split, or beginning with train/) or
            `index` (its position in train, as the data have it); or JSON, `{client: [paths or indices]}`.
        paths: of the training images, where they are files. total: number of training images.
        order: `[total]`, of each image its position as the data have it; None: the same.
        partial: whether images may have no client; they are then not trained on.
        held_out: paths of images that were held out as test, which the file may name too; None: none were.

    Raises PartitionError: an image twice, one that does not exist, one without a client; an index beside `held_out`; a
    file that is none of these. DataError: a table that cannot be read.
    """
    positions = None if paths is None else {path: position for position, path in enumerate(paths.tolist())}
    rows = {position: row for row, position in enumerate(range(total) if order is None else order.tolist())}
    clients: dict[int, str] = {}
    tested = frozenset(() if held_out is None else held_out.tolist())
    for where, image, client in _entries(file):
        if tested and not tested.isdisjoint(_paths(image, where)):
            continue
        if held_out is not None and (isinstance(image, int) or image.isdecimal()):
            raise PartitionError(
                f"{where}: {image} is an index, and a fifth of the images was held out as test: "
                "give paths, or test images of your own"
            )
        position = _position(image, positions, rows, where)
        if position in clients:
            raise PartitionError(f"{where}: image {image} is listed twice: give it one client")
        clients[position] = client
    if len(clients) < total and not partial:
        missing = next(position for position in range(total) if position not in clients)
        first = missing if paths is None else paths[missing]
        raise PartitionError(
            f"{file}: {total - len(clients):,} of {total:,} training images have no client, the first is {first}: list "
            "them, or set partition.partial=true to leave them out"
        )
    return _grouped(clients)


def _entries(file: Path) -> list[tuple[str, str | int, str]]:
    """(line for messages, path or index of an image, name of its client) of a CSV or JSON file."""
    if not file.is_file():
        raise PartitionError(f"partition.path={file}: there is no such file")
    with file.open("rb") as stream:
        begins = stream.read(100).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if file.suffix.lower() in PICKLES or begins == b"\x80":
        raise PartitionError(
            f"{file} is a pickle, which can run code and is not opened: write {{client: [indices]}} of its training "
            "images as JSON to a file that ends in .json"
        )
    if file.suffix.lower() != ".json":
        if begins in (b"{", b"["):
            raise PartitionError(
                f"{file} is no CSV file, it begins with {begins.decode()}: give CSV, with a header of path,client or "
                'index,client, or JSON, {"client": [indices]} with names in double quotes, in a file ending in .json'
            )
        listed = tables.rows(file, ("client",), ("label",), one_of=("path", "index"))
        return [(str(row), row.text.get("path") or row.text["index"], row.text["client"]) for row in listed]
    try:
        content = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise PartitionError(f"{file} is no JSON file: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(images, list) for images in content.values()):
        raise PartitionError(f"{file}: give {{client: [paths or indices of its images]}}")
    for client, images in content.items():
        if not client.isprintable() or not 0 < len(client) <= LONGEST:
            raise PartitionError(f"{file}: {client[:50]!a} is no name of a client: give 1 to {LONGEST} letters")
        if not images:
            raise PartitionError(f"{file}: client {client} has no image: leave it out")
        if wrong := [image for image in images if isinstance(image, bool) or not isinstance(image, str | int)]:
            raise PartitionError(f"{file}, client {client}: {str(wrong[0])[:50]!a} is no path or index of an image")
    return [(f"{file}, client {client}", image, client) for client, images in content.items() for image in images]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of JSON with these keys and values. Raises ValueError: a key is there twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"{next(key for key in counts if counts[key] > 1)[:50]!a} is there twice")
    return content


def _position(image: str | int, positions: Mapping[str, int] | None, rows: Mapping[int, int], where: str) -> int:
    """The position of an image in train, named by its path or by its position as the data have it, a key of rows."""
    if isinstance(image, int) or image.isdecimal():
        if len(str(image)) > 18 or int(image) not in rows:
            raise PartitionError(f"{where}: index {str(image)[:20]}: there are training images 0 to {max(rows)}")
        return rows[int(image)]
    if positions is None:
        raise PartitionError(
            f"{where}: {image!r} is a path, and the data have no files: give indices, 0 to {max(rows)}"
        )
    paths = _paths(image, where)
    position = next((positions[path] for path in paths if path in positions), None)
    if position is None:
        raise PartitionError(f"{where}: there is no training image {paths[0]}: give paths as {next(iter(positions))}")
    return position


def _paths(image: str | int, where: str) -> list[str]:
    """What an image's path within train may be, if a file names it so; nothing of an index."""
    if isinstance(image, int) or image.isdecimal():
        return []
    path = tables.inside(image, where)
    split, _, rest = path.partition("/")
    return [path, *([rest] if split_of(split) == "train" else [])]


def by_function(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    labels: np.ndarray,
    offered: Mapping[str, Any],
    *,
    allow_empty: bool = False,
) -> NamedPartition:
    """The clients of a user's own function: `labels, seed, ...` -> index lists, or `{name of a client: indices}`.

    Args:
        function: called with labels `[N]` int64 and, by keyword, with `arguments` and those of `offered` that it has.
        offered: `seed`, `num_clients`, `clients` and `paths` (`[N]` texts, or None), and `positions` (`[N]` int64, of
            each image as the data have it).
        allow_empty: whether a client may have no image.

    Raises PartitionError: an index twice or out of range, an empty client, something else than indices.
    """
    known = inspect.signature(function).parameters
    required = {key for key, parameter in known.items() if parameter.default is parameter.empty}
    taken = {key: value for key, value in offered.items() if key in known and (value is not None or key in required)}
    where = f"partition.class={getattr(function, '__qualname__', repr(function))}"
    if missing := [key for key, value in taken.items() if value is None]:
        raise PartitionError(f"{where} needs {missing[0]}: {ABSENT[missing[0]]}")
    try:
        made = function(labels.copy(), **{**taken, **arguments})  # the run's own labels are not to be changed
        made = made if isinstance(made, Mapping) else list(made)
    except (TypeError, ValueError, LookupError) as error:
        raise PartitionError(f"{where}: {type(error).__name__}: {one_line(error)}") from error
    by_name = made if isinstance(made, Mapping) else dict(enumerate(made))
    if not by_name:
        raise PartitionError(f"{where} made no client: give at least one")
    arrays = {name: np.asarray(indices) for name, indices in by_name.items()}
    empty = [str(name) for name, array in arrays.items() if array.shape == (0,)]
    if empty and not allow_empty:
        which = f"client {empty[0]} has"
        if len(empty) > 1:
            which = f"{len(empty):,} of {len(arrays):,} clients (the first: {', '.join(empty[:3])}) have"
        raise PartitionError(f"{where}: {which} no image: leave it out, or set partition.min_size=2")
    clients = _holders({name: array for name, array in arrays.items() if array.shape != (0,)}, len(labels), where)
    if isinstance(made, Mapping):
        grouped = _grouped(clients)
        nothing = [np.zeros(0, dtype=np.int64)] * len(empty)  # to be left out, and counted
        return NamedPartition([*grouped.parts, *nothing], (*grouped.names, *empty))
    return NamedPartition([np.sort(array.astype(np.int64)) for array in arrays.values()], ())


def _holders(arrays: Mapping[Any, np.ndarray], total: int, where: str) -> dict[int, str]:
    """The client of each image. Raises PartitionError: no indices, or of no image, or of one with another client."""
    clients: dict[int, str] = {}
    for name, array in arrays.items():
        if array.ndim != 1 or array.dtype.kind not in "iu":
            kind = f"{array.dtype} {list(array.shape)}"
            raise PartitionError(f"{where}: client {name} has {kind}: give a list of indices")
        if array.min() < 0 or array.max() >= total:
            raise PartitionError(f"{where}: client {name} has indices out of 0 to {total - 1}")
        for position in array.tolist():
            if position in clients:
                raise PartitionError(f"{where}: image {position} has two clients, {clients[position]} and {name}")
            clients[position] = str(name)
    return clients


def drawn(partition: NamedPartition, count: int | None, *, seed: int) -> NamedPartition:
    """So many of the clients, drawn at random, in their order; None: all.

    Raises PartitionError: there are fewer.
    """
    if count is None:
        return partition
    if not 1 <= count <= len(partition.parts):
        raise PartitionError(
            f"partition.clients={count}: there are {len(partition.parts)} clients"
            f"{' that are not left out' if partition.notes else ''}: give at most so many"
        )
    order = np.random.default_rng([seed, 3]).permutation(len(partition.parts))
    return partition.chosen(np.sort(order[:count]).tolist())


def held_out(names: Sequence[str], given: float | Sequence[Any], *, seed: int) -> list[str]:
    """The clients that nobody trains on, in their order: a share of all, at least one, drawn; or those of given names.

    >>> held_out(["anna", "bert", "cleo"], ["bert"], seed=0)
    ['bert']

    Raises PartitionError: no share, an unknown name, or nobody is left to train.
    """
    if isinstance(given, int | float):
        if not 0 < given < 1:
            raise PartitionError(
                f"partition.held_out={given}: give the share of the clients that nobody trains on, in (0, 1), or a "
                "list of their names"
            )
        order = np.random.default_rng([seed, 4]).permutation(len(names))
        chosen = {names[k] for k in order[: max(1, round(given * len(names)))]}
    else:
        chosen = set(map(str, given))
        if not chosen:
            raise PartitionError("partition.held_out=[]: name the clients that nobody trains on, or leave it out")
        if unknown := sorted(chosen - set(names)):
            hint = nearest(unknown[0], names) or f": the clients are {first(names, 5)}"
            raise PartitionError(f"partition.held_out: there is no client {unknown[0]!a}{hint}")
    if len(chosen) == len(names):
        raise PartitionError(f"partition.held_out={given} leaves none of {len(names)} clients to train: lower it")
    return [name for name in names if name in chosen]


def large_enough(partition: NamedPartition, min_size: int, public: np.ndarray | None = None) -> NamedPartition:
    """The clients of at least so many images, in their order, with a note of how many clients and images are left out.

    public: indices of images that no client has, and that do not count.

    Raises PartitionError: there is no such client.
    """
    if min_size < 1:
        raise PartitionError(f"partition.min_size={min_size}: give a number of images, at least 1")
    own = [indices if public is None else np.setdiff1d(indices, public) for indices in partition.parts]
    sizes = np.array([len(indices) for indices in own])
    kept = np.flatnonzero(sizes >= min_size)
    if not len(kept):
        raise PartitionError(f"partition.min_size={min_size}: the largest client has {sizes.max():,} images: lower it")
    if len(kept) == len(sizes):
        return partition
    out, images = len(sizes) - len(kept), int(sizes.sum() - sizes[kept].sum())
    return partition.chosen(
        kept.tolist(),
        f"{out:,} of {len(sizes):,} clients, with {images:,} of {sizes.sum():,} images, are left out: they have fewer "
        f"than partition.min_size={min_size}",
    )


def _grouped(clients: Mapping[int, str]) -> NamedPartition:
    """The partition of images whose client's name is known: clients in the order of their names."""
    if not clients:
        raise PartitionError("no image has a client: name at least one")
    positions = np.sort(np.fromiter(clients, dtype=np.int64, count=len(clients)))
    names, numbers = np.unique([clients[int(position)] for position in positions], return_inverse=True)
    ends = np.cumsum(np.bincount(numbers))[:-1]
    parts = np.split(positions[np.argsort(numbers, kind="stable")], ends)
    return NamedPartition([part.astype(np.int64) for part in parts], tuple(map(str, names)))
