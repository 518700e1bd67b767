"""How the layers of a config meet: shipped files by name, a user's own by path, and `key=value` overrides.

Later ones win: the schema's defaults, the scenario's file, the objective's, the method's, the scenario's `adjust`
entries for that objective and method, the command line, the partition of a method's own file. An unknown key is refused
with the nearest known one.
"""

import copy
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from benchmark.configuration.files import lineage, read
from benchmark.configuration.identity import identity
from benchmark.configuration.naming import changes_name, variant
from benchmark.configuration.schema import Config, validate
from benchmark.configuration.typecheck import describe, fits, nearest
from benchmark.errors import ConfigError
from datamodules import partition

PARTITIONERS = ("iid", "dirichlet", "dirichlet_min", "dirichlet_balanced", "classes", "blocks")

FREE = {
    "partition": (), "public": ("name", "client", "share"), "privacy": ("epsilon", "delta"), "views": (), "encoder": (),
    "heads": ("projector", "predictor", "head_norm", "last_norm"),
    "objective": (), "method": (),
    "optimizer": (), "server_optimizer": (),
}  # fmt: skip
"""Sections without a schema and, where the list is known, their keys; the rest is checked when they are built."""

USUAL = ("partition.clients", "partition.alpha", "optimizer.lr", "objective.temperature")
"""Keys of sections without a schema that are most often looked for elsewhere."""


def compose(scenario: str, method: str, overrides: Iterable[str] = ()) -> DictConfig:
    """The config of one run from a scenario, a method and `key=value` overrides."""
    words = list(overrides)
    given = parse(words)
    if {"steps", "epochs"} <= set(given.get("training") or {}):
        raise ConfigError("training.steps and training.epochs both say how long a visit is: give one of them")
    own, chosen = read("method", method), _named(given.pop("objective", {}))
    whose = {"partition": own.pop("partition", {})}
    label = _stem(method) + (f"-{_stem(chosen['name'])}" if "name" in chosen else "")
    shipped = _stack(_defaults(), _layers(scenario, method, own, chosen.get("name"), label))
    asked = _asked(shipped, words)
    # who holds what is part of what a reference is: one client for `centralized`, whatever the scenario's clients
    config = _stack(asked, [(f"method {method}: ", whose)] if whose["partition"] else [])
    try:
        OmegaConf.resolve(config)
        whole = identity(asked)
        changed = [
            word.partition("=")[0]
            for word in sorted(words)
            if changes_name(word.partition("=")[0])
            and whole != identity(_asked(shipped, [other for other in words if other != word]))
        ]
    except OmegaConfBaseException as error:
        raise ConfigError(_short_error(error)) from error
    config.scenario = given.get("scenario") or variant(_stem(scenario), changed, asked, rows=False)
    config.row = given.get("row") or variant(label, changed, asked, rows=True)
    validate(config)
    return config


def _asked(shipped: DictConfig, words: Iterable[str]) -> DictConfig:
    """The shipped layers under the command line's."""
    given = parse(words)
    chosen = _named(given.pop("objective", {}))
    return _stack(shipped, [("", given), ("", {"objective": chosen} if chosen else {})])


def _layers(
    scenario: str, method: str, own: dict[str, Any], objective: str | None, label: str
) -> list[tuple[str, dict[str, Any]]]:
    """The shipped layers in their order, each with what to call it in a message; objective: the one asked for."""
    loss = _named(own.pop("objective", "simclr"))
    name = objective or loss["name"]
    if name != loss["name"]:
        loss = {"name": name}
    own = {**own, "method": {"name": _stem(method), **own.get("method", {})}}
    its = read("objective", name)
    its["objective"] = {**its.get("objective", {}), "name": name}
    layers, adjusted = [], []
    for ancestor, content in lineage(scenario):
        adjust = content.pop("adjust", {})
        layers.append((f"scenario {ancestor}: ", content))
        for key in dict.fromkeys((name, _stem(method), label)):
            adjusted.append((f"scenario {ancestor}, adjust.{key}: ", adjust.get(key, {})))
    layers += [(f"objective {name}: ", its), (f"method {method}: ", {"objective": loss})]
    return [*layers, (f"method {method}: ", own), *adjusted]


