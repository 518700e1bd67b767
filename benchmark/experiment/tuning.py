"""Hyper-parameters chosen without a label: alignment + 0.2 uniformity on each client (Orchestra, eq. 5)."""

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.table import Table

from benchmark.configuration.compose import compose, merge
from benchmark.configuration.identity import identity
from benchmark.configuration.instantiate import arguments, locate
from benchmark.configuration.partitions import expanded
from benchmark.configuration.suites import row_line
from benchmark.configuration.words import is_true, take_keys
from benchmark.distributed.launch import RankProcesses
from benchmark.errors import ConfigError, exit_code, message
from benchmark.experiment.experiment import Experiment
from benchmark.tracking import plots
from benchmark.tracking.progress import Display
from leaderboards.encoders import shown

PROTOCOL = "label-free/v1"
NUMBERS = ("score", "alignment", "uniformity")
GRID = ("optimizer.lr=0.03,0.01,0.003,0.001", "objective.momentum=0.9,0.99,0.996")
"""Orchestra's default grid (its appendix C.4): the momentum for objectives with a target network, as BYOL's."""
REFERENCE = "knn/v1"
"""Protocol that the score is compared with, as in Orchestra's Figure 4, after the choice is written."""


@dataclass(frozen=True)
class Grid:
    """The points of a search, each a list of overrides with its config.

    base: config without the grid's keys. output: folder of runs and results. compare: whether kNN accuracies of all
    points are measured after the choice.
    """

    base: DictConfig
    keys: list[str]
    points: list[list[str]]
    configs: list[DictConfig]
    output: Path
    compare: bool


def parse_grid(scenario: str, method: str, overrides: list[str]) -> Grid:
    """The grid of a `tune` command; every point is composed, so that a mistake is refused before any run.

    Args:
        overrides: `key=value`, and `key=value,value,...` that spans the grid; without any, the grid is Orchestra's,
            less the keys that are given a value; see `several`. `compare=true`: see `Grid`.
            `output=FOLDER` takes runs and ranking; without it they are in the config's, with `-tune` at its end.
    """
    options, overrides = take_keys(overrides, "compare")
    compare = is_true(options, "compare")
    if any(override.startswith("minutes=") for override in overrides):
        raise ConfigError("minutes=: tune ranks what it has whole; stop it whenever you like, it goes on")
    if own := [override for override in overrides if override.startswith(("evaluation.protocols", "evaluation.every"))]:
        raise ConfigError(f"{own[0]}: tune scores by {PROTOCOL} after the last round, with compare=true by kNN too")
    ranges = {override: values for override in overrides if (values := several(override.partition("=")[2]))}
    fixed = [override for override in overrides if override not in ranges]
    method, *line = row_line(scenario, method)
    base = compose(scenario, method, fixed, line)
    if not ranges:
        default = _default_grid(base, {override.partition("=")[0] for override in [*fixed, *line]})
        ranges = {override: several(override.partition("=")[2]) for override in default}
    spans = [(override.partition("=")[0], values) for override, values in ranges.items()]
    output = expanded(base.output, "output")
    if not any(override.startswith("output=") for override in overrides):
        output = output.with_name(f"{output.name}-tune")
    extra = [f"output={output}", f"evaluation.protocols=[{PROTOCOL}]", "evaluation.every=0", "logger=csv"]
    for key, values in spans:
        if not all(values):
            raise ConfigError(f"{key}={','.join(values)}: a value is missing between commas, or after the last")
    points = [
        [f"{key}={value}" for (key, _), value in zip(spans, values, strict=True)]
        for values in itertools.product(*(values for _, values in spans))
    ]
    configs = [merge(compose(scenario, method, [*fixed, *point], line), extra) for point in points]
    first: dict[str, list[str]] = {}
    for point, config in zip(points, configs, strict=True):
        if (twin := first.setdefault(identity(config), point)) is not point:
            raise ConfigError(f"{' '.join(twin)} and {' '.join(point)} are one run: there is nothing to choose")
    return Grid(base, [key for key, _ in spans], points, configs, output, compare)


