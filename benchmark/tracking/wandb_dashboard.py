"""The project's dashboard on Weights & Biases, made from the records: written offline first, then uploaded.

A run a record, grouped by row and tagged; one run more with the tables and, as artifacts, the records; and a report.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.configuration.files import available, read
from benchmark.errors import ConfigError
from benchmark.tracking.loggers import TAG, flat
from benchmark.tracking.progress import Display
from leaderboards.pages import board as render
from leaderboards.pages import site
from leaderboards.papers.verdicts import Verdict
from leaderboards.rank import HEADLINE, Row, board, finished
from leaderboards.schema import Record
from leaderboards.store import name

if TYPE_CHECKING:
    import wandb
    from wandb_workspaces.reports.v2 import Report

LEADERBOARD = "leaderboard"
"""The run with the tables, and its job type."""
MARK = ".fulcrum-dashboard"
"""A file in a folder that was written here, and may be written anew."""
PATIENCE = 3600
"""Seconds an upload may take."""
PLACES = {"round": None, "bytes": "comm/bytes", "seconds": "sys/seconds"}
"""Of a curve's points, what is no score: by what name it is logged."""


def written(records: Sequence[Record], found: Sequence[Verdict], folder: Path, display: Display) -> int:
    """Writes everything as offline runs into `folder`, anew; returns how many runs of records there are.

    Raises:
        ConfigError: the folder holds something else; nothing of it is touched.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise ConfigError(f"{folder} holds something else: give output= another folder")
    shutil.rmtree(folder / "wandb", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()
    whole = [record for record in records if finished(record)]
    suites, papers = _suites(), sorted({verdict.cell.paper for verdict in found})
    with display.counting("writing", len(whole) + 1) as tell:
        for record in whole:
            tell(name(record))
            with _offline(folder, name(record), _tags(record, suites, papers), _about(record)) as run:
                for point in record.get("curve", []):
                    scores = {PLACES.get(key, f"eval/{key}"): value for key, value in point.items()}
                    run.log({key: value for key, value in scores.items() if key}, step=int(point["round"]))
                run.summary.update(_summary(record))
        tell(LEADERBOARD)
        with _offline(folder, LEADERBOARD, sorted({record["scenario"] for record in whole}), {}) as run:
            _leaderboard(run, whole, found)
    return len(whole)


@contextmanager
def _offline(folder: Path, key: str, tags: Sequence[str], about: Mapping[str, Any]) -> Iterator["wandb.Run"]:
    """One run, written to disk alone; its id is its name's, so that a later upload is the same run."""
    import wandb

    with (
        wandb.init(
            project="fulcrum",  # `sync` is told the project
            name=key,
            id=hashlib.sha256(key.encode()).hexdigest()[:12],
            group=key.rpartition("/")[0] or None,
            job_type=LEADERBOARD if key == LEADERBOARD else "run",
            tags=[tag[:TAG] for tag in tags],
            config=dict(about),
            dir=folder,
            mode="offline",
            reinit="finish_previous",
            settings=wandb.Settings(  # nothing of this machine: what made the record stands in the record
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_meta=True,
                x_disable_stats=True,
            ),
        ) as run
    ):
        yield run


def _suites() -> dict[tuple[str, str], list[str]]:
    """Scenario and method -> the shipped suites that play it."""
    found: dict[tuple[str, str], list[str]] = {}
    for suite in available("suite"):
        content = read("suite", suite)
        methods = {str(line).split()[0] for line in (*content["methods"], *content.get("more", []))}
        for line in map(str, content["scenarios"]):
            scenario = line.rpartition("scenario=")[2].split()[0]
            for method in sorted(methods):
                found.setdefault((scenario, method), []).append(suite)
    return found


def _tags(record: Record, suites: Mapping[tuple[str, str], Sequence[str]], papers: Sequence[str]) -> list[str]:
    """Suite, scenario, method, objective, and the papers that the scenario or the method is of."""
    scenario, method, objective = (record[key] for key in ("scenario", "method", "objective"))
    own = {scenario.partition("/")[0], *method.split("-")}
    tags = [f"suite:{suite}" for suite in suites.get((scenario, method), [])]
    tags += [f"scenario:{scenario}", f"method:{method}", f"objective:{objective}"]
    return tags + [f"paper:{paper}" for paper in papers if paper in own]


def _about(record: Record) -> dict[str, Any]:
    """A run's config on W&B: what one filters and groups by, then all settings."""
    own = ("scenario", "row", "method", "objective", "seed", "world_size")
    return {key: record[key] for key in own} | {"settings": record["settings"], "provenance": record["provenance"]}


def _summary(record: Record) -> dict[str, Any]:
    moved = {f"comm/bytes_{way}": sum(record["bytes"][way].values()) for way in ("up", "down")}
    return {**flat(record), **moved, "sys/client_seconds": record["seconds"]["clients"], "epsilon": record["epsilon"]}


def _leaderboard(run: "wandb.Run", records: Sequence[Record], found: Sequence[Verdict]) -> None:
    """A table a scenario, one of the papers' numbers, and the records of each scenario as an artifact."""
    import wandb

    for scenario in render.scenarios(records):
        columns, rows = table(board(records, scenario))
        run.log({f"leaderboard/{scenario}": wandb.Table(columns=list(columns), data=rows)})
        artifact = wandb.Artifact(re.sub(r"[^\w.-]", "-", f"records-{scenario}"), type="records")
        for record in records:
            if record["scenario"] == scenario:
                with artifact.new_file(f"{name(record)}.json") as file:
                    json.dump(record, file, sort_keys=True, indent=1)
        run.log_artifact(artifact)
    if found:
        run.log({"published": wandb.Table(columns=[*PUBLISHED], data=[_line(one) for one in found])})


