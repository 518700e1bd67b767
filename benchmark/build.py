"""From a config to the objects of a run: data, networks, method, devices."""

import importlib
import inspect
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment
from omegaconf import DictConfig, OmegaConf

from benchmark import ranks
from benchmark.compose import partition_parameters
from benchmark.config import ConfigError, describe, fits, nearest
from benchmark.ranks import Places
from benchmark.recording import CudaGraphs
from benchmark.side_by_side import Measured, SideBySide
from benchmark.strategy import Ranks
from benchmark.streams import Streams
from benchmark.work import OneByOne, Pace, isolated
from datamodules import partition
from datamodules.federated import FederatedDataModule
from datamodules.recipe import Recipe
from datamodules.sources import Source, load
from methods.base import Client, FederatedMethod, Objective

EXAMPLES = {
    "server_optimizer": "methods.server.Momentum, methods.server.Adam or methods.server.Yogi",
    "optimizer": "torch.optim.SGD",
    "encoder": "methods.networks.resnet18",
    "objective": "methods.objectives.simclr.SimCLR",
}
"""Of import paths, by section."""

RESERVED = ("addons", "optimizer", "schedule", "clip_norm", "batch_norm", "server_optimizer")
"""Arguments of a method that sections of their own decide."""


def build(
    section: Mapping[str, Any],
    where: str,
    *args: Any,
    offered: Mapping[str, Any] | None = None,
    reserved: Mapping[str, Any] | None = None,
) -> Any:
    """Calls the class a section names by import path, with the section's other keys as arguments.

    Args:
        section: {"class": "package.module.Name", argument: value, ...}.
        where: the section's name, for messages.
        args: positional arguments.
        offered: arguments passed on only if the class takes them and the section does not set them.
        reserved: arguments that other sections decide; this one may not set them.
    """
    target = locate(section, where)
    given = {key: value for key, value in section.items() if key not in ("class", "name")}
    known = {name: one.annotation for name, one in arguments(target).items() if name not in (reserved or {})}
    check(given, known, where, section["class"])
    extra = {key: value for key, value in (offered or {}).items() if key in known and key not in given}
    check(extra, known, "heads" if where == "objective" else where, section["class"])
    try:
        return target(*args, **given, **extra, **(reserved or {}))
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):
            raise  # one of the house's own, which says what to do
        raise ConfigError(f"{where}: {section['class']} cannot be built from {given}: {error}") from error


def locate(section: Mapping[str, Any], where: str) -> Any:
    """The object an import path names."""
    path = section.get("class") if isinstance(section, Mapping) else None
    if not isinstance(path, str) or "." not in path:
        example = EXAMPLES.get(where, "methods.fedavg.FedAvg")
        raise ConfigError(f"{where}.class={path!r}: give an import path, e.g. {example}")
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        hint = ": is its folder in PYTHONPATH?" if isinstance(error, ModuleNotFoundError) else ""
        raise ConfigError(f"{where}.class={path}: {error}{hint}") from error


def arguments(target: Any) -> dict[str, inspect.Parameter]:
    """What a config may set, by name: keyword-only arguments, the base classes' too where they are passed on.

    Constructors that take everything by position (torch's optimisers) are read whole.
    """
    if not inspect.isclass(target) or not issubclass(target, torch.nn.Module):
        return {name: one for name, one in _parameters(target).items() if name not in ("self", "params")}
    found: dict[str, inspect.Parameter] = {}
    for cls in target.__mro__:
        if "__init__" in vars(cls):
            own = _parameters(vars(cls)["__init__"])
            found = {**{name: one for name, one in own.items() if one.kind is one.KEYWORD_ONLY}, **found}
            if not any(one.kind is one.VAR_KEYWORD for one in own.values()):
                break
    return found


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    """Parameters by name, their annotations as types."""
    hints = get_type_hints(function.__init__ if inspect.isclass(function) else function)
    signature = inspect.signature(function).parameters
    return {name: one.replace(annotation=hints.get(name, Any)) for name, one in signature.items()}


def defaults(config: DictConfig) -> dict[str, Any]:
    """Dotted key -> value of what the config left to the code: plain defaults of the classes it names."""
    left = {}
    for where in ("encoder", "objective", "method", "optimizer"):
        section = config[where]
        for name, one in arguments(locate(section, where)).items():
            plain = one.default is None or isinstance(one.default, bool | int | float | str)
            if plain and name not in (*section, *config.heads, *RESERVED, "in_channels", "num_classes"):
                left[f"{where}.{name}"] = one.default
    return left


def check(given: Mapping[str, Any], known: Mapping[str, Any], where: str, owner: str) -> None:
    """Refuses a key that is not among the known ones, and a value of another type than its key's."""
    for key, value in given.items():
        if key not in known:
            raise ConfigError(f"unknown key '{where}.{key}'{nearest(key, known)}; {owner} has: {', '.join(known)}")
        if not fits(value, known[key]):
            raise ConfigError(f"{where}.{key}={value!r}: {owner} takes {describe(known[key])}")


def schedule(config: DictConfig) -> Callable[[float], float]:
    """Progress in [0, 1] -> factor on the learning rate."""
    milestones, gamma = list(config.schedule.milestones), config.schedule.gamma
    return {
        "constant": lambda progress: 1.0,
        "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
        "step": lambda progress: gamma ** sum(progress >= milestone for milestone in milestones),
    }[config.schedule.name]


def source(config: DictConfig, progress: Callable[[int, int], None] | None = None) -> Source:
    """The images, decoded once."""
    data = config.data
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


