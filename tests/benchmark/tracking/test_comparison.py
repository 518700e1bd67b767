"""Runs side by side, from their folders alone."""

import json
import shutil
from dataclasses import replace

import pytest
from PIL import Image

from benchmark.cli.main import main
from benchmark.errors import ConfigError
from benchmark.tracking.comparison import common_folder, names, read_run, tables
from benchmark.tracking.comparison_figure import draw
from tests.run_helpers import TINY


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two finished runs that differ in a method's setting, and one that ended after its first round."""
    output = tmp_path_factory.mktemp("runs")
    common = ["logger=csv", "devices=1", "threads=1", f"output={output}", f"data.cache={output}/cache"]
    common += ["evaluation.every=1", "evaluation.protocols=[linear/v1,knn/v1,geometry/v1]"]
    for method in (["fedavg"], ["fedprox", "method.mu=0.5"]):
        assert main(["run", TINY, *method, *common]) == 0
    assert main(["run", TINY, "fedavg", "seed=1", *common]) == 0
    done = sorted(output.glob("*/*/seed0"))
    early = next(output.glob("*/fedavg/seed1"))
    (early / "result.json").unlink()
    first, *_ = (early / "rounds.jsonl").read_text().splitlines(keepends=True)
    (early / "rounds.jsonl").write_text(first)
    return [*done, early]


def test_scores_curves_costs_and_settings_of_runs_are_printed_side_by_side(folders, capsys):
    assert main(["compare", *map(str, folders[:2])]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for word in ("linear/v1 accuracy higher", "alignment lower", "monitor: kNN", "sent by clients MB", "method.mu 0.5"):
        assert word in printed
    assert (folders[0].parent.parent / "compare.png").is_file()


def test_the_best_of_a_row_is_marked_in_the_better_direction(folders):
    runs = [read_run(folder) for folder in folders[:2]]
    scores = [
        {"linear/v1": {"accuracy": 50.0}, "geometry/v1": {"alignment": 0.5}},
        {"linear/v1": {"accuracy": 60.0}, "geometry/v1": {"alignment": 0.25}, "knn/v1": {"accuracy": 40.0}},
    ]
    runs = [replace(run, record={**run.record, "scores": each}) for run, each in zip(runs, scores, strict=True)]
    table, *_ = tables(runs, names(runs))
    protocols, _, _, *cells = [list(column.cells) for column in table.columns]
    assert protocols == ["linear/v1", "knn/v1", ""]
    assert cells == [["50", "", "0.5"], ["60*", "40", "0.25*"]]


def test_an_unfinished_run_has_its_rounds_and_no_scores(folders, capsys, tmp_path):
    assert main(["compare", *map(str, folders), f"output={tmp_path / 'figures'}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"1 of {read_run(folders[2]).config.federation.rounds}" in printed
    assert f"figure: {tmp_path / 'figures' / 'compare.png'}" in printed
    empty = [replace(read_run(folder), history=[], record={}, points=[]) for folder in folders[:2]]
    draw(empty, ["a", "b"], tmp_path / "empty.png")  # runs without any round
    with Image.open(tmp_path / "empty.png") as one, Image.open(tmp_path / "figures" / "compare.png") as other:
        assert other.width > other.height
        assert one.width < other.width


def test_a_name_has_what_tells_runs_apart_and_the_figure_lies_in_the_folder_that_holds_all(folders):
    first, second, third = (read_run(folder) for folder in folders)
    assert names([first, second]) == ["fedavg", "fedprox+mu=0.5"]
    assert names([first, third]) == ["fedavg seed 0", "fedavg seed 1"]
    assert names([first, first]) == [str(first.folder)] * 2
    assert common_folder([first, third]).resolve() == folders[0].parent.resolve()
    assert common_folder([first, second]).resolve() == folders[0].parent.parent.resolve()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{0}"], "with two run folders or more"),
        (["{0}", "{0}"], "is named twice"),
        (["{0}", "nowhere"], "nowhere is not a run folder"),
        (["{0}", "{1}", "seed=1"], "with two run folders or more"),
    ],
)
def test_what_cannot_be_compared_is_one_line(folders, words, message, capsys):
    assert main(["compare", *(word.format(*folders) for word in words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_damaged_record_and_a_line_that_is_no_round_are_one_line(folders, tmp_path, capsys):
    for name in ("config.yaml", "rounds.jsonl"):
        shutil.copy(folders[0] / name, tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({"schema": 1}))
    assert main(["compare", str(folders[0]), str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    for line in ("5", '{"round": 1}', '{"round": "x", "seconds": 1, "bytes_up": {}, "bytes_down": {}}'):
        (tmp_path / "rounds.jsonl").write_text(line + "\n")
        with pytest.raises(ConfigError, match="has a line that is no round"):
            read_run(tmp_path)


def test_runs_that_were_monitored_without_labels_are_compared(folders, tmp_path):
    plain = shutil.copytree(folders[0], tmp_path / "tiny" / "plain" / "seed0")
    rounds = [json.loads(line) for line in (plain / "rounds.jsonl").read_text().splitlines()]
    assert [line.pop("monitor") for line in rounds]
    (plain / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rounds))
    assert main(["compare", str(plain), str(folders[1]), f"output={tmp_path}"]) == 0
