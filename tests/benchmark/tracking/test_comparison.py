"""Runs side by side, from their folders alone; seeds of one setting are a column."""

import csv
import json
import shutil
from dataclasses import replace

import pytest
from matplotlib.axes import Axes
from omegaconf import OmegaConf
from PIL import Image

from benchmark.cli.main import main
from benchmark.errors import ConfigError
from benchmark.tracking.comparison import Pool, common_folder, names, pooled, read_run
from benchmark.tracking.comparison_figure import draw, looks
from benchmark.tracking.comparison_paper import table
from benchmark.tracking.comparison_scores import score_lines
from benchmark.tracking.comparison_tables import tables
from leaderboards.palette import LIGHT
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
    for word in (
        "gradient share 0.01",
        "linear/v1 accuracy higher",
        "alignment lower",
        "monitor: kNN",
        "sent by clients MB",
        "method.mu 0.5",
    ):
        assert word in printed
    assert (folders[0].parent.parent / "compare.png").is_file()


def alone(*runs):
    """A pool for each run."""
    return [Pool((run,)) for run in runs]


def seeds(run, *scores, **config):
    """The run under seeds 0, 1, ..., each with scores of its own; config: keys that all have."""
    return [
        replace(run, config=OmegaConf.merge(run.config, config, {"seed": seed}), record={**run.record, "scores": each})
        for seed, each in enumerate(scores)
    ]


def cells(pools, clients=False):
    """Metric, as it is shown -> the cells of the table of scores."""
    scores, *_ = tables(pools, names(pools), score_lines(pools, clients))
    _, metrics, _, *columns = [list(column.cells) for column in scores.columns]
    return dict(zip(metrics, zip(*columns, strict=True), strict=True))


def test_the_best_of_a_row_is_marked_in_the_better_direction(folders):
    runs = [read_run(folder) for folder in folders[:2]]
    scores = [
        {"linear/v1": {"accuracy": 50.0}, "geometry/v1": {"alignment": 0.5}},
        {"linear/v1": {"accuracy": 60.0}, "geometry/v1": {"alignment": 0.25}, "knn/v1": {"accuracy": 40.0}},
    ]
    pools = alone(*(seeds(run, each)[0] for run, each in zip(runs, scores, strict=True)))
    table, *_ = tables(pools, names(pools), score_lines(pools))
    protocols, _, _, *cells = [list(column.cells) for column in table.columns]
    assert protocols == ["linear/v1", "knn/v1", "geometry/v1"]
    assert cells == [["50", "", "0.5"], ["60*", "40", "0.25*"]]


def test_seeds_of_a_row_are_a_column_of_means_and_spreads(folders):
    first, second, _ = (read_run(folder) for folder in folders)
    three = seeds(first, *({"knn/v1": {"accuracy": value, "k": 9.0}} for value in (50.0, 53.0, 56.0)))
    three[2] = replace(three[2], history=[{**line, "seconds": line["seconds"] + 1} for line in first.history])
    three[0] = replace(three[0], points=[{**point, "monitor": point["monitor"] + 3} for point in first.points])
    pools = pooled([three[2], *seeds(second, {"knn/v1": {"accuracy": 52.0}}), three[0], three[1]])
    assert [pool.seeds for pool in pools] == [(0, 1, 2), (0,)]
    assert names(pools) == ["fedavg (3 seeds)", "fedprox+mu=0.5"]
    assert cells(pools) == {"accuracy": ("53.00 ± 3.00*", "52"), "k": ("9", "")}  # plain where seeds do not differ
    scores, monitor, costs, active, differing = tables(pools, names(pools), score_lines(pools))
    assert "sample standard deviation" in str(scores.title)
    last, total = first.points[-1]["monitor"], sum(line["seconds"] for line in first.history)
    assert list(monitor.columns[1].cells)[-1] == f"{last + 1:.2f} ± 1.73"
    shown = dict(zip(costs.columns[0].cells, costs.columns[2].cells, strict=True))
    assert shown["rounds"] == "3 of 3"
    assert shown["training"] == f"{total + 1:.1f} ± 1.7"
    assert "±" not in shown["sent by clients"]
    share = f"{second.record['activity']['gradient_share']['mean']:.4g}"
    assert [list(column.cells) for column in active.columns] == [["gradient share"], ["0.01"], [""], [share]]
    assert dict(zip(differing.columns[0].cells, differing.columns[1].cells, strict=True))["seed"] == "0, 1, 2"


