"""Composition of a run's config: shipped files by name, a user's own files by path, and `key=value` overrides.

Later layers take precedence: defaults, scenario, objective, method, `adjust`, overrides, the partition of a method's
file. An unknown key is refused with the nearest known one.
"""

import math
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from benchmark.configuration import partitions
from benchmark.configuration.files import lineage, mapping, read
from benchmark.configuration.identity import identity
from benchmark.configuration.naming import changes_name, variant
from benchmark.configuration.schema import Config, validate
from benchmark.configuration.typecheck import check_plain, describe, fits, nearest
from benchmark.configuration.weights import pin
from benchmark.errors import ConfigError, UnusedKeyError

HINTS = get_type_hints(Config)
TYPED = {section: get_type_hints(hint) for section, hint in HINTS.items() if is_dataclass(hint)}
TYPED["data"]["class"] = str | None  # no field of a dataclass may have this name
"""Section with a schema -> its keys and their types."""
FREE: dict[str, dict[str, Any]] = {section: {} for section, hint in HINTS.items() if hint == dict[str, Any]} | {
    "public": dict.fromkeys(("name", "client", "share", "keep", "absent"), Any),
    "privacy": dict.fromkeys(("epsilon", "delta"), Any),
    "heads": dict.fromkeys(("projector", "predictor", "head_norm", "last_norm"), Any),
}
"""Section without a schema -> its keys where they are known; other keys are checked when the object is built."""

USUAL = ("partition.clients", "partition.alpha", "optimizer.lr", "objective.temperature")
"""Keys of sections without a schema that are most often looked for in other sections."""


def compose(scenario: str, method: str, overrides: Iterable[str] = (), line: Iterable[str] = ()) -> DictConfig:
    """The config of one run from a scenario, a method and `key=value` overrides.

    line: overrides that belong to a named row; of a key that both have, the other override is used. Its `row` and
    `scenario` are names to which the changes by the others are added.
    """
    overrides = list(overrides)
    given = {override.partition("=")[0] for override in overrides}
    line = [override for override in line if override.partition("=")[0] not in given]
    named, overrides = parse(line), [*line, *overrides]
    command_line = parse(overrides)
    training = command_line.get("training")
    if isinstance(training, Mapping) and {"steps", "epochs"} <= set(training):
        raise ConfigError("training.steps and training.epochs both say how long a visit is: give one of them")
    section = command_line.get("objective", {})
    objective = section.get("name")
    if not isinstance(objective, str | None) or (objective is None and "name" in section):
        raise ConfigError(f"objective={objective!r}: give a name, and its arguments as in objective.temperature=0.2")
    label = _stem(method) + (f"-{_stem(objective)}" if objective else "")
    # a reference's own partition is the last layer: `centralized` has one client, whatever the scenario's clients
    *layers, reference = _layers(scenario, method, objective, label)
    shipped = _stack(_schema(), layers)
    requested = _hashed(_stack(shipped, [("", command_line)]))
    config = _hashed(_stack(requested, [reference]))
    try:
        written: Any = OmegaConf.to_container(config)
        OmegaConf.resolve(config)
        resolved: Any = OmegaConf.to_container(config)
        if resolved != written:  # interpolations have become values of their own types
            _check_keys(resolved)
            _convert_types(resolved, [section for section in resolved if section not in FREE])
            config = OmegaConf.create(resolved)
        run = identity(requested)
        changed = []
        for override in sorted(overrides):
            rest = [other for other in overrides if other != override]
            key = override.partition("=")[0]
            if changes_name(key) and run != identity(_hashed(_stack(shipped, [("", parse(rest))]))):
                changed.append(key)
    except OmegaConfBaseException as error:
        raise ConfigError(_short_error(error)) from error
    config, requested = pin(config), pin(requested)
    for name, made, rows in (("scenario", _stem(scenario), False), ("row", label, True)):
        if official := named.get(name):
            others = [key for key in changed if key in given]
            config[name] = variant(str(official), others, command_line, requested, rows)
        else:
            config[name] = str(command_line.get(name) or variant(made, changed, command_line, requested, rows))
    validate(config)
    _refuse_unused(config, changed)
    return config


def _hashed(config: DictConfig) -> DictConfig:
    """The config with the hash of its file of clients."""
    if config.partition.get("name") == "file":
        content: Any = OmegaConf.to_container(config)
        partitions.with_hash(content["partition"])
        return OmegaConf.create(content)
    return config


def _refuse_unused(config: DictConfig, changed: Iterable[str]) -> None:
    """Refuse changed keys that have no effect: the run would be another's twin under a name of its own."""
    for key in changed:
        if key in ("schedule.gamma", "schedule.milestones") and config.schedule.name != "step":
            raise UnusedKeyError(key, f"it belongs to schedule.name=step, not {config.schedule.name}")
    if heads := [key for key in changed if key.startswith("heads.")]:
        from benchmark.configuration.instantiate import arguments, locate  # imports torch: most commands do without

        known = arguments(locate(config.objective, "objective"))
        for key in heads:
            if (name := key.removeprefix("heads.")) not in known:
                raise UnusedKeyError(key, f"{config.objective['name']} has no {name}")


