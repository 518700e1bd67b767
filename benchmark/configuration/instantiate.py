"""What a section of a config names by import path: where it is, what it takes, what it makes."""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, get_type_hints

import torch
from omegaconf import DictConfig

from benchmark.configuration.typecheck import describe, fits, nearest
from benchmark.errors import ConfigError

EXAMPLES = {
    "server_optimizer": "methods.server.Momentum, methods.server.Adam or methods.server.Yogi",
    "optimizer": "torch.optim.SGD",
    "encoder": "methods.networks.resnet18",
    "objective": "methods.objectives.simclr.SimCLR",
}
"""Of import paths, by section."""

RESERVED = ("addons", "optimizer", "schedule", "clip_norm", "batch_norm", "server_optimizer")
"""Arguments of a method that sections of their own decide."""


def construct(
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
        kind = "encoder" if where.startswith("federation.encoders") else where
        example = EXAMPLES.get(kind, "methods.fedavg.FedAvg")
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
    sections = {where: config[where] for where in ("encoder", "objective", "method", "optimizer")}
    sections |= {f"federation.encoders.{kind}": section for kind, section in config.federation.encoders.items()}
    for where, section in sections.items():
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
