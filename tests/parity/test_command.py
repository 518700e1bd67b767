"""`python -m benchmark parity`: what it prints of files that are met, that are not, and that are no parity files."""

import json
import re
from pathlib import Path

import pytest

from benchmark.cli.main import main
from benchmark.parity.codes import case
from benchmark.parity.compare import GROWTH, compare, differences, fingerprint_difference, needed
from benchmark.parity.files import SERVER, Numbers, read, round_and_client
from benchmark.parity.inputs import GivenViews, ViewKey, fingerprint, generator, initial, name_key
from benchmark.parity.replay import replay
from benchmark.parity.report import effects

FOLDER = Path(__file__).parent


def content(name: str = "fedsc") -> dict[str, dict]:
    return json.loads((FOLDER / f"{name}.json").read_text())


def written(folder: Path, text: str, name: str = "fedsc") -> Path:
    (folder / f"{name}.json").write_text(text)
    return folder / f"{name}.json"


def changed(folder: Path, name: str = "fedsc", **sections: object) -> Path:
    """A copy of a file, with other sections; a section of None is left out."""
    whole = content(name) | sections
    return written(folder, json.dumps({key: value for key, value in whole.items() if value is not None}), name)


def setting(name: str = "fedsc", **values: object) -> dict[str, object]:
    return content(name)["setting"] | values


def test_a_file_that_is_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", str(FOLDER / "ldawa.json"), "accelerator=cpu"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ldawa.json: yasar-rehman/L-DAWA 123438d, 3 clients, 2 rounds, 0 steps; ldawa/cifar100-e1 l")
    assert "float32, round 1: weights " in out
    assert "BEYOND" not in out
    assert out.endswith("1 file, none of which the suite departs from\n")