def several(text: str) -> list[str]:
    """The values that a key is given: `a,b`, or lists as `[1,2],[3,4]` or `[[1,2],[3,4]]`; empty where it is given one.

    A comma within brackets, braces or quotes parts no values.
    """
    values = _parted(text)
    if len(values) == 1 and text.startswith("[") and text.endswith("]"):
        lists = [value.strip() for value in _parted(text[1:-1])]
        return lists if len(lists) > 1 and all(value.startswith("[") and value.endswith("]") for value in lists) else []
    return [re.sub(r"""^(["'])(\[.*\])\1$""", r"\2", value) for value in values] if len(values) > 1 else []


def _parted(text: str) -> list[str]:
    """A text's parts between the commas that are in no brackets, braces or quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if letter == "," and not depth and not quote:
            parts.append("")
            continue
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and parts[-1].strip() in ("", "["):
            quote = letter
        depth += 0 if quote else (letter in "[{") - (letter in "]}")
        parts[-1] += letter
    return parts


def tune(grid: Grid, display: Display, processes: RankProcesses | None = None) -> tuple[Table, list[str]]:
    """Runs every point of a grid and ranks them by the label-free score; writes a JSON file into the grid's folder.

    Returns the ranking, and lines: the best point and the file, and for each failed point its reason.
    """
    runs = {
        tuple(point): Experiment(config, display, processes)
        for config, point in zip(grid.configs, grid.points, strict=True)
    }
    results = [_run_point(experiment, list(point)) for point, experiment in runs.items()]
    results.sort(key=lambda line: -line["score"] if line["score"] is not None else float("inf"))
    best, base = results[0], grid.base
    if best["score"] is None:
        raise ConfigError(f"every point of the grid failed: {', '.join(' '.join(line['point']) for line in results)}")
    file = grid.output / base.scenario / base.row / f"{','.join(grid.keys)}-seed{base.seed}.json"
    if not display.console.quiet:
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {"scenario": base.scenario, "row": base.row, "method": base.method.name}
        content |= {"objective": base.objective.name, "seed": base.seed, "protocol": PROTOCOL}
        content |= {"best": best["point"], "tried": results}
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    lines = [f"best: {' '.join(best['point'])}; written to {file}"]
    if grid.compare:
        pairs = [
            (line["score"], _accuracy(runs[tuple(line["point"])])) for line in results if line["score"] is not None
        ]
        figure = file.with_suffix(".png")
        if not display.console.quiet:
            lines.append(f"{plots.scatter(pairs, figure, f'{base.scenario} {base.row}')}; drawn in {figure}")
    return _table(results, f"{base.scenario} {base.row}, ranked without a label"), lines


def _table(results: Sequence[dict[str, Any]], title: str) -> Table:
    caption = "more is better, of all three (alignment is a mean cosine, uniformity minus a log mean)"
    table = Table("", *NUMBERS, title=title, caption=caption)
    for line in results:
        numbers = (f"{line[key]:.4f}" if line[key] is not None else "–" for key in NUMBERS)
        table.add_row(" ".join(line["point"]), *numbers)
    return table


def _default_grid(config: DictConfig, given: set[str]) -> list[str]:
    """Orchestra's grid, without the keys that are given or that the objective does not have."""
    known = {"optimizer.lr", *(f"objective.{name}" for name in arguments(locate(config.objective, "objective")))}
    grid = [span for span in GRID if (key := span.partition("=")[0]) in known and key not in given]
    if not grid:
        raise ConfigError("tune needs a grid: give a key several values, as optimizer.lr=0.03,0.1,0.3")
    return grid


def _run_point(experiment: Experiment, point: list[str]) -> dict[str, Any]:
    """Scores of one point and their origin; without scores where the run failed with an error a user can fix."""
    try:
        result = experiment.execute()
    except Exception as error:
        if exit_code(error) is None:
            raise
        experiment.display.end(f"{experiment.name}: stopped: {message(error)}")
        return {"point": point, **dict.fromkeys(NUMBERS)}
    return {"point": point, **result["scores"][PROTOCOL], "evaluated": result["evaluated"][PROTOCOL]}


def _accuracy(experiment: Experiment) -> float:
    """kNN accuracy of a finished point, by labels; it is added to the point's record."""
    with experiment.open() as run:
        run.loop.restore()
        evaluated = run.evaluate([REFERENCE])
        run.finish(evaluated)
    return shown(evaluated.record)[REFERENCE]["accuracy"]
