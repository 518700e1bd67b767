"""Layers of a config, merged one over the other: their keys, the types of these, and values read by them."""

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import Any, get_origin, get_type_hints

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from benchmark.configuration import partitions
from benchmark.configuration.keys import OTHER_WORDS, converted, describe, fits, nearest
from benchmark.configuration.schema import KEYS, RENAMED, Config
from benchmark.configuration.written import TEXTS, UNKNOWN, WORD, Hint, Written, as_written, read_value, settled
from benchmark.errors import ConfigError, first_line

log = logging.getLogger(__name__)

HINTS = get_type_hints(Config)
TYPED = {section: get_type_hints(hint) for section, hint in HINTS.items() if is_dataclass(hint)}
TYPED["data"]["class"] = str | None  # no field of a dataclass may have this name
"""Section with a schema -> its keys and their types."""
FREE: dict[str, dict[str, Any]] = {
    field.name: get_type_hints(field.metadata["known"]) if field.metadata.get("closed") else {}
    for field in fields(Config)
    if HINTS[field.name] == dict[str, Any]
}
"""Section without a schema -> its keys where no others are possible; else they are checked by what is built."""

VALUES = {key.name: key.formerly for key in KEYS.values() if isinstance(key.formerly, Mapping)}
"""Key without a section -> its values by their earlier names."""

OPTIONS = (
    "suite", "scenarios", "methods", "more", "protocols", "format", "collect", "folder", "into", "table",
    "project", "entity", "cluster",
)  # fmt: skip
"""Keys of commands and of files other than a run's config that are text, or lists of text."""


def hint_of(path: Sequence[str]) -> Hint:
    """The type of a key by its dotted path; UNKNOWN where the class that its section names decides."""
    section, *names = path
    if section in ("adjust", "parts"):  # a scenario's changes for a method, the parts of a campaign
        inner = names[1:] if section == "adjust" else names
        return hint_of(inner) if inner else Any
    if section not in HINTS:
        return TEXTS if section in OPTIONS else Any
    if not names:
        return WORD if section in (*TYPED, *FREE) else HINTS[section]
    hint = TYPED.get(section, {}).get(names[0], UNKNOWN if section in FREE else Any)
    if section == "federation" and len(names) > 2:  # one of its encoders
        section, names, hint = "encoder", names[2:], UNKNOWN
    known = KEYS.get(f"{section}.{names[0]}") if section in FREE and len(names) == 1 else None
    if names[-1] == "class" or (known and known.hint == str | None):
        return str | None
    return UNKNOWN if get_origin(hint) is dict else hint


def typed(content: Any, path: tuple[str, ...] = ()) -> Any:
    """The content of a file or a value, each of its values read by the type of its key. path: of the content itself."""
    if isinstance(content, Mapping):
        return {settled(key): typed(value, (*path, key)) for key, value in content.items()}
    if isinstance(content, list) and any(isinstance(item, Mapping | list) for item in content):
        return [typed(item, path) for item in content]
    return as_written(content, hint_of(path)) if path else content


def read_override(key: str, text: str) -> Any:
    """The value of `key=text`, by the type of its key. Raises YAMLError, ValueError, RecursionError: it is no YAML."""
    path = tuple(key.split("."))
    return typed(read_value(text, hint_of(path)), path)


def renamed_word(word: str) -> str:
    """`key=value` with the present name of its key."""
    key, sign, value = word.partition("=")
    return f"{_now(key, RENAMED[key].name)}{sign}{value}" if key in RENAMED else word


