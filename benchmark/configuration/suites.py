"""Suites, the runs of several methods over several scenarios and seeds, and the names of their rows."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from benchmark.configuration.compose import compose, stem
from benchmark.configuration.files import available, named, read
from benchmark.configuration.identity import folder
from benchmark.configuration.keys import nearest
from benchmark.configuration.written import value_of
from benchmark.errors import ConfigError, UnusedKeyError


def suite(name: str, replaced: Mapping[str, Any], overrides: list[str]) -> list[DictConfig]:
    """Configs of a suite's runs, seed by seed, so that every method has a row as early as possible.

    Args:
        name: of the suite. replaced: `methods`, `seeds` or `scenarios` in place of the suite's; a method may be the
            name of a row, of this suite or as `rows.row_line` has it. methods=all: the suite's, those under `more`, and
            all other shipped methods.
        overrides: for every run.
    """
    lists = lines_of(name, replaced)
    configs, unused = [], list[dict[str, UnusedKeyError]]()
    for scenario, seed, row in itertools.product(lists["scenarios"], lists["seeds"], lists["methods"]):
        config, without = _fitting(str(scenario), str(row), overrides, f"seed={seed}")
        configs.append(config)
        unused.append(without)
    if nowhere := [key for key in (unused[0] if unused else ()) if all(key in without for without in unused)]:
        raise unused[0][nowhere[0]]
    folders = [folder(config) for config in configs]
    if duplicates := [str(path) for path in folders if folders.count(path) > 1]:
        raise ConfigError(f"suite {name} names {duplicates[0]} twice: name every row once")
    if not configs:
        raise ConfigError(f"suite {name} is empty: give scenarios, methods and seeds")
    return configs


def lines_of(name: str, replaced: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The lines of a suite's `scenarios` and `methods`, and its `seeds`; arguments as for `suite`."""
    content = read("suite", str(name))
    if unknown := sorted(set(content) - {"scenarios", "methods", "more", "seeds"}):
        raise ConfigError(f"suite {name} has unknown keys {unknown}; a suite has scenarios, methods, more and seeds")
    lists = {key: listed(replaced.get(key, content.get(key, []))) for key in ("scenarios", "methods", "seeds")}
    lists["seeds"] = seeds(lists["seeds"])
    for key, lines in lists.items():
        if not all(str(line).strip() for line in lines):
            raise ConfigError(f"suite {name}: {key}={lines}: an empty line names nothing")
    rows = _rows(content)
    if lists["methods"] == ["all"]:
        listed_methods = {row.split()[0] for row in rows}
        lists["methods"] = [*rows, *(method for method in available("method") if method not in listed_methods)]
    elif "methods" in replaced and lists["scenarios"]:
        lists["methods"] = _replace_row_names(list(map(str, lists["methods"])), rows, name, str(lists["scenarios"][0]))
    return lists


def _fitting(
    scenario: str, row: str, overrides: Sequence[str], seed: str
) -> tuple[DictConfig, dict[str, UnusedKeyError]]:
    """The config of a row with those of the overrides that it has a use for, and the others by key."""
    kept, unused = list(overrides), dict[str, UnusedKeyError]()
    while True:
        try:
            return _composed(scenario, row, [*kept, seed]), unused
        except UnusedKeyError as error:
            fewer = [override for override in kept if override.partition("=")[0] != error.key]
            if len(fewer) == len(kept):  # it is the suite's own
                raise
            kept, unused[error.key] = fewer, error


def _replace_row_names(methods: list[str], rows: list[str], suite: str, scenario: str) -> list[str]:
    """The methods, with names of the suite's rows replaced by the lines that make them."""
    shipped = available("method")
    names = [method for method in methods if not (method in shipped or method.endswith(".yaml") or " " in method)]
    if not names:  # methods, their files and complete lines are left as they are
        return methods
    lines = {_named(line, scenario): line for line in rows}
    for name in names:
        if name not in lines and (words := row_line(scenario.split()[0], name)) != [name]:
            lines[name] = " ".join(words)
        if name not in lines:
            known = dict.fromkeys([*lines, *shipped])
            problem = f"unknown row {name!r} of suite {suite}{nearest(name, known)}"
            raise ConfigError(f"{problem}; its rows and the methods are: {', '.join(known)}")
    return [lines[method] if method in names else method for method in methods]


def _composed(setting: str, line: str, overrides: Iterable[str] = ()) -> DictConfig:
    """The config of a scenario line and a method line of a suite."""
    scenario, method, *line_overrides = joined(setting, line)
    return compose(scenario, method, overrides, line_overrides)


def joined(setting: str, line: str) -> list[str]:
    """Arguments of a run: scenario and method, then the overrides of a suite's scenario line and method line."""
    scenario, *scenario_overrides = setting.split()
    method, *method_overrides = line.split()
    return [scenario, method, *scenario_overrides, *method_overrides]