def parts(config: DictConfig, images: Source) -> list[np.ndarray]:
    """Who holds which training images."""
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
        held = getattr(partition, name)(images.train.labels, clients, **given, seed=seed)
    except TypeError as error:
        raise ConfigError(f"partition: {name} cannot be made from {dict(config.partition)}: {error}") from error
    return held if share == 1 else partition.thinned(held, share, seed=seed)


def recipe(config: DictConfig, images: Source) -> Recipe:
    """The recipe of views, at the images' own size unless it names another."""
    given = OmegaConf.to_container(config.views)
    assert isinstance(given, dict)
    values = {str(key): value for key, value in given.items()}
    check(values, dict.fromkeys(arguments(Recipe), Any), "views", "a recipe")  # which checks its values itself
    return Recipe(**{"size": images.train.images.shape[-1], **values})


def method(config: DictConfig, images: Source) -> FederatedMethod:
    """The method over its objective and encoder, with initial weights that depend on the seed alone."""
    sections = OmegaConf.to_container(config, resolve=True)
    assert isinstance(sections, dict)
    training, chosen, server = config.training, sections["method"], sections["server_optimizer"]
    addons = chosen.pop("addons", [])
    with isolated(Streams(config.seed).number("init"), torch.device("cpu")):
        encoder = build(sections["encoder"], "encoder", offered={"in_channels": images.train.images.shape[1]})
        if not isinstance(getattr(encoder, "dim", None), int):
            raise ConfigError(
                f"encoder: {sections['encoder']['class']} makes a {type(encoder).__name__} without `dim`, the width of "
                "its features: wrap it in methods.networks.Encoder"
            )
        heads = {**sections["heads"], "num_classes": len(images.classes)}
        objective: Objective = build(sections["objective"], "objective", encoder, offered=heads)
        built: FederatedMethod = build(
            chosen,
            "method",
            objective,
            reserved={  # RESERVED names them
                "addons": [build(addon, "method.addons") for addon in addons],
                "optimizer": optimizer(sections["optimizer"]),
                "schedule": schedule(config),
                "clip_norm": training.clip_norm,
                "batch_norm": config.federation.batch_norm,
                "server_optimizer": build(server, "server_optimizer") if server else None,
            },
        )
    return built.to(memory_format=torch.channels_last) if training.channels_last else built


def optimizer(section: Mapping[str, Any]) -> Callable[..., torch.optim.Optimizer]:
    """Parameters -> optimiser; its arguments are checked now, not at the first visit."""
    build(section, "optimizer", [torch.nn.Parameter(torch.zeros(1))])
    return partial(locate(section, "optimizer"), **{key: value for key, value in section.items() if key != "class"})


def data(config: DictConfig, images: Source, built: FederatedMethod) -> FederatedDataModule:
    """Clients and their batches; refuses a batch no client can fill where the loss compares the images of a batch."""
    held = parts(config, images)
    largest, size = max(len(part) for part in held), config.training.batch_size
    if built.objective.contrastive and size > largest > 1:
        raise ConfigError(
            f"training.batch_size={size} is larger than every client's data (the largest holds {largest} images), so "
            "the contrastive loss would never see the batch it is set for: "
            f"use training.batch_size<={largest} or fewer clients"
        )
    return FederatedDataModule(
        images,
        held,
        recipe(config, images),
        batch_size=size,
        view_names=built.views(next(iter(built.plan(0)), built.phase)),
        labels=built.objective.labels,
        channels_last=config.training.channels_last,
        compiled=config.compile,
        seed=Streams(config.seed).number("trainer"),
    )


class Clients(Sequence[Client]):
    """Everyone, by id; made when asked for, so that a hundred thousand take no room.

    Args:
        parts: who holds which images.
    """

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, client: Any) -> Any:
        """Client `client`, or a list for a slice."""
        which = range(len(self))[client]
        return [self[k] for k in which] if isinstance(which, range) else Client(which, len(self.parts[which]))


def pace(config: DictConfig) -> Pace:
    """The local work of a visit."""
    training = config.training
    return Pace(training.epochs, training.steps, training.batch_size, config.schedule.per == "step")


def executor(config: DictConfig, reference: OneByOne) -> OneByOne | SideBySide | Measured:
    """Who visits the clients. On a CPU several at once are never faster, so there only the user chooses them."""
    on_gpu = reference.fabric.device.type == "cuda"
    if config.executor == "one-by-one" or (config.executor == "auto" and (not on_gpu or config.compile)):
        return reference
    several = SideBySide(reference, config.lanes, CudaGraphs if on_gpu else None)
    return several if config.executor == "side-by-side" else Measured(reference, several)


def fabric(config: DictConfig, found: Places) -> Fabric:
    """Devices and precision; several devices are ranks that share the cohort.

    found: where they are, or are to be.
    """
    accelerator = ranks.accelerator(config)
    for library in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(library).setLevel(logging.WARNING)  # progress is ours to tell
    if accelerator == "cuda" and torch.cuda.device_count() < found.here:
        raise ConfigError(
            f"accelerator=cuda with devices={found.here}, but {torch.cuda.device_count()} GPUs are visible: "
            "use accelerator=cpu or fewer devices"
        )
    # a batch script of SLURM's that calls no srun is one process, whatever its variables say
    own = not (ranks.under_srun() or "TORCHELASTIC_RUN_ID" in os.environ)
    return Fabric(
        accelerator=accelerator,
        devices=found.here,
        num_nodes=found.nodes,
        precision=config.training.precision,
        strategy=Ranks() if found.world > 1 else "auto",
        plugins=[LightningEnvironment()] if own else None,
    )
