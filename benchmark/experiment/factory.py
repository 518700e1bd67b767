"""Builds the parts of a run from its config: devices, networks, method, data, executor.

`configuration.compose` makes the config from YAML; `configuration.instantiate.construct` makes an object of a
section: its `class` is imported, its other keys are checked and passed as arguments.
"""

import inspect
import logging
import math
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment
from omegaconf import DictConfig, OmegaConf

from benchmark.configuration.instantiate import arguments, check, construct, locate, named_classes
from benchmark.configuration.schema import KEYS
from benchmark.distributed.launch import RankProcesses, accelerator, under_srun
from benchmark.distributed.strategy import IndependentRanks
from benchmark.errors import ConfigError, count
from benchmark.execution.auto import AutotunedExecutor
from benchmark.execution.base import LocalTrainingConfig
from benchmark.execution.cuda_graphs import CudaGraphs
from benchmark.execution.parallel import ParallelExecutor
from benchmark.execution.sequential import SequentialExecutor, check_skip
from benchmark.experiment.data import partition_data, with_shift
from benchmark.experiment.encoder import build as build_encoder
from benchmark.federation.compression import Compression
from benchmark.federation.participation import Participation
from benchmark.federation.updates import combined_entries
from benchmark.rng import Streams, isolated
from datamodules.federated import FederatedDataModule
from datamodules.parts import sizes_of
from datamodules.recipe import OwnRecipe, Recipe, Stage
from datamodules.signatures import signature_of
from datamodules.sources import Source
from methods import trees
from methods.base import FederatedMethod, Objective
from methods.core.freezing import check_frozen
from methods.optimizers import decay_matrices_only

DECAY_ALL = "decay_norms_and_biases"
"""Key of the section `optimizer` that its class does not have."""


def schedule(config: DictConfig) -> Callable[[float], float]:
    """A function from progress in [0, 1] to the factor on the learning rate.

    During warm-up the factor rises linearly from 0 to 1. A round with one rate has that of its middle: the first round
    would make no step otherwise. A cosine follows over the rest of the run; milestones stay where they are.
    """
    rounds, warmup = config.federation.rounds, config.schedule.warmup
    milestones, gamma = list(config.schedule.milestones), config.schedule.gamma
    middle = 0.5 / max(1, rounds) if config.schedule.per == "round" else 0.0

    def cosine(progress: float) -> float:
        return (1 + math.cos(math.pi * progress)) / 2

    def cosine_twice(progress: float) -> float:
        return cosine(progress) ** 2 / cosine(progress - 1 / rounds) if progress else 1.0

    factor = {
        "constant": lambda progress: 1.0,
        "cosine": cosine,
        "cosine_twice": cosine_twice,
        "step": lambda progress: gamma ** sum(progress >= milestone for milestone in milestones),
    }[config.schedule.name]
    if not warmup:
        return factor

    def warmed_up(progress: float) -> float:
        if progress < warmup:
            return min(1.0, (progress + middle) / warmup) * (1.0 if factor is cosine else factor(progress))
        return factor((progress - warmup) / (1 - warmup) if factor is cosine else progress)

    return warmed_up


def recipe(config: DictConfig, images: Source) -> Recipe:
    """The recipe of views, by default at the images' own size."""
    values: Any = OmegaConf.to_container(config.views)
    path, options = values.pop("class", None), values.pop("options", None) or {}
    check(values, dict.fromkeys(arguments(Recipe), Any), "views", "a recipe")  # Recipe checks the values itself
    values = {"size": images.train.images.shape[-1], **values}
    if path is not None:
        return OwnRecipe(**values, stage=own_stage(path, options))
    if options:
        raise ConfigError("views.options are arguments of views.class: name that function, or leave them out")
    return Recipe(**values)


def own_stage(path: str, options: Mapping[str, Any]) -> Stage:
    """The function of `views.class`, with its other arguments."""
    target = locate({"class": path}, "views")
    if inspect.isclass(target):
        raise ConfigError(f"views.class={path} is a class: give a function of views and a generator")
    if not isinstance(options, Mapping):
        raise ConfigError(f"views.options={options!r}: set the arguments of views.class, as in views.options.KEY=VALUE")
    takes = signature_of(target, filled=2)
    if not takes.passes_on:
        check(options, {name: each.annotation for name, each in takes.named.items()}, "views.options", path)
    try:
        inspect.signature(target).bind(None, None, **options)
    except (TypeError, ValueError) as error:  # the latter of C code, which says nothing of its arguments
        call = f"{path.rpartition('.')[2]}(views, generator, **views.options)"
        raise ConfigError(f"views.class={path}: {error}; it is called as {call}") from error
    return partial(target, **options)


