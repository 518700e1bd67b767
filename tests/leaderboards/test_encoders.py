"""Of several encoders the mean is shown, with the worst beside it and both named, wherever a score is."""

import io
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from omegaconf import OmegaConf
from rich.console import Console

from benchmark.api import to_dataframe
from benchmark.evaluation.protocols import combine
from benchmark.tracking import wandb_dashboard
from benchmark.tracking.comparison import Pool, RunContent
from benchmark.tracking.comparison_figure import draw
from benchmark.tracking.comparison_scores import score_lines
from benchmark.tracking.comparison_tables import tables
from benchmark.tracking.logged import flat
from benchmark.tracking.record import headline
from eval.clients import summary
from leaderboards import store
from leaderboards.encoders import count, mean_of, shown
from leaderboards.pages import site
from leaderboards.pages.board import markdown, table
from leaderboards.pages.columns import board_lines
from leaderboards.rank import HEADLINE, board, metric_values
from tests.committed import records
from tests.leaderboards.test_schema import record

PROTOCOLS = ("linear/v1", "knn/v1")
accuracies = st.builds(  # around a whole number, so that no digit of the mean depends on rounding
    lambda middle, away: [float(middle + sign * step) for step in away for sign in (-1, 1)],
    st.integers(30, 70),
    st.lists(st.integers(0, 25), min_size=1, max_size=10),
)


def of_clients(each, row="local", seed=0, **changes):
    """A record of a run with an encoder a client, as `run` writes it. each: the accuracies of the encoders."""
    encoders = {f"client{k}": {name: {"accuracy": value} for name in PROTOCOLS} for k, value in enumerate(each)}
    return record(row, seed, encoders=encoders, scores=combine(encoders), **changes)


def content(result):
    """What `compare` reads of a run with this record."""
    config = OmegaConf.create({"row": result["row"], "seed": 0, "scenario": "s", "federation": {"rounds": 5}})
    return RunContent(Path(), config, [], result, [])


@settings(derandomize=True, deadline=None, max_examples=10)
@given(each=accuracies)
def test_every_place_shows_the_mean_and_the_worst_with_their_names(each):
    result, single = of_clients(each), record("fedavg", 0, 50.0)
    mean, worst = f"{fmean(each):.1f}", f"{min(each):.1f}"
    pair = (pytest.approx(fmean(each)), min(each))
    several = f"mean of {len(each)} encoders"
    row = next(row for row in board([result, single], "cifar10-micro") if row.row == "local")
    assert row.headline[0] == row.cells[HEADLINE].mean == pair[0]
    assert row.encoders == len(each)
    assert f"mean {mean}, worst {worst}" in next(line for line in board_lines([row]) if "local" in line)
    assert f"(local: {len(each)})" in markdown([result, single])

    console = Console(file=io.StringIO(), width=80)
    console.print(table([row], "board"))
    printed = console.file.getvalue().split()
    assert {("mean", mean), ("worst", worst)} <= {*pairwise(printed)}
    assert "(local:" in printed

    line = headline(result)
    assert several in line
    assert f"linear/v1 {mean} %, worst {worst} %" in line

    data = site.content([result, single], [], None)
    cells = next(row for row in data["scenarios"]["cifar10-micro"]["rows"] if row["row"] == "local")["cells"]
    assert (cells[HEADLINE][0], cells[f"{HEADLINE}_worst"][0]) == pair
    run = data["runs"][store.name(result)]
    assert (run["encoders"], run["scores"]["linear/v1"]["accuracy"]) == (several, pair[0])

    logged = flat(result)
    assert logged["encoders"] == len(each)
    assert (logged["linear/v1/accuracy"], logged["linear/v1/accuracy_worst"]) == pair
    columns, ((*values,),) = wandb_dashboard.table([row])
    published = dict(zip(columns, values, strict=True))
    assert published["encoders"] == len(each)
    assert (published["linear (%)"], published["linear (%), worst encoder"]) == pair

    frame = to_dataframe([result])
    assert (frame["linear/v1 accuracy"][0], frame["linear/v1 accuracy_worst"][0]) == pair

    pools = [Pool((content(each),)) for each in (single, result)]
    scores, *_ = tables(pools, ["fedavg", "local"], score_lines(pools))
    rows = list(zip(*(column.cells for column in scores.columns), strict=True))
    compared = {metric: cells for protocol, metric, *cells in rows if protocol == "linear/v1" or "worst" in metric}
    assert float(compared["accuracy, mean of encoders"][2].rstrip("*")) == pytest.approx(fmean(each), abs=0.01)
    assert float(compared["accuracy, worst of encoders"][2]) == pytest.approx(min(each), abs=0.01)


