"""Who holds which images of a run, what is public, and who takes part."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from omegaconf import DictConfig, OmegaConf

from benchmark.configuration.compose import partition_parameters
from benchmark.configuration.instantiate import check
from benchmark.configuration.typecheck import fits
from benchmark.errors import ConfigError
from benchmark.rng import Streams
from datamodules import partition
from datamodules.partition import of_every_class
from datamodules.sources import Source, load
from methods.base import Client, FederatedMethod


def source(config: DictConfig, progress: Callable[[int, int], None] | None = None, **instead: Any) -> Source:
    """The images, decoded once; instead: other values of the section `data`."""
    data = OmegaConf.merge(config.data, instead)
    data.options = instead.get("options", data.options)
    if twice := sorted({"name", "root", "cache", "download", "image_size"} & set(data.options)):
        raise ConfigError(f"data.options.{twice[0]}: set data.{twice[0]}")
    return load(
        data.name,
        root=Path(data.root).expanduser(),
        cache=Path(data.cache).expanduser(),
        download=data.download,
        image_size=data.image_size,
        progress=progress,
        **data.options,
    )


def load_matching(config: DictConfig, images: Source, name: str) -> Source:
    """Another data set, its images resized to these."""
    return source(config, name=name, image_size=images.train.images.shape[-1], options={})


class Public(NamedTuple):
    """What all may see: the indices `held` of some images `[N, C, H, W]`."""

    images: np.ndarray
    held: np.ndarray


def partition_data(config: DictConfig, images: Source, asked: bool) -> tuple[list[np.ndarray], Public | None]:
    """Who holds which training images, and what is public; asked: whether the method looks at public images."""
    shown, labels = public(config, images), images.train.labels
    if shown is not None and shown.images is images.train.images:  # the clients have the rest
        rest = np.setdiff1d(np.arange(len(labels)), shown.held)
        if not len(rest):
            given = config.public.get("share", 1.0)
            raise ConfigError(f"public.share={given} of data.name itself leaves no image for the clients: lower it")
        return [rest[part] for part in parts(config, labels[rest])], shown
    held = parts(config, labels)
    if (whose := public_client(config)) is None or not asked:
        return held, shown
    if not 0 <= whose < len(held):
        raise ConfigError(f"public.client={whose}: clients are 0 to {len(held) - 1}")
    return held, Public(images.train.images, held[whose])


def public(config: DictConfig, images: Source) -> Public | None:
    """The public images of a named dataset; None where there are none, or they are a client's."""
    given = dict(config.public)
    check(given, {"name": str | None, "client": int, "share": float}, "public", "a public set")
    name, share = given.get("name"), given.get("share", 1.0)
    if not name and set(given) - {"name"}:
        raise ConfigError("public: say whose images are public: public.name=client, or a dataset as data.name has it")
    other = [key for key in ("client", "share") if key in given and (key == "client") != (name == "client")]
    if other:
        raise ConfigError(f"public.{other[0]} means nothing where public.name is {name}: leave it out")
    if not 0 < share <= 1:
        raise ConfigError(f"public.share={share}: give the part of each class that is public, in (0, 1]")
    if name in (None, "client"):
        return None
    seed = Streams(config.seed).number("public")
    if name == config.data.name:
        return Public(images.train.images, of_every_class(images.train.labels, share, seed=seed))
    found = load_matching(config, images, name)
    if found.train.images.shape[1:] != images.train.images.shape[1:]:
        raise ConfigError(
            f"public.name={name}: its images are {found.train.images.shape[1:]}, those of {config.data.name} "
            f"{images.train.images.shape[1:]} (channels, height, width): choose a dataset with as many channels"
        )
    return Public(found.train.images, of_every_class(found.train.labels, share, seed=seed))


def parts(config: DictConfig, labels: np.ndarray) -> list[np.ndarray]:
    """Who holds which of the images with these labels."""
    name = config.partition.get("name")
    known = {"clients": int, "seed": int | None, "share": float, **partition_parameters(str(name))}
    given = {"clients": 10, "seed": None, "share": 1.0} | {
        str(key): value for key, value in config.partition.items() if key != "name"
    }
    check(given, known, "partition", name)
    clients, seed, share = (given.pop(key) for key in ("clients", "seed", "share"))
    if not 0 < share <= 1:
        raise ConfigError(f"partition.share={share}: give the part of its images that each client has, in (0, 1]")
    seed = Streams(config.seed).number("partition") if seed is None else seed
    try:
        held = getattr(partition, name)(labels, clients, **given, seed=seed)
    except TypeError as error:
        raise ConfigError(f"partition: {name} cannot be made from {dict(config.partition)}: {error}") from error
    return held if share == 1 else partition.thinned(held, share, seed=seed)


class Clients(Sequence[Client]):
    """Those who take part, in order of id; made when asked for, so that a hundred thousand take no room.

    Args:
        parts: who holds which images, by id. absent: who takes no part. kinds: architecture by id, where not "default".
    """

    def __init__(
        self, parts: Sequence[np.ndarray], absent: int | None = None, kinds: Mapping[int, str] | None = None
    ) -> None:
        self.parts, self.absent, self.kinds = parts, absent, kinds or {}

    def __len__(self) -> int:
        return len(self.parts) - (self.absent is not None)

    def __getitem__(self, place: Any) -> Any:
        """The client at a place, or a list for a slice."""
        which = range(len(self))[place]
        if isinstance(which, range):
            return [self[k] for k in which]
        client = which + (self.absent is not None and which >= self.absent)
        return Client(client, len(self.parts[client]), self.kinds.get(client, "default"))


def clients(config: DictConfig, built: FederatedMethod, parts: Sequence[np.ndarray]) -> Clients:
    """Those who take part; whose images are public does not, where the method learns from public images."""
    absent = public_client(config) if built.uses_public_images else None
    kinds: dict[int, str] = {}
    others: Any = OmegaConf.to_container(config.federation.encoders)
    for kind, section in others.items():
        chosen = section.get("clients", [])
        if not fits(chosen, list[int]):
            raise ConfigError(f"federation.encoders.{kind}.clients={chosen}: give a list of ids, e.g. [0,1]")
        for client in chosen:
            if not 0 <= client < len(parts) or client in kinds:
                wrong = f"has {kinds[client]!r} already" if client in kinds else f"is none of 0 to {len(parts) - 1}"
                raise ConfigError(f"federation.encoders.{kind}.clients: client {client} {wrong}")
            kinds[client] = str(kind)
    made = Clients(parts, absent, kinds)
    if not len(made):
        raise ConfigError("the only client's images are public, so nobody is left to train: raise partition.clients")
    run = {client.kind for client in made} if kinds else {"default"}
    for kind in ("default", *others):
        if kind not in run:
            where = "encoder" if kind == "default" else f"federation.encoders.{kind}"
            raise ConfigError(f"{where}: no client that takes part runs it; give it some, or leave it out")
    return made


def public_client(config: DictConfig) -> int | None:
    """The client whose images are public, if it is one's."""
    return int(config.public.get("client", 0)) if config.public.get("name") == "client" else None
