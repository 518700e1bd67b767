"""The data of a run: its images, which client holds which, what is public, and the clients that train."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from omegaconf import DictConfig, OmegaConf

from benchmark.configuration.compose import merge
from benchmark.configuration.instantiate import check, locate
from benchmark.configuration.keys import fits
from benchmark.configuration.partitions import BY_SIZE, COMMON, expanded, is_natural, parameters
from benchmark.errors import ConfigError
from benchmark.experiment.natural_clients import held_out, natural_clients, partition_seed, public_client
from benchmark.rng import Streams
from datamodules import partition
from datamodules.natural import NamedPartition
from datamodules.partition import of_every_class
from datamodules.parts import Partition, Parts
from datamodules.shift import shifted
from datamodules.signatures import signature_of
from datamodules.sources import Source, limited, load
from methods.base import Client, FederatedMethod


def source(config: DictConfig, progress: Callable[[int, int], None] | None = None) -> Source:
    """The images, decoded once, and those of the data set whose labels the protocols use."""
    images = _opened(config, progress)
    if config.data.levels is not None and images.levels is None:
        raise ConfigError(f"data.levels={config.data.levels}: no image of {images.name} has 16 bits: leave it out")
    return images


def _opened(config: DictConfig, progress: Callable[[int, int], None] | None) -> Source:
    """See `source`."""
    data = config.data
    options: Any = OmegaConf.to_container(data.options)
    dataset = None
    if data.get("class"):
        target = locate(data, "data")
        takes = signature_of(target).named
        ours = {"root": data.root, "download": data.download}
        dataset = target, {**{key: value for key, value in ours.items() if key in takes}, **options}
        options = {}
    elif misplaced := sorted({"name", "root", "cache", "download", "image_size", "verify"} & set(options)):
        raise ConfigError(f"data.options.{misplaced[0]}: set data.{misplaced[0]}")
    images = load(
        data.name,
        root=expanded(data.root, "data.root"),
        cache=expanded(data.cache, "data.cache"),
        download=data.download,
        image_size=data.image_size,
        resize=data.resize,
        channels=data.channels,
        labels=data.labels,
        client_folders=config.partition.get("name") == "folders",
        unused_by="" if _uses_clients(config.partition) else f"partition.name={config.partition.get('name')}",
        hold_out=True if data.hold_out else None if data.probe is None else False,
        dataset=dataset,
        verify=data.verify,
        progress=progress,
        options=options,
        levels=data.levels,
        order=data.order,
    )
    if data.probe is not None:
        channels = f"data.channels={images.train.images.shape[1]}"
        images = replace(images, probe=load_matching(config, images, data.probe, progress, [channels]))
    return images if data.limit is None else limited(images, data.limit)


def _uses_clients(section: Mapping[str, Any]) -> bool:
    """Whether a partition is by the clients that the data name, or a user's function that is given them."""
    if section.get("class"):
        return "clients" in signature_of(locate(section, "partition")).named
    return section.get("name") == "folders" or section.get("held_out") is not None


def load_matching(
    config: DictConfig,
    images: Source,
    name: str,
    progress: Callable[[int, int], None] | None = None,
    overrides: Sequence[str] = (),
) -> Source:
    """Another data set, its images at the run's size, their white that of the run's. overrides: of how it is read."""
    size = f"data.image_size={images.train.images.shape[-1]}"
    mode = [] if config.data.resize else ["data.resize=squash"]  # as scores on other data sets always were
    plain = ["data.limit=null", "data.probe=null", "data.labels=true", "partition.name=iid", f"data.name={name}"]
    plain.append("data.hold_out=true")  # its own images are scored
    white = f"data.levels={'null' if images.levels is None else images.levels}"
    return _opened(merge(config, [*plain, size, white, *mode, *overrides]), progress)


class Public(NamedTuple):
    """Images that all participants may see: the indices `held` of `images` `[N, C, H, W]`."""

    images: np.ndarray
    held: np.ndarray