def method(config: DictConfig, images: Source) -> FederatedMethod:
    """The method; its `others` are the same method over the federation's other architectures."""
    sections: Any = OmegaConf.to_container(config, resolve=True)
    for where, section in named_classes(config):  # all of them, before the first is called
        locate(section, where)
    built = method_over(config, sections, images, sections["encoder"], "encoder")
    for name, section in sections["federation"]["encoders"].items():
        if not type(built).mixes:
            raise ConfigError(
                f"federation.encoders: all clients of {type(built).__name__} run one architecture; those of FLESD and "
                "FedMKD, which average no weights, may run several"
            )
        where = f"federation.encoders.{name}"
        if name in ("default", "global"):
            raise ConfigError(f"{where}: this name is taken, give another one")
        architecture = {key: value for key, value in section.items() if key != "clients"}
        built.others[name] = method_over(config, sections, images, architecture, where)
    return built


def method_over(
    config: DictConfig, sections: Mapping[str, Any], images: Source, architecture: Mapping[str, Any], where: str
) -> FederatedMethod:
    """The method over its objective and one encoder, with initial weights that depend on the seed alone.

    sections: the config, resolved. where: the encoder's section, for messages.
    """
    training, chosen, server = config.training, dict(sections["method"]), sections["server_optimizer"]
    addons = chosen.pop("addons", [])
    cls, loss = locate(chosen, "method"), locate(sections["objective"], "objective")
    if inspect.isclass(loss) and issubclass(loss, Objective) and hasattr(cls, "accepts"):
        cls.accepts(loss)  # first: a wrong pair is a better message than a wrong argument
    with isolated(Streams(config.seed).seed_for("init"), torch.device("cpu")):
        size = recipe(config, images).size
        encoder = build_encoder(architecture, where, (images.train.images.shape[1], size, size), sections["views"])
        heads = {**sections["heads"], "num_classes": len(images.classes)}
        objective: Objective = construct(sections["objective"], "objective", encoder, offered=heads)
        built: FederatedMethod = construct(
            chosen,
            "method",
            objective,
            reserved={  # see instantiate.RESERVED
                "addons": [construct(addon, "method.addons") for addon in addons],
                "optimizer": optimizer(sections["optimizer"]),
                "schedule": schedule(config),
                "clip_norm": training.clip_norm,
                "batch_norm": config.federation.batch_norm,
                "server_optimizer": construct(server, "server_optimizer") if server else None,
            },
        )
    objective.check_staying([part for part in built.staying if part not in built.travelling])  # FedEMA's do both
    check_frozen(built)
    objective.separate_views = training.views == "separate"
    if training.precision == "64-true":
        built.double()  # after the draw of the initial weights, which are those of every precision
    return built.to(memory_format=torch.channels_last) if training.channels_last else built


def optimizer(section: Mapping[str, Any]) -> Callable[..., torch.optim.Optimizer]:
    """A function from parameters to an optimiser; its arguments and a step are tried now, not at the first visit."""
    settings = {key: value for key, value in section.items() if key != DECAY_ALL}
    decays_all = section.get(DECAY_ALL, True)
    check({DECAY_ALL: decays_all}, {DECAY_ALL: bool}, "optimizer", "the suite")
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    made = construct(settings, "optimizer", [weight])
    if not decays_all and not made.defaults.get("weight_decay"):
        raise ConfigError(
            f"optimizer.{DECAY_ALL}=false: there is no weight decay that it could leave out: set "
            "optimizer.weight_decay above 0, or leave it out"
        )
    for group in made.param_groups:
        if "capturable" in group:  # refused on a CPU, where this trial is
            group["capturable"] = False
    try:
        made.step()
    except (RuntimeError, TypeError, OverflowError) as error:  # some want a closure, some sparse gradients
        raise ConfigError(f"optimizer.class={section['class']} can make no step here: {error}") from error
    make = partial(locate(section, "optimizer"), **{key: value for key, value in settings.items() if key != "class"})
    return make if decays_all else lambda parameters: make(decay_matrices_only(parameters))


def data(
    config: DictConfig, images: Source, built: FederatedMethod, other: Callable[[str], Source] | None = None
) -> FederatedDataModule:
    """Clients and their batches; refuses a batch size no client can fill where the loss compares a batch's images.

    other: see `partition_data`.
    """
    held, public = partition_data(config, images, built.uses_public_images, other)
    images, held = with_shift(config, images, held)
    largest, size = int(sizes_of(held.parts).max()), config.training.batch_size
    if built.objective.contrastive and size > largest > 1:
        raise ConfigError(
            f"training.batch_size={size} is larger than every client's data (the largest holds {largest} images), so "
            "the contrastive loss would never see the batch it is set for: "
            f"give training.batch_size={largest} or less"
        )
    module = FederatedDataModule(
        images,
        held.parts,
        recipe(config, images),
        names=held.names,
        notes=held.notes,
        held_out=held.held_out,
        batch_size=size,
        view_names=built.views(next(iter(built.plan(0)), built.phase)),
        labels=built.objective.labels,
        public=public.held if public is not None else None,
        public_images=public.images if public is not None else None,
        channels_last=config.training.channels_last,
        dtype=built.dtype,
        drop_last=config.training.drop_last,
        smallest=min_batch_size(config, built),
        compiled=config.compile,
        seed=Streams(config.seed).seed_for("trainer"),
    )
    for phase in built.plan(0):  # now, not after the clients have trained
        if phase.skip and phase.data == "public":
            batches = module.batches_per_epoch(None, phase.batch_size or size, drop_last=phase.drop_last)
            check_skip(phase, batches)
    return module


