"""Runs on data of a user's own: natural clients, images without labels, labelled images beside them, functions."""

import csv
import io
import itertools
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from benchmark.configuration.compose import compose, save
from benchmark.configuration.identity import identity, settings
from benchmark.configuration.partitions import drop_replaced
from benchmark.errors import CheckpointError, ConfigError
from benchmark.experiment import data
from benchmark.experiment.experiment import Experiment
from benchmark.experiment.folder import load_folder
from benchmark.federation.loop import FederatedLoop
from benchmark.tracking.callbacks import RoundLog
from benchmark.tracking.progress import Display
from datamodules.errors import PartitionError
from datamodules.sources import HELD_OUT
from eval.knn import crowded
from leaderboards import store
from tests.benchmark.cli.cli_helpers import checkpoint, stop
from tests.datamodules import own_data
from tests.run_helpers import TINY, same

CLIENTS = {"oslo": 30, "lima": 18, "rome": 12}
UNLABELLED = ("evaluation.protocols=[geometry/v1]",)
SHORT = ("federation.rounds=1", "training.steps=1", *UNLABELLED)
DISTIL = ("method.distil_epochs=1",)
CHANGED = "other images, labels or clients than"


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Folders: `labelled` by class with clients.csv, `plain` by client, `probed` by client with labelled images."""
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)

    def save(label, *paths):
        for file in (root / path for path in paths):
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 120, (8, 8, 3), dtype=np.uint8)
            pixels[..., label] += 100
            Image.fromarray(pixels).save(file)

    rows = [("path", "client")]
    clients = itertools.cycle([name for name, count in CLIENTS.items() for _ in range(count // 6)])
    for index, client in zip(range(60), clients, strict=False):
        path, own = f"{'abc'[index % 3]}/{index:02}.png", f"{client}/{index:02}.png"
        save(index % 3, f"labelled/train/{path}", f"plain/{own}", f"probed/train/{own}")
        rows.append((path, client))
    for index in range(18):
        path, split = f"{'abc'[index % 3]}/{index}.png", "test" if index % 2 else "train"
        save(index % 3, f"labelled/test/{path}", f"probed/probe/{split}/{path}")
    with (root / "clients.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    return root


@pytest.fixture
def experiment(images, tmp_path):
    """Makes an experiment of the tiny scenario on one of the folders."""

    def make(name, *overrides, method="fedavg", partition="file"):
        words = [f"data.name={name}", f"data.root={images}", f"data.cache={tmp_path / 'cache'}", "scenario=own"]
        words += [f"output={tmp_path / 'runs'}", "logger=csv", "accelerator=cpu", f"partition.name={partition}"]
        words += [f"partition.path={images / 'clients.csv'}"] if partition == "file" else []
        given = {word.partition("=")[0]: word for word in ("training.batch_size=8", *words, *overrides)}
        console = Console(file=io.StringIO(), width=300)
        return Experiment(compose(TINY, method, list(given.values())), Display(console))

    return make


@pytest.fixture
def clients_file(images, tmp_path):
    """Writes a CSV in which the client of row k is `name(k, its client)`; returns the override that names it."""

    def write(name):
        header, *rows = (images / "clients.csv").read_text().splitlines()
        pairs = enumerate(row.split(",") for row in rows)
        file = tmp_path / "some.csv"
        file.write_text("\n".join([header, *(f"{path},{name(k, client)}" for k, (path, client) in pairs)]))
        return f"partition.path={file}"

    return write


def reopened(run):
    return Experiment(load_folder(run.folder), Display(Console(file=io.StringIO())), path=run.folder)


class TestFile:
    def test_clients_have_their_names_in_record_and_figure(self, experiment):
        run = experiment("labelled", "evaluation.protocols=[linear/v1]")
        record = run.execute()
        assert (record["federation"]["names"], record["federation"]["clients"]) == (sorted(CLIENTS), 3)
        assert (run.folder / "figures" / "partition.png").stat().st_size > 5000
        assert not any(line.startswith("kNN votes with ") for line in record["deviations"])
        with run.open() as opened:
            assert [(str(client), client.examples) for client in opened.loop.clients] == [
                (f"client {k} ({name})", CLIENTS[name]) for k, name in enumerate(sorted(CLIENTS))
            ]
        centralized = experiment("labelled", method="centralized").execute()["federation"]  # has all images
        assert (centralized["clients"], "names" in centralized) == (1, False)

    LONG = ("fedavg", "scaffold", "orchestra", "fedsc", "ssd")

    @pytest.mark.parametrize("method", ["fedema", *(pytest.param(name, marks=pytest.mark.long) for name in LONG)])
    def test_an_interrupted_run_has_the_bits_of_an_undisturbed_one(self, experiment, method):
        whole, half = (experiment("labelled", f"row={row}", method=method) for row in ("whole", "half"))
        whole.execute()
        stop(half, 2)
        half.execute()
        assert same(*(checkpoint(run.folder)["server"] for run in (whole, half)))

    def test_its_content_is_part_of_the_run_and_its_path_is_not(self, experiment, images, tmp_path):
        copy = shutil.copy(images / "clients.csv", tmp_path / "elsewhere.csv")
        one, other = experiment("labelled"), experiment("labelled", f"partition.path={copy}")
        assert identity(one.config) == identity(other.config)
        other.execute()
        copy.write_text(copy.read_text().replace("oslo", "bern", 1))
        with pytest.raises(ConfigError, match=r"holds a run of another config \(partition\.path_sha256: "):
            experiment("labelled", f"partition.path={copy}").execute()
        (other.folder / "result.json").unlink()
        with pytest.raises(ConfigError, match=r"elsewhere\.csv has changed since this run began"):
            reopened(other).execute()

    def test_another_rule_takes_none_of_its_keys_along(self):
        back = compose(TINY, "fedavg", ["partition.name=iid", "partition.clients=4"])
        assert set(back.partition) == {"name", "clients"}
        section = {"name": "dirichlet_min", "clients": 4, "alpha": 1, "min_size": 7, "share": 0.5}
        drop_replaced(section, {"name": "folders"})  # natural clients have a min_size of another meaning
        assert section == {"share": 0.5}

    def test_a_limit_leaves_clients_their_part_and_changes_no_number_of_a_client(self, experiment, clients_file):
        assert "clients" not in experiment("labelled").config.partition
        record = experiment("labelled", "data.limit=0.5", "row=half").execute()
        (line,) = (line for line in record["deviations"] if "data.limit" in line)
        assert line.startswith("only 30 of 60 training and 9 of 18 test images (data.limit=0.5); natural clients")
        assert record["settings"]["data.limit"] == 0.5
        assert set(record["federation"]["names"]) <= set(CLIENTS)
        words = (clients_file(lambda k, _: f"c{k // 2:02}"), "training.batch_size=2", "row=nobody")
        with pytest.raises(ConfigError, match=r"data\.limit leaves no client two images: raise it"):
            experiment("labelled", "data.limit=3", *words).execute()
        words = (clients_file(lambda k, _: "b" if k < 2 else "ac"[k % 2]), "data.limit=20", "training.batch_size=4")
        public, line = ("labelled", *words, *SHORT, *DISTIL), r"leaves client 1 without two images, .* names client 2: "
        with pytest.raises(ConfigError, match=line):
            experiment(*public, "public={name: client, client: 2}", method="flesd").build()
        first = experiment(*public, "public={name: client, client: 0}", "row=first", method="flesd")
        for run in (experiment("labelled", *words, *SHORT), first):
            assert run.execute()["federation"]["names"] == ["a", "c"]

    def test_small_clients_are_left_out_on_request(self, experiment, clients_file):
        """A line says how many; ids count those that take part, and it says whom they mean."""
        with pytest.raises(PartitionError, match=r"client 0 \(bern\) holds 1 image, but training needs two: give it m"):
            experiment("labelled", clients_file(lambda k, name: name if k else "bern")).build()
        words = (clients_file(lambda k, name: f"a{k}" if k < 4 else name), "training.batch_size=4", *SHORT)
        line = r"client 0 \(a0\) holds 1 image, .* client 2 \(a2\) holds 1 image \(4 of 7 .*partition\.min_size=2"
        with pytest.raises(PartitionError, match=line):
            experiment("labelled", *words).build()
        words = ("labelled", *words, "partition.min_size=5", "public={name: client, client: 1}")
        record = experiment(*words, *DISTIL, method="flesd").execute()
        assert record["federation"]["names"] == ["lima", "oslo", "rome"]
        assert {
            "4 of 7 clients, with 4 of 60 images, are left out: they have fewer than partition.min_size=5",
            "numbers of clients count those that take part: 1 is oslo",
        } <= set(record["deviations"])

    @pytest.mark.parametrize(
        ("override", "line"),
        [
            ("partition.min_size=0", r"partition\.min_size=0: give a number of images, at least 1"),
            ("partition.min_size=31", r"partition\.min_size=31: the largest client has 30 images: lower it"),
            ("partition.min_size=x", r"partition\.min_size='x'"),
            ("partition.path=none.csv", r"partition\.path=none\.csv: there is no such file"),
            ("partition.clients=9", r"partition\.clients=9: there are 3 clients: give"),
            ("partition.alpha=1", r"unknown key 'partition\.alpha'"),
            ("partition.partial=3", r"partition\.partial=3: file takes true or false"),
            ("evaluation.protocols=[clients/v1]", "clients/v1: it scores clients or domains apart, and the test im"),
        ],
    )
    def test_what_cannot_be_meant(self, experiment, override, line):
        with pytest.raises((ConfigError, PartitionError), match=line):
            experiment("labelled", override).build()


class TestPublicImages:
    def test_those_that_have_changed_are_noticed_where_they_are_used(self, experiment, images, tmp_path):
        root = tmp_path / "copy"
        for name in ("labelled", "shared"):
            shutil.copytree(images / "labelled", root / name)
        words, files = (f"data.root={root}", "public.name=shared"), sorted((root / "shared" / "train" / "a").iterdir())
        run = experiment("labelled", *words, *DISTIL, method="flesd")
        run.execute()
        shutil.copyfile(*files[:2])
        with pytest.raises(ConfigError, match=f"was made with {CHANGED}"):
            run.execute()
        (run.folder / "result.json").unlink()
        with pytest.raises(CheckpointError):
            run.execute()
        idle = experiment("labelled", *words)  # nobody uses them
        idle.execute()
        shutil.copyfile(files[0], files[2])
        (idle.folder / "result.json").unlink()
        idle.execute()

    def test_they_are_opened_once_and_keep_their_test_images_as_a_target_of_transfer(self, experiment, monkeypatch):
        """Transfer scores a data set's own images, whatever lies in its probe/."""
        opened = Mock(wraps=data.load_matching)
        monkeypatch.setattr(data, "load_matching", opened)
        protocols = "evaluation.protocols=[transfer-probed/v1]"
        run = experiment("labelled", "public.name=probed", "data.limit=null", protocols, method="flesd").build()
        assert len(run.evaluator.other("probed").test.labels) > 0
        assert [call.args[2] for call in opened.call_args_list] == ["probed"]

    def test_a_checkpoint_of_before_they_were_hashed_is_taken(self, experiment):
        run = experiment("labelled", "public.name=probed", "data.limit=null", *SHORT, *DISTIL, method="flesd").build()
        whole = run.loop.checkpoint.config_hash
        run.loop.checkpoint.config_hash, *_ = whole.rsplit("/", 1)
        run.loop.fit()
        run.loop.checkpoint.config_hash = whole
        assert run.loop.checkpoint.load()["round"] == run.loop.rounds


