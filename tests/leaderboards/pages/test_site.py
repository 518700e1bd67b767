"""The site in a browser, on a desktop and on a phone."""

import csv
import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from PIL import Image

from leaderboards import palette
from leaderboards.pages import site
from leaderboards.papers.tables import Ours, Published
from leaderboards.papers.training import Given
from leaderboards.papers.verdicts import judged
from tests.leaderboards.test_schema import record

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 800}
HOSTILE = "<script>document.title='changed'</script>"
CURVE = [
    {"round": r, "monitor": 30.0 + r, "bytes": 1e6 * r, "seconds": 2.0 * r, "uniformity": -r / 5, "alignment": 0.3}
    for r in range(1, 6)
]
TRAINING = {"lr": Given(0.1, "code", "*"), "head": Given([512], "paper", "elsewhere ssd")}
RECORDS = [
    *(record("ssd", seed, 50.0 + seed, curve=CURVE) for seed in range(3)),
    *(record("fedavg-byol", seed, 40.0 + 2 * seed, method="fedavg", curve=CURVE[: 5 * seed]) for seed in range(3)),
    record("orchestra", 0, 45.0, method="orchestra", objective="cluster"),
    record(HOSTILE, 0, 30.0, method=HOSTILE, objective="<b>bold</b>"),
    record(scenario="elsewhere"),
]
OURS = Ours("cifar10-micro", "ssd", "linear/v1 accuracy")
CELLS = [
    Published("p", "Paper", "cite", "1", "title", "theirs", heading, value, None, "%", {}, (HOSTILE,), ours, index)
    for index, (heading, value, ours) in enumerate((("near", 51.5, OURS), ("far", 70.0, OURS), ("none", 60.0, None)))
]
CELLS[2] = replace(CELLS[2], training=TRAINING)


def written(folder, records):
    site.write(records, judged(CELLS, records), folder)
    return (folder / "site" / "index.html").as_uri()


def test_the_data_hold_rows_and_runs_and_depend_on_the_records_only(tmp_path):
    written(tmp_path, RECORDS)
    first = (tmp_path / "site" / "data.js").read_text()
    data = json.loads(first.removeprefix(site.BEGIN).removesuffix(site.END))
    assert [row["row"] for row in data["scenarios"]["cifar10-micro"]["rows"]][:2] == ["ssd", "orchestra"]
    assert data["runs"]["cifar10-micro/ssd/seed0"]["scores"]["linear/v1"]["accuracy"] == 50.0
    assert "</" not in first  # no text can end the HTML element that loads it
    written(tmp_path, RECORDS)
    assert (tmp_path / "site" / "data.js").read_text() == first


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    return written(tmp_path_factory.mktemp("board"), RECORDS)


