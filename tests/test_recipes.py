"""The recipes of docs/how-to/recipes.md: their code is short, runs by their commands, and does what they say."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmark.experiment.run import Run
from methods import trees
from tests import run_helpers
from tests.methods.toys import EVERYONE

PAGE = (Path(__file__).parent.parent / "docs" / "how-to" / "recipes.md").read_text()
RECIPE = r"^```python\n(.*?)^```\n\n```\nPYTHONPATH=[.] python -m benchmark run digits ([^\n]*)\n```$"
RECIPES = {
    re.findall(r"(?:^|=)(\w+)[.]", command)[0]: (code, command.split())
    for code, command in re.findall(RECIPE, PAGE, re.DOTALL | re.MULTILINE)
}
"""Name of a module -> its code, and the words that run it."""


@pytest.fixture
def build(tmp_path, monkeypatch) -> Callable[..., Run]:
    """Saves the code of a recipe as a module, and builds its run on the tiny scenario."""
    monkeypatch.syspath_prepend(tmp_path)

    def build(name: str, *more: str) -> Run:
        code, words = RECIPES[name]
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return run_helpers.build_run(tmp_path / "run", *words, *more)

    return build


def test_every_recipe_is_short_and_has_a_test():
    assert len(RECIPES) == PAGE.count("```python") == PAGE.count("\n## ")
    assert {f"test_{name}" for name in RECIPES} <= globals().keys()
    for code, _ in RECIPES.values():
        assert len([line for line in code.splitlines() if line]) < 30


def test_teacher(build):
    """It is what the server sent, also after the client has trained."""
    run = build("teacher")
    teacher = run.loop.method.teacher.networks[0]

    def stayed(done):
        kept = {"encoder": dict(teacher.state_dict())}
        sent, trained = (message["weights"] for message in (done.visit.message, done.message))
        return run_helpers.apart(kept, sent) == 0 < run_helpers.apart(kept, trained)

    seen = run_helpers.collect_visits(run, stayed)
    run.loop.fit()
    assert seen == [True] * 6


@pytest.mark.parametrize("policy", ["average", "recalibrate"])
def test_average(build, policy):
    run = build("average", f"federation.batch_norm={policy}", "encoder.norm=batch")
    loop = run.loop
    loop.restore()
    expected = trees.clone(trees.select(loop.server["weights"], loop.method.trainable()))
    for round in range(3):
        loop.run_round(round)
        expected = trees.map(lambda a, w: (a + w) / 2, expected, loop.server["weights"])
    exported = loop.method.export(loop.server, {})["global"]
    assert run_helpers.difference(trees.select(exported, expected), expected) < 1e-6
    assert run_helpers.apart(exported, loop.server["weights"]) > 1e-4


def test_centres(build):
    """All clients get those that all have sent in the round before."""
    run = build("centres")
    sent = run_helpers.collect_visits(
        run,
        lambda done: (
            done.visit.round,
            done.visit.phase.name,
            trees.clone(done.visit.message),
            trees.clone(done.message),
        ),
    )
    run.loop.fit()
    given = {
        "z": torch.cat([reply["centres"]["z"] for round, phase, _, reply in sent if (round, phase) == (1, "look")])
    }
    received = [message.get("centres") for round, phase, message, _ in sent if (round, phase) == (2, "fit")]
    assert len(given["z"]) == 10
    assert [run_helpers.difference(each, given) for each in received] == [0, 0]
    assert not any("centres" in message for round, _, message, _ in sent if round == 0)


def test_phases(build):
    """The fourth round has one more, with a loss that is lower by a uniformity, which is negative."""
    run = build("phases", "federation.rounds=4", EVERYONE)
    visited = run_helpers.collect_visits(run, lambda done: (done.visit.phase.name, done.loss))
    run.loop.fit()
    assert [name for name, _ in visited] == ["fit"] * 16 + ["spread"] * 4
    assert all(after < before for (_, before), (_, after) in zip(visited[12:16], visited[16:], strict=True))  # its loss


def test_noise(build, tmp_path):
    """A run that was interrupted draws the same numbers, and they matter."""

    def interrupt(done):
        if done.visit.round == 1:
            raise KeyboardInterrupt

    broken, (_, words) = build("noise"), RECIPES["noise"]
    run_helpers.collect_visits(broken, interrupt)
    with pytest.raises(KeyboardInterrupt):
        broken.loop.fit()
    unbroken, plain = (
        run_helpers.train_run(tmp_path / name, *of) for name, of in (("whole", words), ("no", ["fedavg"]))
    )
    run_helpers.check_resumed(tmp_path / "run", unbroken, *words)
    assert run_helpers.difference(plain.loop.server, unbroken.loop.server) > 1e-4


def test_nearest(build):
    """The queue of each client holds its earlier rows, and is never sent."""
    run = build("nearest", EVERYONE)
    run.loop.fit()
    for client in run.loop.clients:
        kept = run.loop.client_state[client.id]["stays"]["earlier"]
        rows = min(256, 3 * (client.examples - (client.examples % 8 == 1)))
        assert int(kept["earlier_filled"]) == rows == int(kept["earlier"].any(dim=1).sum())
    assert {entry for direction in ("up", "down") for entry in run.loop.ledger.total(direction)} == {"weights"}


def test_head(build):
    run = build("head")
    initial = trees.clone({"head": run.loop.method.tensors("head")})
    run.loop.fit()
    assert set(run.loop.server["weights"]) == {"encoder", "projector", "head"}
    assert run_helpers.apart(initial, run.loop.server["weights"]) > 1e-3


STILL = ("views.crop_scale=null", "views.flip=0", "views.jitter_p=0", "views.grayscale=0")


def test_cutout(build):
    """Nine pixels are black before a view is normalised, and the generator says where; a plain view is whole."""
    run, found = build("cutout", *STILL, "views.mean=[0.5]", "views.std=[0.25]"), []
    for seed in (0, 0, 1):
        stream = torch.Generator().manual_seed(seed)
        (batch,) = run.data.batches(0, ("augment", "plain"), 100, order=None, views=stream)
        view, plain = batch.views
        hidden = (view == -2).all(dim=1, keepdim=True)
        assert torch.equal(view, plain.masked_fill(hidden, -2))
        assert (hidden.flatten(1).sum(dim=1) == 9).all()
        found.append(view)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