class TestWithoutLabels:
    def test_folders_are_clients_and_their_images_train_without_labels(self, experiment):
        protocols = "evaluation.protocols=[geometry/v1,label-free/v1]"
        run = experiment("plain", protocols, "evaluation.every=1", partition="folders")
        record = run.execute()
        assert record["federation"]["names"] == sorted(CLIENTS)
        assert set(record["scores"]) == {"geometry/v1", "label-free/v1"}
        assert HELD_OUT in record["deviations"]
        assert record["best"] is None
        printed = run.display.console.file.getvalue()
        assert "plain: no labels, 48 training and 12 test images, 3 clients (lima, oslo, rome)" in printed
        assert [(point["round"], "monitor" in point) for point in record["curve"]] == [(k, False) for k in (1, 2, 3)]
        assert record["curve"][0]["effective_rank"] > 1

    def test_client_folders_taken_for_classes_are_named_as_such(self, experiment):
        run = experiment("plain", *SHORT, partition="iid")
        run.execute()
        printed = run.display.console.file.getvalue()
        lines = ("plain: 3 classes (lima, oslo, rome), ", "if they are clients, set partition.name=folders", HELD_OUT)
        assert all(line in printed for line in lines)

    def test_images_that_moved_to_another_client_are_noticed(self, experiment, images, tmp_path):
        for split in ("train", "test"):
            shutil.copytree(images / "plain", tmp_path / "copy" / "plain" / split)
        run, again = (
            experiment("plain", f"data.root={tmp_path / 'copy'}", *UNLABELLED, partition="folders") for _ in range(2)
        )
        record, train = run.execute(), tmp_path / "copy" / "plain" / "train"
        # the first there, so that the images stay in their order
        max((train / "oslo").iterdir()).rename(train / "rome" / "00.png")
        assert data.source(again.config).sha256 == record["provenance"]["dataset"]
        with pytest.raises(ConfigError, match=f"{CHANGED} data set plain has today"):
            again.execute()
        (run.folder / "result.json").unlink()
        with pytest.raises(CheckpointError):
            again.execute()

    @pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # a classifier of no classes, then refused
    @pytest.mark.parametrize(
        ("words", "line"),
        [
            *(
                (f"evaluation.protocols=[{name}/v1]", f"{name}/v1 uses labels, and plain has no two classes: put label")
                for name in ("linear", "knn", "semi", "clusters")
            ),
            ("data.labels=false partition.clients=3 partition.name=dirichlet", r"=dirichlet divides by label, and pla"),
            ("objective=supervised", "objective=supervised trains on labels, and plain has no two classes"),
        ],
    )
    def test_what_reads_labels_is_refused_before_the_training(self, experiment, words, line, monkeypatch):
        monkeypatch.setattr(FederatedLoop, "fit", lambda *_: pytest.fail("trained"))
        with pytest.raises(ConfigError, match=line):
            experiment("plain", *UNLABELLED, *words.split(), partition="folders").execute()

    def test_all_stands_for_what_needs_no_labels(self, experiment):
        record = experiment("plain", "evaluation.protocols=[all]", "federation.rounds=1", partition="folders").execute()
        assert {"geometry/v1", "label-free/v1", "spectrum/v1", "transfer-digits/v1"} <= set(record["scores"])
        assert not {"linear/v1", "knn/v1"} & set(record["scores"])

    @pytest.mark.parametrize(
        ("words", "where"),
        [("probed", "probe"), ("plain data.probe=labelled", "labelled"), ("plain data.probe=digits", "digits")],  # grey
    )
    def test_labelled_images_beside_them_are_scored(self, experiment, words, where):
        run = experiment(*words.split(), "evaluation.every=1", "federation.rounds=1", partition="folders")
        record = run.execute()
        assert 0 <= record["scores"]["knn/v1"]["accuracy"] <= 100
        assert 0 <= record["best"]["value"] <= 100
        sha = run.build().evaluator.images.sha256
        assert {origin["dataset"] for origin in record["evaluated"].values()} == {sha}
        (line,) = (line for line in record["deviations"] if line.startswith("scored on the labelled images of "))
        assert where in line

    def test_no_fifth_is_held_out_where_nothing_would_be_scored_on_it(self, experiment):
        cases = {"probed": (60, 0), "plain": (48, 12), "plain data.probe=labelled": (60, 0)}
        cases |= {"probed data.hold_out=true": (48, 12), "probed data.limit=30": (30, 0)}
        for words, sizes in cases.items():
            source = experiment(*words.split(), *UNLABELLED, partition="folders").build().data.source
            assert (len(source.train.labels), len(source.test.labels)) == sizes, words

    def test_a_run_from_before_the_key_goes_on_with_the_images_it_had(self, experiment):
        """Its folder lacks the key: a fifth was held out."""
        before = experiment("probed", "data.hold_out=true", *UNLABELLED, partition="folders")
        assert "data.hold_out" in compose("digits", "fedavg", ["data.hold_out=true"]).scenario
        record, file = before.execute(), before.folder / "config.yaml"
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(kept := [line for line in lines if "hold_out" not in line]))
        assert len(kept) == len(lines) - 1
        again = reopened(before)
        assert again.execute() == record
        assert again.build().data.source.sha256 == record["provenance"]["dataset"]
        assert HELD_OUT in record["deviations"]


