"""Types of a config's keys, and values that were written read by them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_origin, get_type_hints

from benchmark.configuration import partitions
from benchmark.configuration.schema import KEYS, Config
from benchmark.configuration.written import TEXTS, UNKNOWN, WORD, Hint, Written, as_written, read_value, settled
from benchmark.errors import ConfigError

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

OPTIONS = (
    "suite", "scenarios", "methods", "more", "protocols", "format", "collect", "folder", "into", "capture",
    "table", "project", "entity", "cluster",
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
            case ("data", "options", name):
                owner, where = content["data"], "data"
            case ("federation", "encoders", kind, name):
                owner, where = content["federation"]["encoders"][kind], f"federation.encoders.{kind}"
            case ("method", "addons", int(index), name):
                owner, where = content["method"]["addons"][index], "method.addons"
            case (str(where), name) if where in FREE:
                owner = content[where]
            case _:
                return Any
        return arguments(locate(owner, where))[str(name)].annotation
    except (ConfigError, KeyError, NameError, TypeError, ValueError):  # what builds the object reports it
        return Any
