"""The page of what was measured on a GPU, from the files of its parts."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmark.speed.gpu.cells import Results
from benchmark.speed.gpu.checks import ALLOWED
from benchmark.speed.gpu.ladder import BARE, COMPILED, EAGER, LANES, Point, recorded
from benchmark.speed.gpu.parts import PARTS
from benchmark.speed.report import format_number, table
from leaderboards import store
from leaderboards.encoders import shown

MACHINE = "machine.json"
Numbers = Mapping[str, Mapping[str, Any]]
"""Cell -> its numbers."""
RESNET_STEP = "resnet18, batch 64, bf16-mixed"
ESTIMATES = (
    (f"a step of {RESNET_STEP}, one by one: the host", "4.5 to 6 ms", EAGER, 64),
    ("the same recorded, one lane: the device", "2.5 to 3 ms", recorded(1), 64),
    ("gain of recording", "1.7 to 2 x", "", 64),
    ("a step at batch 256, one by one: the device", "9 to 11 ms", EAGER, 256),
)
"""What was expected before anything was measured: quantity, estimate, way (none: the ratio of the first two), batch."""
DIFFERENCES = list(product(("float64", "float32"), ("first", "losses", "weights")))
"""Of a parity file: the precision, and what the largest difference is of."""


def tables(folder: Path) -> dict[str, str]:
    """Name of a part -> its table; parts without a finished cell are left out."""
    results = {part.name: Results(folder, part.name) for part in PARTS}
    done = {name: part.done for name, part in results.items()}
    columns = (f"{precision}: {'first loss' if kind == 'first' else kind}" for precision, kind in DIFFERENCES)
    made = {
        "machine": _machine(folder, results),
        "estimates": _estimates(done["ladder"]),
        "parity": table(
            ("file", "steps", *columns, ""),
            (
                (name, str(n["steps"]), *(_difference(n.get(p, {}).get(kind)) for p, kind in DIFFERENCES), _met(n))
                for name, n in done["parity"].items()
            ),
        ),
        **{
            part: table(
                ("largest relative difference", *ALLOWED, ""),
                (
                    (name, *(_difference(n["differences"].get(each)) for each in ALLOWED), _met(n))
                    for name, n in done[part].items()
                ),
            )
            for part in ("contract", "methods")
        },
        "ladder": _ladder(done["ladder"]),
        "views": table(
            ("", "views a second"), ((name, format_number(n["views_per_second"])) for name, n in done["views"].items())
        ),
        "evaluation": table(
            ("protocol", "seconds", "accuracy, %"),
            (
                (name, format_number(n["probe_seconds"]), f"{n['accuracy']:.2f}")
                for name, n in done["evaluation"].items()
            ),
        ),
        "campaign": table(("run", "rounds", "scores"), _runs(folder / "runs")),
        "failed": _failed(results),
    }
    return {name: text for name, text in made.items() if text}


def _machine(folder: Path, results: Mapping[str, Results]) -> str:
    file = folder / MACHINE
    if not file.exists():
        return ""
    machine = json.loads(file.read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    sizes = " Sizes are tiny: this rehearses the measurement and says nothing about speed." if machine["tiny"] else ""
    commits = sorted({str(numbers["commit"])[:7] for part in results.values() for numbers in part.cells.values()})
    code = f"; commit {', '.join(commits)}" if commits else ""
    return f"{machine['hardware']}; {versions}{code}; {machine['date']}.{sizes}"


def _estimates(cells: Numbers) -> str:
    def ms(way: str, batch: int) -> float | None:
        numbers = cells.get(Point("resnet18", batch, "bf16-mixed", way).name)
        return None if numbers is None else float(numbers["ms_per_step"])

    lines = []
    for what, expected, way, batch in ESTIMATES:
        if way:
            found, unit = ms(way, batch), "ms"
        else:
            eager, replayed = ms(EAGER, batch), ms(recorded(1), batch)
            found, unit = None if eager is None or replayed is None else eager / replayed, "x"
        lines.append((what, expected, "not measured yet" if found is None else f"{format_number(found)} {unit}"))
    return table(("", "expected", "measured"), lines)


def _ladder(cells: Numbers) -> str:
    """Images a second by network, batch and precision, in the order of the points, and the best way's gain."""
    ways = (BARE, EAGER, *map(recorded, sorted(LANES)), COMPILED)
    places: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, numbers in cells.items():
        network, batch, precision, way = name.split(", ", 3)
        places.setdefault(f"{network}, {batch.removeprefix('batch ')}, {precision}", {})[way] = numbers
    lines = []
    for place, found in places.items():
        rates = {way: numbers["images_per_second"] for way, numbers in found.items()}
        best = max((way for way in ways if way in rates and way != BARE), key=rates.__getitem__, default=None)
        gain = f"{rates[best] / rates[BARE]:.2f}" if best and BARE in rates else ""
        memory = found[best].get("memory_mib") if best else None
        texts = (_rate(found.get(way)) for way in ways)
        lines.append((place, *texts, gain, "" if memory is None else format_number(memory)))
    return table(("network, batch, precision", *ways, "best / bare", "MiB of the best"), lines)


def _rate(numbers: Mapping[str, Any] | None) -> str:
    """Images a second; compiled ones say where only the views were, because compiled networks were no faster."""
    if numbers is None:
        return ""
    views_alone = " (views)" if str(numbers.get("ran", "")).startswith("views were compiled") else ""
    return format_number(numbers["images_per_second"]) + views_alone


def _runs(runs: Path) -> Iterable[Sequence[str]]:
    """Rounds of each run that has begun, and the scores of those that have ended."""
    for file in sorted({*runs.rglob("seed*/result.json"), *runs.rglob(f"seed*/{store.PARTIAL}")}):
        if file.name == store.PARTIAL and file.with_name("result.json").exists():
            continue
        record = store.read(file)
        scores = ", ".join(f"{name} {s['accuracy']:.1f} %" for name, s in shown(record).items() if "accuracy" in s)
        rounds = f"{record['rounds']['done']} of {record['rounds']['planned']}"
        yield f"{record['scenario']}, {record['row']}, seed {record['seed']}", rounds, scores or "unfinished"


def _failed(results: Mapping[str, Results]) -> str:
    lines = (
        (part, name, str(numbers["error"]).replace("|", "/"))
        for part, result in results.items()
        for name, numbers in result.cells.items()
        if "error" in numbers
    )
    measured = any(result.cells for result in results.values())
    return table(("part", "cell", "error"), lines) or ("Nothing." if measured else "")


def _difference(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _met(numbers: Mapping[str, Any]) -> str:
    unrecorded = f"; not recorded: {reason}" if (reason := numbers.get("unrecorded")) else ""
    return ("met" if numbers["met"] else "**not met**") + unrecorded