def parse(overrides: Iterable[str]) -> dict[str, Any]:
    """`["a.b=1", "c=x"]` -> nested dict, values read as YAML."""
    keys: set[str] = set()
    for override in overrides:
        key, sign, _ = override.partition("=")
        if not sign:
            raise ConfigError(f"{override!r} is not an override: write key=value, e.g. seed=1 or method.alpha=5")
        if key in keys:
            raise ConfigError(f"{key} is given twice: give each key one value")
        keys.add(key)
    # `objective=byol` names the objective; `objective.temperature=0.2` beside it sets its arguments
    dotlist = [f"objective.name={word[10:]}" if word.startswith("objective=") else word for word in overrides]
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist(dotlist))  # type: ignore[return-value]
    except (OmegaConfBaseException, YAMLError) as error:
        if len(overrides := list(overrides)) > 1:  # each by itself, so that the message can name the one
            for override in overrides:
                parse([override])
        raise ConfigError(f"cannot read {' '.join(dotlist)}: {' '.join(str(error).split())}") from error


def merge(config: DictConfig, overrides: Iterable[str]) -> DictConfig:
    """A run's config with overrides on top, valid."""
    layer = parse(overrides)
    _check_keys(layer)
    merged = _merge(copy.deepcopy(config), layer)
    validate(merged)
    return merged


def load(file: Path) -> DictConfig:
    """A resolved config written by an earlier run."""
    try:
        layer: Any = OmegaConf.to_container(OmegaConf.load(file))
        _check_keys(layer)
        config = _merge(_defaults(), layer)
    except (YAMLError, AttributeError) as error:
        raise ConfigError(f"{file} is not a run's config: {' '.join(str(error).split())}") from error
    validate(config)
    return config


def save(config: DictConfig, file: Path) -> None:
    """Writes the resolved config, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".new")
    beside.write_text(OmegaConf.to_yaml(config, resolve=True))
    os.replace(beside, file)


def _stem(name: str) -> str:
    """A shipped config's own name, or that of a file given by its path."""
    return Path(name).stem if name.endswith(".yaml") else name


def _named(objective: Any) -> dict[str, Any]:
    return {"name": objective} if isinstance(objective, str) else dict(objective or {})


def _stack(config: DictConfig, layers: Iterable[tuple[str, Mapping[str, Any]]]) -> DictConfig:
    """A copy of the config under the layers; an error says in which of them it is."""
    stacked = copy.deepcopy(config)
    for where, layer in layers:
        try:
            _check_keys(layer)
            stacked = _merge(stacked, layer)
        except ConfigError as error:
            raise ConfigError(f"{where}{error}") from error
    return stacked


def _merge(config: DictConfig, layer: Mapping[str, Any]) -> DictConfig:
    if not layer:
        return config
    for section in ("optimizer", "server_optimizer", "encoder", "method"):
        chosen = layer.get(section)
        # another class brings its own arguments; those of the class it replaces go
        if isinstance(chosen, Mapping) and chosen.get("class") not in (None, config[section].get("class")):
            config[section] = {key: value for key, value in config[section].items() if key == "name"}
    if layer.get("public", {}).get("name") not in (None, config.public.get("name")):  # a share or client was another's
        config.public = {}
    encoders = layer.get("federation", {}).get("encoders")
    if encoders is not None and not isinstance(encoders, Mapping):
        raise ConfigError(f"federation.encoders={encoders!r}: give {{NAME: {{class: ..., clients: [...]}}}}")
    for kind, chosen in (encoders or {}).items():
        before = config.federation.encoders.get(kind, {})
        if isinstance(chosen, Mapping) and chosen.get("class") not in (None, before.get("class")):
            config.federation.encoders[kind] = {key: value for key, value in before.items() if key == "clients"}
    name = layer.get("partition", {}).get("name")
    if name not in (None, config.partition.get("name")):  # what the other rule does not know goes, what it shares stays
        shared = ("clients", "seed", "share", *partition_parameters(str(name)))
        config.partition = {key: value for key, value in config.partition.items() if key in shared}
    training = layer.get("training", {})
    if "epochs" in training and "steps" not in training:  # either counts a visit's work; the later one is meant
        config.training.steps = None
    try:
        merged = OmegaConf.merge(config, layer)
    except TypeError as error:  # a mapping over a list, or the other way round
        raise ConfigError(_clash(config, layer)) from error
    assert isinstance(merged, DictConfig)
    fresh = [field.name for field in fields(Config) if field.name in layer and field.name not in FREE]
    if not fresh:  # a section without types has nothing to be held against
        return merged
    sections = [name for name in fresh if _is_section(name)]
    typed, single = _typed(), {name: merged[name] for name in fresh if name not in sections}
    try:
        checked: Any = OmegaConf.merge(typed, single) if single else typed
        for name in single:
            merged[name] = checked[name]
        for name in sections:
            merged[name] = OmegaConf.to_container(OmegaConf.merge(typed[name], merged[name]))
    except OmegaConfBaseException as error:
        raise ConfigError(_short_error(error)) from error
    return merged