def test_a_run_from_before_goes_on_in_the_order_of_its_files(experiment, tmp_path):
    """Its folder lacks the key, and its record has the hash of the images in their order alone."""
    rng = np.random.default_rng(0)
    labels, pixels = rng.integers(0, 3, 80), rng.integers(0, 256, (80, 8, 8), dtype=np.uint8)
    arrays = {"train_images": pixels[:60], "train_labels": labels[:60], "test_images": pixels[60:]}
    np.savez(tmp_path / "mine.npz", **arrays, test_labels=labels[60:])
    words = ("mine", f"data.root={tmp_path}", "partition.clients=3", *SHORT, "federation.rounds=2")
    before = experiment(*words, "data.order=source", partition="iid")
    assert "data.order=source" in compose("digits", "fedavg", ["data.order=source"]).scenario
    stop(before, 1, RoundLog, "on_round_end")
    file = before.folder / "config.yaml"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(kept := [line for line in lines if line != "  order: source\n"]))
    assert len(kept) == len(lines) - 1
    again = experiment(*words, partition="iid")  # the command that began it, as it is written now
    record = again.execute()
    assert again.config.data.order == "source"
    whole = experiment(*words, "data.order=source", "scenario=whole", partition="iid").execute()
    assert [point["loss"] for point in record["curve"]] == [point["loss"] for point in whole["curve"]]
    origin = record["provenance"]
    today = experiment(*words, partition="iid").build().data.source.in_order
    assert origin["in_order"] not in (origin["dataset"], today)
    older = {**record, "provenance": {**origin, "dataset": origin["in_order"]}}
    del older["provenance"]["in_order"]
    store.write(again.folder / "result.json", older)
    assert experiment(*words, partition="iid").execute() == older
    np.savez(tmp_path / "mine.npz", **{**arrays, "test_images": pixels[60:][::-1]}, test_labels=labels[60:][::-1])
    with pytest.raises(ConfigError, match=f"{CHANGED} data set mine has today"):  # the same images in another order
        experiment(*words, partition="iid").execute()


