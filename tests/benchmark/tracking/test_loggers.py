"""W&B never ends a run: without a server it is offline, and what fails is one line."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import wandb

from benchmark.configuration.compose import compose
from benchmark.tracking import loggers, wandb_run
from tests.leaderboards.test_schema import record
from tests.run_helpers import TINY


class Fake:
    """A run of W&B; the call named `broken` fails."""

    def __init__(self, broken=None):
        self.broken, self.calls = broken, []
        self.summary = self.config = self

    def __getattr__(self, name):
        def call(*_, **__):
            self.calls.append(name)
            if name == self.broken:
                raise RuntimeError(f"{name} is\nbroken.")

        return call


class Answers(BaseHTTPRequestHandler):
    """A server that answers everything with its code and body, and keeps the secrets that it is told."""

    secrets: ClassVar = []

    def do_GET(self):
        self.send_response(self.code)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_):
        self.secrets += self.headers.get_all("Authorization", [])


@contextlib.contextmanager
def serving(code, body=b""):
    """The address of a server that answers with a code."""
    handler = type("Handler", (Answers,), {"code": code, "body": body})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def hole():
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def use(tmp_path, monkeypatch, capsys):
    """All that a run does with its W&B logger; returns the lines that it prints."""
    for name in [name for name in os.environ if name.startswith("WANDB_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", "/nowhere")
    monkeypatch.setattr("wandb.login", lambda **_: True)

    def use(url="http://127.0.0.1:9", mode=None):
        if mode is not None:
            monkeypatch.setenv("WANDB_MODE", mode)
        settings = wandb.Settings(base_url=url)
        monkeypatch.setattr("wandb.setup", lambda: type("Setup", (), {"settings": settings}))
        config = compose(TINY, "fedavg", [f"output={tmp_path}", "logger=wandb"])
        logger = loggers.open_logger(config, tmp_path)
        with loggers.end_on_error(logger):
            for step in (1, 2, 3):
                logger.log_metrics({"train/loss": 1.0}, step=step)
        loggers.close(logger, record(), {"curves": Path(__file__).parents[3] / "docs" / "none.png"})
        return capsys.readouterr().err.splitlines()

    return use


def test_accuracies_by_client_are_one_table(monkeypatch, tmp_path):
    logged = []
    monkeypatch.setattr("wandb.setup", lambda: None)  # else its service would be there for the tests after this one
    monkeypatch.setattr(wandb_run.WandbRun, "_begun", lambda self: fake)
    monkeypatch.setenv("WANDB_MODE", "offline")
    fake = Fake()
    fake.log = lambda row, **_: logged.append(row)
    for scores in ({"accuracy of b": 60.0, "accuracy of a": 50.0}, {"accuracy": 55.0}):
        run = wandb_run.WandbRun(tmp_path, {"id": "abc"})
        costs = {"bytes": {"up": {}, "down": {}}, "epsilon": None, "seconds": {"wall": 1.0, "clients": 1.0}}
        loggers.close(run, {"scores": {"clients/v2": scores}, **costs}, {})
    assert (logged[0]["clients"].columns, logged[0]["clients"].data) == (
        ["client", "accuracy (%)"],
        [["a", 50.0], ["b", 60.0]],
    )
    assert logged[1] == {}


@pytest.mark.parametrize("broken", ["log", "update", "finish", "define_metric"])
def test_a_call_that_fails_is_one_line_and_the_last(use, monkeypatch, broken):
    fake = Fake(broken)
    monkeypatch.setattr("wandb.init", lambda **_: fake)
    monkeypatch.setattr("wandb.Image", str)
    (line,) = use(mode="offline")
    assert line.startswith(f"W&B: {broken} is broken: the run goes on without it; upload it later by: wandb sync ")
    assert fake.calls.count(broken) == 1
    assert fake.calls[-1] == "finish"  # else the next run would log into this one


@pytest.mark.parametrize("mode", [None, "online", "offline"])
def test_a_run_that_cannot_begin_is_one_line(use, monkeypatch, mode):
    def init(**_):
        raise wandb.errors.CommError("no")

    monkeypatch.setattr("wandb.init", init)
    assert len(use(mode=mode)) in ((1,) if mode == "offline" else (1, 2))  # 2: it is offline, and this fails too


@pytest.mark.parametrize("mode", [None, "online"])
def test_without_a_server_it_is_offline_at_once(use, monkeypatch, mode, hole, tmp_path):
    monkeypatch.setattr("benchmark.tracking.wandb_run.PROBE_TIMEOUT", 0.3)
    modes = []
    monkeypatch.setattr("wandb.init", lambda mode, **_: modes.append(mode) or Fake())
    monkeypatch.setattr("wandb.Image", str)
    later = f"offline; upload it later by: wandb sync {tmp_path}/wandb/offline-run-*"
    with serving(503) as broken:
        for url in (hole, broken, "http://127.0.0.1:9"):
            begun = time.monotonic()
            assert use(url, mode) == [f"W&B: {url} does not answer: {later}"]
            assert time.monotonic() - begun < 20
    assert modes == ["offline"] * 3


def test_any_answer_but_a_failure_is_a_server_and_it_is_told_no_secret(monkeypatch, hole, tmp_path):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login user password secret")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr(Answers, "secrets", [])
    monkeypatch.setattr(wandb_run, "PROBE_TIMEOUT", 2.0)
    for code, reached in ((200, True), (302, True), (404, True), (500, False)):
        with serving(code) as url:
            assert wandb_run.answers(url, {}) is reached
    with serving(200) as proxy:
        assert wandb_run.answers("http://nowhere.invalid", {"http": proxy})
    assert not Answers.secrets
    monkeypatch.setattr(wandb_run, "PROBE_TIMEOUT", 0.2)
    assert not wandb_run.answers("http://nowhere.invalid", {"http": hole})
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: time.sleep(5))  # a name that is not resolved
    begun = time.monotonic()
    assert not wandb_run.answers("http://nowhere.invalid", {})
    assert time.monotonic() - begun < 20


def test_a_server_that_refuses_the_run_leaves_it_offline(tmp_path):
    """The command, whose run goes on; in a separate process, because W&B's service keeps the first address it gets."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment |= {"WANDB_API_KEY": "a" * 40, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    words = [f"output={tmp_path / 'runs'}", f"data.cache={tmp_path / 'cache'}", "federation.rounds=1", "devices=1"]
    command = [sys.executable, "-m", "benchmark", "run", TINY, "fedavg", "threads=1", "accelerator=cpu", *words]
    with serving(404) as url:
        environment |= {"WANDB_BASE_URL": url}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "W&B" in line]
    assert "offline; upload it later by: wandb sync " in line
    assert len(list(tmp_path.rglob("result.json"))) == 1
    (log,) = tmp_path.rglob("offline-run-*/*.wandb")
    assert b"knn/v1/accuracy" in log.read_bytes()
