"""A bundle of a row is verified, replayed and shown on a board; one that was tampered with is refused in one line."""

import json
import random
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from benchmark.api import opened
from benchmark.configuration.compose import load
from benchmark.configuration.identity import identity
from benchmark.federation.checkpoint import Checkpoint
from benchmark.tracking.progress import Display
from leaderboards import bundles, store
from leaderboards.bundles import MANIFEST
from leaderboards.schema import RecordError
from methods import trees
from tests.run_helpers import execute_run

RUN = "runs/tiny/fedavg/seed0"
COMMIT = "0123abc"
SMALL = ("federation.rounds=2", "scenario=tiny", "evaluation.protocols=[knn/v1]")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folders of two finished runs, made by a commit without changes."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmark.experiment.run.commit", lambda: COMMIT)
        for seed in (0, 1):
            execute_run(folder, "fedavg", *SMALL, f"seed={seed}")
    return [folder / f"runs/tiny/fedavg/seed{seed}" for seed in (0, 1)]


@pytest.fixture
def bundle(made, tmp_path, call):
    """A bundle of the first run."""
    file = tmp_path / "bundle.zip"
    assert call("submit", str(made[0]), "chosen=the suite's own values", f"output={file}")[0] == 0
    return file


def tampered(bundle: Path, changes=None, manifest=None, dropped=None) -> Path:
    """A copy whose hashes fit again. changes: name -> its new content, of the old; manifest: changes that too."""
    with zipfile.ZipFile(bundle) as before:
        files = {name: before.read(name) for name in before.namelist()}
    content = json.loads(files.pop(MANIFEST))
    for name, change in (changes or {}).items():
        files[name] = change(files[name])
    if dropped:
        files = {name.replace(*dropped): text for name, text in files.items()}
    content["files"] = {name: bundles.hashlib.sha256(text).hexdigest() for name, text in files.items()}
    content = manifest(content) if manifest else content
    file = bundle.with_name("tampered.zip")
    with zipfile.ZipFile(file, "w") as after:
        for name, text in {MANIFEST: json.dumps(content).encode(), **files}.items():
            after.writestr(name, text)
    return file


def edited(change):
    """A change of a JSON file's content."""

    def edit(text: bytes) -> bytes:
        content = json.loads(text)
        change(content)
        return json.dumps(content).encode()

    return edit


def restored(change, tmp_path):
    """A change of a checkpoint, which is sealed again."""

    def edit(content: bytes) -> bytes:
        file = tmp_path / "state.pt"
        file.write_bytes(content)
        checkpoint = Checkpoint(tmp_path, None)
        state = checkpoint.load()
        change(state)
        sealed = Checkpoint(tmp_path, state.pop("config"))
        sealed.save(state)
        return file.read_bytes()

    return edit


def configured(**values):
    """A change of a config, and of a record that is to fit it."""

    def of_config(text: bytes) -> bytes:
        content = yaml.safe_load(text)
        for key, value in values.items():
            section, _, name = key.rpartition("__")
            (content[section] if section else content)[name] = value
        return yaml.safe_dump(content).encode()

    def of_record(made, tmp_path):
        file = tmp_path / "config.yaml"
        file.write_bytes(of_config((made / "config.yaml").read_bytes()))

        def change(record):
            record["provenance"]["config"] = identity(load(file))
            record["seed"] = values.get("seed", 0)
            record["settings"] |= {key.replace("__", "."): value for key, value in values.items() if key != "seed"}

        return edited(change)

    return of_config, of_record


def a_score(bundle, made, tmp_path):
    def change(record):
        for scores in (record["scores"], *record["encoders"].values()):
            scores["knn/v1"]["accuracy"] += 1

    return tampered(bundle, {f"{RUN}/result.json": edited(change)}), "does not follow from its encoder"


def a_seed(bundle, made, tmp_path):
    config, record = configured(seed=1)
    changes = {f"{RUN}/config.yaml": config, f"{RUN}/result.json": record(made[0], tmp_path)}

    def rename(manifest):
        return manifest | {"runs": ["tiny/fedavg/seed1"]}

    return tampered(bundle, changes, rename, ("seed0", "seed1")), "belongs to another config"


def a_config_key(bundle, made, tmp_path):
    config, record = configured(optimizer__lr=0.07)
    changes = {f"{RUN}/config.yaml": config, f"{RUN}/result.json": record(made[0], tmp_path)}
    return tampered(bundle, changes), "belongs to another config"