def test_what_was_counted_of_a_client_is_a_cost_where_a_run_has_it(folders):
    runs = [read_run(folder) for folder in folders[:2]]
    assert "operations" not in str(_costs(runs))
    counted = {"flops": 2.5e9, "memory": 3_000_000, "kept": 0}
    with_it = replace(runs[0], record={**runs[0].record, "costs": counted})
    shown = _costs([with_it, runs[1]])
    assert shown["operations of a client, a round"] == ["GFLOP", "2.5", ""]
    assert shown["memory of a client"] == ["MB", "3.0", ""]


def _costs(runs):
    """Name -> unit and cells of the table of costs."""
    pools = pooled(runs)
    (table,) = (each for each in tables(pools, names(pools), []) if each.title == "costs")
    return {name: cells for name, *cells in zip(*(column.cells for column in table.columns), strict=True)}


def test_a_pool_is_of_one_setting_and_of_as_many_rounds(folders):
    first, second, early = (read_run(folder) for folder in folders)
    same = {"knn/v1": {"accuracy": 50.0}}
    zero, one = seeds(first, same, same)
    (other,) = seeds(first, same, optimizer={"lr": 0.5})
    (named,) = seeds(first, same, scenario="other")
    other, named = (replace(run, config=OmegaConf.merge(run.config, {"seed": 1})) for run in (other, named))
    for run in (other, named, early, replace(one, record={**one.record, "provenance": {"dataset": "other"}})):
        assert len(pooled([zero, run])) == 2
    assert len(pooled([zero, zero])) == 2  # two runs of one seed
    assert len(pooled([early, replace(early, config=zero.config)])) == 1  # both go on, after as many rounds
    assert [pool.seeds for pool in pooled([zero, second, one])] == [(0, 1), (0,)]


def test_clients_are_folded_into_the_worst_with_its_name_the_median_and_the_best(folders):
    run = read_run(folders[0])
    a, b = (
        {f"accuracy of {name}": value for name, value in each.items()}
        for each in ({"x": 40.0, "y_1": 60.0, "z": 70.0}, {"x": 50.0, "y_1": 20.0, "z": 90.0})
    )
    scores = [{"clients/v2": {"accuracy": 55.0, **each}} for each in (a, b, a)]
    pools = pooled(seeds(run, *scores)) + alone(*seeds(run, scores[1], row="other"))
    assert cells(pools) == {
        "accuracy": ("55*", "55*"),
        "worst client": ("33.33 ± 11.55* (x in 2 of 3)", "20 (y_1)"),
        "median client": ("56.67 ± 5.77*", "50"),
        "best client": ("76.67 ± 11.55", "90*"),
    }
    every = cells(pools, clients=True)
    assert list(every) == ["accuracy", "accuracy of x", "accuracy of y_1", "accuracy of z"]
    assert every["accuracy of x"] == ("43.33 ± 5.77", "50*")
    latex = table("latex", pools, score_lines(pools))
    assert r"$\mathbf{33.3 \pm 11.5}$ (x in 2 of 3)" in latex
    assert r"$20.0$ (y\_1)" in latex
    assert "| 20.0 (y\\_1) |" in table("markdown", pools, score_lines(pools))
    worst = {"by-client/v1": {"accuracy": 55.0, "clients": 2.0, "clients_unseen": 2.0, **a}}  # one of four is missing
    assert list(cells(alone(*seeds(run, worst)))) == ["accuracy", "worst client", "clients", "clients_unseen"]
    each = {"accuracy of x": 10.0, "accuracy of x_mean": 50.0, "accuracy of y": 30.0, "accuracy of y_mean": 40.0}
    assert cells(alone(*seeds(run, {"clients/v2": each})))["worst client"] == ("40 (y)",)  # by the mean of encoders