def partition_parameters(name: str) -> dict[str, Any]:
    """Parameter -> type of a partitioner, beside clients and seed; ConfigError where there is none."""
    if name not in PARTITIONERS:
        raise ConfigError(f"partition.name={name!r}{nearest(name, PARTITIONERS)}: choose {', '.join(PARTITIONERS)}")
    hints = get_type_hints(getattr(partition, name))
    return {key: hint for key, hint in hints.items() if key not in ("labels", "num_clients", "seed", "return")}


def _is_section(name: str) -> bool:
    return is_dataclass(getattr(Config(), name))


@cache
def _typed() -> DictConfig:
    """The schema, which takes a whole number for a float; not to be changed."""
    schema: Any = OmegaConf.structured(Config())
    return schema


def _defaults() -> DictConfig:
    """The schema's values without its types, which each layer is held against by itself."""
    values: Any = OmegaConf.to_container(_typed())
    return OmegaConf.create(values)


def _check_keys(layer: Mapping[str, Any]) -> None:
    known = [item.name for item in fields(Config)]
    for section, value in layer.items():
        if section not in known:
            close = _elsewhere(section) or nearest(section, known)
            raise ConfigError(f"unknown key {section!r}{close}; sections are: {', '.join(known)}")
        if not _is_section(section) and section not in FREE:
            _check_type(section, value, get_type_hints(Config)[section])
            continue
        if not isinstance(value, Mapping):
            raise ConfigError(f"{section}={value!r}: {section} is a section; set its keys, as in {section}.KEY=VALUE")
        keys = _keys(section)
        for key, given in value.items() if keys else ():
            if key not in keys:
                close = _elsewhere(key) or nearest(key, keys)
                raise ConfigError(f"unknown key '{section}.{key}'{close}; {section} has: {', '.join(keys)}")
            _check_type(f"{section}.{key}", given, keys[key])


def _keys(section: str) -> dict[str, Any]:
    """Key -> type of a section; nothing where only what is built from it knows."""
    return dict.fromkeys(FREE[section], Any) if section in FREE else get_type_hints(type(getattr(Config(), section)))


def _check_type(key: str, value: Any, hint: Any) -> None:
    interpolated = isinstance(value, str) and value.startswith("${")
    if not fits(value, hint) and hint is not str and not interpolated:  # a number is as good a name as any
        example = f", e.g. {key}=[a,b]" if get_origin(hint) is list else ""
        raise ConfigError(f"{key}={value!r}: give {describe(hint)}{example}")


def _elsewhere(key: str) -> str:
    """The key of that very name in another section, as a hint."""
    known = [f"{item.name}.{name}" for item in fields(Config) if _is_section(item.name) for name in _keys(item.name)]
    found = [one for one in (*known, *USUAL) if one.endswith(f".{key}")]
    return f" (did you mean {' or '.join(found)}?)" if found else ""


def _clash(config: Any, layer: Any, path: str = "") -> str:
    """Where a layer has another shape than what it is laid over."""
    if isinstance(config, DictConfig) and isinstance(layer, Mapping):
        found = (_clash(config.get(key), value, f"{path}.{key}".lstrip(".")) for key, value in layer.items())
        return next((words for words in found if words), "")
    if isinstance(config, ListConfig) and isinstance(layer, Mapping):
        return f"{path} is a list, whose items have no names: give the whole list, {path}={_inline(config)}"
    return ""


def _inline(config: ListConfig) -> str:
    """As it would be typed on the command line, in quotes."""
    text = yaml.safe_dump(OmegaConf.to_container(config), default_flow_style=True, width=math.inf, sort_keys=False)
    return f"'{text.strip()}'"


def _short_error(error: OmegaConfBaseException) -> str:
    """OmegaConf's message in one line, with the key it is about."""
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"{error.full_key}: {first}" if error.full_key else first