def min_batch_size(config: DictConfig, built: FederatedMethod) -> int:
    """Fewest images of an epoch's last batch; refuses one image where BatchNorm would have one value a channel."""
    given = config.training.min_batch_size
    if given == 1 and any(isinstance(module, torch.nn.BatchNorm1d) for module in built.modules()):
        raise ConfigError(
            "training.min_batch_size=1: BatchNorm in the heads cannot train on one image: set training.min_batch_size=2"
        )
    if given == 1 and built.objective.needs_two:
        raise ConfigError(
            f"training.min_batch_size=1: the loss of {type(built.objective).__name__} is not defined for one image: "
            "set training.min_batch_size=2"
        )
    return int(built.objective.min_batch_size if given is None else given)


def local_training(config: DictConfig) -> LocalTrainingConfig:
    """Length of a visit's local training."""
    training = config.training
    return LocalTrainingConfig(
        training.epochs, training.steps, training.batch_size, config.schedule.per == "step", training.max_epochs
    )


def participation(config: DictConfig) -> Participation:
    """Which clients a round draws, and which of them reply."""
    federation, poisson = config.federation, config.privacy.sampling == "poisson"
    return Participation(
        federation.participation, federation.availability, federation.dropout, federation.deadline, poisson
    )


def compression(config: DictConfig, built: FederatedMethod) -> Compression | None:
    """Compression of the clients' updates; refuses a method that has none."""
    name, rounds = config.compression.name, max(1, config.federation.rounds)
    if name != "top-k" and config.compression.share != KEYS["compression.share"].default:
        raise ConfigError("compression.share needs compression.name=top-k")
    if name == "none":
        return None
    if not any(combined_entries(phase) for round in range(rounds) for phase in built.plan(round)):
        raise ConfigError(
            f"compression.name={name}: what {type(built).__name__}'s clients send is no update that is averaged or "
            "summed: leave it out"
        )
    statistics = {path for path, _ in trees.leaves(built.statistics())}
    return Compression(name, config.compression.share, statistics, Streams(config.seed))


def executor(
    config: DictConfig, reference: SequentialExecutor
) -> SequentialExecutor | ParallelExecutor | AutotunedExecutor:
    """The executor of client visits; on a CPU parallel visits are not faster, so `auto` means sequential there."""
    if reference.method.others:
        if config.compile or config.executor == "parallel":
            raise ConfigError(
                "federation.encoders: clients of several architectures are visited one by one and not compiled: leave "
                "executor and compile out"
            )
        return reference
    on_gpu = reference.fabric.device.type == "cuda"
    timed = on_gpu and not config.compile and not config.deterministic  # a choice by time differs from run to run
    if config.executor == "sequential" or (config.executor == "auto" and not timed):
        return reference
    parallel = ParallelExecutor(reference, config.lanes, CudaGraphs if on_gpu else None)
    return parallel if config.executor == "parallel" else AutotunedExecutor(reference, parallel)


def fabric(config: DictConfig, processes: RankProcesses) -> Fabric:
    """Fabric with the config's devices and precision, launched; several devices are ranks that divide the cohort."""
    layout = processes.layout(config)
    quieten_lightning()
    if accelerator(config) == "cuda" and (visible := torch.cuda.device_count()) < layout.ranks_per_node:
        remedy = f"use devices={visible}, or accelerator=cpu" if visible else "use accelerator=cpu"
        raise ConfigError(
            f"accelerator=cuda with devices={layout.ranks_per_node}, but {count(visible, 'GPU')} visible: {remedy}"
        )
    # a batch script of SLURM's that calls no srun is one process, whatever its variables say
    under_launcher = under_srun() or "TORCHELASTIC_RUN_ID" in os.environ
    made = Fabric(
        accelerator=accelerator(config),
        devices=layout.ranks_per_node,
        num_nodes=layout.nodes,
        precision="32-true" if config.training.precision == "tf32" else config.training.precision,
        strategy=IndependentRanks(processes) if layout.world_size > 1 else "auto",
        plugins=None if under_launcher else [LightningEnvironment()],
    )
    made.launch()
    set_numerics(tf32=config.training.precision == "tf32", deterministic=config.deterministic)
    processes.cannot_fork |= layout.world_size == 1
    processes.set_threads(config, layout)
    return made


def quieten_lightning() -> None:
    """Turns Lightning's remarks off: this suite shows the progress itself, and TF32 is a setting of it."""
    for library in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(library).setLevel(logging.WARNING)


def set_numerics(*, tf32: bool, deterministic: bool) -> None:
    """Sets how torch computes in this process: TF32, and deterministic operations."""
    backends: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    for backend in backends:  # torch's own default is TF32 in convolutions alone
        backend.allow_tf32 = tf32
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read once, at the first product on a GPU
    torch.use_deterministic_algorithms(deterministic)
