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
from leaderboards.schema import Record

MACHINE = "machine.json"
RECORDS = Path("leaderboards", "results")
Numbers = Mapping[str, Mapping[str, Any]]
"""Cell -> its numbers."""
WAYS = (BARE, EAGER, *map(recorded, sorted(LANES)), COMPILED)
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
        "summary": _summary(results),
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
        "campaign": table(("run", "rounds", "here", "the committed seeds, on CPUs"), _runs(folder / "runs")),
        "failed": _failed(results),
    }
    return {name: text for name, text in made.items() if text}


def _summary(results: Mapping[str, Results]) -> str:
    """How many checks were met, and the range of the gain of recorded steps over the bare loop, in two sentences."""
    checks = {name: results[name].cells.values() for name in ("parity", "contract", "methods") if results[name].cells}
    words = (f"{sum(bool(n.get('met')) for n in cells)} of {len(cells)} of `{name}`" for name, cells in checks.items())
    text = f"Checks that were met: {', '.join(words)}." if checks else ""
    if gains := list(filter(None, (_gain(found) for found in _places(results["ladder"].done).values()))):
        low, high = (format_number(gain) for gain in (min(gains), max(gains)))
        text += f" Rounds of the fastest way took 1/{low} to 1/{high} of the bare loop's time." * (low != high)
    return text


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
    lines = []
    for place, found in _places(cells).items():
        best, gain = _best(found), _gain(found)
        memory = found[best].get("memory_mib") if best else None
        texts = (_rate(found.get(way)) for way in WAYS)
        lines.append((place, *texts, f"{gain:.2f}" if gain else "", "" if memory is None else format_number(memory)))
    return table(("network, batch, precision", *WAYS, "best / bare", "MiB of the best"), lines)


def _places(cells: Numbers) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Network, batch and precision -> way -> its numbers."""
    places: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, numbers in cells.items():
        network, batch, precision, way = name.split(", ", 3)
        places.setdefault(f"{network}, {batch.removeprefix('batch ')}, {precision}", {})[way] = numbers
    return places


def _best(found: Numbers) -> str | None:
    """The fastest way but the bare loop; None without one."""
    ways = [way for way in WAYS if way in found and way != BARE]
    return max(ways, key=lambda way: float(found[way]["images_per_second"]), default=None)


def _gain(found: Numbers) -> float | None:
    """The best way's images a second over the bare loop's; None without either."""
    best = _best(found)
    return found[best]["images_per_second"] / found[BARE]["images_per_second"] if best and BARE in found else None


def _rate(numbers: Mapping[str, Any] | None) -> str:
    """Images a second; compiled ones say where only the views were, because compiled networks were no faster."""
    if numbers is None:
        return ""
    views_alone = " (views)" if str(numbers.get("ran", "")).startswith("views were compiled") else ""
    return format_number(numbers["images_per_second"]) + views_alone


def _runs(runs: Path) -> Iterable[Sequence[str]]:
    """Rounds of each run that has begun, the scores of those that have ended, and those of the committed records."""
    for file in sorted({*runs.rglob("seed*/result.json"), *runs.rglob(f"seed*/{store.PARTIAL}")}):
        if file.name == store.PARTIAL and file.with_name("result.json").exists():
            continue
        record = store.read(file)
        rounds = f"{record['rounds']['done']} of {record['rounds']['planned']}"
        committed = [store.read(each) for each in sorted((RECORDS / record["scenario"] / record["row"]).glob("*.json"))]
        name = f"{record['scenario']}, {record['row']}, seed {record['seed']}"
        yield name, rounds, _accuracies([record]) or "unfinished", _accuracies(committed)


def _accuracies(records: Sequence[Record]) -> str:
    """Accuracies by protocol: of one record, or from the smallest to the largest of several, in percent."""
    by_protocol: dict[str, list[float]] = {}
    for scores in map(shown, records):
        for protocol, metrics in scores.items():
            if "accuracy" in metrics:
                by_protocol.setdefault(protocol, []).append(metrics["accuracy"])
    ranges = {name: dict.fromkeys(f"{x:.1f}" for x in (min(all), max(all))) for name, all in by_protocol.items()}
    return ", ".join(f"{name} {' to '.join(ends)} %" for name, ends in ranges.items())


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