def test_the_terminal_and_the_record_say_once_that_neighbours_are_many(experiment):
    words = ("evaluation.protocols=[knn/v1,knn-by-k/v1,transfer-digits/v1]", "federation.rounds=1")
    run = experiment("labelled", *words)
    notes = [line for line in run.execute()["deviations"] if line.startswith("kNN votes with ")]
    assert notes == [crowded(200, 60), crowded(20, 60), crowded(200, 1438, "digits")]
    printed = run.display.bars.console.file.getvalue()
    assert all(printed.count(line) == 1 for line in notes)


def test_scores_are_by_domain(tmp_path):
    words = [f"output={tmp_path}", f"data.cache={tmp_path / 'cache'}", "logger=csv", "federation.rounds=1"]
    run = Experiment(compose("domains", "fedavg", words), Display(Console(file=io.StringIO())))
    record = run.execute()
    assert (run.folder / "figures" / "clients.png").exists()
    scores = record["scores"]["clients/v2"]
    domains = scores["accuracy of display"], scores["accuracy of handwriting"]
    assert (scores["clients"], scores["accuracy_worst_tenth"]) == (2, min(domains))
    assert scores["accuracy"] == pytest.approx(sum(domains) / 2)
    weighted = np.average(domains, weights=[302, 357])  # test images of either domain, which are all that there are
    assert weighted == pytest.approx(record["scores"]["linear/v1"]["accuracy"], abs=1e-4)
    assert record["federation"]["names"] == [f"{name}-{k}" for name in ("display", "handwriting") for k in range(5)]


