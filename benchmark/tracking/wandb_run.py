"""A run on W&B that never ends the training: without a server it is offline, and what fails is reported once."""

import contextlib
import hashlib
import logging
import os
import shlex
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.errors import one_line
from benchmark.tracking.logged import EARLIER_STEP, STEP, declare
from benchmark.tracking.wandb_files import logged_rows

if TYPE_CHECKING:
    import wandb

Table = tuple[list[Any], list[Any]]
"""Names of columns, and rows."""
Notify = Callable[[str], None]
"""Prints one line for the user."""

PROBE_TIMEOUT = 3.0
"""Seconds in which W&B's server has to answer at all."""
TIMEOUTS = {"init_timeout": 15.0, "finish_timeout": 30.0}
"""W&B's setting -> seconds: to begin a run, and to upload the rest of its data; without them it waits for minutes."""
OFFLINE = ("offline", "dryrun", "disabled")
"""Modes of W&B that need no server."""
TAG = 64
"""Longest tag that W&B accepts, in characters."""


def print_to_stderr(line: str) -> None:
    """Prints a line where no display is at hand."""
    print(line, file=sys.stderr)  # noqa: T201


def options(
    name: str, key: str, tags: Iterable[str], config: Any, folder: Path, job_type: str = "run"
) -> dict[str, Any]:
    """Options of `wandb.init`. name: `<group>/<last part>`. key: what the run's id follows from."""
    return {
        "project": "fulcrum",
        "name": name,
        "id": hashlib.sha256(key.encode()).hexdigest()[:12],
        "group": name.rpartition("/")[0] or None,
        "job_type": job_type,
        "tags": [tag[:TAG] for tag in tags],
        "config": config,
        "dir": str(folder),
        "reinit": "finish_previous",
    }


