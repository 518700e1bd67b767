"""Objects that a config section names by import path: the class, its arguments, the instance."""

import importlib
import inspect
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import torch
from omegaconf import DictConfig

from benchmark.configuration.keys import describe, fits, nearest
from benchmark.configuration.written import respelt
from benchmark.errors import ConfigError, exit_code
from datamodules.signatures import Signature, signature_of
from methods.base import AddOn, FederatedMethod, Objective

CLASSES: dict[str, tuple[type, str]] = {
    "method": (FederatedMethod, "methods.fedavg.FedAvg"),
    "method.addons": (AddOn, "methods.fedx.CrossDistillation"),
    "objective": (Objective, "methods.objectives.simclr.SimCLR"),
    "encoder": (torch.nn.Module, "methods.networks.resnet18"),
    "optimizer": (torch.optim.Optimizer, "torch.optim.SGD"),
    "server_optimizer": (object, "methods.server.Momentum, methods.server.Adam or methods.server.Yogi"),
    "data": (object, "torchvision.datasets.EuroSAT, or a Dataset of your own"),
    "partition": (object, "mymodule.split, a function of labels"),
    "views": (object, "mymodule.cutout, a function of views and a generator"),
}
"""Section -> what its class has to be a subclass of, and examples of import paths; an encoder may be a function that
returns one, and a server optimiser any class with the hooks of HOOKS."""
HOOKS = {"server_optimizer": ("init", "step")}
"""Section -> methods that its class has to have."""

SHIPPED = ("methods.", "torch.optim.")
"""Where import paths begin that a config may name without being trusted."""

RESERVED = ("addons", "optimizer", "schedule", "clip_norm", "batch_norm", "server_optimizer")
"""Arguments of a method that other sections set."""

OFFERED = ("in_channels", "image_size", "num_classes")
"""Arguments that the run fills in from its data set."""


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
    outside = ("class", "name") if where in ("method", "objective") else ("class",)  # there it names the config's file
    values = {key: value for key, value in section.items() if key not in outside}
    known = {name: p.annotation for name, p in arguments(target).items() if name not in (reserved or {})}
    values = {key: respelt(value, known.get(key, Any)) for key, value in values.items()}
    declared = {key: value for key, value in values.items() if key in known or not _signature(target).passes_on}
    check(declared, known, where, section["class"])
    extra = {key: value for key, value in (offered or {}).items() if key in known and key not in values}
    check(extra, known, "heads" if where == "objective" else where, section["class"])
    try:
        return target(*args, **values, **extra, **(reserved or {}))
    except Exception as error:
        foreign = not section["class"].startswith(SHIPPED)
        if exit_code(error) is not None or not (foreign or isinstance(error, TypeError | ValueError | OverflowError)):
            raise  # with a message for the user, or a bug of these packages
        hint = f"; arguments are keys, as {where}.NAME=VALUE" if "required positional" in str(error) else ""
        raise ConfigError(f"{where}: {section['class']} cannot be built from {values}: {said(error)}{hint}") from error


def locate(section: Mapping[str, Any], where: str) -> Any:
    """The object an import path names.

    Raises ConfigError: nothing has this path, or something else than the section asks for. Nothing is called before.
    """
    path = section.get("class") if isinstance(section, Mapping) else None
    kind = "encoder" if where.startswith("federation.encoders") else where
    base, example = CLASSES[kind]
    if not isinstance(path, str) or "." not in path or not all(name.isidentifier() for name in path.split(".")):
        raise ConfigError(f"{where}.class={path!r}: give an import path, e.g. {example}")
    module, _, name = path.rpartition(".")
    try:
        found = importlib.import_module(module)
    except Exception as error:  # the module may be a user's own, which raises what it likes
        if exit_code(error) is not None:
            raise
        absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        hint = ": is its folder in PYTHONPATH?" if absent else ""
        raise ConfigError(f"{where}.class={path}: {said(error)}{hint}") from error
    if (target := getattr(found, name, None)) is None:
        file = getattr(found, "__file__", None) or "the interpreter"  # perhaps not the module that the user means
        raise ConfigError(
            f"{where}.class={path}: module {module!r} of {file} has no {name}{nearest(name, vars(found))}"
        )
    made = made_by(target)
    if made is None and kind in ("encoder", "data", "partition", "views") and callable(target):
        return target  # a function without a plain annotation may return anything
    hooks = HOOKS.get(kind, ())
    if made is None or not issubclass(made, base) or not all(hasattr(made, hook) for hook in hooks):
        public = import_path(base).replace("methods.core.objective.", "methods.base.")  # as own code imports it
        wanted = f"class with {' and '.join(hooks)}" if hooks else f"subclass of {public}"
        raise ConfigError(f"{where}.class={path} is no {wanted}: give one, e.g. {example}")
    return target