def the_encoder(bundle, made, tmp_path):
    def change(state):
        state["server"]["weights"] = trees.map(lambda leaf: leaf.flip(0), state["server"]["weights"])

    change_state = restored(change, tmp_path)
    return tampered(bundle, {f"{RUN}/checkpoint/state.pt": change_state}), "does not follow from its encoder"


def a_missing_round(bundle, made, tmp_path):
    return tampered(bundle, {f"{RUN}/rounds.jsonl": lambda text: text.splitlines()[0]}), "its record is of 2 rounds"


def another_methods_hash(bundle, made, tmp_path):
    def change(manifest):
        manifest["code"]["methods.fedavg.FedAvg"]["sha256"] = "0" * 64
        return manifest

    return tampered(
        bundle, manifest=change
    ), f"methods.fedavg.FedAvg was other code than is here: take the suite of {COMMIT}"


def a_replayed_seed(bundle, made, tmp_path):
    """The loss of the first round, everywhere."""

    def in_state(state):
        state["history"][0]["loss"] *= 0.5

    def in_record(record):
        for point in record.get("curve", [])[:1]:
            point["loss"] *= 0.5

    def in_rounds(text: bytes) -> bytes:
        first, *others = text.splitlines()
        line = json.loads(first)
        line["loss"] *= 0.5
        return b"\n".join([json.dumps(line).encode(), *others]) + b"\n"

    changes = {f"{RUN}/checkpoint/state.pt": restored(in_state, tmp_path), f"{RUN}/result.json": edited(in_record)}
    return tampered(
        bundle, changes | {f"{RUN}/rounds.jsonl": in_rounds}
    ), "round 1: loss is another when it is trained again"


def an_old_record_under_a_new_commit(bundle, made, tmp_path):
    def change(record):
        record["provenance"]["git"] = "fffffff"

    changed = tampered(
        bundle, {f"{RUN}/result.json": edited(change)}, lambda manifest: manifest | {"commit": "fffffff"}
    )
    return changed, f"its rounds are of {COMMIT}, and the bundle says fffffff"


def a_path_that_escapes(bundle, made, tmp_path):
    return tampered(
        bundle, dropped=("checkpoint/state.pt", "../../evil.pt")
    ), "is no plain file below the bundle's folder"


def a_huge_file(bundle, made, tmp_path):
    """As the archive's list has it: nothing is read before."""
    file = bundle.with_name("tampered.zip")
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr("zeros", b"0")
        zipped.getinfo("zeros").file_size = bundles.BYTES + 1
    return file, f"holds {bundles.BYTES + 1:,} bytes"


def an_own_protocol(bundle, made, tmp_path):
    """Its name would be imported and called."""

    def change(record):
        for scores in (record["scores"], *record["encoders"].values()):
            scores["timeit.timeit:number=1"] = {"value": 1.0}

    return tampered(bundle, {f"{RUN}/result.json": edited(change)}), "names code from outside the suite (scores=timeit"


def a_deviation_left_out(bundle, made, tmp_path):
    def in_state(state):
        state["environments"].insert(0, {**state["environments"][0], "numerical_deviations": ["it rounds otherwise"]})

    changes = {f"{RUN}/checkpoint/state.pt": restored(in_state, tmp_path)}
    return tampered(bundle, changes), "its record does not tell that it rounds otherwise"


def another_data_set(bundle, made, tmp_path):
    def change(record):
        record["provenance"]["dataset"] = "0" * 64

    return tampered(bundle, {f"{RUN}/result.json": edited(change)}), "dataset is not that of its config and rounds"


def no_environments(bundle, made, tmp_path):
    changes = {f"{RUN}/checkpoint/state.pt": restored(lambda state: state.update(environments=[]), tmp_path)}
    return tampered(bundle, changes), "does not say that its last round was made by 1"


def an_encoder_of_another_machine(bundle, made, tmp_path):
    """Made up, with its own scores, on a processor that nobody has here: its rounds end in another one."""
    there = {"hardware": "an abacus"}

    def in_state(state):
        state["environments"] = [{**each, **there} for each in state["environments"]]
        state["server"]["weights"] = trees.map(lambda leaf: leaf.flip(0), state["server"]["weights"])

    state = restored(in_state, tmp_path)
    folder = tmp_path / "forged"
    shutil.copytree(made[0], folder)
    (folder / "checkpoint/state.pt").write_bytes(state((folder / "checkpoint/state.pt").read_bytes()))
    with opened(folder, Display(Console(quiet=True))) as run:
        (folder / "result.json").unlink()
        forged = run.evaluate(["knn/v1"]).record

    def in_record(record):
        record.update({key: forged[key] for key in ("scores", "encoders")})
        record["provenance"].update(there)

    changes = {f"{RUN}/checkpoint/state.pt": state, f"{RUN}/result.json": edited(in_record)}
    return tampered(bundle, changes), "knn/v1 accuracy is another when it is trained again"


