"""What `publish` writes is read back from the files that a later upload would send."""

import io
import json
import re
import subprocess
import sys
from contextlib import nullcontext

import pytest
import wandb
from rich.console import Console
from wandb.proto import wandb_internal_pb2

from benchmark.cli.main import main
from benchmark.errors import ConfigError
from benchmark.tracking import wandb_dashboard, wandb_files
from benchmark.tracking.progress import Display
from leaderboards import store
from leaderboards.rank import board
from tests.benchmark.tracking.test_loggers import serving
from tests.leaderboards.test_schema import record
from tests.run_helpers import TINY

CURVE = [{"round": r, "monitor": 40.0 + r, "bytes": 1e6 * r, "seconds": 2.0 * r, "loss": 3.0 - r} for r in (1, 2)]
RECORDS = [
    *(record("ssd", seed, 50.0 + seed, method="ssd", curve=CURVE) for seed in (0, 1)),
    record("a.b", 0, 40.0),
    record("early", 0, 30.0, rounds={"done": 1, "planned": 5}),
]


@pytest.fixture
def results(tmp_path):
    for result in RECORDS:
        store.write(tmp_path / "leaderboards" / "results" / f"{store.name(result)}.json", result)
    return tmp_path / "leaderboards" / "results"


@pytest.fixture
def offline(monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", "/nowhere")
    monkeypatch.setattr("wandb.login", lambda **_: False)
    monkeypatch.setattr("benchmark.tracking.wandb_dashboard.server_problem", lambda: None)
    yield
    wandb.teardown()  # W&B's service keeps the environment of this test


def publish(results, *words):
    return main(["publish", f"folder={results.parent}", f"output={results.parent.parent / 'dashboard'}", *words])


def segments(folder):
    """The files of W&B's offline runs, each with its messages."""
    for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        yield file, [wandb_internal_pb2.Record.FromString(data) for data in wandb_files.entries(file.read_bytes())]


def logged(folder):
    """Name of a run -> (the run, its messages as stored in the files, its folder)."""
    wandb.teardown()  # the files are written by W&B's own process, which may lag behind
    runs = {}
    for file, messages in segments(folder):
        (run,) = {message.run.display_name: message.run for message in messages if message.HasField("run")}.values()
        runs[run.display_name] = (run, messages, file.parent)
    return runs


def items(pairs):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in pairs}


def test_every_finished_record_is_a_run_with_its_scores_curve_and_tags(results, offline, capsys):
    assert publish(results) == 0
    runs = logged(results.parent.parent / "dashboard")
    assert set(runs) == {"cifar10-micro/ssd/seed0", "cifar10-micro/ssd/seed1", "cifar10-micro/a.b/seed0", "leaderboard"}
    run, messages, _ = runs["cifar10-micro/ssd/seed1"]
    assert (run.run_group, run.job_type) == ("cifar10-micro/ssd", "run")
    assert {"suite:cifar10-micro", "scenario:cifar10-micro", "method:ssd", "paper:ssd"} <= set(run.tags)
    assert len(run.run_id) == 12
    config = items(run.config.update)
    assert (config["row"], config["seed"], config["settings"]["optimizer.lr"]) == ("ssd", 1, 0.1)
    rows = [items(message.history.item) for message in messages if message.HasField("history")]
    keys = ("_step", "round", "eval/monitor", "comm/bytes", "sys/seconds", "train/loss")
    assert [[row[key] for key in keys] for row in rows] == [[1, 1, 41.0, 1e6, 2.0, 2.0], [2, 2, 42.0, 2e6, 4.0, 1.0]]
    summary = items(pair for message in messages for pair in message.summary.update)
    assert (summary["linear/v1/accuracy"], summary["comm/bytes_up"]) == (51.0, 2_340_000_000)
    said = " ".join(capsys.readouterr().out.split())
    assert re.search("3 runs and the leaderboard are in .*upload it later by: wandb sync --project fulcrum", said)


def content(found):
    """Rows by round, last values, config, axes, and kind and tags of a run, without what W&B adds."""
    run, messages, _ = found
    rows = [own(items(message.history.item)) for message in messages if message.HasField("history")]
    last = own(items(pair for message in messages for pair in message.summary.update))
    config = own(items([*run.config.update, *(pair for message in messages for pair in message.config.update)]))
    axes = {(metric.name, metric.glob_name, metric.step_metric) for metric in (m.metric for m in messages)}
    return {row["round"]: row for row in rows if "round" in row}, last, config, axes, {run.job_type, *run.tags}


def own(values):
    return {name: value for name, value in values.items() if not name.startswith("_")}


