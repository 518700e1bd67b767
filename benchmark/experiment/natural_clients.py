"""Natural clients of a run: those that the data, a file or a user's function name, and which of them take part."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from omegaconf import DictConfig

from benchmark.configuration.instantiate import check, locate
from benchmark.configuration.partitions import expanded, file_hash, parameters
from benchmark.errors import ConfigError
from datamodules import natural
from datamodules.natural import NamedPartition
from datamodules.partition import refuse_small
from datamodules.signatures import signature_of
from datamodules.sources import HELD_OUT, Source


def natural_clients(
    config: DictConfig, section: Mapping[str, Any], images: Source, seed: int, rows: np.ndarray | None
) -> NamedPartition:
    """The clients by name; `clients` draws some of those that have `min_size` images.

    Args:
        section: `partition` without seed and share. rows: sorted indices of the images that are divided; None: all.

    Raises ConfigError, PartitionError: a key that means nothing here, or a client that cannot train.
    """
    section = dict(section)
    takes = signature_of(locate(section, "partition")).named if section.get("class") else {}
    count = section.pop("clients", None)
    min_size = None if "min_size" in takes else section.pop("min_size", None)  # a function may have its own
    check({"min_size": min_size}, {"min_size": int | None}, "partition", "a partition")
    held = _named(section, images.whole or images, seed, count, allow_empty=min_size is not None)
    if min_size is not None:
        held = natural.large_enough(held, min_size, _public(images, rows))
    held = natural.drawn(held, None if "num_clients" in takes else count, seed=seed)
    if images.rows is not None:
        positions = np.full(len((images.whole or images).train.labels), -1)
        positions[images.rows] = np.arange(len(images.rows))
        held = held._replace(parts=[kept[kept >= 0] for kept in (positions[indices] for indices in held.parts)])
    if rows is not None:
        held = held._replace(parts=[np.intersect1d(indices, rows) for indices in held.parts])
    ids = _named_ids(config)
    if images.rows is not None:
        held = _without_too_limited(held, ids)
    way = ", or set partition.min_size=2 to leave such clients out"
    refuse_small(held.parts, held.names, f"give it more images{'' if min_size or 'min_size' in takes else way}")
    return _with_ids(held, ids)


def _named(
    section: Mapping[str, Any], whole: Source, seed: int, count: int | None, *, allow_empty: bool
) -> NamedPartition:
    """The clients that the data, a file, or a user's function name. count: `clients`."""
    name = section.get("name")
    train, total = whole.train, len(whole.train.labels)
    if section.get("class"):
        positions = np.arange(total) if train.positions is None else train.positions
        of_images = {"clients": train.clients, "paths": train.paths, "positions": positions}
        offered = {"seed": seed, "num_clients": count, **of_images}
        arguments = {key: value for key, value in section.items() if key not in ("class", "name")}
        split = locate(section, "partition")
        return natural.by_function(split, arguments, train.labels, offered, allow_empty=allow_empty)
    given = {key: value for key, value in section.items() if key != "name"}
    check({"clients": count, **given}, {"clients": int | None, **parameters(str(name))}, "partition", str(name))
    if name == "folders":
        return natural.by_folder(train.clients, whole.name)
    path = section.get("path")
    if path is None:
        raise ConfigError("partition.name=file: give partition.path, a CSV file of path,client or a JSON file")
    if section.get("path_sha256") not in (None, file_hash(path)):
        raise ConfigError(f"{path} has changed since this run began: restore it, or start a run of its own")
    held_out = whole.test.paths if HELD_OUT in whole.notes else None
    file, partial = expanded(path, "partition.path"), section.get("partial", False)
    return natural.by_file(file, train.paths, total, order=train.positions, partial=partial, held_out=held_out)


def _public(images: Source, rows: np.ndarray | None) -> np.ndarray | None:
    """Positions in the whole data set of the images that no client has; None: there are none."""
    if rows is None:
        return None
    public = np.setdiff1d(np.arange(len(images.train.labels)), rows)
    return public if images.rows is None else images.rows[public]


def _without_too_limited(held: NamedPartition, ids: list[int]) -> NamedPartition:
    """The clients to which `data.limit` has left two images; see the note of `sources.limited`."""
    large = [k for k, indices in enumerate(held.parts) if len(indices) > 1]
    if not large:
        raise ConfigError("data.limit leaves no client two images: raise it")
    if ids and large[: max(ids) + 1] != list(range(max(ids) + 1)):
        raise ConfigError(
            f"data.limit leaves client {next(k for k in range(len(held.parts)) if k not in large)} without two images, "
            f"which would change the numbers of later ones, and the config names client {max(ids)}: raise it"
        )
    return held.chosen(large)


def _with_ids(held: NamedPartition, ids: list[int]) -> NamedPartition:
    """With a note of whom the config means by its ids, where clients were left out before they were numbered."""
    if not held.notes or not ids:
        return held
    meant = [f"{k} is {held.names[k]}" for k in sorted(set(ids)) if held.names and 0 <= k < len(held.names)]
    whom = f": {', '.join(meant)}" if meant else ""
    note = f"numbers of clients count those that take part{whom}"
    return held._replace(notes=(*held.notes, note))


def _named_ids(config: DictConfig) -> list[int]:
    """Ids by which the config names clients."""
    ids = [public_client(config), config.public.get("absent")]
    ids += [each for section in config.federation.encoders.values() for each in section.get("clients", [])]
    return [each for each in ids if isinstance(each, int)]


def public_client(config: DictConfig) -> int | None:
    """The client that owns the public images, None where they are not a client's."""
    return int(config.public.get("client", 0)) if config.public.get("name") == "client" else None