def partition_data(
    config: DictConfig, images: Source, with_public: bool, other: Callable[[str], Source] | None = None
) -> tuple[NamedPartition, Public | None]:
    """Training indices of each client, and the public images.

    with_public: whether the method uses public images. other: name of another data set -> that set; None: opens it.
    """
    shared = public(config, images, other or partial(load_matching, config, images))
    if shared is not None and shared.images is images.train.images and not config.public.get("keep"):
        # the clients have the rest
        rest = np.setdiff1d(np.arange(len(images.train.labels)), shared.held)
        if not len(rest):
            given = config.public.get("share", 1.0)
            raise ConfigError(f"public.share={given} of data.name itself leaves no image for the clients: lower it")
        return clients_of(config, images, rest), shared
    held = clients_of(config, images)
    if (client := public_client(config)) is None or not with_public:
        return held, shared
    if not 0 <= client < len(held.parts):
        raise ConfigError(f"public.client={client}: clients are 0 to {len(held.parts) - 1}")
    return held, Public(images.train.images, held.parts[client])


def other_public(config: DictConfig) -> str | None:
    """The name of another data set whose images are public; None where there is none."""
    name: str | None = config.public.get("name")
    return None if name in (None, "client", config.data.name) else name


def public(config: DictConfig, images: Source, open_other: Callable[[str], Source]) -> Public | None:
    """The public images of a named data set; None where there are none, or they belong to a client."""
    given = dict(config.public)
    known = {"name": str | None, "client": int, "share": float, "keep": bool, "absent": int | None}
    check(given, known, "public", "a public set")
    name, fraction = given.get("name"), given.get("share", 1.0)
    if not name and set(given) - {"name"}:
        raise ConfigError("public: say whose images are public: public.name=client, or a dataset as data.name has it")
    unused = [key for key in given if key != "name" and (key == "client") != (name == "client")]
    unused += ["keep"] if given.get("keep") and name != config.data.name else []
    if unused:
        raise ConfigError(f"public.{unused[0]} means nothing where public.name is {name}: leave it out")
    if not 0 < fraction <= 1:
        raise ConfigError(f"public.share={fraction}: give the part of each class that is public, in (0, 1]")
    if name in (None, "client"):
        return None
    seed = Streams(config.seed).seed_for("public")
    if name == config.data.name:
        out, labels = held_out(config, images), images.train.labels
        if out is None:
            return Public(images.train.images, of_every_class(labels, fraction, seed=seed))
        return Public(images.train.images, out.rest[of_every_class(labels[out.rest], fraction, seed=seed)])
    other = open_other(name)
    if other.train.images.shape[1:] != images.train.images.shape[1:]:
        raise ConfigError(
            f"public.name={name}: its images are {other.train.images.shape[1:]}, those of {config.data.name} "
            f"{images.train.images.shape[1:]} (channels, height, width): choose a dataset with as many channels"
        )
    return Public(other.train.images, of_every_class(other.train.labels, fraction, seed=seed))


def with_shift(config: DictConfig, images: Source, held: NamedPartition) -> tuple[Source, NamedPartition]:
    """The images by `partition.shift`, and the partition with a note of it; both as they are without one.

    Raises ConfigError: it is no list of texts, or clients are natural ones.
    """
    section: Any = OmegaConf.to_container(config.partition)
    if not (given := section.get("shift")):
        return images, held
    check({"shift": given}, {"shift": COMMON["shift"]}, "partition", "a partition")
    if is_natural(section):
        raise ConfigError("partition.shift is for clients that a rule makes, and natural ones differ as they are")
    note = f"images by group of clients, client k in group k modulo {len(given)}: {', '.join(given)}"
    made = shifted(images, held.parts, given, seed=partition_seed(config))
    return made, held._replace(notes=(*held.notes, note))


def clients_of(config: DictConfig, images: Source, rows: np.ndarray | None = None) -> NamedPartition:
    """Training indices of each client, by the config's partition, and their names where they have some.

    rows: sorted indices of the images that are divided; None: all.
    """
    section: dict[Any, Any] = {key: value for key, value in config.partition.items() if key not in COMMON}
    fraction = config.partition.get("share", 1.0)
    check({"share": fraction}, {"share": COMMON["share"]}, "partition", "a partition")
    if not 0 < fraction <= 1:
        raise ConfigError(f"partition.share={fraction}: give the part of its images that each client has, in (0, 1]")
    seed, out = partition_seed(config), held_out(config, images)
    if is_natural(section):
        held = natural_clients(config, section, images, seed, rows, out)
    elif out is None:
        held = NamedPartition(_by_rule(section, images, rows, seed), ())
    else:
        rest = out.rest if rows is None else np.intersect1d(out.rest, rows)
        held = NamedPartition(_by_rule(section, images, rest, seed), (), (out.note,))
    if out is not None:
        held = held._replace(held_out=np.setdiff1d(np.arange(len(images.train.labels)), out.rest))
    return held if fraction == 1 else held._replace(parts=partition.thinned(held.parts, fraction, seed=seed))


