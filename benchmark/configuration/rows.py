"""Rows by name: the line of a suite, or a method and an objective, that a row's name stands for."""

from benchmark.configuration.compose import compose
from benchmark.configuration.files import available, read
from benchmark.errors import ConfigError


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
        for line in map(str, [*content.get("methods", []), *content.get("more", [])]):
            if _named(line, scenarios[0]) == name:
                lines = here if scenario in scenarios else elsewhere
                lines.setdefault(" ".join(sorted(line.split())), suite)
    lines = here or elsewhere
    if len(lines) > 1:
        known = "; ".join(f"{line} (suite {suite})" for line, suite in lines.items())
        raise ConfigError(f"{name!r} is the name of several rows: {known}: give the method and its key=value instead")
    if lines:
        return _method_first(next(iter(lines)))
    for method in available("method"):
        objective = name.removeprefix(f"{method}-")
        if objective != name and objective in available("objective"):
            return [method, f"objective={objective}"]
    return [name]


def _named(line: str, scenario: str) -> str:
    """Name of the row of a suite's line; it is composed only where the line does not show it."""
    method, *overrides = line.split()
    values = _values(line)
    if "row" in values:
        return values["row"]
    if not overrides:
        return method
    if list(values) == ["objective"]:
        return f"{method}-{values['objective']}"
    return str(compose(scenario, method, overrides).row)


def _method_first(words: str) -> list[str]:
    """The words of a line with the method, the one that is no override, first."""
    return sorted(words.split(), key=lambda word: "=" in word)


def shipped_scenarios() -> set[str]:
    """Names of the shipped scenarios, and those that lines of suites give."""
    lines = (str(line) for suite in available("suite") for line in read("suite", suite).get("scenarios", []))
    return {*available("scenario"), *(_values(line).get("scenario", line.split()[0]) for line in lines)}


def shipped_rows() -> set[str]:
    """Names of all rows of the suites, of the methods, and METHOD-OBJECTIVE."""
    methods, names = available("method"), set[str]()
    for suite in available("suite"):
        content = read("suite", suite)
        lines = map(str, [*content.get("methods", []), *content.get("more", [])])
        names |= {_named(line, str(content["scenarios"][0]).split()[0]) for line in lines}
    return {*methods, *names, *(f"{method}-{objective}" for method in methods for objective in available("objective"))}


def _values(line: str) -> dict[str, str]:
    """The key=value words of a suite's line."""
    return {word.partition("=")[0]: word.partition("=")[2] for word in line.split()[1:]}