def said(error: Exception) -> str:
    """What an error of somebody else's code says, in one line: its kind and place too where its text is not enough."""
    text = " ".join(str(error).split())
    if isinstance(error, TypeError | ValueError | OverflowError | ImportError | SyntaxError) and text:
        return text
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {text} ({Path(place.filename).name}, line {place.lineno})"


def made_by(target: Any) -> type | None:
    """What a call returns: the class itself, or the class that a function's annotation names; None: not known."""
    if inspect.isclass(target):
        return target
    try:
        made = get_type_hints(target).get("return") if inspect.isfunction(target) else None
    except (NameError, TypeError):  # an annotation of a name that is imported for type checkers only
        return None
    return made if inspect.isclass(made) and made is not Any else None


def import_path(cls: type) -> str:
    """The import path of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def named_classes(config: DictConfig) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(where, section) of every section of a config that names a class."""
    for name in ("method", "objective", "encoder", "optimizer", "server_optimizer"):
        if config[name]:
            yield name, config[name]
    for name in ("data", "partition", "views"):
        if config[name].get("class") is not None:
            yield name, config[name]
    addons = config.method.get("addons", [])
    if not isinstance(addons, Sequence) or isinstance(addons, str):
        raise ConfigError(f"method.addons={addons!r}: give a list, each {{class: ...}} and its arguments")
    for addon in addons:
        yield "method.addons", addon
    for name, section in config.federation.encoders.items():
        yield f"federation.encoders.{name}", section


def foreign_code(file: str, named: str) -> ConfigError:
    """The error of a config that somebody else may have written. named: the key and what it names."""
    return ConfigError(
        f"{file} names code from outside the suite ({named}), which would run: "
        "add trust=true if you trust that file and that code"
    )


def refuse_foreign_classes(config: DictConfig, file: str) -> None:
    """ConfigError where a config that somebody else may have written names code from outside the suite.

    file: of the config, for the message. No module is imported before its path was checked.
    """
    for where, section in named_classes(config):
        path = section.get("class") if isinstance(section, Mapping) else None
        if where in ("data", "partition", "views"):  # the suite has no classes of these
            raise foreign_code(file, f"{where}.class={path}")
        if not isinstance(path, str):
            raise ConfigError(f"{file}: {where}.class={path!r} is no import path")
        if not path.startswith(SHIPPED) or any(name.startswith("_") for name in path.split(".")):
            raise foreign_code(file, f"{where}.class={path}")
        target = locate(section, where)
        if not target.__module__.startswith(SHIPPED) or made_by(target) is None:
            raise ConfigError(f"{file}: {where}.class={path} is no class or function of the suite")


def arguments(target: Any) -> dict[str, inspect.Parameter]:
    """Arguments a config may set, by name: all but what the run gives by position, and those of base classes that a
    class passes them on to."""
    return dict(_signature(target).named)


def _signature(target: Any) -> Signature:
    """A method takes its objective by position, an objective its encoder, an optimiser its parameters."""
    made = made_by(target)
    given = made is not None and issubclass(made, FederatedMethod | Objective | torch.optim.Optimizer)
    return signature_of(target, filled=int(given))


def defaults(config: DictConfig) -> dict[str, Any]:
    """Dotted key -> default of the arguments that the config does not set, of the classes it names."""
    unset = {}
    sections = {where: config[where] for where in ("encoder", "objective", "method", "optimizer")}
    sections |= {f"federation.encoders.{name}": section for name, section in config.federation.encoders.items()}
    for where, section in sections.items():
        for name, parameter in arguments(locate(section, where)).items():
            default = parameter.default
            is_plain = default is None or isinstance(default, bool | int | float | str)
            if is_plain and name not in (*section, *config.heads, *RESERVED, *OFFERED):
                unset[f"{where}.{name}"] = default
    return unset


def check(values: Mapping[str, Any], known: Mapping[str, Any], where: str, owner: str) -> None:
    """Refuse unknown keys, and values of another type than their key's."""
    for key, value in values.items():
        if key not in known:
            raise ConfigError(
                f"unknown key '{where}.{key}'{nearest(key, known)}; {owner} has: {', '.join(known) or 'none'}"
            )
        if not fits(value, known[key]):
            raise ConfigError(f"{where}.{key}={value!r}: {owner} takes {describe(known[key])}")
