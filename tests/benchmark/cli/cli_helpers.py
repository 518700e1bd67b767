"""Runs that are interrupted, and their checkpoints."""

import os
import signal

import pytest
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


def stop(experiment, round, owner=Display, moment="on_visit_end"):
    """Executes an experiment, which is interrupted in the hook `moment` when `round` rounds are done."""
    hook = getattr(owner, moment)

    def stopping(self, loop, *arguments):
        if loop.round == round:
            raise KeyboardInterrupt
        hook(self, loop, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, moment, stopping)
        with pytest.raises(KeyboardInterrupt):
            experiment.execute()


def control_c():
    raise KeyboardInterrupt


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)
