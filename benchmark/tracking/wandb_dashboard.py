"""Dashboard of the records on Weights & Biases: written offline first, then uploaded.

It has one run for each record, grouped by row and tagged, one run with the tables and the records as artifacts, and a
report.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.configuration.files import available, read
from benchmark.errors import ConfigError, one_line
from benchmark.tracking import logged
from benchmark.tracking.progress import Display
from benchmark.tracking.wandb_run import options, server_problem, silence
from leaderboards.encoders import WORST
from leaderboards.markdown import TEMPLATES, rank_of
from leaderboards.pages import board as board_page
from leaderboards.pages.columns import SCORE_COLUMNS, board_lines
from leaderboards.papers.verdicts import Verdict
from leaderboards.rank import HEADLINE, Row, board, finished
from leaderboards.schema import Record
from leaderboards.store import name

if TYPE_CHECKING:
    import wandb
    from wandb_workspaces.reports.v2 import Report

LEADERBOARD = "leaderboard"
"""Name and job type of the run with the tables."""
MARK = ".fulcrum-dashboard"
"""File that marks a folder whose dashboard may be replaced."""
UPLOAD_TIMEOUT = 3600
"""Seconds an upload may take."""
PUBLISHED = ("paper", "table", "row", "column", "unit", "published")
PAPER_COLUMNS = [*PUBLISHED, "ours", "delta", "seeds", "verdict", "why", "remark"]


def write(records: Sequence[Record], verdicts: Sequence[Verdict], folder: Path, display: Display) -> int:
    """Write the dashboard into `folder` as offline runs, in place of an earlier one; returns the number of records.

    Raises ConfigError: the folder holds something else; it is left unchanged.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise ConfigError(f"{folder} holds something else: give output= another folder")
    silence()
    shutil.rmtree(folder / "wandb", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()
    complete = [record for record in records if finished(record)]
    tags = _tags(complete, sorted({verdict.cell.paper for verdict in verdicts}))
    with display.counting("writing", len(complete) + 1) as count:
        for record in complete:
            count(name(record))
            with _offline_run(folder, name(record), tags[name(record)], logged.config_of(record)) as run:
                logged.declare(run)
                for point in record.get("curve", []):
                    round = int(point["round"])
                    run.log({logged.STEP: round, **logged.named(point)}, step=round)
                run.summary.update(logged.summary(record))
        count(LEADERBOARD)
        with _offline_run(folder, LEADERBOARD, sorted({record["scenario"] for record in complete}), {}) as run:
            _log_leaderboard(run, complete, verdicts)
    return len(complete)


def _offline_run(folder: Path, key: str, tags: Iterable[str], config: dict[str, Any]) -> "wandb.Run":
    """A run that is written to disk only; its id follows from its name, so that a later upload updates the same run."""
    import wandb

    settings = wandb.Settings(  # nothing about this machine: the record has what it was made on
        silent=True, console="off", disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True
    )
    job_type = LEADERBOARD if key == LEADERBOARD else "run"
    return wandb.init(**options(key, key, tags, config, folder, job_type), mode="offline", settings=settings)


def _tags(records: Sequence[Record], papers: Sequence[str]) -> dict[str, list[str]]:
    """Name of a record -> the shipped suites that have a run of its scenario and method, these two, its objective, and
    the papers that the scenario or the method is of."""
    suites: dict[tuple[str, str], list[str]] = {}
    for suite in available("suite"):
        content = read("suite", suite)
        methods = {str(line).split()[0] for line in (*content["methods"], *content.get("more", []))}
        scenarios = [str(line).rpartition("scenario=")[2].split()[0] for line in content["scenarios"]]
        for pair in product(scenarios, sorted(methods)):
            suites.setdefault(pair, []).append(f"suite:{suite}")
    tags = {}
    for record in records:
        scenario, method = record["scenario"], record["method"]
        of = (scenario.partition("/")[0], *method.split("-"))
        tags[name(record)] = [
            *suites.get((scenario, method), []), *logged.tags(record),
            *(f"paper:{paper}" for paper in papers if paper in of),
        ]  # fmt: skip
    return tags


def _log_leaderboard(run: "wandb.Run", records: Sequence[Record], verdicts: Sequence[Verdict]) -> None:
    """Log the table and the records of each scenario, and the table of the papers' numbers."""
    import wandb

    for scenario in board_page.scenarios(records):
        columns, rows = table(board(records, scenario))
        run.log({f"leaderboard/{scenario}": wandb.Table(columns=[*columns], data=rows)})
        artifact = wandb.Artifact(re.sub(r"[^\w.-]", "-", f"records-{scenario}"), type="records")
        for record in records:
            if record["scenario"] == scenario:
                with artifact.new_file(f"{name(record)}.json") as file:
                    json.dump(record, file, sort_keys=True, indent=1)
        run.log_artifact(artifact)
    lines: list[list[Any]] = []
    for verdict in verdicts:
        cell, ours = verdict.cell, verdict.ours
        measured = (ours.mean, verdict.delta, ours.n) if ours else (None, None, None)
        judgement = (verdict.kind, verdict.why, "; ".join(cell.remarks))
        published = (cell.name, cell.where, cell.row, cell.column, cell.unit, str(cell.value))
        lines.append([*published, *measured, *judgement])
    if lines:
        run.log({"published": wandb.Table(columns=[*PAPER_COLUMNS], data=lines)})


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[Any]]]:
    """Columns and lines of a board; a score, its spread, and that of the worst of several encoders have one each."""
    titles = {
        f"{key}{end}": f"{title}{words}"
        for key, (title, _) in SCORE_COLUMNS.items()
        for end, words in (("", ""), (WORST, ", worst encoder"))
    }
    scores = {key: title for key, title in titles.items() if any(key in row.cells for row in rows)}
    columns = ["rank", "row", "method", "objective"]
    columns += [f"{title}{suffix}" for title in scores.values() for suffix in ("", " ±")]
    columns += ["encoders", "bytes up", "bytes down", "client seconds", "epsilon", "seeds", "commits", "hardware"]
    lines = []
    for row in rows:
        cells = [row.cells.get(key) for key in scores]
        values = [value for cell in cells for value in ((cell.mean, cell.spread) if cell else (None, None))]
        costs = [row.encoders, row.bytes_up, row.bytes_down, row.client_seconds, row.epsilon]
        origin = [len(row.seeds), ", ".join(row.commits), "; ".join(row.hardware)]
        lines.append([rank_of(row), row.row, row.method, row.objective, *values, *costs, *origin])
    return columns, lines