@pytest.mark.parametrize("rule", ["folders", "iid"])
def test_what_clients_get_that_never_trained_is_told_apart(experiment, rule):
    """Those held out, whether or not the others are the clients that train."""
    words = (f"data.class={own_data.__name__}.Natural", "partition.held_out=[site 1,site 3]", *SHORT[:2])
    run = experiment("natural", *words, "evaluation.protocols=[linear/v1,by-client/v1]", partition=rule)
    scores = run.execute()["scores"]["by-client/v1"]
    start = "accuracy of "
    each = {name.removeprefix(start): value for name, value in scores.items() if name.startswith(start)}
    for suffix, sites in (("", "024"), ("_unseen", "13")):
        values = [each[f"site {k}"] for k in sites]
        assert scores[f"accuracy{suffix}"] == pytest.approx(sum(values) / len(values))
        assert (scores[f"accuracy_worst_tenth{suffix}"], scores[f"clients{suffix}"]) == (min(values), len(values))
    assert {"accuracy_member_labels", "gini_unseen_member_labels"} <= scores.keys()
    assert (run.folder / "figures" / "by-client.png").exists()
    with (run.folder / "by-client.csv").open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    assert [line["client"] for line in lines] == sorted(each, key=lambda name: (each[name], name))
    assert {line["client"]: float(line["accuracy"]) for line in lines} == {k: pytest.approx(v) for k, v in each.items()}
    assert {line["client"] for line in lines if line["unseen"] == "1"} == {"site 1", "site 3"}
    with run.open() as opened:
        test = opened.data.source.test
        names, sizes = np.unique(test.clients, return_counts=True)
        assert {line["client"]: int(line["images"]) for line in lines} == dict(zip(names, sizes, strict=True))
        assert opened.evaluator.trained == {"site 0", "site 2", "site 4"}
        assert (opened.evaluator.holders < 0).sum() == 40
        used = np.concatenate([*opened.evaluator._shuffled()])  # for statistics of BatchNorm
        held = opened.data.source.train.images[opened.evaluator.holders >= 0]
        assert sorted(map(bytes, used)) == sorted(map(bytes, held))


