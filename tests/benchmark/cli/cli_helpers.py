"""Runs that are interrupted, and their checkpoints, for tests of commands."""

import os
import signal

import torch

from benchmark.tracking.progress import Display


def checkpoint(folder):
    return torch.load(folder / "checkpoint" / "state.pt", weights_only=True)


def interrupt(monkeypatch, visit, how):
    """Calls `how` at the end of visit number `visit`."""
    seen, hook = [], Display.on_visit_end

    def on_visit_end(self, loop, result):
        seen.append(result)
        if len(seen) == visit:
            how()
        hook(self, loop, result)

    monkeypatch.setattr(Display, "on_visit_end", on_visit_end)


def control_c():
    raise KeyboardInterrupt


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)
