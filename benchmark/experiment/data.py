"""The data of a run: its images, which client holds which, what is public, and the clients that train."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from omegaconf import DictConfig, OmegaConf

from benchmark.configuration.compose import merge, partition_parameters
from benchmark.configuration.instantiate import check
from benchmark.configuration.typecheck import fits
from benchmark.errors import ConfigError
from benchmark.rng import Streams
from datamodules import partition
from datamodules.partition import of_every_class
from datamodules.sources import Source, load
from methods.base import Client, FederatedMethod


def source(config: DictConfig, progress: Callable[[int, int], None] | None = None) -> Source:
    """The images, decoded once."""
    data = config.data
    options: Any = OmegaConf.to_container(data.options)
    if misplaced := sorted({"name", "root", "cache", "download", "image_size", "verify"} & set(options)):
        raise ConfigError(f"data.options.{misplaced[0]}: set data.{misplaced[0]}")
    return load(
        data.name,
        root=Path(data.root).expanduser(),
        cache=Path(data.cache).expanduser(),
        download=data.download,
        image_size=data.image_size,
        verify=data.verify,
        progress=progress,
        **options,
    )


def load_matching(config: DictConfig, images: Source, name: str) -> Source:
    """Another data set, its images resized to the run's size."""
    return source(merge(config, [f"data.name={name}", f"data.image_size={images.train.images.shape[-1]}"]))


class Public(NamedTuple):
    """Images that all participants may see: the indices `held` of `images` `[N, C, H, W]`."""

    images: np.ndarray
    held: np.ndarray


def partition_data(config: DictConfig, images: Source, with_public: bool) -> tuple[list[np.ndarray], Public | None]:
    """Training indices of each client, and the public images; with_public: whether the method uses public images."""
    shared, labels = public(config, images), images.train.labels
    if shared is not None and shared.images is images.train.images and not config.public.get("keep"):
        # the clients have the rest
        rest = np.setdiff1d(np.arange(len(labels)), shared.held)
        if not len(rest):
            given = config.public.get("share", 1.0)
            raise ConfigError(f"public.share={given} of data.name itself leaves no image for the clients: lower it")
        return [rest[indices] for indices in client_indices(config, labels[rest])], shared
    held = client_indices(config, labels)
    if (client := public_client(config)) is None or not with_public:
        return held, shared
    if not 0 <= client < len(held):
        raise ConfigError(f"public.client={client}: clients are 0 to {len(held) - 1}")
    return held, Public(images.train.images, held[client])


def public(config: DictConfig, images: Source) -> Public | None:
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
        return Public(images.train.images, of_every_class(images.train.labels, fraction, seed=seed))
    other = load_matching(config, images, name)
    if other.train.images.shape[1:] != images.train.images.shape[1:]:
        raise ConfigError(
            f"public.name={name}: its images are {other.train.images.shape[1:]}, those of {config.data.name} "
            f"{images.train.images.shape[1:]} (channels, height, width): choose a dataset with as many channels"
        )
    return Public(other.train.images, of_every_class(other.train.labels, fraction, seed=seed))


def client_indices(config: DictConfig, labels: np.ndarray) -> list[np.ndarray]:
    """Indices of each client into the images with these labels, by the config's partition."""
    given: dict[Any, Any] = {"clients": 10, "seed": None, "share": 1.0, **config.partition}
    name = given.pop("name", None)
    known = {"clients": int, "seed": int | None, "share": float, **partition_parameters(str(name))}
    check(given, known, "partition", name)
    clients, seed, fraction = (given.pop(key) for key in ("clients", "seed", "share"))
    if not 0 < fraction <= 1:
        raise ConfigError(f"partition.share={fraction}: give the part of its images that each client has, in (0, 1]")
    if seed is not None and seed < 0:
        raise ConfigError(f"partition.seed={seed}: give a number of at least 0, or null for that of the run")
    seed = Streams(config.seed).seed_for("partition") if seed is None else seed
    try:
        held = getattr(partition, name)(labels, clients, **given, seed=seed)
    except TypeError as error:
        raise ConfigError(f"partition: {name} cannot be made from {dict(config.partition)}: {error}") from error
    return held if fraction == 1 else partition.thinned(held, fraction, seed=seed)


class Clients(Sequence[Client]):
    """The clients that train, in order of id; made on access, so that a hundred thousand need no memory.

    Args:
        parts: image indices by client id. absent: client that does not train. kinds: architecture by id, where not
            "default".
    """

    def __init__(
        self, parts: Sequence[np.ndarray], absent: int | None = None, kinds: Mapping[int, str] | None = None
    ) -> None:
        self.parts, self.absent, self.kinds = parts, absent, kinds or {}

    def __len__(self) -> int:
        return len(self.parts) - (self.absent is not None)

    def __getitem__(self, index: Any) -> Any:
        """The client at an index, or a list for a slice."""
        position = range(len(self))[index]
        if isinstance(position, range):
            return [self[k] for k in position]
        client = position + (self.absent is not None and position >= self.absent)
        return Client(client, len(self.parts[client]), self.kinds.get(client, "default"))


def clients(config: DictConfig, built: FederatedMethod, parts: Sequence[np.ndarray]) -> Clients:
    """The clients that train; where the method uses public images, their owner or `public.absent` does not."""
    absent = absent_client(config, len(parts)) if built.uses_public_images else None
    kinds: dict[int, str] = {}
    others: Any = OmegaConf.to_container(config.federation.encoders)
    for kind, section in others.items():
        chosen = section.get("clients", [])
        if not fits(chosen, list[int]):
            raise ConfigError(f"federation.encoders.{kind}.clients={chosen}: give a list of ids, e.g. [0,1]")
        for client in chosen:
            if not 0 <= client < len(parts) or client in kinds:
                problem = f"has {kinds[client]!r} already" if client in kinds else f"is none of 0 to {len(parts) - 1}"
                raise ConfigError(f"federation.encoders.{kind}.clients: client {client} {problem}")
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
    """The client that owns the public images, None where they are not a client's."""
    return int(config.public.get("client", 0)) if config.public.get("name") == "client" else None


def absent_client(config: DictConfig, count: int) -> int | None:
    """The client that does not train where public images are used: their owner, else `public.absent`."""
    absent = config.public.get("absent")
    if absent is None:
        return public_client(config)
    if not 0 <= absent < count:
        raise ConfigError(f"public.absent={absent}: clients are 0 to {count - 1}")
    return int(absent)
