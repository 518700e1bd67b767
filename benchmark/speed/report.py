"""Results of measurements: saved as JSON beside docs/reference/performance.md, as tables of PAGES and as a figure."""

import datetime
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmark.disk import write_json
from benchmark.speed.timing import Line, Spread
from benchmark.tracking.checkout import commit
from benchmark.tracking.provenance import hardware

LIBRARIES = ("torch", "torchvision", "lightning", "numpy", "scikit-learn")
PAGES = ("performance.md", "../explanation/scale.md")
"""The pages that have tables of measurements, from the folder of the first."""
COLUMNS = ("", "median", "from - to", "n", "unit", "goal")


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that a measurement depends on."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in LIBRARIES}


def today() -> str:
    """The date, UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def save(docs: Path, name: str, title: str, lines: Iterable[Line]) -> None:
    """Write one measurement as `performance/<name>.json`, with the machine, the versions and the commit."""
    import torch

    content = {
        "title": title,
        "machine": f"{hardware(torch.device('cpu')).partition(',')[0]}, {os.cpu_count()} cores",
        "versions": versions(),
        "commit": commit(),
        "date": today(),
        "lines": [asdict(line) for line in lines],
    }
    write_json(docs / "performance" / f"{name}.json", content)


def read(docs: Path) -> dict[str, dict[str, Any]]:
    """Name -> the saved measurement, with its lines as `Line`s."""
    results = {}
    for file in sorted((docs / "performance").glob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        lines = [Line(**{**line, "value": Spread(**line["value"])}) for line in content["lines"]]
        results[file.stem] = {**content, "lines": lines}
    return results


def write(docs: Path) -> None:
    """Render every table between its marks in those of PAGES that exist, and draw the figure."""
    results = read(docs)
    for page in filter(Path.exists, (docs / name for name in PAGES)):
        page.write_text(render(page.read_text(encoding="utf-8"), results), encoding="utf-8")
    draw_ratios(results, docs / "performance" / "ratios.svg")


def render(text: str, results: dict[str, dict[str, Any]]) -> str:
    """The page with a table of each measurement: its ratios and what has a goal, or all lines where there are none."""
    return fill(text, {name: measurement_table(content, short=True) for name, content in results.items()})


def fill(text: str, tables: Mapping[str, str]) -> str:
    """The page with what is between each `<!-- NAME -->` and `<!-- end -->` replaced by the table of that name."""

    return re.sub(
        r"(<!-- (\w+) -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}{tables.get(match[2], 'Not measured yet.')}\n{match[3]}",
        text,
        flags=re.DOTALL,
    )


def table(header: Sequence[str], lines: Iterable[Sequence[str]], align: str = "lr") -> str:
    """A Markdown table; empty without lines. align: `l` or `r` for each column; the last letter for the rest."""
    rows = [f"| {' | '.join(cells)} |" for cells in lines]
    rules = "|".join("---:" if side == "r" else "---" for side in align.ljust(len(header), align[-1]))
    return "\n".join((f"| {' | '.join(header).lstrip()} |", f"|{rules}|", *rows)) if rows else ""


def cells(line: Line) -> tuple[str, ...]:
    """A line's text for each of COLUMNS."""
    goal = f"{line.goal}: {'met' if line.met else 'missed'}" if line.goal else ""
    median, low, high = (format_number(value) for value in (line.value.median, line.value.low, line.value.high))
    return line.what, median, f"{low} - {high}", str(line.value.repetitions), line.unit, goal


def measurement_table(content: Mapping[str, Any], short: bool = False) -> str:
    """A measurement's lines, then its machine, versions, commit and date. short: as on the page, see `render`."""
    chosen = [line for line in content["lines"] if line.goal or line.unit == "x"] if short else []
    lines = []
    for line in chosen or content["lines"]:
        *texts, goal = cells(line)
        lines.append((*texts, f"**{goal}**" if line.met is False else goal))
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    machine = content["machine"] if short else f"{content['machine']}; {versions}"
    where = f"{machine}; commit {(content['commit'] or 'none')[:7]}, {content['date']}."
    return f"{table(COLUMNS, lines, 'lrrrl')}\n\n{where}"


def format_number(value: float) -> str:
    """A number with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def draw_ratios(results: dict[str, dict[str, Any]], path: Path) -> None:
    """Plot every ratio that has a goal: a dot with its spread, a tick at the goal, the side that meets it shaded."""
    import matplotlib
    from matplotlib.figure import Figure

    lines = [line for content in results.values() for line in content["lines"] if line.goal and line.unit == "x"]
    with matplotlib.rc_context({"svg.hashsalt": "performance", "font.family": "DejaVu Sans", "font.size": 9}):
        figure = Figure(figsize=(9, 0.28 * len(lines) + 0.9), layout="constrained")
        axes = figure.add_subplot()
        for y, line in enumerate(reversed(lines)):
            sign, _, bound = line.goal.partition(" ")
            goal, colour = float(bound), "#2f6f9f" if line.met else "#b5562b"
            shaded = goal / 1.6 if sign == "<=" else goal * 1.6
            axes.barh(y, shaded - goal, left=goal, height=0.62, color="#e8eef2", zorder=1)
            axes.plot([goal, goal], [y - 0.31, y + 0.31], color="#555555", linewidth=1.2, zorder=2)
            axes.plot([line.value.low, line.value.high], [y, y], color=colour, linewidth=1.5, zorder=3)
            axes.plot(line.value.median, y, "o", color=colour, markersize=4.5, zorder=4)
        axes.set_yticks(range(len(lines)), [line.what for line in reversed(lines)])
        axes.set_xscale("log")
        ticks = [0.2, 0.5, 1, 2, 5, 10, 20, 50]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.set(ylim=(-0.6, len(lines) - 0.4), xlabel="ratio; tick: goal, shaded: its good side, line: spread")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color="0.92", linewidth=0.6)
        axes.set_axisbelow(True)
        figure.savefig(path, format="svg", metadata={"Date": None})
