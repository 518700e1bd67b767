"""An invalid run record is refused with the file and the field; records are written whole and collected by run."""

import json
import math
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from leaderboards import store
from leaderboards.schema import SCHEMA, Record, RecordError, json_schema, validate
from leaderboards.store import additions, collect, digest, read, write
from tests import committed

DESCRIBED = json_schema()


def record(row: str = "fedavg-byol", seed: int = 0, linear: float | None = 49.3, **changes: Any) -> Record:
    """A valid record by hand; `changes` replace top-level fields."""
    geometry = {"effective_rank": 31.25, "alignment": 0.3125, "uniformity": -2.5}
    geometry |= {"uniformity_within": -2.25, "uniformity_between": -0.001}
    scores = {"knn/v1": {"accuracy": 43.5}, "geometry/v1": geometry}
    if linear is not None:
        scores["linear/v1"] = {"accuracy": linear}
    origin = {"git": None, "dirty": False, "hardware": "2 CPU cores", "date": "2026-01-31T12:00:00+00:00"}
    hashes = {"config": "c0ffee", "dataset": "da7a", "partition": "9a47"}
    return {
        **{"schema": 1, "scenario": "cifar10-micro", "row": row, "method": "fedavg", "objective": "byol", "seed": seed},
        **{"rounds": {"done": 5, "planned": 5}, "images": 100000, "scores": scores, "encoders": {"global": scores}},
        "best": {"round": 4, "metric": "monitor", "value": 44.1},
        "bytes": {
            "up": {"weights": 2_300_000_000, "statistics": 40_000_000},
            "down": {"weights": 61_750},
            "visits": 50,
        },
        **{"epsilon": None, "seconds": {"wall": 100.0, "clients": 80.0, "evaluation": 20}, "world_size": 1},
        "federation": {"clients": 10, "participation": 1.0, "batch_norm": "average"},
        "settings": {"optimizer.lr": 0.1, "partition.name": "iid"},
        "evaluated": {"knn/v1": {**origin}},
        "provenance": {**origin, **hashes, "libraries": {"torch": "2.11.0"}, "python": "3.11.9"},
        "deviations": ["batch size 64 instead of 128"],
        **changes,
    }


def records(rows: Mapping[str, Sequence[float | None]], **changes: Any) -> list[Record]:
    """Records of rows, one for each headline, under seeds 0, 1, ..."""
    return [record(row, seed, x, **changes) for row, sample in rows.items() for seed, x in enumerate(sample)]


BOARD = records({"ssd": [49.3, 51.0, 52.7], "orchestra": [48.7, 48.3, 50.0], "fedavg-byol": [46.0, 47.7, 47.3]})
"""Three rows whose errors are -0.7, 0, 0.7; 0.7, -0.7, 0; and 0, 0.7, -0.7, so that they vary alike."""


def marks(name: str, text: str = "") -> str:
    """The marks of a page, and text between them."""
    return f"<!-- {name}: by a test -->\n{text}\n<!-- end of {name} -->"


def put(content: Any, path: Sequence[Any], value: Any) -> Any:
    """Nested data with the value at a path replaced; `...` removes it."""
    if not path:
        return value
    content = content.copy() if isinstance(content, dict | list) else {}
    key = int(path[0]) if isinstance(content, list) else path[0]
    if value is ... and len(path) == 1:
        del content[key]
    else:
        content[key] = put(content[key] if isinstance(content, list) else content.get(key), path[1:], value)
    return content


def edit(path: str, value: Any) -> Any:
    """The valid record with the value at `path` (levels apart by a space) replaced; `...` removes it."""
    return put(record(), path.split(), value)


