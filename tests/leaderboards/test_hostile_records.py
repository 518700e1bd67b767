"""Records that anybody may hand in: a board takes them whole or refuses them in one line, with nothing written."""

import io
import json
import re
import shutil
import signal
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from functools import reduce
from itertools import product
from operator import getitem
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmark.cli.main import main
from leaderboards import generate, store
from leaderboards.pages import parity, plots, privacy
from leaderboards.papers import computed, verdicts
from leaderboards.schema import RecordError, validate
from tests.fuzz.outcome import CASES, cases
from tests.fuzz.outcome import content as files
from tests.leaderboards.test_schema import put, record

CURVE = [{"round": r, "bytes": 1e6 * r, "seconds": 2.0 * r, "monitor": 30.0 + r} for r in (1, 2)]
NESTED, DIGITS = "a list in a list", "a number of 5000 digits"
"""Stand for JSON that Python does not write."""
TEXTS = ["", " ", "a b", "\x1b[31mred", "a\nb", "\u202eab", "\ud800", "<b>|`", "$x^", "é漢", "a/b", "../a", "x" * 300]
NUMBERS = [-1, 0, 1, True, 0.5, 2**64, 10**25, -(10**25), 1e308, -1e308, 10**400, float("nan"), float("inf")]
NESTINGS: list[Any] = [[], {}, [[]], ["a"], {"a": 1}, [{"round": 1}], {"a": {"a": {"a": 1}}}]
HOSTILE = [*TEXTS, *NUMBERS, *NESTINGS, None, NESTED, DIGITS, "y" * 20_000]


