"""A run folder and decoded images with one file damaged: the same bits after `resume`, or one line."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmark.federation.callbacks import Callback
from benchmark.federation.loop import FederatedLoop
from leaderboards import store
from tests.fuzz.outcome import Case, cases, content, empty_folder
from tests.run_helpers import build_experiment, same

RUN = Path("run") / "runs" / "tiny" / "it" / "seed0"


class UnfinishedRun(NamedTuple):
    """A folder with a run of two rounds of which one is done, and what it has to end with."""

    root: Path
    server: dict[str, Any]
    scores: dict[str, dict[str, float]]


class StopAfterOneRound(Callback):
    def on_round_end(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        raise KeyboardInterrupt


def server(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "checkpoint" / "state.pt", weights_only=True)["server"]


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnfinishedRun]:
    root = tmp_path_factory.mktemp("unfinished")
    words = ("scaffold", "row=it", "scenario=tiny", "federation.rounds=2", "federation.participation=1")
    with build_experiment(root / "run", *words).open() as run:  # which decodes into root / "cache"
        run.loop.callbacks = [StopAfterOneRound()]
        with pytest.raises(KeyboardInterrupt):
            run.loop.fit()
    shutil.copytree(root, whole := tmp_path_factory.mktemp("whole"), dirs_exist_ok=True)
    assert Case(["resume", str(whole / RUN), f"data.cache={whole}/cache"]).check().code == 0
    before = content(root)
    yield UnfinishedRun(root, server(whole / RUN), store.read(whole / RUN / "result.json")["scores"])
    assert content(root) == before


def damage(file: Path, kind: str, where: float) -> None:
    """Damages a file at a share of its length: flips a bit, cuts it off, overwrites the rest with zeros, removes it."""
    written = file.read_bytes()
    position = min(int(where * len(written)), max(len(written) - 1, 0))
    if kind == "remove":
        file.unlink()
    elif kind == "cut":
        file.write_bytes(written[:position])
    elif kind == "zeros":
        file.write_bytes(written[:position] + bytes(len(written) - position))
    elif written:
        flipped = written[position] ^ (1 << int(where * 7919) % 8)
        file.write_bytes(written[:position] + bytes([flipped]) + written[position + 1 :])


@cases("folders")
@given(st.integers(0, 10**6), st.sampled_from(["flip", "flip", "flip", "cut", "zeros", "remove"]), st.floats(0, 1))
def test_one_damaged_file(
    unfinished: UnfinishedRun, tmp_path_factory: pytest.TempPathFactory, number: int, kind: str, where: float
) -> None:
    root = tmp_path_factory.mktemp("damaged")
    shutil.copytree(unfinished.root, root, dirs_exist_ok=True)
    files = sorted(file for file in root.rglob("*") if file.is_file())
    damage(file := files[number % len(files)], kind, where)
    finished = {path: path.read_bytes() for path in files if path != file and path.suffix == ".pt"}
    with empty_folder(root / "empty"):
        case = Case(["resume", str(root / RUN), f"data.cache={root}/cache", f"output={root}/runs"]).check()
    if case.code == 0:
        assert same(server(root / RUN), unfinished.server), (file, kind, where)
        if file.name != "config.yaml":  # it also says how the encoder is scored
            assert store.read(root / RUN / "result.json")["scores"] == unfinished.scores, (file, kind, where)
    else:
        assert {path: path.read_bytes() for path in finished} == finished
    shutil.rmtree(root)