def test_a_valid_record_passes_with_and_without_its_optional_values():
    optional = record(best=None, epsilon=8, deviations=[], encoders={}, scores={})
    active = record(activity={"moved": {"mean": 0.5, "bound": 0.01, "measures": "it"}})
    nested = edit("federation server_learning_rate", 0.1)  # objects may hold more
    for each in (record(), optional, active, edit("provenance git", "24983a0"), nested):
        validate(each, "result.json")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("", 3, "the record is 3, expected an object"),
        ("schema", ..., "schema is missing"),
        ("activity moved mean", 0.5, "activity.moved.bound is missing"),
        ("schema", 0, "schema is 0, this version reads 1"),
        ("schema", True, "schema is True, expected a whole number"),
        ("seed", 1.0, "seed is 1.0, expected a whole number, 0 or more"),
        ("seed", -1, "seed is -1, expected a whole number, 0 or more"),
        ("row", None, "row is None, expected text"),
        ("rounds planned", ..., "rounds.planned is missing"),
        ("rounds done", 6, "rounds.done is 6, expected at most rounds.planned"),
        ("scores", [1], r"scores is \[1\], expected an object"),
        ("scores linear/v1", 49.3, "scores.linear/v1 is 49.3, expected an object"),
        ("scores linear/v1 accuracy", math.nan, "scores.linear/v1.accuracy is nan, expected a finite number"),
        ("encoders global linear/v1 accuracy", -math.inf, "encoders.global.linear/v1.accuracy is -inf"),
        ("scores knn/v1 accuracy", "43.5", "scores.knn/v1.accuracy is '43.5', expected a finite number"),
        ("scores knn/v1 accuracy", True, "scores.knn/v1.accuracy is True, expected a finite number"),
        ("scores knn/v1 accuracy", 143.5, "scores.knn/v1.accuracy is 143.5, expected 0 to 100 percent"),
        ("encoders global linear/v1 accuracy", -0.1, "encoders.global.linear/v1.accuracy is -0.1, expected 0 to 100"),
        ("best value", None, "best.value is None, expected a finite number"),
        ("best", 44.1, "best is 44.1, expected an object"),
        ("bytes up weights", 0.5, "bytes.up.weights is 0.5, expected a whole number"),
        ("provenance dirty", "no", "provenance.dirty is 'no', expected true or false"),
        ("provenance libraries torch", 2, "provenance.libraries.torch is 2, expected text"),
        ("deviations", "none", "deviations is 'none', expected a list"),
        ("deviations", ["a", 1], r"deviations\[1\] is 1, expected text"),
        ("accuracy", 49.3, "accuracy is unknown, the fields are schema, scenario"),
    ],
)
def test_an_invalid_field_is_named_with_its_file(path: str, value: Any, message: str):
    with pytest.raises(RecordError, match=f"^runs/result.json: {message}") as caught:
        validate(edit(path, value), "runs/result.json")
    assert "\n" not in str(caught.value)


def undescribed(value: Any, schema: Any, path: str = "") -> set[str]:
    """The fields of a value that its schema has no description of."""
    schema = {} if schema is True else DESCRIBED["$defs"][Path(schema["$ref"]).name] if "$ref" in schema else schema
    if "anyOf" in schema:
        return min((undescribed(value, each, path) for each in schema["anyOf"]), key=len)
    found, fields = set[str](), schema.get("properties", {})
    for key, each in value.items() if isinstance(value, Mapping) else ():
        inner = fields.get(key, schema.get("additionalProperties", {}))
        found |= undescribed(each, inner, f"{path}.{key}") if not fields or key in fields else {f"{path}.{key}"}
    for each in value if isinstance(value, list) else ():
        found |= undescribed(each, schema.get("items", {}), path)
    return found


def test_every_field_of_the_committed_records_is_described():
    assert set[str]().union(*(undescribed(each, DESCRIBED) for each in committed.records())) == set()
    wrong = {**record(), "evaluated": {"knn/v1": {"data": "c0ffee"}}, "more": 1}
    assert undescribed(wrong, DESCRIBED) == {".evaluated.knn/v1.data", ".more"}


