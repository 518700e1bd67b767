"""Protocols of one's own: a function of features, or a `Protocol`, that an import path names.

A word is `package.module.name`, with settings `package.module.name:top=10:low=0.1`. The protocol's id adds the first
digits of the SHA-256 of its module, `package.module.name:top=10/1a2b3c4d`, so that other code is another protocol.
"""

import difflib
import hashlib
import importlib
import inspect
import json
import linecache
import math
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import Any

from eval.features import EvalError, Features
from eval.inputs import Subject
from eval.official import LOADED, OWN, Protocol

LABELS = {"train_y", "test_y", "num_classes", "features", "subject"}
REQUIRED = {
    **{name: name for name in ("members", "projector", "local_models", "client_replies", "test_clients")},
    **{"client_names": "test_clients", "inputs": "encoder_inputs", "encoder_inputs": "encoder_inputs"},
    **dict.fromkeys(("view_a", "view_b", "view_clients"), "views"),
}
"""Argument -> what a protocol that declares it requires, the first of them in this order."""
GIVEN = {field.name for kind in (Subject, Features) for field in fields(kind) if field.name != "local_step"}
GIVEN |= {"subject", "inputs", "generator", "note"}
IMPORTED: dict[str, tuple[Any, str]] = {}
"""Import path -> what this process has imported, and the digits of its code then."""


def load(word: str) -> Protocol:
    """Imports the protocol of a word or of an id.

    A function's arguments are what it is given (`eval.official.Protocol.compute`) and, with defaults, its settings. It
    returns a number or numbers by name; an accuracy is named so and in percent.

    Raises EvalError: nothing has this path, its code is not the id's, or its arguments do not fit.
    """
    match = OWN.fullmatch(word)
    if match is None:
        raise EvalError(f"protocol {word!r}: give an import path, with settings as package.module.name:top=10")
    path, words = match["path"], match["settings"]
    found = _imported(path)
    protocol = _of_function(path, found.function if isinstance(found, Protocol) else found)
    if isinstance(found, Protocol):
        protocol = replace(
            found,
            settings={**protocol.settings, **found.arguments},
            requires=found.requires or protocol.requires,
            uses_views=protocol.uses_views,
            uses_labels=protocol.uses_labels,
        )
    settings = _settings(path, words, protocol.settings)
    digits = _digits(path, protocol)
    if IMPORTED.setdefault(path, (found, digits)) != (found, digits):
        if IMPORTED[path][0] is found:
            raise EvalError(f"protocol {path}: its file has changed since this process imported it: start anew")
        IMPORTED[path] = found, digits  # defined again, as by a notebook's cell
    if match["digits"] not in (None, digits):
        raise EvalError(f"protocol {word}: its code has changed since, and is /{digits} now: give {path}{words}")
    id = f"{path}{words}/{digits}"
    LOADED[id] = replace(protocol, id=id, settings=settings, compute=_checked(id, protocol.function))
    return LOADED[id]


def _imported(path: str) -> Any:
    """What an import path names; EvalError where there is nothing."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError as error:
        raise EvalError(f"protocol {path}: module {module!r} has no {name}") from error
    except Exception as error:  # the module is a user's own, which raises what it likes
        hint = ": is its folder in PYTHONPATH?" if isinstance(error, ModuleNotFoundError) else ""
        raise EvalError(f"protocol {path}: {_said(error)}{hint}") from error


def _settings(path: str, words: str, declared: Mapping[str, Any]) -> dict[str, Any]:
    """A protocol's settings with those of a word, `:top=10:low=0.1`. Raises EvalError: unknown, twice, or missing."""
    pairs = [setting.split("=", 1) for setting in words.split(":")[1:]]
    given = {key: _value(text) for key, text in pairs}
    if len(given) < len(pairs):
        raise EvalError(f"protocol {path}{words}: a setting is given twice: give it once")
    if words.split() not in ([], [words]):  # in tables a space ends the id, and the metric's name follows
        raise EvalError(f"protocol {path}{words}: a setting has a space: leave it out")
    if unknown := [key for key in given if key not in declared]:
        close = difflib.get_close_matches(unknown[0], declared, n=1)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        raise EvalError(f"protocol {path} has no setting '{unknown[0]}'{hint}: {', '.join(declared) or 'none'}")
    settings = {**declared, **given}
    if missing := [key for key, value in settings.items() if value is inspect.Parameter.empty]:
        offered = ", ".join(sorted(GIVEN))
        raise EvalError(f"protocol {path} needs '{missing[0]}': give {path}:{missing[0]}=VALUE; it can have {offered}")
    return settings


def _of_function(path: str, function: Any) -> Protocol:
    """The protocol of a function; a setting without a default is `inspect.Parameter.empty`."""
    if not callable(function) or inspect.isclass(function):
        raise EvalError(f"protocol {path} is no function and no eval.protocol.Protocol")
    try:
        every = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise EvalError(f"protocol {path}: its arguments cannot be read: wrap it in a function") from error
    parameters = [each for each in every if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    declared = {each.name for each in parameters if each.name in GIVEN}
    needed = {each.name for each in parameters if each.default is each.empty}
    return Protocol(
        path,
        function,
        inspect.getdoc(function) or "",
        settings={each.name: each.default for each in parameters if each.name not in GIVEN},
        requires=next((kind for name, kind in REQUIRED.items() if name in needed), ""),
        uses_views=bool({"view_a", "view_b", "view_clients", "features", "subject"} & declared),
        uses_labels=bool(LABELS & declared),
    )


def _checked(id: str, compute: Callable[..., Any]) -> Callable[..., dict[str, float]]:
    """A function whose results are numbers by name; EvalError for what else it returns, and for what it raises."""

    @wraps(compute)
    def checked(*args: Any, **kwargs: Any) -> dict[str, float]:
        try:
            made = compute(*args, **kwargs)
        except EvalError:
            raise
        except Exception as error:
            raise EvalError(f"protocol {id}: {_said(error)}") from error
        try:
            numbers = {str(k): float(x) for k, x in (made if isinstance(made, Mapping) else {"value": made}).items()}
        except (TypeError, ValueError):
            numbers = {}
        if not numbers or not all(map(math.isfinite, numbers.values())):  # a record has finite numbers
            shown = " ".join(repr(made).split())[:60]
            raise EvalError(f"protocol {id}: it returned {shown}: let it return a finite number, or some by name")
        return numbers

    return checked


def _value(text: str) -> Any:
    """The value of a setting: a number, true, false, null, or the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _digits(path: str, protocol: Protocol) -> str:
    """Digits of the modules that name and define a protocol, or of the notebook's cells."""
    function = inspect.unwrap(getattr(protocol.function, "func", protocol.function))
    try:
        files = [inspect.getsourcefile(function), getattr(sys.modules[path.rpartition(".")[0]], "__file__", None)]
        texts = [_source(file) for file in dict.fromkeys(files) if file is not None]
        if not any(texts):
            raise OSError
    except (OSError, TypeError) as error:
        raise EvalError(f"protocol {path}: its source cannot be read, which its version is made of") from error
    return hashlib.sha256(b"".join(texts)).hexdigest()[:8]


def _source(file: str) -> bytes:
    """The text of a file, or of a notebook's cell, which Python keeps under the name of one."""
    return Path(file).read_bytes() if Path(file).is_file() else "".join(linecache.getlines(file)).encode()


def _said(error: Exception) -> str:
    """An error of somebody else's code in one line, with its place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {' '.join(str(error).split())} ({Path(place.filename).name}, line {place.lineno})"