def table(rows: Sequence[Row]) -> tuple[Sequence[str], list[list[Any]]]:
    """A board as numbers: headings, and a line a row; a score's spread has a column of its own."""
    scores = {key: title for key, (title, _) in site.COLUMNS.items() if any(key in row.cells for row in rows)}
    heads = [
        "rank",
        "row",
        "method",
        "objective",
        *(f"{title}{end}" for title in scores.values() for end in ("", " ±")),
    ]
    lines = []
    for row in rows:
        cells = [row.cells.get(key) for key in scores]
        numbers = [value for cell in cells for value in ((cell.mean, cell.spread) if cell else (None, None))]
        moved = [row.bytes_up, row.bytes_down, row.client_seconds, row.epsilon]
        made = [len(row.seeds), ", ".join(row.commits), "; ".join(row.hardware)]
        lines.append([render.rank_of(row), row.row, row.method, row.objective, *numbers, *moved, *made])
    return [*heads, "bytes up", "bytes down", "client seconds", "epsilon", "seeds", "commits", "hardware"], lines


PUBLISHED = (
    "paper",
    "table",
    "row",
    "column",
    "unit",
    "published",
    "ours",
    "delta",
    "seeds",
    "verdict",
    "why",
    "remark",
)


def _line(one: Verdict) -> list[Any]:
    cell, ours = one.cell, one.ours
    measured = (ours.mean, one.delta, ours.n) if ours else (None, None, None)
    said = (one.kind, one.why, "; ".join(cell.remarks))
    return [cell.name, cell.where, cell.row, cell.column, cell.unit, str(cell.value), *measured, *said]


def report(records: Sequence[Record], project: str, entity: str | None) -> "Report":
    """A page on W&B: each scenario's board, with curves and bars of its runs beside it.

    Raises:
        ConfigError: wandb-workspaces is not installed.
    """
    try:
        from wandb_workspaces import expr
        from wandb_workspaces.reports import v2
    except ImportError as error:
        raise ConfigError("a report needs wandb-workspaces: pip install 'fulcrum-ful[report]'") from error
    blocks: list[Any] = [v2.TableOfContents(), v2.MarkdownBlock(render.INTRODUCTION.partition("-->")[2].strip())]
    for scenario in render.scenarios(records):
        rows = board(records, scenario)
        same = expr.And(expr.Config("scenario") == scenario)
        chosen = v2.Runset(project=project, entity=entity or "", name=scenario, filters=same)
        panels: list[Any] = [
            v2.LinePlot(title="monitor over rounds", y=["eval/monitor"], groupby="row"),
            v2.LinePlot(title="monitor over bytes", x="comm/bytes", y=["eval/monitor"], groupby="row", log_x=True),
            v2.BarPlot(title=HEADLINE, metrics=[HEADLINE.replace(" ", "/")], groupby="row"),
            v2.ScatterPlot(title="uniformity, alignment", x="geometry/v1/uniformity", y="geometry/v1/alignment"),
        ]
        grid = v2.PanelGrid(runsets=[chosen], panels=panels)
        blocks += [v2.H2(scenario), v2.MarkdownBlock("\n".join(render.lines(rows))), grid]
    return v2.Report(project=project, entity=entity or "", title="Fulcrum leaderboards", blocks=blocks)


def uploaded(records: Sequence[Record], folder: Path, project: str, entity: str | None) -> str:
    """Uploads what was written, and makes the report; one line that says where it is, or how to do it later.

    Raises:
        ConfigError: W&B does not know the key, cannot be reached or took less than all; everything is on disk.
    """
    import wandb

    whose = ["--project", project, *(["--entity", entity] if entity else [])]
    later = f"upload it later by: wandb sync {' '.join(whose)} {folder}/wandb/offline-run-*; or publish again"
    if os.environ.get("WANDB_MODE") == "offline":
        return f"WANDB_MODE is offline; {later}"
    os.environ.setdefault("WANDB_SILENT", "true")
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # W&B's own telemetry would say that it was refused
    try:
        if not wandb.login(prompt=False, verify=True):
            return f"nobody is logged in to W&B; {later}, once somebody is"
        page = report(records, project, entity)
        runs = sorted((folder / "wandb").glob("offline-run-*"))
        _sync(runs, whose)
        page.save()
    except (wandb.errors.Error, subprocess.SubprocessError, OSError, ValueError) as error:
        why = " ".join(str(getattr(error, "stderr", None) or error).split())
        raise ConfigError(f"not uploaded: {why}; it is all on disk, {later}") from error
    return f"uploaded; the report: {page.url}"


def _sync(runs: Sequence[Path], whose: Sequence[str]) -> None:
    """Uploads runs; ValueError where some were refused, which `wandb sync` does not say by its exit status."""
    command = [sys.executable, "-m", "wandb", "sync", *whose, *map(str, runs)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
    if refused := [run for run in runs if not any(run.glob("*.synced"))]:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing was said"]
        raise ValueError(f"{len(refused)} of {len(runs)} runs were refused: {said[-1]}")