TAMPERED = (
    an_own_protocol, a_deviation_left_out, another_data_set, no_environments, an_encoder_of_another_machine,
    a_score, a_seed, a_config_key, the_encoder, a_missing_round, another_methods_hash, a_replayed_seed,
    an_old_record_under_a_new_commit, a_path_that_escapes, a_huge_file,
)  # fmt: skip


@pytest.mark.parametrize("tamper", TAMPERED)
def test_a_tampered_bundle_is_refused_in_one_line(tamper, bundle, made, tmp_path, refused):
    file, message = tamper(bundle, made, tmp_path)
    replay = ("replay=0",) if tamper in (a_replayed_seed, an_encoder_of_another_machine) else ()
    assert message in refused("verify", str(file), *replay)
    assert not bundles.receipt(file).exists()
    assert not (tmp_path.parent / "evil.pt").exists()


def test_a_bundle_gets_onto_a_board_with_its_mark(made, bundle, call, refused, tmp_path):
    folder = tmp_path / "submissions"
    folder.mkdir()
    file = folder / "tiny-fedavg.zip"
    assert call("submit", *map(str, made), "chosen=the suite's own values", f"output={file}")[0] == 0

    def marks() -> list[str]:
        return [record["submission"]["mark"] for record in bundles.records(folder)]

    assert marks() == ["self-reported"] * 2
    code, out, err = call("verify", str(file))
    assert (code, "follows from its encoder\n" in out, "verified, the same scores" in out) == (0, True, True), err
    assert marks() == ["verified"] * 2
    receipt = json.loads(bundles.receipt(file).read_text())
    scores = store.read(made[1] / "result.json")["scores"]
    assert (receipt["scores"]["tiny/fedavg/seed1"], receipt["difference"]) == (
        {"claimed": scores, "recomputed": scores},
        0.0,
    )
    code, out, err = call("verify", str(file), "replay=1", "rounds=1")
    assert (code, "seed1: 1 of 2 rounds trained again, to the same bits" in out) == (0, True), out + err
    assert marks() == ["verified"] * 2  # of a part
    assert call("verify", str(file), "replay=1")[0] == 0
    assert call("board", f"collect={folder}", f"folder={tmp_path / 'board'}")[0] == 0
    assert "fedavg (replayed)" in (tmp_path / "board" / "README.md").read_text()
    (_, record) = store.collect(tmp_path / "board" / "results")
    assert record["submission"]["chosen"] == "the suite's own values"
    assert record["submission"]["recomputed"] == scores
    (folder / "copy.zip").write_bytes(file.read_bytes())
    assert "has two records, one of them submitted" in refused("board", f"collect={folder}", f"folder={tmp_path}")
    (folder / "copy.zip").unlink()
    bundles.receipt(file).unlink()
    file.write_bytes(bundle.read_bytes())  # another bundle of the same run
    there = f"folder={tmp_path / 'board'}"
    line = refused("board", f"collect={folder}", there)
    assert "a bundle does not replace it; delete results/tiny/fedavg/seed0.json of that board first" in line
    bundles.receipt(file).write_text(json.dumps(receipt))
    assert "is of another bundle" in refused("board", f"collect={folder}", f"folder={tmp_path / 'board'}")


def test_with_other_libraries_scores_may_differ_and_the_receipt_says_how_far(bundle, call, refused):
    def change(record):
        record["provenance"]["libraries"]["torch"] = "0.4.0"
        for scores in (record["scores"], *record["encoders"].values()):
            scores["knn/v1"]["accuracy"] *= 1.005

    file = tampered(bundle, {f"{RUN}/result.json": edited(change)})
    code, out, err = call("verify", str(file), "replay=0")
    assert (code, "follows from its encoder, to 1%" in out) == (0, True), out + err
    assert "replayed, scores differ by 0.5 % at most" in out
    receipt = json.loads(bundles.receipt(file).read_text())
    assert "to 1%, on another kind of machine or library" in receipt["replayed"]
    (of_run,) = receipt["scores"].values()
    assert of_run["claimed"]["knn/v1"]["accuracy"] == 1.005 * of_run["recomputed"]["knn/v1"]["accuracy"]
    assert receipt["difference"] == pytest.approx(0.005 / 1.005)


