"""Protocols of one's own in runs: recorded under an id of their code, measured later, and imported only if trusted."""

import sys

import pytest

from benchmark import api
from benchmark.errors import ConfigError
from benchmark.experiment.folder import load_folder
from tests.run_helpers import build_experiment

CODE = "def spread(test_x, scale=1.0):\n    return {'std': float(test_x.std()) * scale}\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The file of the module `outside`, which is imported anew by each test."""
    (tmp_path / "outside.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "outside.py"
    sys.modules.pop("outside", None)


def test_a_run_has_its_score_and_a_finished_run_gets_others(tmp_path, module):
    experiment = build_experiment(tmp_path, "untrained", "evaluation.protocols=[outside.spread]")
    ((first, score),) = experiment.execute()["scores"].items()
    assert f"{first} std {score['std']:.4g}  (" in experiment.display.console.file.getvalue()
    name, _, digits = first.partition("/")
    assert (name, len(digits)) == ("outside.spread", 8)
    with pytest.raises(ConfigError, match=r"evaluation.protocols=outside.spread\), which would run: add trust=true"):
        load_folder(experiment.folder)
    again = build_experiment(tmp_path, "untrained", "evaluation.protocols=[outside.spread,geometry/v1]")
    again.execute()
    assert "protocols=geometry/v1 trust=true" in " ".join(again.display.console.file.getvalue().split())
    found = api.evaluate(experiment.folder, "outside.spread:scale=2,geometry/v1", trust=True, progress=False)["scores"]
    assert found[f"outside.spread:scale=2/{digits}"]["std"] == pytest.approx(2 * score["std"])
    assert {first, "geometry/v1"} <= found.keys()
    assert experiment.execute()["scores"].keys() == found.keys()  # the run is finished: nothing is measured again
    module.write_text(CODE.replace("scale}", "scale + 1}"))
    del sys.modules["outside"]
    found = api.evaluate(experiment.folder, "outside.spread", trust=True, progress=False)["scores"]
    assert sorted(metrics["std"] for name, metrics in found.items() if name.startswith("outside.spread/")) == [
        pytest.approx(score["std"]),
        pytest.approx(score["std"] + 1),
    ]


def test_what_is_wrong_with_it_is_said_before_a_run_trains(tmp_path, module):
    for word, line in {"outside.sprad": "has no sprad", "outside.spread:top=1": "no setting 'top'"}.items():
        with pytest.raises(ValueError, match=line) as error:
            build_experiment(tmp_path, "untrained", f"evaluation.protocols=[{word}]").build()
        assert error.value.exit_code == 2
