"""What was measured, kept as data under docs/performance/, and put as tables and a figure into docs/performance.md."""

import datetime
import json
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmark.speed.timing import Line, Spread
from benchmark.tracking.provenance import commit, hardware

LIBRARIES = ("torch", "torchvision", "lightning", "numpy", "scikit-learn")


def keep(docs: Path, name: str, title: str, lines: Iterable[Line]) -> None:
    """Writes one measurement as `performance/<name>.json`, with the machine, the versions and the commit."""
    import torch

    content = {
        "title": title,
        "machine": f"{hardware(torch.device('cpu')).partition(',')[0]}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version()} | {one: metadata.version(one) for one in LIBRARIES},
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "lines": [asdict(line) for line in lines],
    }
    file = docs / "performance" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1) + "\n")


def read(docs: Path) -> dict[str, dict[str, Any]]:
    """Name -> what `keep` wrote, with its lines as `Line`s."""
    found = {file.stem: json.loads(file.read_text()) for file in sorted((docs / "performance").glob("*.json"))}
    for content in found.values():
        content["lines"] = [Line(**{**line, "value": Spread(**line["value"])}) for line in content["lines"]]
    return found


def write(docs: Path) -> None:
    """Puts every table between its marks in `performance.md`, and draws the figure."""
    measured = read(docs)
    file = docs / "performance.md"
    file.write_text(rendered(file.read_text(), measured))
    figure(measured, docs / "performance" / "ratios.svg")


def rendered(text: str, measured: dict[str, dict[str, Any]]) -> str:
    """The page with each `<!-- NAME -->` ... `<!-- end -->` filled anew."""

    def fill(match: re.Match[str]) -> str:
        content = measured.get(match[1])
        body = "Not measured yet." if content is None else _table(content)
        return f"<!-- {match[1]} -->\n{body}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)


def _table(content: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    rows = ["| | median | from - to | n | unit | goal |", "|---|---:|---:|---:|---|---|"]
    for line in content["lines"]:
        mark = {True: f"{line.goal}: met", False: f"**{line.goal}: missed**", None: ""}[line.met]
        low, high = format_number(line.value.low), format_number(line.value.high)
        rows.append(
            f"| {line.what} | {format_number(line.value.median)} | {low} - {high} | {line.value.repetitions} | {line.unit} | "
            f"{mark} |"
        )
    where = f"{content['machine']}; {versions}; commit {(content['commit'] or 'none')[:7]}, {content['date']}."
    return "\n".join([*rows, "", where])


def format_number(value: float) -> str:
    """Three digits that matter."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def figure(measured: dict[str, dict[str, Any]], path: Path) -> None:
    """Every ratio that has a goal, as a dot with its spread, and the goal as a tick; the side of the goal is shaded."""
    import matplotlib
    from matplotlib.figure import Figure

    lines = [line for content in measured.values() for line in content["lines"] if line.goal and line.unit == "x"]
    if not lines:
        return
    with matplotlib.rc_context({"svg.hashsalt": "performance", "font.family": "DejaVu Sans", "font.size": 9}):
        drawing = Figure(figsize=(9, 0.28 * len(lines) + 0.9), layout="constrained")
        axes = drawing.add_subplot()
        for place, line in enumerate(reversed(lines)):
            sign, _, bound = line.goal.partition(" ")
            goal, colour = float(bound), "#2f6f9f" if line.met else "#b5562b"
            far = goal / 1.6 if sign == "<=" else goal * 1.6
            axes.barh(place, far - goal, left=goal, height=0.62, color="#e8eef2", zorder=1)
            axes.plot([goal, goal], [place - 0.31, place + 0.31], color="#555555", linewidth=1.2, zorder=2)
            axes.plot([line.value.low, line.value.high], [place, place], color=colour, linewidth=1.5, zorder=3)
            axes.plot(line.value.median, place, "o", color=colour, markersize=4.5, zorder=4)
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
        drawing.savefig(path, format="svg", metadata={"Date": None})
