"""Hyper-parameters chosen without a label: alignment + 0.2 uniformity on each client (Orchestra, eq. 5)."""

import itertools
import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.table import Table

from benchmark.configuration.compose import compose, merge
from benchmark.configuration.instantiate import arguments, locate
from benchmark.configuration.overrides import take_keys
from benchmark.distributed import launch
from benchmark.errors import ConfigError
from benchmark.experiment.run import Run
from benchmark.federation.loop import DivergedError
from benchmark.tracking import plots
from benchmark.tracking.progress import Display
from eval.features import EvalError

PROTOCOL = "label-free/v1"
NUMBERS = ("score", "alignment", "uniformity")
GRID = ("optimizer.lr=0.03,0.01,0.003,0.001", "objective.momentum=0.9,0.99,0.996")
"""Orchestra's, where none is given (its appendix C.4): the momentum for objectives with a target, as BYOL's."""
AGAINST = "knn/v1"
"""What the score is held against, as in Orchestra's Figure 4, once the choice is written."""


def tune(scenario: str, method: str, overrides: list[str], display: Display) -> tuple[Table, str]:
    """Runs every point of a grid and ranks them by the label-free score; writes a JSON file into `<output>-tune/`.

    Returns the ranking, and a line that says which point is best and where the file is.

    Args:
        overrides: `key=value`, and `key=value,value,...` that spans the grid; without any, the grid is Orchestra's,
            less what is given a value.
            `compare=true`: kNN accuracies of all points are measured after the choice, and drawn against the score.
    """
    own, overrides = take_keys(overrides, "compare")
    compare = own.get("compare", False)
    if not isinstance(compare, bool):
        raise ConfigError(f"compare={compare}: give true or false")
    if any(override.startswith("minutes=") for override in overrides):
        raise ConfigError("minutes=: tune ranks what it has whole; stop it whenever you like, it goes on")
    grid = [override for override in overrides if "," in override and "[" not in override]
    fixed = [override for override in overrides if override not in grid]
    config = compose(scenario, method, fixed)
    spans = [
        override.partition("=")
        for override in grid or _usual(config, {override.partition("=")[0] for override in fixed})
    ]
    output = Path(config.output).expanduser()
    output = output.with_name(f"{output.name}-tune")
    extra = [f"output={output}", f"evaluation.protocols=[{PROTOCOL}]", "evaluation.every=0", "logger=csv"]
    points = [
        [f"{key}={value}" for (key, _, _), value in zip(spans, point, strict=True)]
        for point in itertools.product(*(values.split(",") for _, _, values in spans))
    ]
    configs = [
        merge(compose(scenario, method, [*fixed, *point]), extra) for point in points
    ]  # refused before any plays
    launch.expect(configs)
    runs = {tuple(point): Run(one, display) for one, point in zip(configs, points, strict=True)}
    tried = [_try(run, list(point)) for point, run in runs.items()]
    tried.sort(key=lambda line: -line["score"] if line["score"] is not None else float("inf"))
    best = tried[0]
    if best["score"] is None:
        raise ConfigError(f"every point of the grid diverged: {', '.join(' '.join(line['point']) for line in tried)}")
    searched = ",".join(key for key, _, _ in spans)
    file = output / config.scenario / config.row / f"{searched}-seed{config.seed}.json"
    if not display.console.quiet:
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {"scenario": config.scenario, "row": config.row, "method": config.method.name}
        content |= {"objective": config.objective.name, "seed": config.seed, "protocol": PROTOCOL}
        content |= {"best": best["point"], "tried": tried}
        file.write_text(json.dumps(content, indent=1) + "\n")
    where = f"best: {' '.join(best['point'])}; written to {file}"
    if compare:
        against = [
            (line["score"], _labelled(runs[tuple(line["point"])])) for line in tried if line["score"] is not None
        ]
        picture = file.with_suffix(".png")
        if not display.console.quiet:
            where += f"\n{plots.scatter(against, picture, f'{config.scenario} {config.row}')}; drawn in {picture}"
    table = Table(
        "",
        *NUMBERS,
        title=f"{config.scenario} {config.row}, ranked without a label",
        caption="more is better, of all three (alignment is a mean cosine, uniformity minus a log mean)",
    )
    for line in tried:
        table.add_row(
            " ".join(line["point"]), *(f"{line[key]:.4f}" if line[key] is not None else "–" for key in NUMBERS)
        )
    return table, where


def _usual(config: DictConfig, given: set[str]) -> list[str]:
    """Orchestra's grid, less what is given and what the objective does not know."""
    known = {"optimizer.lr", *(f"objective.{name}" for name in arguments(locate(config.objective, "objective")))}
    grid = [span for span in GRID if (key := span.partition("=")[0]) in known and key not in given]
    if not grid:
        raise ConfigError("tune needs a grid: give a key several values, as optimizer.lr=0.03,0.1,0.3")
    return grid


def _try(run: Run, point: list[str]) -> dict[str, Any]:
    """Scores of one point, with the code and machine they were made by; without scores where it diverged."""
    try:
        result = run.execute()
    except (DivergedError, EvalError) as error:
        run.display.end(f"{run.name}: stopped: {error}")
        return {"point": point, **dict.fromkeys(NUMBERS)}
    return {"point": point, **result["scores"][PROTOCOL], "evaluated": result["evaluated"][PROTOCOL]}


def _labelled(run: Run) -> float:
    """The accuracy of a point that was played, by labels; its record has it beside the score."""
    with run.prepared() as loop:
        loop.start()
        found = run.evaluate([AGAINST])
        run.finish(found)
    return float(found.record["scores"][AGAINST]["accuracy"])