def test_a_live_run_and_the_record_of_it_are_logged_alike(tmp_path, offline, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    where = [f"output={tmp_path / 'runs'}", f"data.cache={tmp_path / 'cache'}", "threads=1", "devices=1"]
    noise = ["privacy.mechanism=central", "privacy.clip=1", "privacy.noise_multiplier=1", "privacy.delta=0.01"]
    words = [*noise, "encoder.norm=group", "heads.head_norm=false", "evaluation.every=2", "federation.rounds=4"]
    assert main(["run", TINY, "fedavg", "logger=wandb", "accelerator=cpu", *where, *words]) == 0
    (file,) = tmp_path.glob("runs/*/*/seed0/result.json")
    result = json.loads(file.read_text())
    wandb_dashboard.write([result], [], tmp_path / "published", Display(Console(file=io.StringIO())))
    ((live, live_last, live_config, live_axes, live_tags),) = map(content, logged(file.parent).values())
    rows, last, config, axes, tags = content(logged(tmp_path / "published")[store.name(result)])
    assert ([*live], [*rows]) == ([1, 2, 3, 4], [2, 4])
    for mine, theirs in ((live[2], rows[2]), (live[4], rows[4]), (live_last, last), (live_config, config)):
        assert {name: mine.get(name) for name in theirs} == theirs
    assert {name for row in live.values() for name in row} - {*rows[4], *last} == {"sys/images_per_second"}
    assert last["privacy/epsilon"] == live[4]["privacy/epsilon"] > live[1]["privacy/epsilon"]
    assert live_axes == axes
    assert live_tags <= tags


def test_the_leaderboard_has_tables_and_the_records_as_an_artifact(results, offline):
    publish(results)
    publish(results)
    assert len(list((results.parent.parent / "dashboard" / "wandb").glob("offline-run-*"))) == 4  # again replaces
    run, messages, folder = logged(results.parent.parent / "dashboard")["leaderboard"]
    assert run.job_type == "leaderboard"
    tables = {file.name.partition("_")[0]: json.loads(file.read_text()) for file in folder.rglob("*.table.json")}
    first = dict(zip(tables["cifar10-micro"]["columns"], tables["cifar10-micro"]["data"][0], strict=True))
    assert (first["rank"], first["row"], first["linear (%)"], first["seeds"]) == ("–", "ssd", 50.5, 2)
    assert first["linear (%) ±"] == pytest.approx(0.7071, abs=1e-4)
    assert len(tables["published"]["data"]) > 1000
    assert tables["published"]["columns"] == wandb_dashboard.PAPER_COLUMNS
    artifacts = [message.request.log_artifact.artifact for message in messages if message.HasField("request")]
    artifacts += [message.artifact for message in messages if message.HasField("artifact")]
    (records,) = [message for message in artifacts if message.type == "records"]
    assert records.name == "records-cifar10-micro"
    paths = {entry.path for entry in records.manifest.contents}
    assert paths == {f"cifar10-micro/{row}.json" for row in ("ssd/seed0", "ssd/seed1", "a.b/seed0")}


def test_a_folder_of_something_else_is_left_alone_and_other_words_are_refused(results, offline, capsys):
    mine = results.parent.parent / "dashboard" / "wandb" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("unsynced")
    (mine.parents[1] / "thesis.tex").write_text("years")
    assert publish(results) == 2
    assert "holds something else" in capsys.readouterr().err
    assert mine.read_text() == "unsynced"
    assert publish(results, "projct=x") == 2
    assert "publish takes project=, entity=, output=, folder=, not projct=x" in capsys.readouterr().err


REFUSED = b'{"errors": [{"message": "user is not logged in"}]}'


@pytest.mark.parametrize("why", ["a wrong key", pytest.param("no network", marks=pytest.mark.long)])
def test_a_wrong_key_or_no_network_is_one_line_and_loses_nothing(results, why, tmp_path):
    """In a separate process, because W&B's service keeps the first server address it gets."""
    words = ["publish", f"folder={results.parent}", f"output={tmp_path / 'out'}", "entity=us"]
    command = [sys.executable, "-c", f"import sys; from benchmark.cli.main import main; sys.exit(main({words}))"]
    with serving(401, REFUSED) if why == "a wrong key" else nullcontext("http://127.0.0.1:9") as url:
        environment = {"WANDB_API_KEY": "a" * 40, "WANDB_BASE_URL": url, "HOME": str(tmp_path), "PATH": ""}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: not uploaded: ")
    assert "it is all on disk, upload it later by: wandb sync --project fulcrum --entity us" in line
    assert len(logged(tmp_path / "out")) == 4


def test_what_the_server_refuses_is_not_called_uploaded(results, offline, monkeypatch, capsys):
    """`wandb sync` returns 0 even if the server refuses runs; it marks only the uploaded ones."""
    monkeypatch.setattr("wandb.login", lambda **_: True)
    refused = subprocess.CompletedProcess([], 0, stdout="", stderr="permission denied\n")
    monkeypatch.setattr("benchmark.tracking.wandb_dashboard.subprocess.run", lambda *_, **__: refused)
    monkeypatch.setattr("wandb_workspaces.reports.v2.Report.save", lambda *_: pytest.fail("there is nothing to report"))
    assert publish(results) == 2
    assert "not uploaded: 4 of 4 runs were refused: permission denied" in capsys.readouterr().err


def test_the_report_lays_out_every_scenario():
    report = wandb_dashboard.report(RECORDS[:3], "fulcrum", None)
    text = json.dumps(json.loads(report._to_model().model_dump_json(by_alias=True)), ensure_ascii=False)
    assert all(words in text for words in ("Fulcrum leaderboards", "| – | ssd | 50.5 ± 0.7 |", "cifar10-micro"))
    assert text.count("eval/monitor") >= 2


def test_without_wandb_workspaces_a_report_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    with pytest.raises(ConfigError, match=r"pip install 'fulcrum-ful\[report\]'"):
        wandb_dashboard.report(RECORDS, "fulcrum", None)


def test_tables_are_numbers_and_ranks_are_intervals():
    columns, rows = wandb_dashboard.table(board(RECORDS[:3], "cifar10-micro"))
    assert all(len(row) == len(columns) for row in rows)
    assert rows[1][columns.index("kNN (%)")] == 43.5
    samples = {"a": [50.0, 50.0, 53.0], "b": [48.0, 50.0, 49.0], "c": [46.0, 47.0, 48.0]}
    entries = [record(row, seed, value) for row, sample in samples.items() for seed, value in enumerate(sample)]
    columns, rows = wandb_dashboard.table(board(entries, "cifar10-micro"))
    assert [row[columns.index("rank")] for row in rows] == ["1-2", "1-3", "2-3"]
