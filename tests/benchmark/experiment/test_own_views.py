"""A stage of views of the user's own: named by `views.class`, in the run's identity and record, run only on trust."""

import pytest
import torch
from torch import Generator, Tensor

from benchmark.configuration.compose import compose
from benchmark.configuration.identity import identity
from benchmark.errors import ConfigError, message
from benchmark.experiment.folder import load_folder
from datamodules.errors import ViewError
from tests import run_helpers
from tests.run_helpers import TINY

HERE = __name__


def brighter(views: Tensor, generator: Generator, *, most: float = 0.5) -> Tensor:
    return views + most * torch.rand(len(views), 1, 1, 1, generator=generator).to(views)


def one(views: Tensor, generator: Generator) -> Tensor:
    return views[:1]


def nothing(views: Tensor, generator: Generator) -> None:
    pass


def alone(views: Tensor) -> Tensor:
    return views


class Kept:
    pass


def test_it_trains_is_recorded_and_needs_trust(tmp_path):
    words = (f"views.class={HERE}.brighter", "views.options.most=0.2", "federation.rounds=2")
    record, run = run_helpers.execute_run(tmp_path, "fedavg", *words)
    assert record["scenario"] == f"tiny+federation.rounds=2+views.class={HERE}.brighter+views.options.most=0.2"
    assert any(line.startswith(f"{HERE}.brighter is code from outside") for line in record["deviations"])
    assert record["settings"]["views.options.most"] == 0.2
    with pytest.raises(ConfigError, match=r"code from outside the suite \(views\.class="):
        load_folder(run.folder)
    trusted = load_folder(run.folder, trust=True)
    assert identity(trusted) == identity(run.config)
    plain = run_helpers.train_run(tmp_path / "plain", "fedavg", "federation.rounds=2")
    assert run_helpers.difference(plain.loop.server, run.loop.server) > 1e-4


def test_it_defines_the_run_and_another_one_drops_its_arguments(tmp_path):
    plain, null = compose(TINY, "fedavg"), compose(TINY, "fedavg", ["views.class=null"])
    own = compose(TINY, "fedavg", [f"views.class={HERE}.brighter"])
    assert identity(plain) == identity(null) != identity(own)
    file = tmp_path / "own.yaml"
    file.write_text(f"like: {TINY}\nviews:\n  class: {HERE}.brighter\n  options: {{most: 1}}\n")
    assert compose(str(file), "fedavg").views.options == {"most": 1.0}
    assert "options" not in compose(str(file), "fedavg", [f"views.class={HERE}.one"]).views
    assert compose(str(file), "fedavg", ["views.flip=0"]).views["class"] == f"{HERE}.brighter"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("views.class=nowhere.cut", "views.class=nowhere.cut: No module named 'nowhere': is its folder in PYTHONPATH?"),
        ("views.class=5", "views.class='5': give an import path, e.g. mymodule.cutout, a function of views"),
        (f"views.class={HERE}.Kept", "Kept is a class: give a function of views and a generator"),
        (f"views.class={HERE}.HERE", "HERE is no subclass of"),
        (f"views.class={HERE}.alone", "too many positional arguments; it is called as alone(views, generator, **"),
        (f"views.class={HERE}.brighter views.options.mots=1", "'views.options.mots' (did you mean 'most'?)"),
        (f"views.class={HERE}.brighter views.options.most=x", "views.options.most='x': "),
        (f"views.class={HERE}.brighter views.options=5", "views.options=5: set the arguments of views.class"),
        ("views.options.most=1", "views.options are arguments of views.class: name that function"),
    ],
)
def test_what_is_no_such_function_is_one_line(tmp_path, words, line):
    with pytest.raises(ConfigError) as raised:
        run_helpers.build_run(tmp_path, "fedavg", *words.split())
    assert line in message(raised.value)


@pytest.mark.parametrize(
    ("name", "line"),
    [("one", "returns torch.float32 [1, 3, 8, 8] on cpu for views that are torch"), ("nothing", "returns a NoneType")],
)
def test_what_returns_no_views_is_one_line(tmp_path, name, line):
    run = run_helpers.build_run(tmp_path, "fedavg", f"views.class={HERE}.{name}")
    with pytest.raises(ViewError, match=line.replace("[", r"\[")):
        run.loop.fit()