class WandbRun:
    """A run on W&B, begun at its first metrics. Each round is logged once, however often the run is resumed.

    Not Lightning's `WandbLogger`, which ends the training where W&B fails, and logs again what a killed run has logged.

    Args:
        folder: of the run. options: of `wandb.init`. notify: prints a line for the user.
    """

    def __init__(self, folder: Path, options: Mapping[str, Any], notify: Notify = print_to_stderr) -> None:
        self.folder, self.options, self.notify = folder, dict(options), notify
        self.mode: Any = "offline"  # one of W&B's
        self.failed = False
        self.run: wandb.Run | None = None
        self.rounds: set[int] = set()  # that W&B has
        self.steps = 0  # the next step is above it
        self._attempt(self._choose_mode)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Logs numbers of a round, unless W&B has them. step: the round."""

        def log() -> None:
            run = self._begun()
            if step not in self.rounds:
                run.log({**metrics, STEP: step}, step=step, commit=True)  # else the row waits for the next one
                self.rounds.add(int(step or 0))
                self.steps = max(self.steps, *self.rounds)

        self._attempt(log)

    def log_result(
        self,
        summary: Mapping[str, Any],
        config: Mapping[str, Any],
        pictures: Mapping[str, Path],
        tables: Mapping[str, Table] | None = None,
    ) -> None:
        """Logs the final values, what is known of the config by now, the figures, and tables by name."""

        def log() -> None:
            from wandb import Image
            from wandb import Table as WandbTable

            run = self._begun()
            run.config.update(dict(config), allow_val_change=True)
            run.summary.update(dict(summary))
            figures: dict[str, Any] = {f"figures/{name}": [Image(str(file))] for name, file in pictures.items()}
            figures |= {name: WandbTable(columns, data) for name, (columns, data) in (tables or {}).items()}
            # offline W&B does not know the steps of the segments before this one
            run.log(figures, step=self.steps + 1 if self.mode in OFFLINE else None, commit=True)
            self.steps += 1

        self._attempt(log)

    def finalize(self, status: str) -> None:
        """Ends the run on W&B, also after a failure, so that the next run does not log into it."""
        if (run := self.run) is None:
            return
        self.run = None
        self._attempt(lambda: run.finish(exit_code=0 if status == "success" else 1), always=True)

    def _attempt(self, call: Callable[[], object], always: bool = False) -> None:
        """Makes a call that may fail; after the first failure, which is reported, only one that is `always` made."""
        if self.failed and not always:
            return
        try:
            call()
        except Exception as error:
            if not self.failed:
                self.failed = True
                self._report(error, "the run goes on without it")

    def _report(self, error: Exception | str, consequence: str) -> None:
        """One line: what failed, what follows, and how to upload what is on disk."""
        why = one_line(error).rstrip(".")
        runs = "offline-run-*" if self.mode in OFFLINE else "run-* --include-online"
        later = f"; upload it later by: wandb sync {shlex.quote(str(self.folder))}/wandb/{runs}"
        with contextlib.suppress(Exception):
            self.notify(f"W&B: {why[:200]}: {consequence}{later}")

    def _choose_mode(self) -> None:
        """The mode that the user has set, else online if somebody is logged in; offline where no server answers."""
        silence()
        import wandb

        wandb.setup()  # reads the environment before its first message
        wanted = os.environ.get("WANDB_MODE")
        if wanted in OFFLINE:
            self.mode = wanted
            return
        try:
            if not wandb.login(prompt=False, verify=False):
                if wanted is None:
                    return
                raise LookupError("nobody is logged in")
            if (why_not := server_problem()) is not None:
                raise TimeoutError(why_not)
        except Exception as error:  # also a key that cannot be one
            self._report(error, "offline")
        else:
            self.mode = wanted or "online"

    def _begun(self) -> "wandb.Run":
        """The run, begun by now; offline where the server refuses it."""
        if self.run is None:
            import wandb

            unset = {name: value for name, value in TIMEOUTS.items() if f"WANDB_{name.upper()}" not in os.environ}
            settings = wandb.Settings(finish_timeout_raises=True, **unset)  # type: ignore[arg-type]
            try:
                self.run = wandb.init(**self.options, mode=self.mode, settings=settings)
            except Exception as error:
                if self.mode in OFFLINE:
                    raise
                self.mode = "offline"
                self._report(error, "offline")
                wandb.teardown()  # its process would refuse a run of the same id as one that could not begin
                self.run = wandb.init(**self.options, mode=self.mode, settings=settings)
            declare(self.run)
            self._find_rounds(self.run)
        return self.run

    def _find_rounds(self, run: "wandb.Run") -> None:
        """Finds the rounds that W&B has: on its server, which gets them in order, or offline in the run's segments.

        What was logged just before a kill may be in neither.
        """
        if self.mode not in OFFLINE:
            last = run.summary.get(STEP) or run.summary.get(EARLIER_STEP) or 0
            self.rounds = set(range(int(last) + 1)) if run.resumed else set()
            return
        rows = list(logged_rows(self.folder, self.options["id"], (STEP, EARLIER_STEP)))
        self.rounds = {round for _, round in rows if round is not None}
        self.steps = max((step for step, _ in rows), default=0)


def silence() -> None:
    """Makes W&B print nothing and report no errors to its makers. Call before wandb is imported."""
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else a program waits for the server when it ends
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # where wandb was imported before


def server_problem() -> str | None:
    """That W&B's server does not answer within PROBE_TIMEOUT, or None."""
    import wandb

    settings = wandb.setup().settings
    reached = answers(settings.base_url, {"http": settings.http_proxy, "https": settings.https_proxy})
    return None if reached else f"{settings.base_url} does not answer"


def answers(url: str, proxies: Mapping[str, str | None]) -> bool:
    """Whether a server answers at `url` within PROBE_TIMEOUT, with anything but a failure of its own.

    proxies: besides those of the environment.
    """
    import requests

    result: list[bool] = []
    given = {scheme: proxy for scheme, proxy in proxies.items() if proxy}
    # no secret is sent, so that certificates need no check: W&B verifies by its own; without `auth`, ~/.netrc is read
    options: Any = {"proxies": given, "allow_redirects": False, "verify": False, "auth": lambda request: request}
    warnings.filterwarnings("ignore", "Unverified HTTPS request")

    def ask() -> None:
        try:
            with requests.get(url, timeout=PROBE_TIMEOUT, stream=True, **options) as answer:
                result.append(answer.status_code < 500)
        except requests.exceptions.InvalidSchema:  # a SOCKS proxy that cannot be asked; TIMEOUTS bounds the wait
            result.append(True)
        except Exception:  # no answer, or no HTTP
            result.append(False)

    thread = threading.Thread(target=ask, daemon=True)  # no timeout bounds the look-up of a host's name
    thread.start()
    thread.join(PROBE_TIMEOUT)
    return result == [True]