def test_code_that_is_not_installed_is_named(bundle, refused):
    def change(manifest):
        manifest["code"]["nowhere.Method"] = {"sha256": "0" * 64, "wheel": "nowhere 1.2"}
        return manifest

    line = refused("verify", str(tampered(bundle, manifest=change)), "trust=true")
    assert "tampered.zip: nowhere.Method is of nowhere 1.2, which is not here: install it" in line


@pytest.mark.parametrize(
    ("claimed", "again", "share"),
    [
        ({"a": 50.0}, {"a": 50.0}, 0),
        ({"a": 50.0, "b": 10.0}, {"a": 49.0, "b": 10.0}, 0.02),
        ({"a": -2.0}, {"a": 2.0}, 2),
        ({"a": 0.0}, {"a": 1e-4}, 0.01),  # of a number near 0
        ({"a": 1.0}, {"b": 5.0}, 0),
    ],
)
def test_the_difference_of_scores(claimed, again, share):
    assert bundles.difference({"knn/v1": claimed}, {"knn/v1": again}) == pytest.approx(share)
    assert bundles.difference({}, {"knn/v1": again}) == 0


def test_nothing_in_a_bundle_is_run_without_trust(bundle, tmp_path, monkeypatch, refused):
    (tmp_path / "evil_code.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.syspath_prepend(tmp_path)

    def change(text: bytes) -> bytes:
        content = yaml.safe_load(text)
        content["method"]["class"] = "evil_code.Evil"
        return yaml.safe_dump(content).encode()

    line = refused("verify", str(tampered(bundle, {f"{RUN}/config.yaml": change})))
    assert (
        f"tampered.zip: {RUN[5:]}/config.yaml names code from outside the suite (method.class=evil_code.Evil)" in line
    )
    assert "evil_code" not in sys.modules


def test_a_damaged_archive_is_refused_or_the_same(bundle):
    content, rng = bundle.read_bytes(), random.Random(0)
    with bundles.opened(bundle) as (before, _):
        pass
    refusals = []
    for _ in range(60):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        bundle.write_bytes(damaged[: rng.choice((None, rng.randrange(len(content))))])
        try:
            with bundles.opened(bundle) as (manifest, _):
                assert manifest == before
        except RecordError as error:
            refusals.append(str(error))
    assert len(refusals) > 30
    assert all(line.startswith(f"{bundle}: ") for line in refusals)


@pytest.mark.parametrize("text", [b"{", b"\xff", b"5\n5"])
def test_rounds_that_are_no_rounds_are_one_line(text, bundle, refused):
    file = tampered(bundle, {f"{RUN}/rounds.jsonl": lambda _: text})
    assert "tampered.zip: its files are not those of a run: " in refused("verify", str(file))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("submit", "usage: "),
        ("submit RUN", "by what were the settings chosen?"),
        ("submit RUN chosen=x output=row.tar", "the name of a bundle ends in .zip"),
        ("submit RUN RUN chosen=x", "is given twice"),
        ("submit DIRTY chosen=x", "was made by changed code"),
        ("submit EMPTY chosen=x", "is not a run folder"),
        ("verify", "usage: "),
        ("verify nowhere.zip", "no zip archive that can be read"),
        ("verify BUNDLE replay=7", "has the seeds 0"),
        ("verify BUNDLE rounds=1", "give both"),
        ("verify BUNDLE replay=0 rounds=0", "rounds=0: give a whole number"),
        ("verify BUNDLE optimizer.lr=1", "changed config"),
    ],
)
def test_mistakes_of_a_command(words, message, made, bundle, tmp_path, refused):
    record = store.read(made[0] / "result.json")
    record["provenance"]["dirty"] = True
    store.write(tmp_path / "dirty" / "result.json", record)
    (tmp_path / "dirty" / "config.yaml").write_bytes((made[0] / "config.yaml").read_bytes())
    names = {"RUN": str(made[0]), "DIRTY": str(tmp_path / "dirty"), "EMPTY": str(tmp_path), "BUNDLE": str(bundle)}
    assert message in refused(*(names.get(word, word) for word in words.split()))