def report(records: Sequence[Record], project: str, entity: str | None) -> "Report":
    """The report on W&B: each scenario's board, with curves and bars of its runs.

    Raises ConfigError: wandb-workspaces is not installed.
    """
    try:
        from wandb_workspaces import expr
        from wandb_workspaces.reports import v2
    except ImportError as error:
        raise ConfigError("a report needs wandb-workspaces: pip install 'fulcrum-ful[report]'") from error
    introduction = (TEMPLATES / "introduction.md").read_text(encoding="utf-8").partition("-->")[2].strip()
    blocks: list[Any] = [v2.TableOfContents(), v2.MarkdownBlock(introduction)]
    for scenario in board_page.scenarios(records):
        is_scenario = expr.And(expr.Config("scenario") == scenario)
        runs = v2.Runset(project=project, entity=entity or "", name=scenario, filters=is_scenario)
        panels: list[Any] = [
            v2.LinePlot(title="monitor over rounds", y=["eval/monitor"], groupby="row"),
            v2.LinePlot(title="monitor over bytes", x="comm/bytes", y=["eval/monitor"], groupby="row", log_x=True),
            v2.BarPlot(title=HEADLINE, metrics=[HEADLINE.replace(" ", "/")], groupby="row"),
            v2.ScatterPlot(title="uniformity, alignment", x="geometry/v1/uniformity", y="geometry/v1/alignment"),
        ]
        text = "\n".join(board_lines(board(records, scenario)))
        blocks += [v2.H2(scenario), v2.MarkdownBlock(text), v2.PanelGrid(runsets=[runs], panels=panels)]
    return v2.Report(project=project, entity=entity or "", title="Fulcrum leaderboards", blocks=blocks)


def upload(records: Sequence[Record], folder: Path, project: str, entity: str | None) -> str:
    """Upload the written runs and make the report; returns a line with its address, or how to upload later.

    Raises ConfigError: W&B refused the key or some runs, or cannot be reached; everything is on disk.
    """
    import wandb

    destination = ["--project", project, *(["--entity", entity] if entity else [])]
    later = f"upload it later by: wandb sync {' '.join(destination)} {folder}/wandb/offline-run-*; or publish again"
    if os.environ.get("WANDB_MODE") == "offline":
        return f"WANDB_MODE is offline; {later}"
    silence()
    try:
        why_not = server_problem()
        if not wandb.login(prompt=False, verify=why_not is None):  # it verifies at the first call only
            return f"nobody is logged in to W&B; {later}, once somebody is"
        if why_not is not None:
            raise TimeoutError(why_not)
        page = report(records, project, entity)
        runs = sorted((folder / "wandb").glob("offline-run-*"))
        command = [sys.executable, "-m", "wandb", "sync", *destination, *map(str, runs)]
        read: dict[str, Any] = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
        done = subprocess.run(command, check=True, timeout=UPLOAD_TIMEOUT, **read)
        if refused := [run for run in runs if not any(run.glob("*.synced"))]:  # the exit status does not show it
            output = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
            raise ValueError(f"{len(refused)} of {len(runs)} runs were refused: {output[-1]}")
        page.save()
    except (wandb.errors.Error, subprocess.SubprocessError, OSError, ValueError) as error:
        why = one_line(getattr(error, "stderr", None) or error)
        raise ConfigError(f"not uploaded: {why}; it is all on disk, {later}") from error
    return f"uploaded; the report: {page.url}"
