"""The page of what was measured on a GPU, from the files of its parts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmark.speed.gpu.cells import Results
from benchmark.speed.gpu.ladder import BARE, BATCHES, COMPILED, EAGER, LANES, NETWORKS, PRECISIONS, Point, recorded
from benchmark.speed.gpu.parts import PARTS
from benchmark.speed.report import fill, format_number, rows
from leaderboards import store
from leaderboards.encoders import shown

MACHINE = "machine.json"
Numbers = dict[str, dict[str, Any]]
"""Cell -> its numbers."""
RESNET_STEP = "resnet18, batch 64, bf16-mixed"
ESTIMATES = (
    (f"a step of {RESNET_STEP}, one by one: the host", "4.5 to 6 ms", EAGER, 64),
    ("the same recorded, one lane: the device", "2.5 to 3 ms", recorded(1), 64),
    ("gain of recording", "1.7 to 2 x", "", 64),
    ("a step at batch 256, one by one: the device", "9 to 11 ms", EAGER, 256),
)
"""What was expected before anything was measured: quantity, estimate, way (none: the ratio of the first two), batch."""


def tables(folder: Path) -> dict[str, str]:
    """Name of a part -> its table; parts without a finished cell are left out."""
    results = {part.name: Results(folder, part.name).cells for part in PARTS}
    done = {part: {n: c for n, c in cells.items() if "error" not in c} for part, cells in results.items()}
    made = {
        "machine": _machine(folder, results),
        "estimates": _estimates(done["ladder"]),
        "parity": _parity(done["parity"]),
        "contract": _contract(done["contract"]),
        "ladder": _ladder(done["ladder"]),
        "views": _simple(done["views"], "views_per_second", "views a second"),
        "evaluation": _probes(done["evaluation"]),
        "campaign": _campaign(folder / "runs"),
        "failed": _failed(results),
    }
    return {name: table for name, table in made.items() if table}


def write(folder: Path, template: str, page: Path) -> None:
    """The page with today's tables; template: its text with marks."""
    page.write_text(fill(template, tables(folder)), encoding="utf-8")


def _machine(folder: Path, results: Mapping[str, Numbers]) -> str:
    file = folder / MACHINE
    if not file.exists():
        return ""
    machine = json.loads(file.read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    sizes = " Sizes are tiny: this rehearses the measurement and says nothing about speed." if machine["tiny"] else ""
    commits = sorted({str(numbers["commit"])[:7] for cells in results.values() for numbers in cells.values()})
    code = f"; commit {', '.join(commits)}" if commits else ""
    return f"{machine['hardware']}; {versions}{code}; {machine['date']}.{sizes}"


def _estimates(cells: Numbers) -> str:
    def ms(way: str, batch: int) -> float | None:
        numbers = cells.get(Point("resnet18", batch, "bf16-mixed", way).name)
        return None if numbers is None else float(numbers["ms_per_step"])

    lines = []
    for what, expected, way, batch in ESTIMATES:
        if way:
            found = None if (value := ms(way, batch)) is None else f"{format_number(value)} ms"
        else:
            eager, replayed = ms(EAGER, batch), ms(recorded(1), batch)
            found = None if eager is None or replayed is None else f"{format_number(eager / replayed)} x"
        lines.append((what, expected, found or "not measured yet"))
    return rows(("", "expected", "measured"), lines)


def _parity(cells: Numbers) -> str:
    precisions = ("float64", "float32")
    kinds = ("first", "losses", "weights")

    def cell(numbers: Mapping[str, Any], precision: str, kind: str) -> str:
        value = numbers.get(precision, {}).get(kind)
        return "" if value is None else f"{value:.1e}"

    header = ("file", "steps", *(f"{p}: {'first loss' if k == 'first' else k}" for p in precisions for k in kinds), "")
    return _table(
        header,
        (
            (name, str(n["steps"]), *(cell(n, p, k) for p in precisions for k in kinds), _met(n))
            for name, n in cells.items()
        ),
    )


def _contract(cells: Numbers) -> str:
    what = ("repeated", "resumed", "side by side", "on the CPU")
    lines = ((name, *(f"{n['differences'][each]:.1e}" for each in what), _met(n)) for name, n in cells.items())
    return _table(("largest relative difference", *what, ""), lines)


def _ladder(cells: Numbers) -> str:
    ways = (BARE, EAGER, *map(recorded, LANES), COMPILED)
    lines = []
    places = {(p[0], int(p[1].split()[1]), p[2]) for name in cells if (p := name.split(", "))}
    order = [
        (n, b, p) for n in NETWORKS for b in (*BATCHES, *{b for _, b, _ in places} - {*BATCHES}) for p in PRECISIONS
    ]
    for place in (place for place in order if place in places):
        found = {way: cells.get(Point(*place, way).name) for way in ways}
        rates = {way: numbers["images_per_second"] for way, numbers in found.items() if numbers}
        ours = {way: rate for way, rate in rates.items() if way != BARE}
        best = max(ours, key=lambda way: ours[way], default=None)
        gain = f"{ours[best] / rates[BARE]:.2f}" if best and BARE in rates else ""
        memory = (found[best] or {}).get("memory_mib") if best else None
        network, batch, precision = place
        lines.append(
            (
                f"{network}, {batch}, {precision}",
                *(_rate(found[way]) for way in ways),
                gain,
                "" if memory is None else format_number(memory),
            )
        )
    return _table(("network, batch, precision", *ways, "best / bare", "MiB of the best"), lines)


def _rate(numbers: Mapping[str, Any] | None) -> str:
    """Images a second; compiled ones say where only the views were, because compiled networks were no faster."""
    if numbers is None:
        return ""
    views_alone = " (views)" if str(numbers.get("ran", "")).startswith("views were compiled") else ""
    return format_number(numbers["images_per_second"]) + views_alone


def _simple(cells: Numbers, key: str, unit: str) -> str:
    return _table(("", unit), ((name, format_number(numbers[key])) for name, numbers in cells.items()))


def _probes(cells: Numbers) -> str:
    lines = ((name, format_number(n["probe_seconds"]), f"{n['accuracy']:.2f}") for name, n in cells.items())
    return _table(("protocol", "seconds", "accuracy, %"), lines)


def _campaign(runs: Path) -> str:
    """Rounds of each run that has begun, and the scores of those that have ended."""
    lines = []
    for file in sorted({*runs.rglob("seed*/result.json"), *runs.rglob(f"seed*/{store.PARTIAL}")}):
        if file.name == store.PARTIAL and file.with_name("result.json").exists():
            continue
        record = store.read(file)
        scores = ", ".join(f"{name} {s['accuracy']:.1f} %" for name, s in shown(record).items() if "accuracy" in s)
        name = f"{record['scenario']}, {record['row']}, seed {record['seed']}"
        rounds = record["rounds"]
        lines.append((name, f"{rounds['done']} of {rounds['planned']}", scores or "unfinished"))
    return _table(("run", "rounds", "scores"), lines)


def _failed(results: Mapping[str, Numbers]) -> str:
    lines = [
        (part, name, str(numbers["error"]).replace("|", "/"))
        for part, cells in results.items()
        for name, numbers in cells.items()
        if "error" in numbers
    ]
    measured = any(results.values())
    return _table(("part", "cell", "error"), lines) or ("Nothing." if measured else "")


def _met(numbers: Mapping[str, Any]) -> str:
    return "met" if numbers["met"] else "**not met**"


def _table(header: tuple[str, ...], lines: Any) -> str:
    """A table; empty where it has no lines."""
    lines = list(lines)
    return rows(header, lines) if lines else ""
