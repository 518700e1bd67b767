"""A suite: the runs of several methods over several scenarios and seeds."""

import itertools
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig

from benchmark.compose import compose
from benchmark.config import ConfigError
from benchmark.runs import folder
from benchmark.shelf import available, read


def suite(name: str, given: Mapping[str, Any], overrides: list[str]) -> list[DictConfig]:
    """The configs of a suite, seed by seed, so that a row of every method stands as early as possible.

    Args:
        name: of the suite. given: `methods`, `seeds` or `scenarios` instead of the suite's own; methods=all: its own,
            those under `more`, and every shipped method that neither names.
        overrides: for every run.
    """
    content = read("suite", name)
    unknown = set(content) - {"scenarios", "methods", "more", "seeds"}
    if unknown:
        raise ConfigError(
            f"suite {name} has unknown keys {sorted(unknown)}; a suite has scenarios, methods, more and seeds"
        )
    lists = {key: listed(given.get(key, content.get(key, []))) for key in ("scenarios", "methods", "seeds")}
    if lists["methods"] == ["all"]:
        rows = [*listed(content.get("methods", [])), *listed(content.get("more", []))]
        named = {str(row).split()[0] for row in rows}
        lists["methods"] = [*rows, *(method for method in available("method") if method not in named)]
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


def listed(value: Any) -> list[Any]:
    """`a,b` or a list, as a list."""
    return value.split(",") if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else [value]
