"""Hyper-parameters chosen without a label: alignment + 0.2 uniformity on each client (Orchestra, eq. 5)."""

import itertools
import json
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmark import ranks
from benchmark.callbacks import Display
from benchmark.compose import compose, merge
from benchmark.config import ConfigError
from benchmark.rounds import DivergedError
from benchmark.runs import Run
from eval.features import EvalError

PROTOCOL = "label-free/v1"
NUMBERS = ("score", "alignment", "uniformity")


def tune(scenario: str, method: str, overrides: list[str], display: Display) -> tuple[Table, str]:
    """Runs every point of a grid and ranks them by the label-free score; writes a JSON file into `<output>-tune/`.

    Returns the ranking, and a line that says which point is best and where the file is.

    Args:
        overrides: `key=value`, and at least one `key=value,value,...` that spans the grid.
    """
    grid = [override for override in overrides if "," in override and "[" not in override]
    if not grid:
        raise ConfigError("tune needs a grid: give a key several values, e.g. optimizer.lr=0.03,0.1,0.3")
    spans = [override.partition("=") for override in grid]
    fixed = [override for override in overrides if override not in grid]
    config = compose(scenario, method, fixed)
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
    ranks.expect(configs)
    tried = [_try(Run(one, display), point) for one, point in zip(configs, points, strict=True)]
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
        file.write_text(json.dumps({**content, "best": best["point"], "tried": tried}, indent=1) + "\n")
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
    return table, f"best: {' '.join(best['point'])}; written to {file}"


def _try(run: Run, point: list[str]) -> dict[str, Any]:
    """Scores of one point, with the code and machine they were made by; without scores where it diverged."""
    try:
        result = run.play()
    except (DivergedError, EvalError) as error:
        run.display.end(f"{run.name}: stopped: {error}")
        return {"point": point, **dict.fromkeys(NUMBERS)}
    return {"point": point, **result["scores"][PROTOCOL], "evaluated": result["evaluated"][PROTOCOL]}