def _layers(scenario: str, method: str, objective: str | None, label: str) -> list[tuple[str, dict[str, Any]]]:
    """The layers of shipped files, the lowest first: prefix of error messages and content.

    objective: of the command line, which replaces the method's. The last layer is the partition of the method's file.
    """
    content = read("method", method)
    loss = content.pop("objective", "simclr")
    loss = {"name": loss} if isinstance(loss, str) else loss
    if not isinstance(loss, Mapping) or not isinstance(loss.get("name"), str):
        raise ConfigError(f"method {method}: objective={loss!r}: give a name, or {{name: NAME}} and its arguments")
    if objective not in (None, loss["name"]):
        loss = {"name": objective}
    reference = {"partition": content.pop("partition", {})}
    content |= {"objective": loss, "method": {"name": _stem(method), **_section(f"method {method}", content, "method")}}
    shipped = read("objective", loss["name"])
    shipped["objective"] = {**_section(f"objective {loss['name']}", shipped, "objective"), "name": loss["name"]}
    scenarios, adjusted = [], []
    for ancestor, layer in lineage(scenario):
        adjust = layer.pop("adjust", None) or {}
        if not isinstance(adjust, Mapping) or not all(isinstance(changes, Mapping) for changes in adjust.values()):
            raise ConfigError(f"scenario {ancestor}: adjust={adjust!r}: give {{METHOD or OBJECTIVE: {{its changes}}}}")
        for key in ("scenario", "row"):
            if key in layer:
                raise ConfigError(f"scenario {ancestor}: {key} is a name that the command line gives, {key}=NAME")
        scenarios.append((f"scenario {ancestor}: ", layer))
        for key in dict.fromkeys((loss["name"], _stem(method), label)):
            adjusted.append((f"scenario {ancestor}, adjust.{key}: ", adjust.get(key, {})))
    prefix = f"method {method}: "
    return [*scenarios, (f"objective {loss['name']}: ", shipped), (prefix, content), *adjusted, (prefix, reference)]


