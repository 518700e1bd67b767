"""Natural clients of a run: those that the data, a file or a user's function name, and which of them take part."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from omegaconf import DictConfig, OmegaConf

from benchmark.configuration.instantiate import check, locate
from benchmark.configuration.partitions import COMMON, expanded, file_hash, is_natural, parameters
from benchmark.errors import ConfigError
from benchmark.rng import Streams
from datamodules import natural
from datamodules.errors import first
from datamodules.natural import NamedPartition
from datamodules.partition import refuse_small
from datamodules.signatures import signature_of
from datamodules.sources import HELD_OUT, Source
from datamodules.twin import redealt


class HeldOut(NamedTuple):
    """Clients that nobody trains on: their names, sorted indices of the images of all others, and a line about them."""

    names: frozenset[str]
    rest: np.ndarray
    note: str


def held_out(config: DictConfig, images: Source) -> HeldOut | None:
    """The clients of `partition.held_out`; None: there are none.

    They are of the clients that the partition names, else of those that the data name, before any is left out or
    drawn. So every rule has the same of them, and a rule by label divides the images of the others.
    """
    whole_section: Any = OmegaConf.to_container(config.partition)
    if (given := whole_section.get("held_out")) is None:
        return None
    section = {key: value for key, value in whole_section.items() if key not in COMMON}
    check({"held_out": given}, {"held_out": COMMON["held_out"]}, "partition", "a partition")
    whole, seed = images.whole or images, partition_seed(config)
    if is_natural(section):
        count = section.pop("clients", None)
        if "min_size" not in _takes(section):
            section.pop("min_size", None)
        named = _named(section, whole, seed, count, allow_empty=True)
    else:
        named = natural.by_folder(whole.train.clients, whole.name, "partition.held_out")
    names = named.names or tuple(map(str, range(len(named.parts))))
    chosen = natural.held_out(names, given, seed=seed)
    apart = frozenset(chosen)
    out = np.concatenate([part for name, part in zip(names, named.parts, strict=True) if name in apart])
    note = (
        f"{len(chosen):,} of {len(names):,} clients, with {len(out):,} of {sum(map(len, named.parts)):,} images, are "
        f"held out: {first(chosen, 5)}"
    )
    kept = np.setdiff1d(np.arange(len(whole.train.labels)) if images.rows is None else images.rows, out)
    return HeldOut(apart, kept if images.rows is None else np.searchsorted(images.rows, kept), note)


def partition_seed(config: DictConfig) -> int:
    """The seed of the partition: its own, or one that follows from the run's. Raises ConfigError: it is below 0."""
    seed = config.partition.get("seed")
    check({"seed": seed}, {"seed": COMMON["seed"]}, "partition", "a partition")
    if seed is not None and seed < 0:
        raise ConfigError(f"partition.seed={seed}: give a number of at least 0, or null for that of the run")
    return Streams(config.seed).seed_for("partition") if seed is None else int(seed)


def natural_clients(
    config: DictConfig,
    section: Mapping[str, Any],
    images: Source,
    seed: int,
    rows: np.ndarray | None,
    out: HeldOut | None = None,
) -> NamedPartition:
    """The clients by name; `clients` draws some of those that have `min_size` images and are not held out.

    Args:
        section: `partition` without COMMON. rows: sorted indices of the images that are divided; None: all.
        out: clients that are held out.

    Raises ConfigError, PartitionError: a key that means nothing here, or a client that cannot train.
    """
    section = dict(section)
    takes = _takes(section)
    alpha = None if section.get("class") else _twin(section, images)
    count = section.pop("clients", None)
    min_size = None if "min_size" in takes else section.pop("min_size", None)  # a function may have its own
    check({"min_size": min_size}, {"min_size": int | None}, "partition", "a partition")
    held = _named(section, images.whole or images, seed, count, allow_empty=min_size is not None)
    if out is not None:
        names = held.names or list(map(str, range(len(held.parts))))
        held = held.chosen([k for k, name in enumerate(names) if name not in out.names], out.note)
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
    if alpha is not None:
        how = "at random" if alpha == math.inf else f"Dir({alpha:g})"
        parts, notes = redealt(images.train.labels, held.parts, alpha, seed=seed), held.notes
        held = held._replace(parts=parts, notes=(*notes, f"images are dealt anew to clients of these sizes: {how}"))
    way = ", or set partition.min_size=2 to leave such clients out"
    refuse_small(held.parts, held.names, f"give it more images{'' if min_size or 'min_size' in takes else way}")
    return _with_ids(held, ids)


def _twin(section: dict[str, Any], images: Source) -> float | None:
    """Takes `twin` out of a section: the concentration, infinite for `iid`; None: the clients have their own images."""
    twin = section.pop("twin", None)
    if twin in (None, "iid"):
        return None if twin is None else math.inf
    if not isinstance(twin, int | float) or isinstance(twin, bool):
        raise ConfigError(f"partition.twin={twin}: give iid, or the concentration of Dirichlet draws")
    if not images.labelled:
        raise ConfigError(f"partition.twin={twin} deals by label, and {images.name} has none: choose iid")
    return float(twin)


def _takes(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of the user's function that a section names; none where it names no function."""
    return signature_of(locate(section, "partition")).named if section.get("class") else {}


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