def test_a_score_that_a_seed_lacks_says_of_how_many_it_is(folders):
    run = read_run(folders[0])
    pools = pooled(
        seeds(run, {"knn/v1": {"accuracy": 50.0}}, {"knn/v1": {"accuracy": 60.0}}, {"linear/v1": {"accuracy": 7.0}})
    )
    assert cells(pools)["accuracy"] == ("55.00 ± 7.07 (2 seeds)",)
    assert "| 7.0 (one seed) | 55.0 ± 7.1 (2 seeds) |" in table("markdown", pools, score_lines(pools))


def test_the_tables_of_a_paper_have_a_line_for_each_row(folders):
    first, second, _ = (read_run(folder) for folder in folders)
    fine = {"geometry/v1": {"effective_rank": 4.25, "alignment": 0.5}}
    pools = pooled(
        [
            *seeds(first, {"knn/v1": {"accuracy": 50.0}, **fine}, {"knn/v1": {"accuracy": 53.0}, **fine}),
            *seeds(second, {"knn/v1": {"accuracy": 51.46}}, row=r"a_b&50%\[x"),
        ]
    )
    latex = table("latex", pools, score_lines(pools)).splitlines()
    assert latex[1:5] == [
        r"\begin{tabular}{lrrr}", r"\toprule", r" & seeds & kNN (\%) & effective rank \\", r"\midrule",
    ]  # fmt: skip
    assert latex[5] == r"fedavg & 2 & $\mathbf{51.5 \pm 2.1}$ & $4.2 \pm 0.0$ \\"
    assert latex[6] == r"a\_b\&50\%\textbackslash{}{[}x & 1 & $\mathbf{51.5}$ & -- \\"  # as good, as it is shown
    assert latex[7:] == [r"\bottomrule", r"\end{tabular}"]
    assert "sample standard deviation over 1 to 2 seeds" in latex[0]
    markdown = table("markdown", pools, score_lines(pools), every=True).splitlines()
    assert markdown[:2] == ["|  | seeds | kNN (%) | effective rank | alignment |", "|---|---:|---:|---:|---:|"]
    assert markdown[2] == "| fedavg | 2 | **51.5 ± 2.1** | 4.2 ± 0.0 | 0.500 ± 0.000 |"
    one, other = csv.DictReader(table("csv", pools, score_lines(pools)).splitlines())
    assert (one["row"], one["seeds"], other["seeds"]) == ("fedavg", "0 1", "0")
    assert float(one["knn/v1 accuracy mean"]) == 51.5
    assert float(one["knn/v1 accuracy spread"]) == pytest.approx(1.5 * 2**0.5)
    assert [each["knn/v1 accuracy n"] for each in (one, other)] == ["2", "1"]
    assert [other[f"geometry/v1 alignment {part}"] for part in ("mean", "spread", "n")] == ["", "", "0"]
    assert [other["knn/v1 accuracy mean"], other["knn/v1 accuracy spread"]] == ["51.46", ""]


