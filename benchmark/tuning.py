"""Hyper-parameters chosen without a label: alignment + 0.2 uniformity on each client (Orchestra, eq. 5)."""

import itertools
import json
from pathlib import Path

from rich.table import Table

from benchmark.callbacks import Display
from benchmark.compose import compose
from benchmark.config import ConfigError
from benchmark.runs import Run

PROTOCOL = "label-free/v1"


def tune(scenario: str, method: str, overrides: list[str], display: Display) -> Table:
    """Runs every point of a grid and ranks them by the label-free score; writes `<output>-tune/<scenario>/<row>.json`.

    Args:
        overrides: `key=value`, and at least one `key=value,value,...` that spans the grid.
    """
    spans = [override.partition("=") for override in overrides if "," in override and "[" not in override]
    if not spans:
        raise ConfigError("tune needs a grid: give a key several values, e.g. optimizer.lr=0.03,0.1,0.3")
    fixed = [override for override in overrides if not ("," in override and "[" not in override)]
    output = compose(scenario, method, fixed).output
    tried = []
    for point in itertools.product(*(values.split(",") for _, _, values in spans)):
        chosen = [f"{key}={value}" for (key, _, _), value in zip(spans, point, strict=True)]
        extra = [f"output={output}-tune", f"evaluation.protocols=[{PROTOCOL}]", "evaluation.every=0", "logger=csv"]
        result = Run(compose(scenario, method, [*fixed, *chosen, *extra]), display).play()
        tried.append({"point": chosen, "row": result["row"], "seed": result["seed"], **result["scores"][PROTOCOL]})
    tried.sort(key=lambda line: -line["score"])
    config = compose(scenario, method, fixed)
    file = Path(f"{output}-tune").expanduser() / config.scenario / f"{config.row}-seed{config.seed}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(tried, indent=1) + "\n")
    table = Table(
        "",
        "score",
        "alignment",
        "uniformity",
        title=f"{config.scenario} {config.row}, ranked without a label",
        caption="more is better, of all three (alignment is a mean cosine, uniformity minus a log mean)\n"
        f"best: {' '.join(tried[0]['point'])}\nwritten to {file}",
    )
    for line in tried:
        numbers = (f"{line[key]:.4f}" for key in ("score", "alignment", "uniformity"))
        table.add_row(" ".join(line["point"]), *numbers)
    return table
