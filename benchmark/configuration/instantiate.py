"""Objects that a config section names by import path: the class, its arguments, the instance."""

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
"""Examples of import paths, by section."""

RESERVED = ("addons", "optimizer", "schedule", "clip_norm", "batch_norm", "server_optimizer")
"""Arguments of a method that other sections set."""


def construct(
    section: Mapping[str, Any],
    where: str,
    *args: Any,
    offered: Mapping[str, Any] | None = None,
    reserved: Mapping[str, Any] | None = None,
) -> Any:
    """Build an object of the class in a section, with the section's other keys as arguments.

    Args:
        section: {"class": "package.module.Name", argument: value, ...}.
        where: the section's name, for messages.
        args: positional arguments.
        offered: arguments passed on only if the class takes them and the section does not set them.
        reserved: arguments that other sections set; this one may not.
    """
    target = locate(section, where)
    values = {key: value for key, value in section.items() if key not in ("class", "name")}
    known = {name: p.annotation for name, p in arguments(target).items() if name not in (reserved or {})}
    check(values, known, where, section["class"])
    extra = {key: value for key, value in (offered or {}).items() if key in known and key not in values}
    check(extra, known, "heads" if where == "objective" else where, section["class"])
    try:
        return target(*args, **values, **extra, **(reserved or {}))
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):
            raise  # an error of these packages, with a message for the user
        raise ConfigError(f"{where}: {section['class']} cannot be built from {values}: {error}") from error


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
    """Arguments a config may set, by name: keyword-only ones, and the base classes' where they are passed on.

    Of constructors that are no modules (torch's optimisers) all arguments count.
    """
    if not inspect.isclass(target) or not issubclass(target, torch.nn.Module):
        return {name: p for name, p in _parameters(target).items() if name not in ("self", "params")}
    keywords: dict[str, inspect.Parameter] = {}
    for cls in target.__mro__:
        if "__init__" in vars(cls):
            parameters = _parameters(vars(cls)["__init__"])
            keywords = {**{name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}, **keywords}
            if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
                break
    return keywords


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    """Parameters by name, their annotations as types."""
    hints = get_type_hints(function.__init__ if inspect.isclass(function) else function)
    signature = inspect.signature(function).parameters
    return {name: p.replace(annotation=hints.get(name, Any)) for name, p in signature.items()}


def defaults(config: DictConfig) -> dict[str, Any]:
    """Dotted key -> default of the arguments that the config does not set, of the classes it names."""
    unset = {}
    sections = {where: config[where] for where in ("encoder", "objective", "method", "optimizer")}
    sections |= {f"federation.encoders.{kind}": section for kind, section in config.federation.encoders.items()}
    for where, section in sections.items():
        for name, parameter in arguments(locate(section, where)).items():
            default = parameter.default
            is_plain = default is None or isinstance(default, bool | int | float | str)
            if is_plain and name not in (*section, *config.heads, *RESERVED, "in_channels", "num_classes"):
                unset[f"{where}.{name}"] = default
    return unset


def check(values: Mapping[str, Any], known: Mapping[str, Any], where: str, owner: str) -> None:
    """Refuse unknown keys, and values of another type than their key's."""
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"unknown key '{where}.{key}'{nearest(key, known)}; {owner} has: {', '.join(known)}")
        if not fits(value, known[key]):
            raise ConfigError(f"{where}.{key}={value!r}: {owner} takes {describe(known[key])}")