def test_a_format_prints_the_table_alone(folders, capsys, tmp_path):
    done = list(map(str, folders[:2]))
    (folders[0].parent.parent / "compare.png").unlink(missing_ok=True)
    assert main(["compare", *done, "format=csv"]) == 0
    heading, *rows = csv.reader(capsys.readouterr().out.splitlines())
    assert [len(row) for row in rows] == [len(heading)] * 2
    assert not (folders[0].parent.parent / "compare.png").exists()
    assert main(["compare", *done, "format=latex", "metrics=all", f"output={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("% ")
    assert printed.endswith("\\end{tabular}\n")
    assert "alignment" in printed
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".pdf", ".png", ".svg"]
    unscored = shutil.copytree(folders[2], tmp_path / "unscored")
    assert main(["compare", str(folders[2]), str(unscored), "format=csv"]) == 2
    assert "no run has a score" in capsys.readouterr().err


def test_the_figure_has_a_colour_a_row_and_bands_from_the_lowest_seed_to_the_highest(folders, tmp_path, monkeypatch):
    first, second, early = (read_run(folder) for folder in folders)
    two = seeds(first, *({"knn/v1": {"accuracy": value}} for value in (40.0, 60.0)))
    two[1] = replace(two[1], points=[{**point, "monitor": point["monitor"] + 2} for point in first.points])
    pools = [*pooled(two), *alone(early, second)]
    assert [look.colour for look in looks(pools)] == [LIGHT[0], LIGHT[0], LIGHT[1]]
    assert len({(look.colour, look.dash) for look in looks(pools)}) == 3
    assert len({look.colour for look in looks(alone(first, early))}) == 2  # of one row alone
    bands = []
    monkeypatch.setattr(Axes, "fill_between", lambda *args, color, **_: bands.append((args[1:], color)))
    for folder in ("one", "other"):
        draw(pools, names(pools), tmp_path / folder / "compare.png")
    last = first.points[-1]["monitor"]
    (rounds, low, high), colour = bands[1]
    assert (list(rounds)[-1], list(low)[-1], list(high)[-1], colour) == (3, last, last + 2, LIGHT[0])
    for ending, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")):
        one, other = ((tmp_path / folder / f"compare{ending}").read_bytes() for folder in ("one", "other"))
        assert one.startswith(start)
        assert one == other
    assert b"/Type3" not in (tmp_path / "one" / "compare.pdf").read_bytes()


def test_an_unfinished_run_has_its_rounds_and_no_scores(folders, capsys, tmp_path):
    assert main(["compare", *map(str, folders), f"output={tmp_path / 'figures'}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"1 of {read_run(folders[2]).config.federation.rounds}" in printed
    assert f"figure: {tmp_path / 'figures' / 'compare.png'}" in printed
    empty = [replace(read_run(folder), history=[], record={}, points=[]) for folder in folders[:2]]
    draw(alone(*empty), ["a", "b"], tmp_path / "empty.png")  # runs without any round
    with Image.open(tmp_path / "empty.png") as one, Image.open(tmp_path / "figures" / "compare.png") as other:
        assert other.width > other.height
        assert one.width < other.width


def test_a_name_has_what_tells_runs_apart_and_the_figure_lies_in_the_folder_that_holds_all(folders):
    first, second, third = (read_run(folder) for folder in folders)
    assert names(alone(first, second)) == ["fedavg", "fedprox+mu=0.5"]
    assert names(pooled([first, third])) == ["fedavg seed 0", "fedavg seed 1"]
    assert names(alone(first, first)) == [str(first.folder)] * 2
    two = Pool(tuple(seeds(first, {}, {})))
    assert names([two, *alone(third)]) == ["fedavg seeds 0, 1", "fedavg seed 1"]
    assert names([two, two]) == [f"{common_folder(two.runs)} (2 seeds)"] * 2
    assert names([two, *alone(second)], counted=False) == ["fedavg", "fedprox+mu=0.5"]
    assert common_folder([first, third]).resolve() == folders[0].parent.resolve()
    assert common_folder([first, second]).resolve() == folders[0].parent.parent.resolve()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{0}"], "with two run folders or more"),
        (["{0}", "{0}"], "is named twice"),
        (["{0}", "nowhere"], "nowhere is not a run folder"),
        (["{0}", "{1}", "seed=1"], "with two run folders or more"),
        (["{0}", "{1}", "format=latx"], "format=latx (did you mean 'latex'?): choose latex, csv, markdown"),
        (["{0}", "{1}", "format=csv", "metrics=accuracy"], "metrics=accuracy: give metrics=all"),
        (["{0}", "{1}", "clients=3"], "clients=3: give true or false"),
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