def _section(file: str, content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of a file, empty where it is left out."""
    section = content.get(name) or {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"{file}: {name}={section!r}: {name} is a section: give its keys")
    return section


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
    dotlist = [re.sub("^objective=", "objective.name=", override) for override in overrides]
    try:
        content: Any = OmegaConf.to_container(OmegaConf.from_dotlist(dotlist))
    except (OmegaConfBaseException, YAMLError, ValueError, TypeError, RecursionError) as error:
        if len(overrides := list(overrides)) > 1:  # one at a time, so that the message names the wrong one
            for override in overrides:
                parse([override])
        raise ConfigError(f"cannot read {' '.join(dotlist)}: {' '.join(str(error).split())}") from error
    check_plain(content)
    return content


def merge(config: DictConfig, overrides: Iterable[str]) -> DictConfig:
    """A run's config with overrides merged into it, validated."""
    merged = _stack(config, [("", parse(overrides))])
    validate(merged)
    return merged


def load(file: Path) -> DictConfig:
    """A resolved config written by an earlier run."""
    try:
        layer = mapping(file)
        for section in ("method", "objective", "scenario", "row"):
            if not layer.get(section):
                raise ConfigError(f"it has no {section}")
        if "${" in yaml.safe_dump(layer):
            raise ConfigError("it has an interpolation, ${...}")
        config = _stack(_schema(), [("", layer)])
        validate(config)
    except ConfigError as error:
        raise ConfigError(
            f"{file} is not a run's config: {error}; "
            "remove the file and repeat the run's command, which writes it again and resumes"
        ) from error
    return config


def save(config: DictConfig, file: Path) -> None:
    """Writes the resolved config, whole or not at all. Raises ConfigError: it is so long that it could not be read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".new")
    beside.write_text(OmegaConf.to_yaml(config, resolve=True), encoding="utf-8")
    mapping(beside)  # now, not when the run is to be resumed
    os.replace(beside, file)


def _stem(name: str) -> str:
    """Name of a shipped config, or of the file that a path leads to."""
    return Path(name).stem if name.endswith(".yaml") else name


def _stack(config: DictConfig, layers: Iterable[tuple[str, Mapping[str, Any]]]) -> DictConfig:
    """A copy of the config with layers merged into it; an error begins with its layer's prefix."""
    stacked: Any = OmegaConf.to_container(config)
    for prefix, layer in layers:
        try:
            _check_keys(layer)
            _drop_replaced(stacked, layer)
            _update(stacked, layer)
            _convert_types(stacked, [section for section in layer if section not in FREE])
        except ConfigError as error:
            raise ConfigError(f"{prefix}{error}") from error
    return OmegaConf.create(stacked)


def _drop_replaced(config: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Remove the arguments of every class, data set, partition and public set that the layer replaces by another."""

    def drop(section: dict[str, Any], replacement: Any, key: str, remaining: Collection[str] = ()) -> None:
        if isinstance(replacement, Mapping) and replacement.get(key) not in (None, section.get(key)):
            for name in section.keys() - set(remaining):
                del section[name]

    for name in ("optimizer", "server_optimizer", "encoder", "method"):
        drop(config[name], layer.get(name), "class", ("name",) if name == "method" else ())
    drop(config["encoder"], layer.get("encoder"), "name", ("class",))  # another of a library's models
    drop(config["data"], layer.get("data"), "name", config["data"].keys() - {"options", "class"})
    if isinstance(data := layer.get("data"), Mapping) and data.get("class") not in (None, config["data"].get("class")):
        config["data"]["name"] = str(data["class"]).rpartition(".")[2].lower()
        config["data"].pop("options", None)
    drop(config["public"], layer.get("public"), "name")
    for kind, encoder in layer.get("federation", {}).get("encoders", {}).items():
        before = config["federation"]["encoders"].get(kind, {})
        drop(before, encoder, "class", ("clients",))
        drop(before, encoder, "name", ("clients", "class"))
    if isinstance(layer.get("partition"), Mapping):
        partitions.drop_replaced(config["partition"], layer["partition"])
    training = layer.get("training", {})
    if "epochs" in training and "steps" not in training:  # the later of two lengths of a visit holds
        config["training"]["steps"] = None


def _update(config: dict[str, Any], layer: Mapping[str, Any], path: str = "") -> None:
    """Merge a layer mapping by mapping; any other value replaces the config's."""
    for key, value in layer.items():
        current, place = config.get(key), f"{path}{key}"
        if isinstance(value, Mapping) and isinstance(current, dict):
            _update(current, value, f"{place}.")
        elif isinstance(value, Mapping) and isinstance(current, list):
            full = yaml.safe_dump(current, default_flow_style=True, width=math.inf, sort_keys=False).strip()
            raise ConfigError(f"{place} is a list, whose items have no names: give the whole list, {place}='{full}'")
        elif isinstance(value, list) and isinstance(current, dict):
            raise ConfigError(f"{place}={value!r}: set its keys, as in {place}.KEY=VALUE")
        else:
            config[key] = value


def _convert_types(config: dict[str, Any], sections: Iterable[str]) -> None:
    """Convert the values of sections to the schema's types, such as a whole number to a float."""
    if values := {section: config[section] for section in sections}:
        dataset = values["data"].pop("class", None) if "data" in values else None  # see TYPED
        try:
            converted: Any = OmegaConf.to_container(OmegaConf.merge(_schema(), values))
        except OmegaConfBaseException as error:
            raise ConfigError(_short_error(error)) from error
        config.update({section: converted[section] for section in values})
        if dataset is not None:
            config["data"]["class"] = dataset


@cache
def _schema() -> DictConfig:
    """The schema with its types and defaults; not to be changed."""
    return OmegaConf.structured(Config())


def _check_keys(layer: Mapping[str, Any]) -> None:
    """Refuse unknown keys, and values of another type than their key's."""
    for section, value in layer.items():
        if section not in HINTS:
            hint = _in_other_sections(section) or nearest(section, HINTS)
            raise ConfigError(f"unknown key {section!r}{hint}; sections are: {', '.join(HINTS)}")
        keys = TYPED.get(section, FREE.get(section))
        if keys is None:
            _check_type(section, value, HINTS[section])
            continue
        if not isinstance(value, Mapping):
            raise ConfigError(f"{section}={value!r}: {section} is a section; set its keys, as in {section}.KEY=VALUE")
        for key, item in value.items() if keys else ():
            if key not in keys:
                hint = _in_other_sections(key) or nearest(key, keys)
                raise ConfigError(f"unknown key '{section}.{key}'{hint}; {section} has: {', '.join(keys)}")
            _check_type(f"{section}.{key}", item, keys[key])
    encoders = layer.get("federation", {}).get("encoders", {})
    if not isinstance(encoders, Mapping) or not all(isinstance(section, Mapping) for section in encoders.values()):
        raise ConfigError(f"federation.encoders={encoders!r}: give {{NAME: {{class: ..., clients: [...]}}}}")


def _check_type(key: str, value: Any, hint: Any) -> None:
    interpolated = isinstance(value, str) and value.startswith("${")
    if not fits(value, hint) and hint is not str and not interpolated:  # a number is as good a name as any
        example = f", e.g. {key}=[a,b]" if get_origin(hint) is list else ""
        raise ConfigError(f"{key}={value!r}: give {describe(hint)}{example}")


def _in_other_sections(key: str) -> str:
    """` (did you mean ...?)` with the same key of other sections, or nothing."""
    known = [f"{section}.{name}" for section, keys in TYPED.items() for name in keys]
    matches = [name for name in (*known, *USUAL) if name.endswith(f".{key}")]
    return f" (did you mean {' or '.join(matches)}?)" if matches else ""


def _short_error(error: OmegaConfBaseException) -> str:
    """OmegaConf's message in one line, with the key it is about."""
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"{error.full_key}: {first}" if error.full_key else first