def test_write_then_read_gives_the_record_back_in_a_diffable_form_and_a_write_that_fails_the_former(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "deep" / "result.json"
    write(path, record())
    text = path.read_text()
    assert text.endswith("}\n")
    assert list(json.loads(text)) == sorted(record())
    assert '\n "schema": 1,\n' in text
    with pytest.raises(RecordError, match="images"):
        write(path, record(images=None))
    assert list(path.parent.iterdir()) == [path]
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write(path, record(linear=1.0))
    assert read(path) == record()


def test_collect_reads_both_layouts_in_order(tmp_path: Path):
    assert collect(tmp_path) == []
    with pytest.raises(RecordError, match="no such folder"):
        collect(tmp_path / "absent")
    write(tmp_path / "cifar10-micro/fedavg-byol/seed10.json", record(seed=10))
    write(tmp_path / "cifar10-micro/fedavg-byol/seed2/result.json", record(seed=2))
    write(tmp_path / "cifar10-micro/fedavg-byol/seed2/checkpoint/result.json", record(seed=3))  # not a run folder
    write(tmp_path / "a/b/ssd/seed0.json", record("ssd", scenario="a/b"))
    (tmp_path / "cifar10-micro/fedavg-byol/seed2-notes.json").write_text("not a record")
    records = collect(tmp_path)
    assert [(r["scenario"], r["row"], r["seed"]) for r in records] == [
        ("a/b", "ssd", 0), ("cifar10-micro", "fedavg-byol", 2), ("cifar10-micro", "fedavg-byol", 10),
    ]  # fmt: skip
    assert all(r["schema"] == SCHEMA for r in records)


def test_the_committed_records_of_a_wheel_are_an_archive(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "COMMITTED", tmp_path / "results")
    for seed in (0, 1):
        write(tmp_path / f"results/cifar10-micro/fedavg-byol/seed{seed}.json", record(seed=seed))
    records = store.committed()
    with tarfile.open(tmp_path / "results.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "results", "")
    (tmp_path / "results").rename(tmp_path / "elsewhere")
    assert store.committed() == records == [record(seed=0), record(seed=1)]


def test_collect_returns_a_run_once_and_refuses_two_results_for_it(tmp_path: Path):
    run = tmp_path / "cifar10-micro/fedavg-byol/seed0"
    early = record(rounds={"done": 2, "planned": 5}, scores={}, encoders={})
    write(run / "partial.json", early)
    assert collect(tmp_path) == [early]
    write(run / "result.json", record(seconds={"wall": 1, "clients": 1, "evaluation": 1}))
    assert [each["rounds"]["done"] for each in collect(tmp_path)] == [5]
    write(copy := run.with_suffix(".json"), record())
    assert len(collect(tmp_path)) == 1
    write(run / "result.json", record(linear=49.4))
    with pytest.raises(RecordError, match="same run with different scores") as caught:
        collect(tmp_path)
    assert {str(copy), str(run / "result.json")} <= {word.strip(":,;()") for word in str(caught.value).split()}


def test_a_record_is_replaced_only_by_one_of_as_many_rounds(tmp_path: Path):
    early = [record(rounds={"done": done, "planned": 5}, scores={}, encoders={}) for done in (2, 4, 3)]
    for new, standing in zip([*early, record(), early[1]], [*early[:2], early[1], record(), record()], strict=True):
        for file, each in additions(tmp_path, [new]).items():
            write(file, each)
        assert collect(tmp_path) == [standing]


COUNTED = {"flops": 2e9, "flops_max": 2e9, "memory": 10, "parts": {}, "phases": {}, "kept": 0, "images": 5}


@pytest.mark.parametrize(
    ("standing", "new", "left"),
    [
        ({"costs": COUNTED}, {}, 10),
        ({}, {"costs": COUNTED}, 10),
        ({"costs": COUNTED | {"memory": 9}}, {"costs": COUNTED}, 10),
    ],
    ids=["lost", "gained", "counted anew"],
)
def test_a_run_with_costs_and_one_without_are_one_run_and_no_count_is_lost(tmp_path: Path, standing, new, left):
    file = tmp_path / "results/cifar10-micro/fedavg-byol/seed0.json"
    write(file, record(**standing))
    assert additions(tmp_path / "results", [record(**new)]) == {file: record(costs={**COUNTED, "memory": left})}
    write(tmp_path / "results/cifar10-micro/fedavg-byol/seed0/result.json", record(**new))
    assert len(collect(tmp_path / "results")) == 1


def test_collect_refuses_a_record_in_the_place_of_another(tmp_path: Path):
    for changes in ({"scenario": "digits"}, {"row": "ssd"}, {"seed": 1}):
        write(tmp_path / "cifar10-micro/fedavg-byol/seed0.json", {**record(), **changes})
        with pytest.raises(RecordError, match=r"seed0.json: holds .*, not cifar10-micro/fedavg-byol/seed0: move it th"):
            collect(tmp_path)


def test_the_digest_changes_with_every_value_and_not_with_the_order_of_keys():
    assert digest(record()) == digest(dict(reversed(record().items())))
    assert len({digest(record()), digest(record(images=1)), digest(edit("provenance dirty", True))}) == 3
