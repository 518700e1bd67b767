"""A suite: the runs of several methods over several scenarios and seeds."""

import itertools
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig

from benchmark.compose import compose
from benchmark.config import ConfigError, nearest
from benchmark.runs import folder
from benchmark.shelf import available, read


def suite(name: str, given: Mapping[str, Any], overrides: list[str]) -> list[DictConfig]:
    """The configs of a suite, seed by seed, so that a row of every method stands as early as possible.

    Args:
        name: of the suite. given: `methods`, `seeds` or `scenarios` instead of the suite's own; a method may be the
            name of one of its rows. methods=all: its own, those under `more`, and every shipped method neither names.
        overrides: for every run.
    """
    content = read("suite", name)
    unknown = set(content) - {"scenarios", "methods", "more", "seeds"}
    if unknown:
        raise ConfigError(
            f"suite {name} has unknown keys {sorted(unknown)}; a suite has scenarios, methods, more and seeds"
        )
    lists = {key: listed(given.get(key, content.get(key, []))) for key in ("scenarios", "methods", "seeds")}
    rows = [*listed(content.get("methods", [])), *listed(content.get("more", []))]
    if lists["methods"] == ["all"]:
        named = {str(row).split()[0] for row in rows}
        lists["methods"] = [*rows, *(method for method in available("method") if method not in named)]
    elif "methods" in given:
        lists["methods"] = _by_name(lists["methods"], rows, name, lists["scenarios"])
    configs = []
    for scenario, seed, row in itertools.product(lists["scenarios"], lists["seeds"], lists["methods"]):
        method, *own = str(row).split()
        configs.append(compose(scenario, method, [*own, *overrides, f"seed={seed}"]))
    folders = [folder(config) for config in configs]
    if twice := [str(place) for place in folders if folders.count(place) > 1]:
        raise ConfigError(f"suite {name} names {twice[0]} twice: name every row once")
    if not configs:
        raise ConfigError(f"suite {name} is empty: give scenarios, methods and seeds")
    return configs


def _by_name(wanted: list[Any], rows: list[Any], suite: str, scenarios: list[Any]) -> list[Any]:
    """What is wanted, the names of the suite's rows replaced by the lines that make them."""

    def stands(word: str) -> bool:  # a method, its file or a whole line
        return word in available("method") or word.endswith(".yaml") or " " in word

    if not scenarios or all(stands(str(word)) for word in wanted):
        return wanted
    lines = {}
    for line in map(str, rows):
        method, *own = line.split()
        lines[compose(str(scenarios[0]), method, own).row] = line
    for word in map(str, wanted):
        if word not in lines and not stands(word):
            known = dict.fromkeys([*lines, *available("method")])
            raise ConfigError(
                f"unknown row {word!r} of suite {suite}{nearest(word, known)}; "
                f"its rows and the methods are: {', '.join(known)}"
            )
    return [word if stands(str(word)) else lines[str(word)] for word in wanted]


def listed(value: Any) -> list[Any]:
    """`a,b` or a list, as a list."""
    return value.split(",") if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else [value]