def renamed(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a layer with the present names of keys and values. ConfigError: a key has both of its names."""
    for old, key in RENAMED.items():
        section, _, name = old.partition(".")
        keys = content.get(section)
        if isinstance(keys, dict) and name in keys:
            if key.name.partition(".")[2] in keys:
                raise ConfigError(f"{old} and {key.name} are one key: give {key.name} alone")
            keys[_now(old, key.name).partition(".")[2]] = keys.pop(name)
    for name, values in VALUES.items():
        if isinstance(value := content.get(name), str) and value in values:
            content[name] = _now(f"{name}={value}", f"{name}={values[value]}").partition("=")[2]
    if isinstance(authors := content.get("authors"), dict):
        content["authors"] = {RENAMED[key].name if key in RENAMED else key: value for key, value in authors.items()}
    for changes in adjust.values() if isinstance(adjust := content.get("adjust"), dict) else ():
        if isinstance(changes, dict):
            renamed(changes)
    return content


@cache
def _now(old: str, new: str) -> str:
    """The present word; says once that it replaces an earlier one."""
    log.warning("%s is %s now", old, new)
    return new


def settle(content: dict[str, Any], sections: Iterable[str]) -> None:
    """Makes what was written for arguments of classes in some sections of a config values of their types, in place."""
    content |= {section: _settled(content[section], (section,), content) for section in sections}


def _settled(value: Any, path: tuple[str | int, ...], content: dict[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _settled(item, (*path, key), content) for key, item in value.items()}
    if isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        return [_settled(item, (*path, index), content) for index, item in enumerate(value)]
    ambiguous = any(isinstance(item, Written) for item in (value if isinstance(value, list) else [value]))
    return as_written(value, _argument(path, content)) if ambiguous else value


def _argument(path: tuple[str | int, ...], content: dict[str, Any]) -> Hint:
    """The type of an argument of a class or a function that a section of the config names; Any: it is not known."""
    from benchmark.configuration.instantiate import arguments, locate  # imports torch: most commands do without
    from datamodules.recipe import Recipe

    try:
        match path:
            case ("views", name):
                return get_type_hints(Recipe).get(str(name), Any)
            case ("partition", name) if not content["partition"].get("class"):
                return partitions.parameters(str(content["partition"].get("name"))).get(str(name), Any)
            case ("heads", name):
                owner, where = content["objective"], "objective"
            case (("data" | "views") as where, "options", name):
                owner = content[where]
            case ("federation", "encoders", architecture, name):
                owner, where = content["federation"]["encoders"][architecture], f"federation.encoders.{architecture}"
            case ("method", "addons", int(index), name):
                owner, where = content["method"]["addons"][index], "method.addons"
            case (str(where), name) if where in FREE:
                owner = content[where]
            case _:
                return Any
        return arguments(locate(owner, where))[str(name)].annotation
    except (ConfigError, KeyError, NameError, TypeError, ValueError):  # what builds the object reports it
        return Any


OFTEN_MEANT = ("partition.clients", "partition.alpha", "optimizer.lr", "objective.temperature")
"""Keys of sections without a schema that are most often looked for in other sections."""
MAIN_KEYS = dict.fromkeys(("data", "partition", "public", "schedule"), "name={}") | {
    "encoder": "class=methods.networks.{}",
    "optimizer": "class=torch.optim.{}",
    "server_optimizer": "class=torch.optim.{}",
}
"""Section -> the key and value that a word given for the whole section most likely means."""


def stack(content: Mapping[str, Any], layers: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """A copy of a config's content with layers merged into it; an error begins with its layer's prefix."""
    stacked = deepcopy(dict(content))
    for prefix, layer in layers:
        try:
            check_keys(layer)
            _drop_replaced(stacked, layer)
            update(stacked, layer)
            schema_sections = [section for section in layer if section not in FREE]
            settle(stacked, schema_sections)
            convert_types(stacked, schema_sections)
        except ConfigError as error:
            raise ConfigError(f"{prefix}{error}") from error
    settle(stacked, stacked)  # now each section has the class that reads its arguments
    return stacked


def resolve(content: dict[str, Any]) -> dict[str, Any]:
    """The content with values in place of interpolations, `${...}`; an OmegaConf error where one has none."""
    if "${" not in str(content):
        return content
    resolved: Any = OmegaConf.to_container(OmegaConf.create(content), resolve=True)
    return resolved


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
    drop(config["views"], layer.get("views"), "class", config["views"].keys() - {"options"})
    for name, encoder in layer.get("federation", {}).get("encoders", {}).items():
        before = config["federation"]["encoders"].get(name, {})
        drop(before, encoder, "class", ("clients",))
        drop(before, encoder, "name", ("clients", "class"))
    if isinstance(layer.get("partition"), Mapping):
        partitions.drop_replaced(config["partition"], layer["partition"])
    training = layer.get("training", {})
    if "epochs" in training and "steps" not in training:  # the later of two lengths of a visit holds
        config["training"]["steps"] = None


def update(config: dict[str, Any], layer: Mapping[str, Any], path: str = "") -> None:
    """Merge a layer mapping by mapping; any other value replaces the config's."""
    for key, value in layer.items():
        current, place = config.get(key), f"{path}{key}"
        if isinstance(value, Mapping) and isinstance(current, dict):
            update(current, value, f"{place}.")
        elif isinstance(value, Mapping) and isinstance(current, list):
            full = yaml.safe_dump(current, default_flow_style=True, width=math.inf, sort_keys=False).strip()
            raise ConfigError(f"{place} is a list, whose items have no names: give the whole list, {place}='{full}'")
        elif isinstance(value, list) and isinstance(current, dict):
            raise ConfigError(f"{place}={value!r}: set its keys, as in {place}.KEY=VALUE")
        else:
            config[key] = deepcopy(value)


def convert_types(config: dict[str, Any], sections: Iterable[str]) -> None:
    """Convert the values of sections to the schema's types, such as a whole number to a float, in place."""
    for section in sections:
        if section in TYPED:
            keys, values = TYPED[section], {**deepcopy(defaults()[section]), **config[section]}
            config[section] = {key: converted(value, keys[key]) for key, value in values.items()}
        else:
            config[section] = converted(config[section], HINTS[section])


@cache
def defaults() -> dict[str, Any]:
    """The content of a config without any layer; not to be changed."""
    return asdict(Config())


def check_keys(layer: Mapping[str, Any]) -> None:
    """Refuse unknown keys, and values of another type than their key's."""
    federation = layer.get("federation")
    encoders = federation.get("encoders", {}) if isinstance(federation, Mapping) else {}
    if not isinstance(encoders, Mapping) or not all(isinstance(section, Mapping) for section in encoders.values()):
        raise ConfigError(f"federation.encoders={encoders!r}: give {{NAME: {{class: ..., clients: [...]}}}}")
    for section, value in layer.items():
        if section not in HINTS:
            hint = _did_you_mean(full_keys(section)) or nearest(section, HINTS)
            raise ConfigError(f"unknown key {section!r}" + (hint or f"; sections are: {', '.join(HINTS)}"))
        keys = TYPED.get(section, FREE.get(section))
        if keys is None:
            _check_type(section, value, HINTS[section])
            continue
        if not isinstance(value, Mapping):
            word = value if isinstance(value, str) and value.isidentifier() else None
            example = meant(section, word)[0] if word and section in MAIN_KEYS else f"{section}.KEY=VALUE"
            raise ConfigError(f"{section}={value!r}: {section} is a section; set its keys, as in {example}")
        for key, item in value.items() if keys else ():
            if key not in keys:
                hint = _did_you_mean(full_keys(key)) or nearest(key, keys)
                raise ConfigError(f"unknown key '{section}.{key}'{hint}; {section} has: {', '.join(keys)}")
            _check_type(f"{section}.{key}", item, keys[key])


def _check_type(key: str, value: Any, hint: Any) -> None:
    interpolated = isinstance(value, str) and value.startswith("${")
    is_name = hint is str and isinstance(value, int | float)  # a number is as good a name as any
    if not (fits(value, hint) or is_name or interpolated):
        items = value if isinstance(value, str) and hint == list[str] else "a,b"
        example = f", e.g. {key}=[{items}]" if get_origin(hint) is list else ""
        raise ConfigError(f"{key}={value!r}: give {describe(hint)}{example}")


def full_keys(key: str) -> list[str]:
    """The dotted keys, of any section, that end in a key as this suite calls it."""
    known = [f"{section}.{name}" for section, keys in TYPED.items() for name in keys]
    return [name for name in (*known, *OFTEN_MEANT) if name.endswith(f".{OTHER_WORDS.get(key, key)}")]


def meant(word: str, value: str) -> list[str]:
    """The overrides that an option of another tool, such as `--learning-rate 0.1`, most likely stands for."""
    key = word.replace("-", "_")
    key = OTHER_WORDS.get(key, key)
    if key in MAIN_KEYS:
        return [f"{key}.{MAIN_KEYS[key].format(value)}"]
    return [f"{name}={value}" for name in full_keys(key) or [key]]


def _did_you_mean(keys: Sequence[str]) -> str:
    return f" (did you mean {' or '.join(keys)}?)" if keys else ""


def short_error(error: OmegaConfBaseException) -> str:
    """OmegaConf's message in one line, with the key it is about."""
    return f"{error.full_key}: {first_line(error)}" if error.full_key else first_line(error)