def test_a_row_ranks_by_its_mean():
    """Several equal encoders, noise aside, are level with one such encoder; their worst is below it."""
    several = [of_clients([45.0 + seed, 50.0 + seed, 55.0 + seed], seed=seed) for seed in range(3)]
    one = [record("fedavg", seed, 50.0 + seed) for seed in range(3)]
    rows = board([*several, *one], "cifar10-micro")
    assert [row.cells[HEADLINE].mean for row in rows] == [51.0, 51.0]
    assert {row.rank for row in rows} == {(1, 2)}
    assert metric_values(several, HEADLINE) == [50.0, 51.0, 52.0]
    assert metric_values(several, f"{HEADLINE}_worst") == [45.0, 46.0, 47.0]


def test_one_encoder_is_shown_as_it_is_and_without_means_they_are_those_of_the_encoders():
    result = record("fedavg", 0, 50.0)
    assert shown(result) == result["scores"]
    assert (count(result), mean_of(1)) == (1, "")
    assert "mean of" not in headline(result)
    assert "worst" not in "".join(board_lines(board([result], "cifar10-micro")))
    result = of_clients([40.0, 60.0])
    result["scores"] = {name: {"accuracy": 40.0} for name in PROTOCOLS}
    assert shown(result)["linear/v1"] == {"accuracy": 50.0, "accuracy_worst": 40.0}


def test_without_the_encoders_scores_there_is_the_worst_alone():
    """No other figure takes the place of a mean that a record does not have."""
    result = of_clients([40.0, 60.0])
    result["scores"]["linear/v1"] = {"accuracy": 40.0, "accuracy_best_on_test": 45.0}
    result["encoders"] = {"client0": {}, "client1": {}}
    assert shown(result)["linear/v1"] == {"accuracy_worst": 40.0, "accuracy_best_on_test_worst": 45.0}
    (row,) = board([result], "cifar10-micro")
    assert row.headline == {}
    assert "mean –, worst 40.0" in "".join(board_lines([row]))
    assert "linear/v1 worst 40.0 %" in headline(result)


def test_accuracies_over_clients_and_other_measures_have_no_worst_encoder():
    for protocol, each, expected in (
        ("clients/v2", [summary({"lima": 50.0}), summary({"oslo": 60.0})], summary({"lima": 50.0, "oslo": 60.0})),
        ("geometry/v1", [{"effective_rank": 10.0 + k} for k in range(3)], {"effective_rank": 11.0}),
    ):
        own = {f"client{k}": {protocol: scores} for k, scores in enumerate(each)}
        assert shown(record("local", encoders=own, scores=combine(own)))[protocol] == expected


def test_committed_records_show_their_encoders():
    """Of every committed record with several encoders the shown figures follow from those of each."""
    several = [result for result in records() if count(result) > 1]
    assert {result["row"] for result in several} >= {"local", "flesd-two"}
    for result in several:
        for protocol, metrics in shown(result).items():
            for metric in (name.removesuffix("_worst") for name in metrics if name.endswith("_worst")):
                own = [scores[protocol][metric] for scores in result["encoders"].values()]
                assert (metrics[f"{metric}_worst"], metrics[metric]) == pytest.approx((min(own), fmean(own)))


def test_the_figure_of_runs_names_what_its_accuracies_are(tmp_path, monkeypatch):
    texts = []

    def collect(figure, path, **_):
        texts.extend(text.get_text() for axes in figure.axes for text in (*axes.texts, *axes.get_yticklabels()))

    monkeypatch.setattr(Figure, "savefig", collect)
    runs = [content(record("fedavg", 0, 50.0)), content(of_clients([40.0, 60.0]))]
    draw([Pool((run,)) for run in runs], ["fedavg", "local"], tmp_path / "figure.png")
    assert {"local\nmean of 2 encoders", "50.0, worst 40.0"} <= {*texts}
