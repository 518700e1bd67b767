"""The page and the terminal table: their content, and that the same records give the same bytes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest
from rich.console import Console

from leaderboards.machines import COMMITS
from leaderboards.pages import site
from leaderboards.pages.board import boards, markdown, scenarios, setting, spans, table, write
from leaderboards.rank import board, fitted
from leaderboards.schema import Record, RecordError
from tests.leaderboards.test_schema import BOARD, record, records

ROOT = Path(__file__).parents[3]
UNVISITED = {"up": {}, "down": {}, "visits": 0}
RECORDS = [*BOARD, record("untrained", 0, 30.25, bytes=UNVISITED)]
NOISE = {"delta": 1e-05, "covers": ["R"], "clients": {"0": 8.25}}
NOISY = [record("fedsc", seed, 45.0, epsilon=8.0 + seed / 4, privacy=NOISE) for seed in range(2)]
UNLABELLED = {"geometry/v1": {"effective_rank": 5.25}, "label-free/v1": {"score": 0.1234}}


def terminal(records: list[Record], width: int) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(table(board(records, "cifar10-micro"), "cifar10-micro [bold]"))
    return captured.get()


def test_the_page_holds_the_board():
    page = markdown(RECORDS)
    assert page.startswith("# Leaderboards\n")
    margin = fitted(board(RECORDS, "cifar10-micro")).margins["ssd"]["orchestra"]
    expected = [
        "## cifar10-micro",
        "| 1-2 | ssd | 51.0 ± 1.7 | 43.5 | 46.8 MB | 3 |",
        "| 1-3 | orchestra | 49.0 ± 0.9 | 43.5 | 46.8 MB | 3 |",
        "| 2-3 | fedavg-byol | 47.0 ± 0.9 | 43.5 | 46.8 MB | 3 |",
        "| – | untrained | 30.2 | 43.5 | – | 1 |",
        f"3 rows of 3 seeds are ranked. Two rows differ if their means are more than {margin:.1f} points "
        "apart; the error's standard deviation is 0.86.",
        "![cifar10-micro: linear/v1 accuracy, a dot per seed](figures/cifar10-micro.svg)",
        "Run on 2 CPU cores.",
    ]
    assert {*expected} <= {*page.splitlines()}
    assert [line.count("|") for line in page.splitlines() if line.startswith("|")] == [7] * 6


def test_several_boards_are_listed_with_the_addresses_of_their_sections():
    listed = "Boards: [cifar10-micro](#cifar10-micro), [micro-a0.001](#micro-a0001)."
    assert listed in markdown([*RECORDS, record(scenario="micro-a0.001")]).splitlines()
    assert "Boards:" not in markdown(RECORDS)


@pytest.mark.parametrize(
    ("measured", "claimed", "told"),
    [
        ((49.0, 51.0), (50.0, 51.0), "50.5 claimed, 50.0 measured; no score differs by more than 2 %"),
        ((49.383, 51.0), (50.0, 51.0), "50.5 claimed, 50.2 measured; no score differs by more than 1.3 %"),  # 1.234 %
        ((50.0, 51.0), (50.0, 51.0), "50.5 claimed, 50.5 measured; no score differs"),
        ((None, None), (None, None), "no score differs"),  # none has a headline
        ((50.0, ...), (50.0, 51.0), None),  # one is not verified
    ],
)
def test_a_verified_row_shows_what_was_claimed_and_what_was_measured(measured, claimed, told):
    rows = [record("theirs", seed, value) for seed, value in enumerate(claimed)]
    for each, again in zip(rows, measured, strict=True):
        scores = {} if again is ... else {"recomputed": record(linear=again)["scores"]}
        mark = "verified" if scores else "self-reported"
        each["submission"] = {"mark": mark, "chosen": "its author", "bundle": "0" * 64, **scores}
    expected = f"Measured again, from the encoders of submitted rows: theirs ({told})."
    shown = terminal([*BOARD, *rows], 120)
    assert ("theirs (verified)" in shown) == (told is not None)
    assert (expected in markdown([*BOARD, *rows])) == (expected in " ".join(shown.split())) == (told is not None)
    assert site.content([*BOARD, *rows], [], None)["scenarios"]["cifar10-micro"]["submissions"] == (
        expected if told else ""
    )


def test_epsilon_has_a_column_where_a_row_has_spent_any():
    assert "epsilon" not in markdown(RECORDS) + terminal(RECORDS, width=100)
    lines = markdown([*RECORDS, *NOISY]).splitlines()
    head, _, *rows = [line for line in lines if line.startswith("|")][:7]
    assert {line.count("|") for line in (head, *rows)} == {8}
    assert head.endswith("| seeds | epsilon |")
    ends = {line.split(" | ")[1]: line.rpartition("| ")[2] for line in rows}
    assert (ends["fedsc"], ends["ssd"]) == ("8.25 (R) |", "– |")
    assert any(line.startswith("epsilon, at delta 1e-05, ") and "are not covered" in line for line in lines)
    assert {"epsilon", "8.25", "(R)"} <= {*terminal([*RECORDS, *NOISY], width=100).split()}
    assert "([privacy](../docs/how-to/privacy.md))" in markdown(NOISY)
    away = markdown(NOISY, linked=False)  # from the suite's pages
    assert "(`docs/how-to/privacy.md` of the suite)" in away
    assert "../docs" not in away


def test_scores_by_client_have_columns_where_a_row_has_any():
    assert "worst tenth" not in markdown(RECORDS)
    scores = {"accuracy": 61.0, "accuracy_worst_tenth": 42.0, "gini": 0.1234, "accuracy_unseen": 57.0}
    page = markdown(
        [*RECORDS, record("ssd", 7, 50.0, scores={"by-client/v1": scores, "linear/v1": {"accuracy": 50.0}})]
    )
    (head,) = {line for line in page.splitlines() if "| worst tenth (%) |" in line}
    assert "| by client (%) | worst tenth (%) | unseen clients (%) | bytes up" in head
    assert "| 61.0 | 42.0 | 57.0 |" in page


def test_what_was_counted_is_a_mean_over_the_seeds_that_have_it():
    each = {"parts": {}, "phases": {}, "kept": 0, "images": 20, "flops_max": 2e9}
    counted = [record("a", seed, 50.0, costs={**each, "flops": 1e9 * seed, "memory": 2_000_000}) for seed in (1, 2)]
    rows = board([*counted, record("a", 3, 50.0), record("b", 1, 40.0)], "cifar10-micro")
    assert [(row.flops, row.memory) for row in rows] == [(1.5e9, 2_000_000), (None, None)]


def test_the_committed_page_is_short():
    """Other boards are on other pages, see `elsewhere` of comparisons.yaml, and details on the site."""
    assert len((ROOT / "leaderboards" / "README.md").read_text().split()) < 6400


def test_activity_has_a_column_and_a_row_that_hardly_acts_is_no_evidence():
    assert "activity" not in markdown(RECORDS)
    rows = {"fedavg-simclr": [50.0, 50.0, 53.0], "fedprox": [56.0, 58.0, 57.0], "fedx": [66.0, 68.0, 67.0]}
    given = {"fedprox": 0.0014, "fedx": 0.25}
    entries = records(rows)
    for each in entries:
        if mean := given.get(each["row"]):
            each["activity"] = {"gradient_share": {"mean": mean, "bound": 0.01, "measures": "the added_part"}}
    page = markdown(entries)
    assert "| seeds | activity |" in page
    assert "| 3 | gradient share 0.0014 ∅ |" in page
    assert "| 3 | gradient share 0.25 |" in page
    assert "| 3 | – |" in page
    assert "gradient share, the added\\_part (hardly acts below 0.01).\n∅ hardly acts: " in page
    (line,) = [line for line in page.splitlines() if line.startswith("What rows add")]
    assert "(2 pairs): fedx +16.0 (" in line
    assert line.endswith("; 1 hardly acts.")


def test_the_page_says_what_rows_add_and_whether_that_counts():
    rows = {
        "fedavg-align_uniform": [50.0, 50.0, 53.0], "ssd": [56.0, 56.2, 59.1], "ssd-dsr": [50.25, 51.25, 52.25],
        "ssd-pd": [46.0, 45.9, 49.1], "ssd-hard": [40.0, 41.0],
    }  # fmt: skip
    page = markdown(records(rows))
    (line,) = [line for line in page.splitlines() if line.startswith("What rows add")]
    told = r"What rows add to those they build on \(4 pairs\): ssd \+6.1 \(\S+ to \S+\) on fedavg-align\\_uniform; "
    told += r"ssd-pd -4.0 \(\S+ to \S+\) on fedavg-align\\_uniform; 1 no clear difference; 1 too few seeds\."
    assert re.fullmatch(told, line)
    assert "What rows add" not in markdown([record("ssd", 0, 50.0), record("fedavg-byol", 0, 50.0)])


def test_the_page_and_the_terminal_say_when_the_order_is_no_ranking():
    page, printed = "the order is not a ranking", "no rank: that takes two rows of 3 seeds"
    assert page not in markdown(RECORDS)
    alone = [record("ssd", seed, 50.0 + seed) for seed in range(3)]
    for unranked in (RECORDS[::3], RECORDS[1:3] + RECORDS[6:], alone):
        assert page in markdown(unranked)
        assert printed in terminal(unranked, width=80)
    assert "| – | ssd |" in markdown(alone)
    unlabelled = [record("plain", scores=UNLABELLED)]
    assert "no rank" not in terminal(RECORDS, width=80) + terminal(unlabelled, width=80)


def test_the_page_says_how_far_apart_rows_are_told_and_how_much_they_vary():
    even = [record(f"row{row}", seed, 50.0 + (row + seed) % 3) for row in range(12) for seed in range(3)]
    assert " where they vary more" not in markdown(even)
    wide = records({"wide": [40.0, 60.0, 44.0]})
    (line,) = [line for line in markdown([*even, *wide]).splitlines() if " where they vary more" in line]
    found = fitted(boards([*even, *wide])["cifar10-micro"])
    low, typical, high = found.margin_range
    assert f"more than {low:.1f} points apart, or up to {high:.1f} where" in line
    assert f"{typical:.1f} for the median" in line
    assert line.endswith(f"{min(found.spreads.values()):.2f} to {found.spreads['wide']:.2f}.")


def test_rows_whose_images_are_divided_otherwise_are_named():
    words, usual = "divided otherwise", record()["provenance"]
    assert words not in markdown(RECORDS)
    public = [record("fedca", seed, 40.0, provenance={**usual, "partition": "f" * 64}) for seed in range(2)]
    assert f"{words}, because a part of them is public: fedca." in markdown([*RECORDS, *public])


def test_accuracies_below_the_untrained_encoder_are_marked():
    assert "↓ is below" not in markdown(RECORDS)
    page = markdown([*RECORDS, record("local", 0, 30.0)])
    assert "| – | local | 30.0 ↓ | 43.5 |" in page
    words = "↓ is below the untrained encoder, of the row's architecture where the board has one,"
    assert f"\n{words} by means over the seeds that both have and without a test.\n" in page


def test_the_page_names_the_images_of_servers_that_train_and_that_older_records_do_not_count():
    provenance = {**record()["provenance"], "public": "0f"}
    page = markdown([*RECORDS, record("flesd", 0, 50.0, provenance=provenance)])
    assert "| 100,000 + ? | 1 |" in page
    assert "which the row's records do not count" in page
    page = markdown([*RECORDS, record("flesd", 0, provenance=provenance, server={"images": 125_000, "seconds": 30.0})])
    for end in (
        "bytes up | images: clients + server | seeds",
        "46.8 MB | 100,000 + 125,000 | 1",
        "46.8 MB | 100,000 | 3",
    ):
        assert f"| {end} |" in page
    assert "do not count" not in page
    assert "+ server" not in markdown(RECORDS)


def test_a_scenario_is_described_by_what_most_rows_share():
    shared = {
        **{"data.name": "cifar10", "partition.name": "dirichlet", "partition.alpha": 0.1, "partition.clients": 10},
        **{"encoder.class": "methods.networks.convnet", "federation.rounds": 5, "federation.participation": 1.0},
        **{"training.steps": 31, "training.epochs": 1},
    }
    alone = {**shared, "partition.clients": 1, "federation.participation": 0.5, "training.steps": None}
    rows = [record("a", settings=shared), record("b", settings=shared), record("centralized", settings=alone)]
    common = "partition dirichlet, alpha 0.1, encoder convnet, rounds 5"
    assert f"data cifar10, clients 10, {common}, steps a visit 31." in markdown(rows).splitlines()
    words = f"data cifar10, clients 1, {common}, participation 0.5, epochs a visit 1."
    assert words in markdown(rows[2:]).splitlines()
    assert setting([]) == ""


def test_neighbours_on_the_board_are_named_by_the_first_and_the_last():
    for names, own, text in [
        ("", "a", "none"),
        ("bcdefg", "a", "b to g (6)"),
        ("abcefg", "d", "a to c (3), e to g (3)"),
        ("abcdefg", "d", "a to g (6)"),
        ("gba", "d", "a, b, g"),
        ("acde", "d", "a, c, e"),
    ]:
        assert spans(names, list("abcdefg"), own) == text


def test_the_page_says_what_makes_rows_hard_to_compare():
    """Machines, runs that their privacy budget ended, which count, and unfinished ones, which do not; other names."""
    other = record("fedavg-byol", 2, 41.0)
    other["provenance"]["hardware"] = "NVIDIA X"
    lines = markdown([*RECORDS, other]).splitlines()
    assert "Run on 2 CPU cores; on NVIDIA X: client seconds of unlike machines do not compare." in lines
    (kinds,) = (line for line in lines if line.startswith("Kinds of machine. "))
    assert "; several: fedavg-byol. Kind and row are not confounded" in kinds
    mixed = record("ssd", 0, 41.0, deviations=[f"{COMMITS}: {'a' * 40}, {'b' * 40}"])
    mixed["provenance"]["hardware"] = "NVIDIA X"
    page = markdown([record("fedavg", 0, 50.0), mixed])
    assert "Kinds of machine. 2 CPU cores alone: fedavg; NVIDIA X alone: ssd. Kind and row are confounded:" in page
    assert "Rounds by several commits: ssd, seed 0 (aaaaaaa, bbbbbbb)." in page
    assert "confounded" not in markdown(RECORDS)
    ended = "client 1 would spend epsilon 9 of its budget of 8"
    early = record("fedsc", 1, 48.0, rounds={"done": 3, "planned": 5, "ended": ended})
    page = markdown([record("fedsc", 0, 50.0), early, record(seed=3, rounds={"done": 2, "planned": 5})])
    assert [line for line in page.splitlines() if line.startswith(("Ended early", "Left out"))] == [
        f"Ended early: fedsc, seed 1, after 3 of 5 rounds: {ended}.",
        "Left out: fedavg-byol, seed 3, 2 of 5 rounds.",
    ]
    assert "| 49.0 ± 1.4 |" in page
    assert "| fedavg-byol |" not in page
    page = markdown([record("fedavg", scenario="one"), record("fedavg-byol", scenario="two")])
    one, two = page.split("\n## ")[1:3]
    assert "Of the names, fedavg is the row that other boards call fedavg-byol." in one
    assert "other boards call" not in two


def test_names_cannot_break_the_page_and_missing_scores_are_dashes():
    name = r"<b>|`x`*_[a](b)\|&amp;~" + "\nnext"
    page = markdown([record(name, 0, 50.0, scenario="a|b <i>\n(c)")])
    escaped = r"&lt;b&gt;\|\`x\`\*\_\[a\](b)\\\|&amp;amp;\~ next"
    assert f"| – | {escaped} | 50.0 |" in page
    assert r"## a\|b &lt;i&gt; (c)" in page.splitlines()
    assert "](figures/a%7Cb%20%3Ci%3E%0A%28c%29.svg)" in page
    assert "| – | fedavg-byol | – | – | 46.8 MB |" in markdown([record(linear=None, scores={})])
    assert markdown([]).endswith("No run has been recorded yet.\n")


def test_tables_and_figures_are_folded_and_the_table_of_the_only_board_is_not():
    opened = "<details open><summary>The board: "
    assert opened in markdown(RECORDS)
    page = markdown([*RECORDS, record(scenario="elsewhere")])
    assert opened not in page
    assert "<summary>The board: 1 row</summary>" in page
    depth = 0
    for line in page.splitlines():
        depth += line.count("<details>") - line.count("</details>")
        assert depth >= line.startswith(("|", "!["))
    assert depth == 0


def test_the_terminal_table_shows_names_as_they_are_and_numbers_whole():
    text = terminal([*RECORDS, record("[red]x[/red]", 0, 20.0)], width=80)
    assert "cifar10-micro [bold]" in text
    assert "[red]x[/red]" in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "1-2 ssd 51.0 ± 1.7 43.5 ± 0.0 46.8 MB 1.24 kB 1.6 3" in lines
    assert "– untrained 30.2 43.5 – – – 1" in lines
    narrow = terminal([*RECORDS, record("a-name-of-many-words" * 4)], width=66)
    assert "…" not in narrow
    assert "51.0 ± 1.7  43.5 ± 0.0  46.8 MB  1.24 kB" in narrow


def test_images_without_labels_have_a_terminal_table_of_scores_that_need_none_and_no_empty_figure(tmp_path: Path):
    heading = terminal([*RECORDS, record("other", 0, scores=UNLABELLED)], width=80)
    assert "linear" in heading
    assert "label-free" not in heading
    records = [record("plain", seed, scores=UNLABELLED) for seed in range(2)]
    text = terminal(records, width=80)
    assert "linear" not in text
    assert "– plain 5.2 ± 0.0 0.123 ± 0.000" in " ".join(text.split())
    write(records, tmp_path)
    assert not list((tmp_path / "figures").iterdir())
    page = (tmp_path / "README.md").read_text()
    assert "No row has a linear probe" in page
    assert ".svg" not in page


def test_write_makes_the_page_and_a_figure_for_each_scenario_which_no_two_may_share(tmp_path: Path):
    write([*RECORDS, record(scenario="orchestra/cifar10")], tmp_path)
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*"))
    assert files == ["README.md", "figures/cifar10-micro.svg", "figures/orchestra-cifar10.svg"]
    assert "](figures/orchestra-cifar10.svg)" in (tmp_path / "README.md").read_text(encoding="utf-8")
    entries = [record(scenario="a/b"), record(scenario="a-b")]
    with pytest.raises(RecordError, match=r"scenarios a-b and a/b share a-b.svg"):
        write(entries, tmp_path)
    assert scenarios(entries[:1] * 2) == ["a/b"]


def test_the_bytes_depend_on_the_records_only(tmp_path: Path):
    """And matplotlib is loaded for a figure only."""
    write(RECORDS, tmp_path / "here")
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red", "svg.hashsalt": None}):
        write(RECORDS[::-1], tmp_path / "restyled")
    script = (
        "import json, sys; from leaderboards.pages.board import write; assert 'matplotlib' not in sys.modules;"
        "write(json.loads(sys.argv[1]), sys.argv[2]);"
        "assert not {'torch', 'lightning', 'matplotlib.pyplot'} & set(sys.modules)"
    )
    words = [sys.executable, "-c", script, json.dumps(RECORDS), str(tmp_path / "elsewhere")]
    subprocess.run(words, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo"}, check=True)
    for name in ("README.md", "figures/cifar10-micro.svg"):
        (written,) = {(tmp_path / folder / name).read_bytes() for folder in ("here", "restyled", "elsewhere")}
        assert b"<dc:date>" not in written


def test_a_board_whose_ranked_rows_a_study_shows_is_named_with_the_study_where_that_is_at_hand():
    whole = records({"flesd": [50.0, 51.0, 52.0], "fedavg": [48.0, 49.1, 50.0]}, scenario="cifar10-micro-t2")
    page = markdown([*RECORDS, *whole])
    assert "[flesd](../docs/studies/flesd.md): cifar10-micro-t2" in page
    assert "## cifar10-micro-t2" not in page
    other = records({"more": [1.0, 2.0, 3.1]}, scenario="cifar10-micro-t2")
    for shown in (markdown([*RECORDS, *whole], linked=False), markdown([*RECORDS, *whole, *other])):
        assert "## cifar10-micro-t2" in shown