def mini(row: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A record with every optional field, of a scenario and row that all figures show."""
    noise = {"delta": 1e-5, "covers": ["R"], "clients": {"0": 8.25}, "anonymity": 5, "anonymity_claimed": 6.5}
    fields = {"scenario": "cifar10-mini", "curve": CURVE, "server": {"images": 100, "seconds": 2.5}}
    activity = {"moved": {"mean": 0.001, "bound": 0.01, "measures": "it"}}
    rounds = {"done": 4, "planned": 5, "ended": "the privacy budget is spent"}
    return record(
        row, seed, **{**fields, "rounds": rounds, "privacy": noise, "epsilon": 8.25, "activity": activity, **changes}
    )


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of every value within nested data."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, child in children for inner in paths(child, (*path, key)))]


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A record of which a value is replaced, removed or added."""
    content = mini("fedsc")
    places = paths(content)
    path, kind = draw(st.sampled_from(places[1:])), draw(st.sampled_from([*["replace"] * 3, "remove", "add"]))
    if kind == "remove":
        return put(content, path, ...)
    if kind == "add":
        objects = [path for path in places if isinstance(reduce(getitem, path, content), dict)]
        names = [*TEXTS, "ended", "row", "delta", "accuracy"]
        path = (*draw(st.sampled_from(objects)), draw(st.sampled_from(names)))
    return put(content, path, draw(st.sampled_from(HOSTILE)))


def as_json(content: Any) -> bytes:
    text = json.dumps(content)
    return text.replace(f'"{NESTED}"', "[" * 100_000 + "]" * 100_000).replace(f'"{DIGITS}"', "1" * 5000).encode()


def place_of(content: Any) -> str:
    """Where a record says that it belongs, if it may be there."""
    name = store.name(content) if {*content} > {"scenario", "row", "seed"} else ""
    lengths = [len(part.encode(errors="replace")) for part in name.split("/")]
    fits = re.fullmatch(r"\w[\w.+=-]*(/\w[\w.+=-]*)+", name) and max(lengths) < 250
    return name if fits else "cifar10-mini/fedsc/seed0"


def call(*words: str) -> tuple[int, str, str]:
    """Runs a command in this process: exit code, stdout, stderr."""
    out, err, before = io.StringIO(), io.StringIO(), signal.getsignal(signal.SIGTERM)
    with redirect_stdout(out), redirect_stderr(err):
        code = main(words)
    signal.signal(signal.SIGTERM, before)
    return code, out.getvalue(), err.getvalue()


def collected(runs: Path, board: Path) -> str:
    """Gives runs to a board, and checks what has to hold for any runs; the error, empty if there is none."""
    before = files(board)
    code, out, err = call("board", f"collect={runs}", f"folder={board}")
    after = files(board)
    assert code in (0, 2), err
    assert "Traceback" not in out + err
    assert {name for name in before if name.startswith("results/") and after[name] != before[name]} == set()
    if code == 2:
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert err.removesuffix("\n").isprintable()
        assert after == before
        return err
    pages = out + "".join(content.decode() for name, content in after.items() if name.endswith((".md", ".js")))
    assert all(line.isprintable() for line in pages.split("\n"))
    return ""


def given_runs(folder: Path, *records: dict[str, Any]) -> Path:
    """A folder of runs with these records."""
    for each in records:
        file = folder / store.name(each) / "result.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(each))
    return folder


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A board with two records."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "board" / "published").mkdir(parents=True)  # no papers: reading them takes longest
    runs = given_runs(folder / "runs", mini("ssd", 0), mini("ssd", 1, linear=50.0))
    assert collected(runs, folder / "board") == ""
    return folder / "board"


@pytest.fixture
def board(standing: Path, tmp_path: Path) -> Path:
    """A copy of that board."""
    return Path(shutil.copytree(standing, tmp_path / "board"))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def of_bytes(standing: Path, scratch: Path, content: bytes, place: str) -> None:
    """Gives a file to a new board; its figures are made, but rendered in `make fuzz` only, as that takes longest."""
    for folder in (scratch / "board", scratch / "runs"):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(standing, scratch / "board")
    file = scratch / "runs" / place / "result.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    with nullcontext() if CASES > 100 else mock.patch.object(plots, "save", lambda draw, path: draw()):
        collected(scratch / "runs", scratch / "board")


@cases("records")
@given(content=mutated())
def test_a_record_with_a_strange_value_is_taken_whole_or_refused_in_one_line(standing, scratch, content):
    of_bytes(standing, scratch, as_json(content), place_of(content))


@example(cut=0, flipped=as_json(mini("fedsc")).rindex(b"CPU"), bits=ord("C") ^ 0x7F, cuts=False)  # DEL is valid JSON
@cases("bytes of records")
@given(cut=st.integers(0, 3000), flipped=st.integers(0, 3000), bits=st.integers(0, 255), cuts=st.booleans())
def test_a_damaged_file_is_taken_whole_or_refused_in_one_line(standing, scratch, cut, flipped, bits, cuts):
    content = bytearray(as_json(mini("fedsc")))
    content[flipped % len(content)] ^= bits
    of_bytes(standing, scratch, bytes(content[:cut] if cuts else content), "cifar10-mini/fedsc/seed0")


RAW = {
    "nested": b"[" * 100_000, "nested and closed": b"[" * 100_000 + b"]" * 100_000,
    "digits": b'{"seed": ' + b"1" * 5000 + b"}", "half a pair": rb'{"schema": 1, "row": "\ud800"}', "NaN": b"NaN",
    "nothing": b"", "no text": b"\xff\xfe",
}  # fmt: skip


@pytest.mark.parametrize("content", RAW.values(), ids=RAW)
def test_a_file_that_is_no_json_is_refused_by_every_reader(tmp_path, content):
    (tmp_path / "published").mkdir()
    for name in ("file.json", privacy.SHEET, verdicts.FILE, computed.FILE):
        (tmp_path / name).write_bytes(content)
    readers = [lambda each=each: each.read(tmp_path / "file.json") for each in (store, parity)]
    readers += [lambda: privacy.read(tmp_path / privacy.SHEET), lambda: verdicts.read(tmp_path)]
    for read in (*readers, lambda: generate.judged([], tmp_path)):
        with pytest.raises(RecordError, match=r"\.json: ") as caught:
            read()
        assert str(caught.value).isprintable()
    with pytest.raises(RecordError, match=r"missing.json: not a readable JSON file"):
        store.read(tmp_path / "missing.json")


def test_a_file_without_verdicts_and_a_sheet_with_a_value_that_no_page_can_show_are_refused(tmp_path):
    for content in ("[]", '{"a": "good"}', '{"a": 1}'):
        (tmp_path / verdicts.FILE).write_text(content)
        with pytest.raises(RecordError, match=verdicts.FILE):
            verdicts.read(tmp_path)
    for change in ({"encoder": "\x1b[31m"}, {"images": 10**400}, {"methods": [{"kept_bytes": 10**400}]}):
        (tmp_path / "privacy.json").write_text(json.dumps({"encoder": "x", "images": 1, "methods": []} | change))
        with pytest.raises(RecordError, match=r"expected (printable text|a number from)"):
            privacy.read(tmp_path / "privacy.json")


REFUSED: dict[str, tuple[list[str], list[Any], str]] = {
    "text": (
        [
            "scenario", "row", "method", "objective", "rounds ended", "best metric", "federation batch_norm",
            "settings optimizer.lr", "settings views.sizes 0", "provenance git", "provenance hardware", "deviations 0",
            "provenance public", "privacy covers 0", "evaluated knn/v1 date",
        ],
        ["\x1b[31mred", "a\nb", "a\u202eb", "a\u200bb", "\ud800", "a" * 20_000],
        "is '.*', expected printable text",
    ),
    "a number too large": (
        [
            "seed", "images", "scores knn/v1 effective_rank", "bytes up weights", "seconds wall", "epsilon",
            "privacy delta", "curve 0 monitor", "server images", "settings optimizer.lr", "privacy more",
        ],
        [1e308, 10**400, 10**101],
        r"is 10*(\.\.\.0+|e\+308)?, expected a number from -1e\+100 to 1e\+100",
    ),
    "no name": (
        ["scenario", "row"],
        ["", "-a", ".", "../a", "a/../b", "a//b", "/a", "a/", "a b", "a,b", "<b>"],
        "(scenario|row) is '.*', expected letters and digits",
    ),
    "too deep": (
        ["settings deep"],
        [reduce(lambda inner, _: [inner], range(20), value) for value in ([[[]]], {"a": {}})],
        r"settings\.deep.* is .*, expected at most 16 levels",
    ),
    "no position": (["curve 1 round", "curve 1 bytes", "curve 1 seconds"], [...], r"curve\[1\]\.\w+ is missing"),
    "no list of names": (["privacy covers"], [5, ["R", 5], [["R"]], "R", None], r"privacy\.covers"),
}  # fmt: skip


@pytest.mark.parametrize(("paths", "values", "message"), REFUSED.values(), ids=REFUSED)
def test_what_no_page_can_show_is_refused_wherever_it_is(paths, values, message):
    content = mini("fedsc", settings={"optimizer.lr": 0.1, "views.sizes": [1, 2]})
    for path, value in product(paths, values):
        with pytest.raises(RecordError, match=f"^a.json: .*{message}") as caught:
            validate(put(content, path.split(), value), "a.json")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 200


def test_a_name_that_cannot_be_shown_is_refused_wherever_it_is():
    within = ("scores", "scores knn/v1", "encoders", "settings", "settings views", "bytes up", "provenance libraries")
    for name, path in product(("a\x1bb", "a\nb", "\ud800"), ("", *within, "privacy")):
        with pytest.raises(RecordError, match=r"a name there, is '.*', expected printable text") as caught:
            validate(put(mini("fedsc"), (*path.split(), name), {}), "a.json")
        assert str(caught.value).isprintable()


STRANGE: dict[str, dict[str, Any]] = {
    "seeds far apart": {"row": "ssd", "seed": 10**25},
    "a long scenario": {"scenario": "/".join(["a" * 100] * 4)},
    "letters of other scripts": {"scenario": "éé/漢"},
    "a protocol with spaces": {"scores": {"my own probe": {"its accuracy": 5.0, "": 1e100}, "": {"": -1e100}}},
    "no scores": {"scores": {}, "encoders": {}},
    "no metrics": {"scores": {"linear/v1": {}}, "encoders": {"": {"": {}}}},
    "no rounds in common": {"curve": [{"round": 1e30, "bytes": -1, "seconds": 0, "monitor": 1e30}]},
    "a curve of nothing": {"curve": [{"round": 0, "bytes": 0, "seconds": 0}]},
    "a negative epsilon": {"epsilon": -1e30, "privacy": {}},
    "empty names": {"method": "", "objective": "", "settings": {"": ""}, "server": {}, "deviations": [""]},
    "no visit": {"bytes": {"up": {"": 10**30}, "down": {}, "visits": 0}, "server": {"images": 0.5}},
    "unlike settings": {"row": "fedprox", "settings": {"a": [{"b": [None]}], "optimizer.lr": {}}},
}


@pytest.mark.parametrize("changes", STRANGE.values(), ids=STRANGE)
def test_a_strange_but_possible_record_is_shown(board, tmp_path, changes):
    assert collected(given_runs(tmp_path / "runs", mini("ssd", 2), {**mini("fedsc"), **changes}), board) == ""


def test_a_folder_whose_name_is_markup_is_printed_as_it_is(board, tmp_path):
    code, out, _ = call("board", f"collect={given_runs(tmp_path / 'a[' / 'b]', mini('fedsc'))}", f"folder={board}")
    assert code == 0
    assert "a[/b]" in out.replace("\n", "")


OTHER_RUNS: list[tuple[dict[str, Any], str]] = [
    ({"settings": {"optimizer.lr": 9, "partition.name": "iid"}}, "optimizer.lr is 0.1 there and 9 in the new one"),
    ({"settings": {"optimizer.lr": 0.1}}, "partition.name is 'iid' there and missing in the new one"),
    ({"method": "ssd"}, "method is 'fedavg' there and 'ssd' in the new one"),
    ({"objective": "simclr"}, "objective is 'byol' there"),
    ({"federation": {"clients": 9, "participation": 1.0, "batch_norm": "average"}}, "federation.clients is 10"),
    ({"rounds": {"done": 4, "planned": 9, "ended": "the privacy budget is spent"}}, "rounds.planned is 5 there"),
]
OTHER_RESULTS: list[tuple[str, Any]] = [
    *(("images", 1), ("epsilon", 9.0), ("bytes visits", 51), ("privacy delta", 1e-6), ("best", None), ("curve", [])),
    *(("server images", 1), ("deviations", []), ("rounds ended", "another reason"), ("privacy", ...)),
    *(("scores knn/v1 accuracy", 50.0), ("scores knn/v1", ...), ("scores knn/v1 more", 1.0)),
    *(("encoders global knn/v1 accuracy", 50.0), ("encoders global knn/v1", ...), ("encoders global", ...)),
]


class TestStandingRecord:
    """A record that a board has, and another of the same run."""

    @pytest.fixture(autouse=True)
    def _without_figures(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plots, "save", lambda *_: None)

    def refused(self, board: Path, runs: Path, *records: dict[str, Any]) -> str:
        error = collected(given_runs(runs, *records), board)
        assert error
        return error

    def accepted(self, board: Path, runs: Path, new: dict[str, Any]) -> None:
        code, _, err = call("board", f"collect={given_runs(runs, new)}", f"folder={board}")
        assert (code, err) == (0, "")
        assert new in store.collect(board / "results")

    @pytest.mark.parametrize(("changes", "line"), OTHER_RUNS)
    def test_another_run_of_its_name_is_refused_after_any_number_of_rounds(self, standing, changes, line):
        new = mini("ssd", **changes)
        start = f"{standing}/results/cifar10-mini/ssd/seed0.json holds another run of this name: {line}"
        for done in (3, 4, 5):
            with pytest.raises(
                RecordError, match=f"^{re.escape(start)}.*give the new one a row= of its own, or delete"
            ):
                store.additions(standing / "results", [{**new, "rounds": {**new["rounds"], "done": done}}])

    @pytest.mark.parametrize(("path", "value"), OTHER_RESULTS)
    def test_another_result_after_the_same_rounds_is_refused(self, standing, path, value):
        with pytest.raises(RecordError, match=f"holds another result of this run: .*{path.split()[0]}.*delete it fir"):
            store.additions(standing / "results", [put(mini("ssd"), path.split(), value)])

    def test_one_conflict_or_a_sheet_that_cannot_be_read_and_nothing_is_written(self, board, tmp_path):
        records = [mini("fedavg-simclr"), mini("ssd", linear=1.0), mini("untrained")]
        error = self.refused(board, tmp_path / "runs", *records)
        assert "scores.linear/v1.accuracy is 49.3 there and 1.0 in the new one" in error
        (board / "privacy.json").write_text("{}")
        assert "no privacy sheet" in self.refused(board, tmp_path / "more", mini("fedsc"))
        assert {file.parent.name for file in (board / "results").rglob("*.json")} == {"ssd"}

    def test_a_run_made_again_on_another_machine_is_the_same(self, board, tmp_path):
        server = {"images": 5, "seconds": 2.0}
        first = mini("flesd", curve=CURVE, server=server)
        self.accepted(board, tmp_path / "first", first)
        again = {"curve": [{**point, "seconds": 9.5} for point in CURVE], "server": {**server, "seconds": 7.5}}
        again |= {"world_size": 2, "seconds": {"wall": 1.0, "clients": 1.0, "evaluation": 1.0}}
        origin = {**first["provenance"], "hardware": "another machine"}
        self.accepted(board, tmp_path / "again", {**first, **again, "provenance": origin})

    def test_protocols_deviations_and_fields_that_the_standing_record_is_too_old_for_may_be_gained(
        self, board, tmp_path
    ):
        new = mini("ssd", deviations=["first", *mini("ssd")["deviations"], "last"])
        scores = {**new["scores"], "spectrum/v1": {"dimensions_90": 12.0}}
        evaluated = {**new["evaluated"], "spectrum/v1": new["evaluated"]["knn/v1"]}
        gained = {"scores": scores, "encoders": {"global": scores}, "evaluated": evaluated}
        self.accepted(board, tmp_path / "runs", {**new, **gained})
        old = {key: value for key, value in mini("ssd").items() if key not in ("curve", "server", "privacy")}
        (board / "results/cifar10-mini/ssd/seed0.json").write_text(json.dumps(old))
        settings = {**old["settings"], "method.separation": "soft"}  # as setting_defaults.yaml has it
        self.accepted(board, tmp_path / "newer", mini("ssd", settings=settings))

    @pytest.mark.parametrize("monitored", [True, False])
    def test_losses_of_a_curve_may_be_gained_but_not_be_others(self, board, tmp_path, monitored):
        before = CURVE if monitored else []
        self.accepted(board, tmp_path / "old", mini("flesd", curve=before))
        axes = {"round": 1, "bytes": 5, "seconds": 1.0}
        curve = [{**point, "loss": 2.5} for point in before or [axes]]
        self.accepted(board, tmp_path / "new", mini("flesd", curve=curve))
        for other in ([{**point, "loss": 2.0} for point in curve], before):
            assert "curve" in self.refused(board, tmp_path / "others", mini("flesd", curve=other))

    def test_an_unfinished_run_goes_on(self, board, tmp_path):
        early = mini("fedsc", scores={}, encoders={}, evaluated={}, rounds={"done": 2, "planned": 5}, curve=CURVE[:1])
        self.accepted(board, tmp_path / "early", early)
        changed = {"images": 7, "epsilon": 9.0, "privacy": {}, "best": None, "world_size": 2}
        whole = mini("fedsc", rounds={"done": 5, "planned": 5}, **changed)
        self.accepted(board, tmp_path / "whole", whole)
        assert collected(tmp_path / "early", board) == ""  # of fewer rounds: left out
        longer = mini("ssd", rounds={"done": 5, "planned": 5}, images=7)
        for path, value in (("scores knn/v1", ...), ("scores knn/v1 accuracy", 1.0)):
            error = self.refused(board, tmp_path / "runs", put(longer, path.split(), value))
            assert "scores.knn/v1.accuracy is 43.5 there" in error
        self.accepted(board, tmp_path / "runs", longer)  # which keeps the scores that stand

    def test_the_same_records_again_change_no_file(self, board, tmp_path):
        before = files(board)
        assert collected(given_runs(tmp_path / "runs", mini("ssd"), mini("ssd", 1, linear=50.0)), board) == ""
        assert files(board) == before

    def test_a_record_in_a_run_folder_of_the_results_is_replaced_there(self, board, tmp_path):
        file = board / "results/cifar10-mini/ssd/seed0.json"
        (file.parent / "seed0").mkdir()
        file.rename(file.parent / "seed0" / "result.json")
        self.accepted(board, tmp_path / "runs", mini("ssd", deviations=[*mini("ssd")["deviations"], "more"]))
        assert not file.exists()


def test_two_runs_of_one_file_name_and_a_path_that_cannot_be_shown_are_refused_in_one_line(tmp_path):
    (tmp_path / "a/b/c/seed0").mkdir(parents=True)
    (tmp_path / "a/b/c/seed0.json").write_text(json.dumps(record("c", scenario="a/b")))
    (tmp_path / "a/b/c/seed0/result.json").write_text(json.dumps(record("b/c", scenario="a")))
    with pytest.raises(RecordError, match="the same run with different scenario, row"):
        store.collect(tmp_path)
    with pytest.raises(RecordError, match="not a printable name") as caught:
        store.collect(given_runs(tmp_path / "other", record("a\nb")))
    assert str(caught.value).isprintable()