@pytest.fixture
def visit(browser, address):
    """Opens an address at a size; at the end fails on any error, dialog or request to the network."""
    contexts, problems = [], []

    def note(request):
        if not request.url.startswith(("file:", "data:", "blob:file:", "blob:null")):
            problems.append(request.url)

    def open_page(route="", size=DESK, at=address, **options):
        contexts.append(browser.new_context(viewport=size, **options))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("request", note)
        page.goto(f"{at}#/{route}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def column(page, index):
    """The texts of a column of the board, counted from 1: the row, its rank, the linear probe, ..."""
    return page.locator(f"table >> nth=0 >> tbody tr td:nth-child({index})").all_inner_texts()


def rows(page):
    return [text.strip().split("\n")[0] for text in column(page, 1)]


def curves_of(page):
    return page.get_by_role("figure").filter(has_text="Over training")


def test_a_row_that_hardly_acts_is_marked_with_what_is_measured(visit, tmp_path):
    activity = {"gradient_share": {"mean": 0.0014, "bound": 0.01, "measures": HOSTILE}}
    at = written(tmp_path, [record("ssd", 0, 50.0, activity=activity), record("plain")])
    cell = visit("board", at=at).get_by_text("gradient share 0.0014 ∅ hardly acts")
    assert cell.get_attribute("title") == f"gradient_share: {HOSTILE}; hardly acts below 0.01"
    words = f"gradient share 0.0014 ({HOSTILE}; hardly acts below 0.01)"
    assert words in visit("run/cifar10-micro/ssd/seed0", at=at).inner_text("body")


def test_rows_are_sorted_by_what_is_clicked_and_all_scores_can_be_shown(visit):
    page = visit()
    assert rows(page) == ["ssd", "orchestra", "fedavg-byol", HOSTILE]
    assert column(page, 3)[0] == "51.0 ± 1.0"
    by_probe = page.get_by_role("button", name="linear (%)")
    by_probe.click()
    assert rows(page)[0] == "ssd"
    by_probe.click()
    assert rows(page) == [HOSTILE, "fedavg-byol", "orchestra", "ssd"]
    assert page.locator("th[aria-sort]").inner_text().startswith("linear (%)")
    page.get_by_role("button", name="row", exact=True).click()
    assert rows(page)[-1] == "ssd"
    page.get_by_label("all scores").check()
    page.get_by_role("button", name="made at").wait_for()
    assert "2 CPU cores" in page.locator("tbody tr").first.inner_text()


def test_all_scores_are_those_of_every_protocol_with_three_digits_where_decimals_are_not_told(visit, tmp_path):
    further = {"scores": {"linear/v1": {"accuracy": 40.0}, "other/v1": {"rate": 2e-7, "size": 1.23456}}}
    page = visit(at=written(tmp_path, [record("ssd", 0, 50.0), record("fedavg", 0, **further)]))
    heads = page.locator("th")
    assert not [text for text in heads.all_inner_texts() if "other" in text]
    page.get_by_label("all scores").check()
    page.get_by_role("button", name="other/v1 size").wait_for()
    at = heads.all_inner_texts().index("other/v1 rate") + 1
    assert [column(page, at), column(page, at + 1)] == [["–", "2e-7"], ["–", "1.23"]]


def test_names_without_a_gap_fit_a_phone_on_every_page(visit, tmp_path):
    name, scenario = "a_name_" * 20, "a_scenario_" * 10
    shared = {"scenario": scenario, "method": name, "curve": CURVE}
    entries = [record(f"{name}{k}", seed, 50.0 + k, **shared) for k in (1, 2) for seed in range(3)]
    early = record(f"{name}3", 0, None, scenario=scenario, rounds={"done": 2, "planned": 5})
    cell = replace(CELLS[0], name=name, cite=name, table=name, title=name, row=name, column=name, remarks=(name,))
    site.write([*entries, early], judged([cell], []), tmp_path)
    at = (tmp_path / "site" / "index.html").as_uri()
    for route in ("", f"board/{name}", "papers", f"run/{scenario}/{name}1/seed1", f"run/{scenario}/{name}1/seed9"):
        page = visit(route, size=PHONE, at=at)
        page.evaluate("document.querySelectorAll('details').forEach((fold) => (fold.open = true))")
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"], route


@pytest.mark.parametrize("size", [DESK, PHONE])
def test_rows_are_filtered_by_name_and_by_method_and_a_page_fits_a_phone_with_names_in_sight(visit, size):
    page = visit(size=size)
    page.get_by_label("find a row").fill("SSD")
    assert rows(page) == ["ssd"]
    assert page.get_by_role("status").inner_text() == "1 of 4 rows"
    page.get_by_label("find a row").fill("")
    page.get_by_label("method").select_option("orchestra")
    assert rows(page) == ["orchestra"]
    assert page.evaluate("document.documentElement.scrollWidth") == size["width"]
    page.locator(".wide").first.evaluate("box => box.scrollLeft = 300")
    assert size == DESK or page.locator("td.row").first.bounding_box()["x"] < 40
    page.get_by_label("scenario").select_option("elsewhere")  # where no row has that method
    page.get_by_role("heading", name="elsewhere").wait_for()
    assert rows(page) == ["fedavg-byol"]


def test_a_name_that_is_markup_is_text_and_an_unknown_address_shows_a_page(visit):
    page = visit()
    page.get_by_text("<b>bold</b>").wait_for()
    page.get_by_role("link", name=HOSTILE, exact=True).click()
    page.get_by_role("heading", name=HOSTILE).wait_for()
    assert page.title() != "changed"
    visit("papers").get_by_text(HOSTILE).wait_for()
    for route in ("constructor", "board/toString", "board/__proto__", "papers/nonsense", "run/%E0%A4%A"):
        assert visit(route).get_by_role("heading").first.inner_text()


def test_ticked_rows_are_compared_with_one_another(visit):
    page = visit()
    page.get_by_label("compare orchestra").uncheck()
    page.get_by_label(f"compare {HOSTILE}").uncheck()
    table = page.get_by_role("figure").filter(has_text="seed by seed").locator("tbody tr")
    points, margin = "-10.0, -9.0, -8.0", "2.48"  # of two rows, the paired t-test's: 4.303 / sqrt(3)
    assert table.all_inner_texts() == ["\t".join(["fedavg-byol", "-9.00 ± 1.00", margin, "worse", "0 of 3", points])]
    page.get_by_label("base").select_option("fedavg-byol")
    points = points.replace("-", "")
    assert table.all_inner_texts() == ["\t".join(["ssd", "9.00 ± 1.00", margin, "better", "3 of 3", points])]
    assert page.evaluate("document.activeElement.dataset.key") == "base"
    curves = curves_of(page)
    assert curves.locator("polyline").count() == 2
    page.get_by_label("against").select_option("bytes")
    assert "bytes up and down" in curves.inner_text()
    curves.locator(".point").first.hover(force=True)  # the other row has the same curve
    status = curves.get_by_role("status")
    assert status.inner_text() == "ssd, round 1: 1 M, 31"
    curves.get_by_role("img").press("ArrowRight")
    assert status.inner_text() == "ssd, round 2: 2 M, 32"
    page.mouse.move(0, 0)
    assert not status.is_visible()


def test_a_chosen_row_shows_which_rows_are_better_and_which_are_worse(visit):
    page = visit()
    choice = page.get_by_label("set beside")
    choice.select_option("ssd")
    page.get_by_role("button", name="beside ssd").wait_for()
    assert column(page, 2) == ["1", "–", "2", "–"]
    beside = [cell.get_attribute("title") or cell.inner_text() for cell in page.locator("th").all()].index("beside ssd")
    assert column(page, beside + 1) == ["this row", "–", "worse", "–"]
    choice.select_option("fedavg-byol")
    assert page.url.endswith("#/board/cifar10-micro/fedavg-byol")
    page.reload()  # the choice is in the address
    assert column(page, beside + 1) == ["better", "–", "this row", "–"]
    choice.select_option("none")
    assert not page.get_by_role("button", name="beside ").count()


def test_what_rows_add_is_a_table_of_pairs_with_their_intervals_and_verdicts(visit, tmp_path):
    assert not visit().get_by_role("heading", name="What a row adds").count()
    base = [record("fedavg-align_uniform", seed, x) for seed, x in enumerate((48.0, 49.0, 50.5))]
    page = visit(at=written(tmp_path, [*RECORDS, *base]))
    (line,) = page.get_by_role("region", name="what a row adds").locator("tbody tr").all_inner_texts()
    row, over, points, interval, p, verdict, *_ = line.split("\t")
    assert (row, over, points, verdict) == ("ssd", "fedavg-align_uniform", "1.8", "more")
    assert interval.startswith("+1.1 to +2.")
    assert float(p) < 0.05


def test_rows_without_a_curve_are_named(visit):
    page = visit()
    curves = curves_of(page)
    assert curves.get_by_text("No curve:").inner_text() == f"No curve: orchestra, {HOSTILE}."
    assert curves.locator(".name").all_text_contents() == ["ssd", "fedavg-byol"]
    curves.get_by_text("Not all seeds: fedavg-byol (2 of 3 seeds).").wait_for()
    options = page.get_by_label("curves of").locator("option").all_inner_texts()
    assert options == ["kNN on held-out train (%)", "alignment", "uniformity (nats)"]


def test_rows_without_a_rank_keep_the_boards_order_and_unfinished_runs_and_other_names_are_told(visit, tmp_path):
    scores = (("low", 40.0), ("high", 60.0), ("middle", 50.0), ("fedavg", 30.0))
    early = record("slow", 3, None, rounds={"done": 2, "planned": 5})
    entries = [*(record(name, 0, score) for name, score in scores), early, record(scenario="other")]
    page = visit("board/cifar10-micro", at=written(tmp_path, entries))
    page.get_by_text("Not finished, and left out: slow, seed 3, 2 of 5 rounds.").wait_for()
    assert rows(page) == ["high", "middle", "low", "fedavg"]
    page.get_by_text("Of the names, fedavg is the row that other boards call fedavg-byol.").wait_for()


@pytest.mark.parametrize("size", [DESK, PHONE])
def test_nine_lines_look_different_and_have_their_names_at_their_ends_apart_from_each_other(visit, tmp_path, size):
    page = visit(size=size, at=written(tmp_path, [record(f"row-{k}", 0, 50 - k, curve=CURVE) for k in range(9)]))
    for k in range(5, 9):
        page.get_by_label(f"compare row-{k}").check()
    figure = curves_of(page)
    lines, names = figure.locator("polyline"), figure.locator(".name")
    looks = {line.evaluate("l => l.style.stroke + l.style.strokeDasharray") for line in lines.all()}
    assert len(looks) == 9
    assert sorted(names.all_text_contents()) == [f"row-{k}" for k in range(9)]
    boxes = sorted((name.bounding_box() for name in names.all()), key=lambda box: box["y"])
    assert all(one["y"] + one["height"] <= two["y"] + 0.5 for one, two in pairwise(boxes))
    edge = figure.bounding_box()
    assert all(box["x"] + box["width"] <= edge["x"] + edge["width"] for box in boxes)


@pytest.mark.parametrize(("theme", "hues"), [("light", palette.LIGHT), ("dark", palette.DARK)])
def test_a_row_has_its_colour_of_the_palette_wherever_it_is_drawn(visit, theme, hues):
    page = visit(color_scheme=theme)
    colour = "rgb({}, {}, {})".format(*bytes.fromhex(hues[palette.hue("ssd")][1:]))
    stroke, lines = "line => getComputedStyle(line).stroke", page.locator("polyline")
    assert lines.first.evaluate(stroke) == colour
    page.get_by_label("compare orchestra").uncheck()
    page.get_by_label("compare ssd").uncheck()
    page.get_by_label("compare ssd").check()
    assert colour in [line.evaluate(stroke) for line in lines.all()]
    page.get_by_role("link", name="ssd seed 1").click()
    page.get_by_role("heading", name="ssd, seed1").wait_for()
    assert lines.first.evaluate(stroke) == colour


def saved(page, button, folder):
    with page.expect_download() as download:
        button.click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def read_csv(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_table_and_a_chart_are_saved_with_means_and_spreads_in_columns_of_their_own(visit, tmp_path):
    page = visit()
    path = saved(page, page.get_by_role("button", name="CSV of board"), tmp_path)
    assert path.name == "cifar10-micro-board.csv"
    lines = read_csv(path)
    assert [line["row"] for line in lines] == ["ssd", "orchestra", "fedavg-byol", HOSTILE]
    cells = [[line[key] for key in ("rank", "linear (%)", "linear (%) spread", "bytes up", "seeds")] for line in lines]
    assert cells[0] == ["1", "51.0", "1.0", "46800000", "0 1 2"]
    assert cells[1][:3] == ["", "45.0", ""]
    points = read_csv(saved(page, page.get_by_role("button", name="CSV of Over training"), tmp_path))
    assert list(points[0]) == ["row", "rounds", "kNN on held-out train (%)", "spread"]
    assert [list(point.values()) for point in points[:2]] == [["ssd", "1", "31", "0"], ["ssd", "2", "32", "0"]]
    assert {point["row"] for point in points} == {"ssd", "fedavg-byol"}


@pytest.mark.parametrize("what", ["board", "Over training"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_table_and_a_chart_are_saved_as_they_are_seen(visit, tmp_path, what, theme):
    """A picture has the paper, the text and, for the chart, the colours of its lines; a table is whole."""
    page = visit(size=PHONE if what == "board" else DESK, color_scheme=theme)
    with Image.open(saved(page, page.get_by_role("button", name=f"PNG of {what}"), tmp_path)) as picture:
        colours = {f"#{bytes(colour).hex()}" for _, colour in picture.convert("RGB").getcolors(1 << 24)}
        width = picture.size[0]
    paper, ink = ("#ffffff", "#1d2125") if theme == "light" else ("#15181b", "#e4e4e0")
    assert {paper, ink} <= colours
    if what == "board":
        widths = page.locator(".wide").first.evaluate("box => [box.scrollWidth, box.clientWidth]")
        assert widths[0] > widths[1]
        assert width >= 2 * widths[0] - 2
    else:
        hues = palette.LIGHT if theme == "light" else palette.DARK
        assert {hues[palette.hue(row)] for row in ("ssd", "fedavg-byol")} <= colours


@pytest.mark.parametrize("size", [DESK, PHONE])
def test_the_last_column_of_a_full_board_is_seen_at_once_or_by_scrolling(visit, tmp_path, size):
    noisy = {"epsilon": 13.7, "privacy": {"delta": 1e-05, "covers": ["R"], "clients": {"0": 13.7}}}
    entries = [record("fedavg-align_uniform", seed, 50.0 + seed, **noisy) for seed in range(3)]
    page = visit(size=size, at=written(tmp_path, [*entries, *(record("ssd", seed, 40.0 - seed) for seed in range(3))]))
    box, last = page.locator(".wide").first, page.locator(".wide >> nth=0 >> tbody tr >> nth=0 >> td").last
    page.get_by_role("button", name="epsilon").wait_for()
    cut = "box => box.classList.contains('cut')"
    if size == PHONE:
        page.wait_for_function("document.querySelector('.wide').classList.contains('cut')")
        box.press("End")
        box.evaluate("box => box.scrollLeft = box.scrollWidth")
        page.wait_for_function("!document.querySelector('.wide').classList.contains('cut')")
    assert not box.evaluate(cut)
    inside, edge = last.bounding_box(), box.bounding_box()
    assert inside["x"] + inside["width"] <= edge["x"] + edge["width"]


def test_the_content_is_reached_by_one_key_and_the_focus_stays_on_its_control_or_goes_to_a_new_page(visit):
    page = visit()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "page"
    page.get_by_role("button", name="kNN (%)").press("Enter")
    assert page.evaluate("document.activeElement.dataset.key") == "knn/v1 accuracy"
    page.get_by_label("scenario").select_option("elsewhere")
    page.get_by_role("heading", name="elsewhere").wait_for()
    page.get_by_label("scenario").focus()
    page.keyboard.press("ArrowUp")
    page.get_by_role("heading", name="cifar10-micro").wait_for()
    assert page.evaluate("document.activeElement.dataset.key") == "scenario"
    page.get_by_role("link", name="Papers").click()
    page.get_by_role("heading", name="Published").wait_for()
    assert page.evaluate("document.activeElement.id") == "page"
    assert page.title() == "Published numbers, and ours · Fulcrum"


def test_a_papers_verdicts_have_colours_and_can_be_filtered_and_its_training_is_told(visit):
    page = visit("papers")
    near, far, none = page.locator("details", has_text="theirs").locator("td:not(.row)").all()
    assert near.inner_text().split("\n") == ["51.5", "reproduced: ours 51.00 ± 1.00 (-0.50)"]
    colours = [cell.evaluate("cell => getComputedStyle(cell).backgroundColor") for cell in (near, far, none)]
    assert len(set(colours)) == 3
    page.get_by_text("1 reproduced").wait_for()
    page.get_by_text("Paper, training 2 settings").click()
    lines = page.locator("details").filter(has_text="Whose").locator("tbody tr").all_inner_texts()
    assert lines == ["head\t[512]\tpaper\telsewhere ssd", "lr\t0.1\tcode\tall"]
    page.get_by_role("button", name="60.0").press("Enter")
    page.get_by_text("theirs, none: no run of ours is meant for it; in %").wait_for()
    for kind in ("reproduced", "off", "open"):
        page.get_by_label(kind).uncheck()
    page.get_by_text("No table holds such a number").wait_for()


def test_a_run_begins_with_its_headline_and_shows_its_scores_config_and_origin(visit):
    page = visit()
    page.get_by_role("link", name="ssd seed 1").click()
    told = page.get_by_role("heading", name="ssd, seed1").locator("xpath=following-sibling::*[1]").inner_text()
    assert re.sub(r"\s+", " ", told) == (
        "linear (%) 51.0 row 51.0 ± 1.0 kNN (%) 43.5 row 43.5 ± 0.0 effective rank 31.3 row 31.3 ± 0.0 "
        "alignment 0.313 row 0.313 ± 0.000"
    )
    for text in ("ssd, seed1", "optimizer.lr", "2 CPU cores", "torch 2.11.0", "knn/v1", "kNN on held-out train (%)"):
        page.get_by_text(text).first.wait_for()
    page.get_by_role("link", name="seed 2").click()
    page.get_by_role("heading", name="ssd, seed2").wait_for()
    page.get_by_text("Scores made at").wait_for()
    page = visit("run/cifar10-micro/ssd/seed9")
    page.get_by_text("The records hold no cifar10-micro, ssd, seed9.").wait_for()


def test_a_runs_clients_are_folded_the_worst_first(visit, tmp_path):
    clients = {"accuracy": 50.0, "accuracy of site A": 70.0, f"accuracy of {HOSTILE}": 30.04, "accuracy of c": 50.0}
    at = written(tmp_path, [*RECORDS, record("local", scores={"clients/v2": clients})])
    page = visit("run/cifar10-micro/local/seed0", at=at)
    page.get_by_text(f"Clients, worst first: 3 accuracies, from 30.0 ({HOSTILE}) to 70.0 (site A)").click()
    lines = page.get_by_role("region", name="clients").locator("tbody tr").all_inner_texts()
    assert [line.split("\t") for line in lines] == [
        [HOSTILE, "clients/v2", "30.0"], ["c", "clients/v2", "50.0"], ["site A", "clients/v2", "70.0"]
    ]  # fmt: skip
    assert page.get_by_role("region", name="scores").locator("tbody tr").all_inner_texts() == [
        "clients/v2\taccuracy\t50"
    ]
    assert not visit("run/cifar10-micro/ssd/seed0", at=at).get_by_text("Clients, worst first").count()


def test_the_theme_follows_the_reader_and_can_be_switched(visit):
    dark, light = visit(color_scheme="dark"), visit(color_scheme="light")
    colour = "getComputedStyle(document.body).backgroundColor"
    assert dark.evaluate(colour) != light.evaluate(colour)
    dark.get_by_label("dark or light").click()
    assert dark.evaluate(colour) == light.evaluate(colour)


def test_a_site_without_records_or_without_its_data_says_so(browser, visit, tmp_path):
    at = written(tmp_path, [])
    visit(at=at).get_by_text("No run has been recorded yet.").wait_for()
    visit("privacy", at=at).get_by_text("No privacy sheet").wait_for()
    (tmp_path / "site" / "data.js").unlink()
    page = browser.new_page()  # where an error is to be expected
    page.goto(at)
    page.get_by_text("No data yet: write them by make site.").wait_for()
    page.close()


def test_of_several_encoders_the_mean_and_the_worst_are_named(visit, tmp_path):
    encoders = {f"client{k}": {"linear/v1": {"accuracy": 30.0 + 20 * k}} for k in range(3)}
    local = record("local", encoders=encoders, scores={"linear/v1": {"accuracy": 30.0, "accuracy_mean": 50.0}})
    at = written(tmp_path, [*RECORDS, local])
    page = visit("board/cifar10-micro", at=at)
    texts = {name: " ".join(text.split()) for name, text in zip(rows(page), column(page, 3), strict=True)}
    assert texts.pop("local") == "mean 50.0, worst 30.0"
    assert not any("worst" in text for text in texts.values())
    assert page.get_by_text("several encoders (local: 3)").is_visible()
    lines = read_csv(saved(page, page.get_by_role("button", name="CSV of board"), tmp_path))
    columns = [f"linear (%){end}" for end in ("", " spread", " worst encoder")]
    cells = {line["row"]: [line[key] for key in columns] for line in lines}
    assert (cells["local"], cells["ssd"]) == (["50.0", "", "30.0"], ["51.0", "1.0", ""])
    run = visit("run/cifar10-micro/local/seed0", at=at)
    assert run.get_by_text("mean of 3 encoders").is_visible()
    assert run.get_by_role("row", name="linear/v1 accuracy_worst 30").is_visible()
