"""The schema of a run: what can be set, in which unit, and how scenario, method and command line come together.

Later ones win: the schema's defaults, the scenario's file, the objective's, the method's, the scenario's `adjust`
entries for that objective and method, the command line. An unknown key is refused with the nearest known one.
"""

import copy
import difflib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

CONFIGS = Path(__file__).parent / "configs"


class ConfigError(ValueError):
    """What was asked for cannot be run; one line that says what is possible."""


@dataclass
class Data:
    """Where images come from."""

    name: str = "digits"
    """digits | synthetic | cifar10 | cifar100 | svhn | fashion_mnist | stl10 | a folder of images under `root`."""
    root: str = "data"
    """Folder of archives and image folders."""
    cache: str = "~/.cache/fulcrum"
    """Folder of the decoded, memory-mapped arrays."""
    download: bool = False
    """Let torchvision download a missing archive."""
    image_size: int | None = None
    """Side in pixels images are resized to; None: as they are, all of one size."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of a source, e.g. examples, classes and image_size of `synthetic`."""


@dataclass
class Federation:
    """Who takes part, how often, and what becomes of BatchNorm."""

    rounds: int = 10
    """Rounds R."""
    participation: float = 1.0
    """Share of the clients drawn for a round, in (0, 1]."""
    batch_norm: str = "average"
    """Running statistics: average | local | recalibrate."""


@dataclass
class Training:
    """The local work of a visit."""

    epochs: int = 1
    """Local epochs E."""
    steps: int | None = None
    """Optimiser steps of a visit instead of epochs."""
    batch_size: int = 64
    """Images a step."""
    clip_norm: float | None = None
    """Largest gradient norm; None: no clipping."""
    precision: str = "32-true"
    """32-true | bf16-mixed."""
    channels_last: bool = False
    """Memory format of images and weights."""


@dataclass
class Schedule:
    """The learning rate over the run: a factor in [0, 1] of progress."""

    name: str = "constant"
    """constant | cosine | step."""
    per: str = "round"
    """round: one rate a round | step: it moves within a visit."""
    milestones: list[float] = field(default_factory=lambda: [0.6, 0.8])
    """step: progress in [0, 1] after which the rate drops."""
    gamma: float = 0.1
    """step: factor of each drop."""


@dataclass
class Evaluation:
    """What the encoder is measured by."""

    protocols: list[str] = field(default_factory=lambda: ["linear/v1", "knn/v1", "geometry/v1"])
    """Protocol ids, run on the last round's encoder."""
    every: int = 0
    """Rounds between two looks at the monitor (kNN on a held-out slice of train); 0: never."""
    batch_size: int = 500
    """Images a forward pass of feature extraction."""


@dataclass
class Config:
    """One run. Sections without a fixed schema name a `class` by import path; their other keys are its arguments."""

    scenario: str = ""
    """Name of the scenario."""
    row: str = ""
    """Name of the row on the board; made from the method and what was changed unless given."""
    seed: int = 0
    """Of partition, initial weights, order, views and all else."""
    data: Data = field(default_factory=Data)
    partition: dict[str, Any] = field(
        default_factory=lambda: {"name": "dirichlet_balanced", "clients": 10, "alpha": 0.1}
    )
    """name: iid | dirichlet | dirichlet_min | dirichlet_balanced | classes | blocks; clients: K; its own parameters."""
    views: dict[str, Any] = field(default_factory=dict)
    """Fields of `datamodules.views.Recipe`."""
    encoder: dict[str, Any] = field(default_factory=lambda: {"class": "methods.networks.convnet"})
    heads: dict[str, Any] = field(default_factory=dict)
    """Head widths offered to every objective that has such heads: projector, predictor."""
    objective: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=lambda: {"class": "torch.optim.SGD", "lr": 0.03, "momentum": 0.9})
    schedule: Schedule = field(default_factory=Schedule)
    federation: Federation = field(default_factory=Federation)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation = field(default_factory=Evaluation)
    output: str = "runs"
    """Folder of the run folders."""
    logger: str = "wandb"
    """wandb (offline unless logged in) | csv."""
    devices: int = 1
    """Processes, one a device; on a CPU, ranks."""
    accelerator: str = "auto"
    """auto | cpu | cuda."""
    threads: int | None = None
    """CPU threads a process; None: torch's choice."""


FREE = ("partition", "views", "encoder", "heads", "objective", "method", "optimizer")
"""Sections whose keys belong to what they build; they are checked when it is built."""

RUNTIME = ("output", "logger", "devices", "accelerator", "threads", "data.root", "data.cache", "data.download")
"""Keys that say where and how a run happens, not what it is: they are not part of its identity."""

ROW = ("objective", "method", "optimizer", "heads")
"""Sections whose change makes another row; a change elsewhere makes another scenario."""