def _by_rule(section: dict[Any, Any], images: Source, rows: np.ndarray | None, seed: int) -> Partition:
    """A partition by a rule of `datamodules.partition`."""
    name, clients = section.pop("name", None), section.pop("clients", 10)
    check({"clients": clients, **section}, {"clients": int, **parameters(str(name))}, "partition", name)
    if name not in BY_SIZE and not images.labelled:
        raise ConfigError(
            f"partition.name={name} divides by label, and {images.name} has none: choose {', '.join(BY_SIZE)}, or "
            "folders or file, the clients that the data name"
        )
    labels = images.train.labels if rows is None else images.train.labels[rows]
    try:
        held: Partition = getattr(partition, name)(labels, clients, **section, seed=seed)
    except TypeError as error:
        raise ConfigError(f"partition: {name} cannot be made from {section}: {error}") from error
    if rows is None:
        return held
    of_rows = Parts(held)
    return Parts.of_arrays(rows[of_rows.indices], of_rows.sizes)


class Clients(Sequence[Client]):
    """The clients that train, in order of id; made on access, so that a hundred thousand need no memory.

    Args:
        parts: image indices by client id. absent: client that does not train. architectures: by id if not "default".
            names: by id, where they have some.
    """

    def __init__(
        self,
        parts: Sequence[np.ndarray],
        absent: int | None = None,
        architectures: Mapping[int, str] | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self.parts, self.absent, self.architectures, self.names = parts, absent, architectures or {}, names

    def __len__(self) -> int:
        return len(self.parts) - (self.absent is not None)

    def __getitem__(self, index: Any) -> Any:
        """The client at an index, or a list for a slice."""
        position = range(len(self))[index]
        if isinstance(position, range):
            return [self[k] for k in position]
        client = position + (self.absent is not None and position >= self.absent)
        name = self.names[client] if self.names else ""
        return Client(client, len(self.parts[client]), self.architectures.get(client, "default"), name)


def clients(
    config: DictConfig, built: FederatedMethod, parts: Sequence[np.ndarray], names: Sequence[str] = ()
) -> Clients:
    """The clients that train; where the method uses public images, their owner or `public.absent` does not."""
    absent = absent_client(config, len(parts)) if built.uses_public_images else None
    architectures: dict[int, str] = {}
    others: Any = OmegaConf.to_container(config.federation.encoders)
    for architecture, section in others.items():
        chosen = section.get("clients", [])
        if not fits(chosen, list[int]):
            raise ConfigError(f"federation.encoders.{architecture}.clients={chosen}: give a list of ids, e.g. [0,1]")
        for client in chosen:
            if not 0 <= client < len(parts) or client in architectures:
                problem = (
                    f"has {architectures[client]!r} already"
                    if client in architectures
                    else f"is none of 0 to {len(parts) - 1}"
                )
                raise ConfigError(f"federation.encoders.{architecture}.clients: client {client} {problem}")
            architectures[client] = str(architecture)
    made = Clients(parts, absent, architectures, names)
    if not len(made):
        raise ConfigError("the only client's images are public, so nobody is left to train: raise partition.clients")
    run = {client.architecture for client in made} if architectures else {"default"}
    for architecture in ("default", *others):
        if architecture not in run:
            where = "encoder" if architecture == "default" else f"federation.encoders.{architecture}"
            raise ConfigError(f"{where}: no client that takes part runs it; give it some, or leave it out")
    return made


def absent_client(config: DictConfig, count: int) -> int | None:
    """The client that does not train where public images are used: their owner, else `public.absent`."""
    absent = config.public.get("absent")
    if absent is None:
        return public_client(config)
    if not 0 <= absent < count:
        raise ConfigError(f"public.absent={absent}: clients are 0 to {count - 1}")
    return int(absent)