class TestClasses:
    HERE = own_data.__name__
    REFUSED = r"names code from outside the suite \({}\.class="

    def test_a_dataset_and_a_partition_by_import_path(self, experiment):
        words = (f"data.class={self.HERE}.Blocks", "data.options.count=30", f"partition.class={self.HERE}.by_turns")
        run = experiment("blocks", *words, "partition.first=z", partition="null")
        record = run.execute()
        assert record["federation"]["names"] == ["b", "c", "z"]
        named = [line.partition(" ")[0] for line in record["deviations"]]
        assert {f"{self.HERE}.Blocks", f"{self.HERE}.by_turns"} <= set(named)
        with pytest.raises(ConfigError, match=self.REFUSED.format("data")):
            load_folder(run.folder)
        trusted = load_folder(run.folder, trust=True)
        assert trusted.data["class"] == record["settings"]["data.class"] == f"{self.HERE}.Blocks"
        assert identity(trusted) == identity(run.config)

    def test_not_even_a_function_of_the_suite_is_called_for_a_folder(self, experiment, tmp_path):
        file = tmp_path / "config.yaml"
        for section in ("data", "partition", "views"):
            save(experiment("labelled").config, file)
            own = f"{section}:\n  class: methods.networks.libraries.hub_file\n"
            file.write_text(file.read_text().replace(f"{section}:\n", own))
            with pytest.raises(ConfigError, match=self.REFUSED.format(section)):
                load_folder(tmp_path)

    def test_names_and_arguments(self):
        """The data set's name is that of the class unless given; an argument `path` is no file's."""
        config = compose(TINY, "fedavg", [f"data.class={self.HERE}.Blocks"])
        assert (config.data.name, dict(config.data.options)) == ("blocks", {})
        assert "class" not in compose(TINY, "fedavg", ["data.name=digits"]).data
        words = [f"partition.class={self.HERE}.by_turns"]
        one, other = (compose(TINY, "fedavg", [*words, f"partition.path={path}"]) for path in ("k3", "k7"))
        assert identity(one) != identity(other)
        assert one.scenario != other.scenario

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            ("data.class=nowhere.X", "is its folder in PYTHONPATH"),
            ("data.class=5", "data.class='5': give an import path"),
            ("partition.class=nowhere.split", "is its folder in PYTHONPATH"),
            (f"partition.class={HERE}.by_turns partition.second=1", "unexpected keyword argument 'second'"),
        ],
    )
    def test_what_is_no_such_class(self, experiment, words, line):
        with pytest.raises((ConfigError, PartitionError), match=line):
            experiment("labelled", *words.split(), partition="null").execute()


def test_levels_are_the_white_of_images_of_16_bits(experiment, tmp_path):
    """They are part of what a run is only where they are given; another data set has them where it has 16 bits."""
    rng = np.random.default_rng(0)
    (tmp_path / "dark").mkdir()
    for index in range(12):  # images of 12 bits in 16
        Image.fromarray(rng.integers(0, 4096, (8, 8), dtype=np.uint16)).save(tmp_path / "dark" / f"{index:02}.png")

    def dark(*words):
        common = (f"data.root={tmp_path}", *UNLABELLED, "partition.clients=2")
        return experiment("dark", *common, *words, partition="iid").config

    plain, given = dark(), dark("data.levels=4095")
    assert identity(plain) != identity(given)
    assert "data.levels" not in settings(plain)
    assert data.source(plain).train.images.max() <= 16
    assert data.source(given).train.images.max() > 250
    for probe in ("digits", "dark"):
        source = data.source(dark("data.levels=max", f"data.probe={probe}"))
        assert source.probe.levels == (source.levels if probe == "dark" else None)
    for levels in ("4095", "max"):
        with pytest.raises(ConfigError, match=f"data.levels={levels}: no image of plain has 16 bits: leave it out"):
            data.source(experiment("plain", f"data.levels={levels}", partition="folders").config)