def available(group: str) -> list[str]:
    """Names of the shipped configs of a group: scenario | method | objective | suite."""
    folder = CONFIGS / group
    return sorted(str(file.relative_to(folder).with_suffix("")) for file in folder.rglob("*.yaml"))


def read(group: str, name: str) -> dict[str, Any]:
    """A shipped config by name, or any file by a path that ends in .yaml."""
    file = Path(name) if name.endswith(".yaml") else CONFIGS / group / f"{name}.yaml"
    if not file.is_file():
        where = (
            f"no file {name}"
            if name.endswith(".yaml")
            else f"unknown {group} {name!r}{nearest(name, available(group))}"
        )
        raise ConfigError(f"{where}; there are: {', '.join(available(group))}; or give the path of a .yaml file")
    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(file)) or {}
    except YAMLError as error:
        raise ConfigError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must hold a mapping of sections")
    return content


def summary(group: str, name: str) -> str:
    """The first comment line of a shipped config: what it is, in one line."""
    first = (CONFIGS / group / f"{name}.yaml").read_text().splitlines()[:1]
    return first[0].lstrip("# ") if first and first[0].startswith("#") else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean ...?)`, or nothing where no known name is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def compose(scenario: str, method: str, overrides: Iterable[str] = ()) -> DictConfig:
    """The config of one run from a scenario, a method and `key=value` overrides."""
    given = parse(overrides)
    base, own = read("scenario", scenario), read("method", method)
    adjust = base.pop("adjust", {})
    objective = _named(own.pop("objective", "simclr"))
    chosen = _named(given.pop("objective", {}))
    name = chosen.get("name", objective["name"])
    if name != objective["name"]:
        objective = {"name": name}
    own["method"] = {"name": _stem(method), **own.get("method", {})}
    loss = read("objective", name)
    loss["objective"] = {**loss.get("objective", {}), "name": name}
    label = _stem(method) + (f"-{name}" if "name" in chosen else "")
    layers = [base, loss, {"objective": objective}, own]
    layers += [adjust.get(key, {}) for key in dict.fromkeys((name, _stem(method), label))]
    layers += [given, {"objective": chosen}] if chosen else [given]
    config = OmegaConf.create(_plain(Config()))
    for layer in layers:
        _check_keys(layer)
        config = _merge(config, layer)
    explicit = {key.partition("=")[0] for key in overrides} - {"objective"}
    config.scenario = given.get("scenario") or _variant(_stem(scenario), explicit, config, rows=False)
    config.row = given.get("row") or _variant(label, explicit, config, rows=True)
    validate(config)
    return config


def parse(overrides: Iterable[str]) -> dict[str, Any]:
    """`["a.b=1", "c=x"]` -> nested dict, values read as YAML."""
    for override in overrides:
        if "=" not in override:
            raise ConfigError(f"{override!r} is not an override: write key=value, e.g. seed=1 or method.alpha=5")
    # `objective=byol` names the objective; `objective.temperature=0.2` beside it sets its arguments
    dotlist = [f"objective.name={word[10:]}" if word.startswith("objective=") else word for word in overrides]
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist(dotlist))  # type: ignore[return-value]
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"cannot read the overrides: {' '.join(str(error).split())}") from error


def load(file: Path) -> DictConfig:
    """A resolved config written by an earlier run."""
    try:
        layer: Any = OmegaConf.to_container(OmegaConf.load(file))
        _check_keys(layer)
        config = _merge(OmegaConf.create(_plain(Config())), layer)
    except (YAMLError, AttributeError) as error:
        raise ConfigError(f"{file} is not a run's config: {' '.join(str(error).split())}") from error
    validate(config)
    return config


def save(config: DictConfig, file: Path) -> None:
    """Writes the resolved config, whole or not at all: several ranks may do so at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(f".{os.getpid()}")
    beside.write_text(OmegaConf.to_yaml(config, resolve=True))
    os.replace(beside, file)


def identity(config: DictConfig) -> str:
    """A hash of all that makes the run what it is; where it runs and what is measured on it is left out."""
    content = OmegaConf.to_container(config, resolve=True)
    assert isinstance(content, dict)
    for key in (*RUNTIME, "evaluation", "row", "scenario"):
        section, _, name = key.partition(".")
        if name:
            content[section].pop(name, None)
        else:
            content.pop(section, None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def differences(one: DictConfig, other: DictConfig) -> list[str]:
    """`key: a -> b` for every key of the run's identity that differs."""
    flat = [_flatten(OmegaConf.to_container(config, resolve=True)) for config in (one, other)]
    keys = sorted(set(flat[0]) | set(flat[1]))
    return [
        f"{key}: {flat[0].get(key)} -> {flat[1].get(key)}"
        for key in keys
        if flat[0].get(key) != flat[1].get(key)
        and key not in (*RUNTIME, "row", "scenario")
        and not key.startswith("evaluation")
    ]


def validate(config: DictConfig) -> None:
    """Refuses values that cannot be and values that contradict each other."""

    def choose(key: str, possible: tuple[str, ...]) -> None:
        value = OmegaConf.select(config, key)
        if value not in possible:
            raise ConfigError(f"{key}={value!r}: choose {' or '.join(possible)}{nearest(str(value), possible)}")

    def at_least(key: str, least: float) -> None:
        value = OmegaConf.select(config, key)
        if value is not None and (not isinstance(value, int | float) or value < least):
            raise ConfigError(f"{key}={value!r}: give a number of at least {least:g}")

    choose("federation.batch_norm", ("average", "local", "recalibrate"))
    choose("training.precision", ("32-true", "bf16-mixed"))
    choose("schedule.name", ("constant", "cosine", "step"))
    choose("schedule.per", ("round", "step"))
    choose("logger", ("wandb", "csv"))
    choose("accelerator", ("auto", "cpu", "cuda"))
    for key, least in {
        "federation.rounds": 0, "training.epochs": 1, "training.steps": 1, "training.batch_size": 2, "devices": 1,
        "threads": 1, "evaluation.every": 0, "evaluation.batch_size": 1, "training.clip_norm": 0, "seed": 0,
    }.items():  # fmt: skip
        at_least(key, least)
    if not 0 < config.federation.participation <= 1:
        raise ConfigError(f"federation.participation={config.federation.participation}: give a share in (0, 1]")


def _stem(name: str) -> str:
    """A shipped config's own name, or that of a file given by its path."""
    return Path(name).stem if name.endswith(".yaml") else name


def _named(objective: Any) -> dict[str, Any]:
    return {"name": objective} if isinstance(objective, str) else dict(objective or {})


def _merge(config: DictConfig, layer: Mapping[str, Any]) -> DictConfig:
    for section in ("optimizer", "encoder", "method"):
        fresh = layer.get(section)
        # another class brings its own arguments; those of the class it replaces go
        if isinstance(fresh, Mapping) and fresh.get("class") not in (None, config[section].get("class")):
            config[section] = {}
    merged = OmegaConf.merge(config, layer)
    typed = OmegaConf.structured(Config())
    try:
        for section in (name for name in typed if name not in FREE):
            typed[section] = (
                OmegaConf.merge(typed[section], merged[section]) if _is_section(section) else merged[section]
            )
    except OmegaConfBaseException as error:
        raise ConfigError(" ".join(str(error).split())) from error
    assert isinstance(merged, DictConfig)
    for section in (name for name in typed if name not in FREE):
        merged[section] = OmegaConf.to_container(typed[section]) if _is_section(section) else typed[section]
    return merged


def _is_section(name: str) -> bool:
    return is_dataclass(getattr(Config(), name))


def _plain(config: Config) -> dict[str, Any]:
    content: Any = OmegaConf.to_container(OmegaConf.structured(config))
    return content


def _check_keys(layer: Mapping[str, Any]) -> None:
    known = [item.name for item in fields(Config)]
    for section, value in layer.items():
        if section not in known:
            raise ConfigError(f"unknown key {section!r}{nearest(section, known)}; sections are: {', '.join(known)}")
        if not _is_section(section):
            continue
        keys = [item.name for item in fields(getattr(Config(), section))]
        if not isinstance(value, Mapping):
            raise ConfigError(f"{section}={value!r}: {section} is a section with the keys {', '.join(keys)}")
        for key in value:
            if key not in keys:
                close = nearest(key, keys)
                raise ConfigError(f"unknown key '{section}.{key}'{close}; {section} has: {', '.join(keys)}")


def _variant(name: str, overrides: Iterable[str], config: DictConfig, *, rows: bool) -> str:
    """The name, with what the command line changed: a changed run never stands in for the official one."""
    changed = []
    for key in sorted(overrides):
        section = key.partition(".")[0]
        if section in ("scenario", "row", "seed", "evaluation") or key in RUNTIME or section in RUNTIME:
            continue
        if (section in ROW) == rows:
            changed.append(f"{key.removeprefix('method.')}={_short(OmegaConf.select(config, key))}")
    return "+".join((name, *changed))


def _short(value: Any) -> str:
    plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    text = str(plain).replace(" ", "")
    return "".join(letter if letter.isalnum() or letter in ".-_" else "_" for letter in text)


def _flatten(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, dict):
        return {prefix: content}
    return {
        k: v for key, value in content.items() for k, v in _flatten(value, f"{prefix}.{key}" if prefix else key).items()
    }


def merge(config: DictConfig, overrides: Iterable[str]) -> DictConfig:
    """A run's config with overrides on top, valid."""
    layer = parse(overrides)
    _check_keys(layer)
    merged = _merge(copy.deepcopy(config), layer)
    validate(merged)
    return merged