def test_a_file_that_is_not_met_is_named_with_its_first_differences(tmp_path, capsys) -> None:
    losses = content()["losses"]
    losses["1"]["0"][1] *= 1.01
    assert main(["parity", str(changed(tmp_path, losses=losses)), "accelerator=cpu"]) == 1
    printed = capsys.readouterr()
    (line,) = [line for line in printed.out.splitlines() if "BEYOND" in line]
    assert line.startswith("  BEYOND round 0, client 1, loss of step 1: ")
    assert "(9.9e-03, allowed 1.2e-06)" in line
    assert printed.err == "error: the suite departs from 1 of 1 files: fedsc\n"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "none.json", r"No such file"),
        (lambda folder: written(folder, "{"), r"is no parity file: Expecting property name"),
        (lambda folder: written(folder, "[]"), r"is no parity file: it holds no table"),
        (lambda folder: changed(folder, weights=None), r"is no parity file: it has no table 'weights'"),
        (lambda folder: changed(folder, losses={"0": {"x": [1]}}), r"its numbers cannot be read: ValueError"),
        (lambda folder: changed(folder, weights={"start 0": {}}), r"names no round"),
        (lambda folder: changed(folder, what={"repository": "a/b"}), r"is of a/b: known are Sungwon-Han/FEDX"),
        (lambda folder: changed(folder, setting=setting(participation=0.5)), r"all clients train in every round"),
        (lambda folder: changed(folder, setting={"seed": 1}), r"its setting has no "),
        (lambda folder: changed(folder, setting=setting(fedsc={})), r"its setting cannot be read: KeyError 'mu'"),
        (lambda folder: changed(folder, weights={}), r"it has no weights"),
        (lambda folder: changed(folder, weights={"round 0": {"a": [1, 2]}}), r"its numbers cannot be read: ValueError"),
        (lambda folder: changed(folder, weights={"round 0": {"a": [1, 2, None]}}), r"cannot be read: TypeError"),
        (lambda folder: changed(folder, "orchestra", setting=setting("orchestra", memory=20)), r"have to fill it"),
    ],
)
def test_what_is_no_parity_file_gets_one_line(make, message, tmp_path, capsys) -> None:
    assert main(["parity", str(make(tmp_path))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert re.search(message, line)


def test_other_words_are_refused(capsys) -> None:
    for words, message in (
        (["a.json", "lr=1"], "accelerator=cpu|cuda"),
        (["ldawa", "accelerator=tpu"], "choose auto or cpu or cuda"),
    ):
        assert main(["parity", *words]) == 2
        assert message in capsys.readouterr().err


def test_rounds_and_clients() -> None:
    expected = {
        **{"round 0, client 1": (0, 1), "after round 1": (1, SERVER), "visit of client 2, round 3": (3, 2)},
        **{"round0/client1": (0, 1), "round1": (1, SERVER), "round 12 client 10": (12, 10)},
    }
    assert {key: round_and_client(key) for key in expected} == expected


def test_inputs_are_those_of_the_stated_keys() -> None:
    name = "encoder.backbone.bn1.weight"
    normal = generator(7, 2, name_key(name)).standard_normal(5)
    assert initial(7, name, [5]).tolist() == pytest.approx((1 + 0.1 * normal).tolist())
    assert initial(7, "a.bias", [4]).abs().max() < 0.6
    assert initial(7, "a.weight", [4, 3, 2]).std() == pytest.approx((1 / 6) ** 0.5, rel=0.5)
    direction = generator(7, 3, name_key(name)).standard_normal(5)
    expected = (1 + 0.1 * normal.mean(), 0.1 * normal.std(), ((1 + 0.1 * normal) * direction).sum() / 5**0.5)
    assert tuple(fingerprint(7, name, initial(7, name, [5]))) == pytest.approx(expected)
    data = GivenViews(7, [5, 9])
    data.key = ViewKey(2, epoch=1, first=1)
    batches = list(data.batches(1, ("augment",), 4, epochs=2, order=None))
    assert [len(batch.index) for batch in batches] == [4, 4, 1] * 2
    rows = generator(7, 1, 1, 2, 2, 1).standard_normal((9, 3, 32, 32), dtype="float32")
    assert batches[3].views[0].tolist() == rows[:4].tolist()
    assert data.position == (1, 2, 5)


def test_what_rounding_allows() -> None:
    """What the file has for a round, or how far its float32 has come from its float64 by the end of the round."""
    ssd = read(FOLDER / "ssd.json")
    assert needed(ssd) == ["64-true"]
    (comparison,) = compare(case(ssd), {"64-true": ssd.sections["32-true"]})
    limits = {(d.at[0], d.step): comparison.limit(d) for d in comparison.differences}
    assert limits[0, 0] == 1e-6
    assert limits[0, 1] == pytest.approx(GROWTH * 2.7e-6)
    assert limits[1, 0] == pytest.approx(GROWTH * 4e-5)
    assert limits[1, None] == pytest.approx(GROWTH * 1e-3)
    both = read(FOLDER / "feddecorr.json")
    single, double = compare(case(both), both.sections)
    assert not single.beyond
    assert {double.limit(d) for d in double.differences} == {1e-6}
    departed = [d for d in differences(both.sections["32-true"], both.sections["64-true"]) if d.step is not None]
    for round in (0, 1):
        (limit,) = {single.limit(d) for d in single.differences if d.at == (round, 1) and d.step == 1}
        assert limit == pytest.approx(GROWTH * max(d.size for d in departed if d.at[0] <= round))
    assert needed(read(FOLDER / "ldawa.json")) == ["32-true", "64-true"]


def test_a_missing_number_is_beyond_what_is_allowed_and_one_near_zero_does_not_count() -> None:
    assert fingerprint_difference((0.0, 1.0, 1.0), (1e-7, 1.0, 1.0)) < 1e-3
    assert fingerprint_difference((0.1, 1.0, 1.0), (0.2, 1.0, 1.0)) == pytest.approx(0.5, rel=0.01)
    file = read(FOLDER / "fedsc.json")
    (comparison,) = compare(case(file), {"64-true": Numbers()})
    assert len(comparison.beyond) == len(comparison.differences) > 0


@pytest.mark.long
def test_the_effect_of_a_setting() -> None:
    ldawa = case(read(FOLDER / "ldawa.json"))
    (effect,) = effects(ldawa, replay(ldawa, "32-true", "cpu"), "32-true", "cpu")
    assert (effect.key, effect.authors, effect.default) == ("method.statistics", "scaled", "mean")
    assert (effect.first, effect.largest) == (None, None)  # nothing is trained
    assert (effect.weights or 0) > 0.1