def listed(value: Any) -> list[Any]:
    """`a,b` or a list, as a list; None is an empty one."""
    if value is None:
        return []
    return value.split(",") if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else [value]


def seeds(value: Any) -> list[Any]:
    """`0,1` or a list, as a list of seeds; what is no number stays, for the config to refuse."""
    return [value_of(seed) if isinstance(seed, str) and seed else seed for seed in listed(value)]


def row_line(scenario: str, name: str) -> list[str]:
    """The method and the overrides of a row: `fedavg-byol` gives `fedavg objective=byol`.

    A row is named by a line of a shipped suite, or as METHOD-OBJECTIVE. Where suites have different rows of one name,
    those of suites with this scenario count. Any other name is returned as it is: a method, its file, or no row.

    Raises ConfigError: the name stands for several rows.
    """
    if name in available("method") or name.endswith(".yaml"):
        return [name]
    here, elsewhere = dict[str, str](), dict[str, str]()  # line -> the suite that has it
    for suite in available("suite"):
        content = read("suite", suite)
        scenarios = [str(each).split()[0] for each in content.get("scenarios", [])]
        for line in _rows(content):
            if _named(line, scenarios[0]) == name:
                lines = here if scenario in scenarios else elsewhere
                lines.setdefault(" ".join(sorted(line.split())), suite)
    lines = here or elsewhere
    if len(lines) > 1:
        known = "; ".join(f"{line} (suite {suite})" for line, suite in lines.items())
        raise ConfigError(f"{name!r} is the name of several rows: {known}: give the method and its key=value instead")
    if lines:
        return sorted(next(iter(lines)).split(), key=lambda word: "=" in word)  # the method, no override, comes first
    for method in named("method"):
        objective = name.removeprefix(f"{method}-")
        if objective != name and objective in named("objective"):
            return [method, f"objective={objective}"]
    return [name]


def _named(line: str, scenario: str) -> str:
    """Name of the row of a suite's line; it is composed only where the line does not show it."""
    method, *overrides = line.split()
    values = _values(line)
    if "row" in values:
        return values["row"]
    if not overrides:
        return stem(method)
    if list(values) == ["objective"]:
        return f"{stem(method)}-{stem(values['objective'])}"
    return str(_composed(scenario, line).row)


def config_of(record: Mapping[str, Any]) -> DictConfig:
    """The config that a committed record's row has now, under the record's seed."""
    shipped = [record["method"]]
    if record["row"] == f"{record['method']}-{record['objective']}":
        shipped.append(f"objective={record['objective']}")
    settings, lines = _scenario_lines(), _row_lines()
    setting = settings.get(record["scenario"], record["scenario"])
    line = lines.get((record["scenario"], record["row"]), " ".join(shipped))
    return _composed(setting, line, [f"seed={record.get('seed', 0)}"])


def shipped_scenarios() -> set[str]:
    """Names of the shipped scenarios, and those that lines of suites give."""
    return {*available("scenario"), *_scenario_lines()}


def _scenario_lines() -> dict[str, str]:
    """Name of a scenario -> the line of a suite, which may change a shipped scenario by overrides."""
    lines = (str(line) for suite in available("suite") for line in read("suite", suite).get("scenarios", []))
    return {_values(line).get("scenario", line.split()[0]): line for line in lines}


def _row_lines() -> dict[tuple[str, str], str]:
    """(scenario, row) -> the line of a suite that gives the row this name."""
    found = {}
    for content in (read("suite", suite) for suite in available("suite")):
        for line in _rows(content):
            for setting in map(str, content.get("scenarios", []) if "row" in _values(line) else []):
                found[_values(setting).get("scenario", setting.split()[0]), _values(line)["row"]] = line
    return found


def shipped_rows() -> set[str]:
    """Names of all rows of the suites, of the methods, and METHOD-OBJECTIVE."""
    methods, names = available("method"), {row for suite in available("suite") for row in rows_of(suite)}
    return {*methods, *names, *(f"{method}-{objective}" for method in methods for objective in available("objective"))}


def rows_of(suite: str) -> list[str]:
    """Names of the rows of a suite, in its order."""
    content = read("suite", suite)
    return [_named(line, str(content["scenarios"][0]).split()[0]) for line in _rows(content)]


def _rows(content: Mapping[str, Any]) -> list[str]:
    """The lines of a suite's rows, those under `more` last."""
    return [str(line) for key in ("methods", "more") for line in listed(content.get(key, []))]


def _values(line: str) -> dict[str, str]:
    """The key=value words of a suite's line."""
    return {word.partition("=")[0]: word.partition("=")[2] for word in line.split()[1:]}
