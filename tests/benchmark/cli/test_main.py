import contextlib
import io
import json
import os
import re
import resource
import shlex
import shutil
import signal
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from rich.console import Console

from benchmark.cli.main import main
from benchmark.configuration.compose import compose
from benchmark.configuration.files import available
from benchmark.errors import EX_TEMPFAIL, BusyError, ConfigError
from benchmark.experiment import data
from benchmark.experiment.experiment import Experiment
from benchmark.experiment.run import Run
from benchmark.federation.loop import FederatedLoop
from benchmark.tracking.progress import Display
from datamodules.sources import Source, Split
from eval.features import EvalError
from eval.protocol import PROTOCOLS
from leaderboards import store
from leaderboards.pages import methods as pages
from leaderboards.pages import privacy, reproduction
from methods.fedavg import FedAvg
from methods.scaffold import Scaffold
from tests.command_helpers import Job
from tests.run_helpers import TINY, finish, in_child, same

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _one_thread_and_the_old_signal():
    torch.set_num_threads(1)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def call(tmp_path, capsys):
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def calling(*words, where="runs"):
        if words[0] in ("run", "tune"):
            words = (*words, f"output={tmp_path / where}", f"data.cache={tmp_path / 'cache'}", "logger=csv")
        capsys.readouterr()
        code = main(words)
        return code, *capsys.readouterr()

    return calling


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The place of a finished run of FedAvg, not to be changed."""
    place = tmp_path_factory.mktemp("finished")
    assert main(["run", TINY, "fedavg", f"output={place}/runs", f"data.cache={place}/cache", "logger=csv"]) == 0
    return place


@pytest.fixture
def folder(finished, tmp_path):
    """The folder of a finished run of FedAvg, where `call` would have put it."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path / "runs" / "tiny" / "fedavg" / "seed0"


@pytest.fixture
def refused(call):
    """Runs a command that has to fail with a one-line error; returns that line."""

    def refusing(*words):
        code, out, err = call(*words)
        assert code == 2, err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert "Traceback" not in out + err
        return err

    return refusing


def checkpoint(folder):
    return torch.load(folder / "checkpoint" / "state.pt", weights_only=True)


class TestWords:
    def test_one_row_under_several_seeds(self, call, tmp_path):
        code, out, _ = call("run", TINY, "fedavg", "federation.rounds=1", "scenario=short", "seeds=0,1,1")
        assert code == 0
        rows = tmp_path / "runs" / "short" / "fedavg"
        assert sorted(folder.name for folder in rows.iterdir()) == ["seed0", "seed1"]
        assert "fedavg" in out.splitlines()[-2]  # the board

    def test_the_version(self, call):
        code, out, _ = call("--version")
        assert code == 0
        assert re.fullmatch(r"fulcrum [\d.]+(, commit [0-9a-f]{40}[+]?)?\n", out)


RUNS = [
    ("fedavg training.epoch=3", "'training.epoch' (did you mean 'epochs'?)"),
    ("ssd method.alpa=3", "'method.alpa' (did you mean 'alpha'?)"),
    ("fedvag", "unknown method 'fedvag' (did you mean 'fedavg'?)"),
    ("", "usage: python -m benchmark run SCENARIO METHOD"),
    ("fedavg suite=digits", "not both"),
    ("fedavg seed = 1", "one word with an equals sign, as in seed=1"),
    ("fedavg seed:1", "one word with an equals sign, as in seed=1"),
    ("fedavg --seed=1", "overrides have no dashes: seed=1"),
    ("fedavg accelerator=gpu", "(did you mean 'cuda'?)"),
    ("fedavg seeds=0,1 seed=2", "give seeds=2 instead of seed=2"),
    ("fedavg partition.clients=1000", "1000 clients for 79 examples: give 1 to 79"),
    ("fedavg partition.alpha=0", "alpha=0"),
    ("fedavg partition.alpha=-0.5", "alpha=-0.5"),
    ("fedavg optimizer.lr=-1", "optimizer"),
    ("local federation.rounds=0", "set federation.rounds to at least 1"),
    ("fedavg federation.clients=3", "(did you mean partition.clients?)"),
    ("fedavg method.class=nowhere.X", "is its folder in PYTHONPATH?"),
    ("fedavg objective.temperature=0", "objective.temperature=0: give a number above 0"),
    ("fedavg objective=byol objective.momentum=2", "of at least 0 and at most 1"),
    ("fedprox method.mu=-1", "method.mu=-1: give a number of at least 0"),
    ("fedavg partition.name=classes partition.alpha=3", "unknown key 'partition.alpha'"),
    ("fedavg evaluation.protocols=knn/v1", "e.g. evaluation.protocols=[knn/v1]"),
    ("fedavg --rounds 2", "overrides have no dashes: federation.rounds=2"),
    ("fedavg --lr", "overrides have no dashes: optimizer.lr=VALUE"),
    ("fedavg --gpus 2", "overrides have no dashes: devices=2)"),
    ("fedavg --dataset x", "overrides have no dashes: data.name=x)"),
    ("fedavg --learning-rate 1", "overrides have no dashes: optimizer.lr=1)"),
    ("fedavg schedule.milestones=0.5", "e.g. schedule.milestones=[a,b]"),
    ("fedavg encoder=resnet18", "as in encoder.class=methods.networks.resnet18"),
    ("fedavg optimizer=Adam", "as in optimizer.class=torch.optim.Adam"),
    ("fedavg schedule=3", "as in schedule.KEY=VALUE"),
    ("fedavg learning_rate=1", "(did you mean optimizer.lr?)"),
    ("fedavg optimizer.learning_rate=1", "(did you mean 'lr'?)"),
    ("fedavg gpus=2", "(did you mean 'devices'?)"),
    ("fedavg objective=byol heads.predictor=0", "widths [8, 0, 8]"),
    ("fedavg heads.projector=[-1,8]", "widths [8, -1, 8]"),
    ("fedavg heads.projector=128", "heads.projector=128: methods.objectives"),
    ("fedavg encoder.widths=[0,8]", "give whole numbers of at least 1"),
    ("fedavg encoder='{class: torchvision.models.resnet18}'", "without `dim`"),
    (
        "fedavg encoder='{class: methods.networks.torchvision, name: resnet8}'",
        "torchvision has no model of this name: did you mean resnet18",
    ),
    ("fedavg encoder='{class: methods.networks.torchvision}'", "required keyword-only argument: 'na"),
    (
        "fedavg encoder='{class: methods.networks.torchvision, name: resnet18, image_size: 64}'",
        "encoder.image_size=64: the run's images have a side of 8 pixels",
    ),
    ("fedavg encoder.name=resnet18", "unknown key 'encoder.name'"),
    ("fedavg encoder.weights=nowhere.pt", "encoder.weights=nowhere.pt: there is no such file"),
    ("fedavg data.root=~nobody-here/x", "data.root=~nobody-here/x: there is no such user"),
    ("fedavg partition='{name: file, path: ~nobody-here/x}'", "partition.path=~nobody-here/x: there is no such user"),
    ("fedavg schedule.warmup=2", "schedule.warmup=2.0: give a share of the run in [0, 1)"),
    ("fedavg optimizer.decay_norms_and_biases=false", "there is no weight decay"),
    ("scaffold optimizer='{class: methods.optimizers.LARS}'", "defined for SGD, not LARS"),
    ("fedavg method.addons=[prox]", "give an import path"),
    ("scaffold optimizer.momentum=1", "optimizer.momentum=1: SCAFFOLD needs it below 1"),
    ("fedx objective=supervised", "which Supervised has not"),
    ("fedprox-fedx objective=supervised", "which Supervised has not"),
    (
        "fedx objective=dino objective.local_views=2",
        "FedX compares the embeddings of an image's two views, which DINO has not: set objective.local_views=0",
    ),
    (
        "lwfedssl objective=dino objective.local_views=2",
        "which DINO has not: set method.alignment=0, or set objective.local_views=0",
    ),
    ("lwfedssl method.stays=[projector]", "the server would calibrate with one that nobody"),
    ("fedu-fedx method.addons.0.temperature=0.2", "give the whole list, method.addons='[{class"),
    ("fedx method.local_relation=-1", "method.local_relation=-1: give a number of at least 0"),
    ("fedavg method.weighting=sizes", "method.weighting='sizes': choose examples"),
    ("local server_optimizer.class=methods.server.Adam", "would change nothing"),
    ("untrained server_optimizer.class=methods.server.Adam", "would change nothing"),
    ("fedavg server_optimizer.lr=1", "methods.server.Adam or methods.server.Yogi"),
    ("local federation.batch_norm=recalibrate", "needs a method with one global encoder"),
    (
        "fedavg encoder.norm=group heads.head_norm=false federation.batch_norm=recalibrate",
        "no network here has BatchNorm",
    ),
    ("fedavg objective=swav objective.keep_queue=false", "there is no queue: set objective.queue_size"),
    (
        "local method.addons='[{class: methods.lwfedssl.RepresentationAlignment}]' row=x",
        "the received encoder, and Local sends none",
    ),
    (
        "fedavg method.addons='[{class: methods.lwfedssl.RepresentationAlignment}]' row=x method.stays=[encoder]",
        "has to send the encoder",
    ),
    ("fedavg encoder.norm=layer", "choose batch or group"),
    ("fedavg evaluation.protocols=[knn/v9]", "unknown protocol 'knn/v9'"),
    ("fedavg evaluation.protocols=[transfer-nosuch/v1]", "nosuch"),
    ("flesd evaluation.protocols=[drift/v1]", "has no global model of whole networks"),
    ("fedavg evaluation.protocols=[semi-orchestra/v2]", "public.share=0.1"),
    ("fedavg evaluation.best_on_test=linear/v1", "also in evaluation.protocols"),
    ("fedavg evaluation.best_on_test=geometry/v1", "an accuracy of features"),
    (
        "fedavg objective=supervised evaluation.protocols=[projected/v1]",
        "projected/v1: it scores the outputs of a projector, and there is none",
    ),
    ("fedavg schedule.name=step schedule.gamma=-1", "schedule.gamma=-1.0: give a number"),
    ("fedavg schedule.gamma=0.5", "schedule.gamma: it belongs to schedule.name=step, not cosine"),
    ("fedavg objective.temperature=.inf", "temperature=inf: give a finite number"),
    ("fedavg minutes=.nan", "minutes=nan"),
    ("fedavg minutes=.inf", "minutes=inf"),
    ("fedavg heads.predictor=-3", "simclr has no predictor, so it would change nothing"),
    ("fedavg devices=100000", "devices=100000 is too many for this machine"),
    ("fedavg objective=", "objective=None: give a name"),
    ("fedavg seed=${nope}", "'nope' not found"),
    ("fedavg views.size=100000", "out of memory (760000000000 bytes were asked for)"),
    ("fedavg optimizer.class=torch.optim.LBFGS", "LBFGS can make no step here"),
    ("fedavg optimizer.class=torch.optim.SparseAdam", "SparseAdam can make no step here"),
    ("fedavg method.addons=5", "method.addons=5: give a list"),
    ("fedavg partition.seed=-1", "partition.seed=-1: give a number of at least 0"),
    ("fedavg data.options=[1]", "data.options=[1]: "),
]
"""Words after `run` and the tiny scenario, and what the error says."""
COMMANDS = [
    ("run digts fedavg", "unknown scenario 'digts' (did you mean 'digits'?)"),
    ("run suite=digit", "unknown suite 'digit' (did you mean 'digits'?)"),
    ("run suite=digits method=ssd", "to choose some of a suite's methods, give methods=A,B"),
    ("run fedavg digits", "give the scenario first, digits fedavg"),
    ("tune fedavg digits", "give the scenario first, digits fedavg"),
    ("run suite=digits methods=sdd", "(did you mean 'ssd'?)"),
    ("run ROOT fedavg", "a folder, not a scenario: name a scenario, and give images by data.root="),
    ("run fedx/cifar fedavg", "more (`python -m benchmark list scenarios`)"),
    ("runs TINY fedavg", "unknown command 'runs' (did you mean 'run'?); there are: run, resume"),
    ("export runs", "usage: python -m benchmark export RUN_DIR FILE"),
    ("run suite=fedx methods=fedx-loca", "unknown row 'fedx-loca' of suite fedx (did you mean 'fedx-local'?)"),
    ("run suite=digits seed=3", "give seeds=3 instead of seed=3"),
    ("run suite=digits methods=fedavg,fedavg", "fedavg/seed0 twice"),
    ("list method", "no group 'method' (did you mean 'methods'?)"),
    ("resume nowhere", "nowhere is not a run folder"),
    ("evaluate nowhere", "nowhere is not a run folder"),
    ("resume", "usage: python -m benchmark resume RUN_DIR"),
    ("tune TINY fedavg optimizer.lr=0.1", "tune needs a grid"),
    ("tune TINY fedavg compare=3", "compare=3: give true or false"),
    ("tune TINY fedavg threads=1,2", "threads=1 and threads=2 are one run"),
    ("tune TINY fedavg data.root=a,b", "data.root=a and data.root=b are one run"),
    ("tune TINY fedavg optimizer.lr=0.1,", "a value is missing"),
    ("run suite=1", "unknown suite '1'"),
    ("run suite=digits methods=\"[' ']\"", "an empty line names nothing"),
    ("run suite=digits methods=", "methods= has no value"),
    ("run '\x1b[31m' fedavg", "unknown scenario '\\x1b[31m'"),
    ("board folder=nowhere", "nowhere/results: no such folder"),
    ("board colect=runs", "colect"),
]
"""Whole commands."""


class TestMistakes:
    @pytest.mark.parametrize(
        ("words", "line"),
        [*((f"run TINY {words}", line) for words, line in RUNS), *COMMANDS],
        ids=[words for words, _ in (*RUNS, *COMMANDS)],
    )
    def test_one_line_and_exit_code_2(self, refused, words, line):
        assert line in refused(*shlex.split(words.replace("TINY", TINY).replace("ROOT", str(ROOT))))

    def test_a_number_is_a_name(self, call, tmp_path):
        assert call("run", TINY, "fedavg", "row=1", "scenario=2")[0] == 0
        assert (tmp_path / "runs" / "2" / "1" / "seed0" / "result.json").exists()

    @pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "SLURM_NTASKS"])
    def test_a_launchers_variable_that_is_no_number(self, refused, monkeypatch, name):
        monkeypatch.setenv(name, "x")
        assert f"the environment variable {name}='x' is no whole number" in refused("run", TINY, "fedavg")

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("row: mine", "row is a name that the command line gives, row=NAME"),
            ("scenario: mine", "scenario is a name that the command line gives"),
            ("like: {file}", "is not the name of another scenario"),
            ("like: 5", "like: 5 is not the name"),
            ("- a", "must hold a mapping of sections"),
            ("!!set {a, b}", "scenario.yaml"),
            ("encoder: {1: 2}", "1 is no name of a key"),
            ("adjust: 5", "adjust=5: give"),
            ("seed: 2020-01-01", "scenario.yaml"),
        ],
    )
    def test_a_scenarios_file_of_something_else(self, refused, tmp_path, text, line):
        file = tmp_path / "scenario.yaml"
        file.write_text(text.replace("{file}", str(file)))
        assert line in refused("run", str(file), "fedavg")

    @pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"5", b"- a", b"seed: ${oc.env:HOME}", b"{}"])
    @pytest.mark.parametrize("command", ["resume", "evaluate"])
    def test_a_folders_config_of_something_else(self, refused, tmp_path, content, command):
        (tmp_path / "config.yaml").write_bytes(content)
        line = refused(command, str(tmp_path))
        assert f"{tmp_path}/config.yaml is not a run's config" in line
        assert "method.class" not in line

    def test_a_full_disk_names_the_folder_and_keeps_the_last_round(self, call, tmp_path):
        """A limit on the size of files stands for the disk."""
        assert call("run", TINY, "scaffold", "minutes=0")[0] == EX_TEMPFAIL  # decodes the images
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, limit[1]))
        try:
            code, out, err = call("run", TINY, "scaffold")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        folder = tmp_path / "runs" / "tiny" / "scaffold" / "seed0"
        assert (code, err.count("\n"), "Traceback" in out + err) == (2, 1, False)
        assert err.startswith(f"error: {folder}: File too large: free some space")
        assert call("run", TINY, "scaffold")[0] == 0

    def test_a_finished_run_advises_no_command_that_fails(self, call, refused):
        assert call("run", TINY, "fedavg")[0] == 0
        assert "unknown protocol 'nope/v1'" in refused("run", TINY, "fedavg", "evaluation.protocols=[nope/v1]")
        code, out, _ = call("run", TINY, "fedavg", "evaluation.protocols=[semi-orchestra/v2]")
        assert (code, "public.share" in out, "python -m benchmark evaluate" in out) == (0, True, False)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU is needed")
    def test_no_gpu(self, refused):
        assert "accelerator=cuda" in refused("run", TINY, "fedavg", "accelerator=cuda")

    def test_a_missing_dataset_says_where_it_looked_and_how_to_get_it(self, refused, tmp_path):
        scenario = tmp_path / "mine.yaml"
        scenario.write_text(yaml.safe_dump({"data": {"name": "cifar10", "root": str(tmp_path / "data")}}))
        line = refused("run", str(scenario), "fedavg")
        assert str(tmp_path / "data" / "cifar10") in line
        assert "data.download=true" in line
        assert "data.root=" in line

    def test_a_corrupt_image_is_named(self, refused, tmp_path):
        for split in ("train", "test"):
            for label in ("cat", "dog"):
                folder = tmp_path / "pets" / split / label
                folder.mkdir(parents=True)
                for k in range(8):
                    Image.fromarray(np.full((8, 8, 3), 30 * k, np.uint8)).save(folder / f"{k}.png")
        broken = tmp_path / "pets" / "train" / "dog" / "5.png"
        broken.write_bytes(broken.read_bytes()[:40])
        scenario = tmp_path / "mine.yaml"
        scenario.write_text(yaml.safe_dump({"data": {"name": "pets", "root": str(tmp_path)}}))
        assert str(broken) in refused("run", str(scenario), "fedavg", "partition.clients=2")

    def test_a_batch_no_client_can_fill(self, refused, call):
        """A batch size above every client is refused only for losses that compare the images of a batch."""
        line = refused("run", TINY, "fedavg", "training.batch_size=64")
        assert "the largest holds 33 images" in line
        assert "training.batch_size<=33" in line
        assert call("run", TINY, "fedavg", "training.batch_size=64", "objective=byol")[0] == 0
        assert call("run", TINY, "fedavg", "training.batch_size=33", "federation.rounds=1")[0] == 0

    def test_a_run_is_resumed_as_it_is(self, folder, refused, call):
        line = refused("resume", str(folder), "optimizer.lr=0.5")
        assert "optimizer.lr: 0.05 -> 0.5" in line
        assert call("resume", str(folder), "threads=1")[0] == 0

    def test_a_changed_checkpoint_or_config_file(self, refused, call, tmp_path):
        folder = tmp_path / "runs" / "tiny" / "fedavg" / "seed0"
        assert call("run", TINY, "fedavg")[0] == 0
        (folder / "result.json").unlink()
        written = yaml.safe_load((folder / "config.yaml").read_text())
        (folder / "config.yaml").write_text(yaml.safe_dump(written | {"seed": 5}))
        assert "another config" in refused("resume", str(folder))
        (folder / "config.yaml").write_text(yaml.safe_dump(written))
        checkpoint = folder / "checkpoint" / "state.pt"
        saved = checkpoint.read_bytes()
        checkpoint.write_bytes(b"broken")
        assert "cannot be read" in refused("resume", str(folder))
        (folder / "config.yaml").write_text("seed: [1")
        line = refused("resume", str(folder))
        assert "config.yaml is not a run's config: it is not valid YAML: line " in line
        assert line.count("config.yaml") == 1
        (folder / "config.yaml").unlink()
        checkpoint.write_bytes(saved)
        assert call("run", TINY, "fedavg")[0] == 0  # the advice
        assert yaml.safe_load((folder / "config.yaml").read_text()) == written


class Diverging(FedAvg):
    """FedAvg whose loss is NaN from the second round on, on clients with an odd id."""

    def receive(self, visit):
        super().receive(visit)
        self.broken = visit.round >= 1 and visit.client.id % 2

    def loss(self, out, batch):
        return super().loss(out, batch) * (float("nan") if self.broken else 1)


class Meddled(Scaffold):
    """SCAFFOLD during whose visits of the second round another process calls `evaluate` on the run's folder."""

    def __init__(self, objective, *, folder, **kwargs):
        super().__init__(objective, **kwargs)
        self.folder = Path(folder)

    def reply(self, visit):
        if visit.round == 1:
            assert finish(in_child(evaluate_and_note, self.folder)) == 0
        return super().reply(visit)


def evaluate_and_note(folder):
    with contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(["evaluate", str(folder / "runs/tiny/own/seed0"), "trust=true"])
    with (folder / "call").open("a") as stream:
        stream.write(f"{code} is {err.getvalue().partition(' is ')[2].partition(':')[0]}\n")


class Undeclared(FedAvg):
    """FedAvg whose replies on the second rank hold an entry that the phase does not declare."""

    def reply(self, visit):
        message, memory = super().reply(visit)
        return {**message, **({"extra": message["weights"]} if os.environ.get("LOCAL_RANK") == "1" else {})}, memory


class TestDivergence:
    ALL = ("scenario=all", "federation.participation=1")

    def test_an_absurd_learning_rate(self, refused):
        line = refused("run", TINY, "fedavg", "optimizer.lr=1e30", "training.epochs=3")
        assert "the loss of client" in line
        assert "in round 1, phase 'fit'" in line

    def test_memories_that_are_not_finite_under_a_finite_loss(self, refused, tmp_path):
        """SCAFFOLD divides by the sum of a client's learning rates, here 0, and keeps the result."""
        line = refused("run", TINY, "scaffold", "optimizer.lr=0")
        assert "keeps is not finite in round 1, phase 'fit'; no round is done yet" in line
        assert not list(tmp_path.rglob("state.pt"))

    def test_networks_that_stay_and_are_not_finite(self, refused, tmp_path):
        """One step overflows the weights, which stay on the client; the loss is finite and the reply is empty."""
        line = refused("run", TINY, "local", "training.steps=1", "optimizer.lr=3e38", "training.batch_size=9")
        assert "keeps is not finite in round 1, phase 'fit'; no round is done yet" in line
        assert not list(tmp_path.rglob("state.pt"))

    def test_replies_that_are_not_finite_under_a_finite_loss(self, refused, tmp_path):
        line = refused("run", TINY, "fedavg", "training.steps=1", "optimizer.lr=3e38", "training.batch_size=9")
        assert "what the clients replied as 'weights' is not finite in round 1, phase 'fit'" in line
        assert "no round is done yet" in line
        assert not list(tmp_path.rglob("state.pt"))

    def test_a_suite_goes_on_and_says_so_at_the_end(self, call, tmp_path):
        suite = tmp_path / "mine.yaml"
        methods = ["fedavg", "fedprox method.mu=1e30", "fedavg objective=spectral", "fedsc objective=simclr"]
        suite.write_text(yaml.safe_dump({"scenarios": [TINY], "methods": methods, "seeds": [0]}))
        code, out, err = call("run", f"suite={suite}", "federation.rounds=1", "scenario=short")
        assert code == 2
        assert "short fedprox+mu=1e_30 seed 0: stopped: the loss of client" in out
        assert "short fedsc-simclr seed 0: stopped: FedSC shares correlation matrices" in out
        assert "fedavg-spectral" in out.rpartition("client")[2]  # the board
        assert err.startswith("error: 2 of 4 runs stopped: short fedprox+mu=1e_30 seed 0, short fedsc-simclr seed 0")
        assert {file.parents[1].name for file in tmp_path.rglob("result.json")} == {"fedavg", "fedavg-spectral"}

    def test_one_row_each_stops_for_its_data_its_images_and_its_loss(self, call, tmp_path):
        """A suite goes on past an impossible partition, a corrupt image and a divergence."""
        for name, split, label in product(("sound", "broken"), ("train", "test"), "ab"):
            folder = tmp_path / "data" / name / split / label
            folder.mkdir(parents=True)
            for index in range(40):
                image = np.random.default_rng(index).integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(image).save(folder / f"{index}.png")
        corrupt = tmp_path / "data" / "broken" / "train" / "b" / "3.png"
        corrupt.write_bytes(corrupt.read_bytes()[:40])
        images = {"name": "sound", "root": f"{tmp_path}/data"}
        scenario = tmp_path / "four.yaml"
        scenario.write_text(yaml.safe_dump({**yaml.safe_load(Path(TINY).read_text()), "data": images}))
        rows = [
            "fedavg row=good",
            "fedavg row=impossible partition.min_size=400",
            "fedavg row=corrupt data.name=broken",
            "fedavg row=diverges optimizer.lr=1e30",
        ]
        suite = tmp_path / "suite.yaml"
        suite.write_text(yaml.safe_dump({"scenarios": [f"{scenario} scenario=four"], "methods": rows, "seeds": [0]}))
        code, out, err = call("run", f"suite={suite}")
        assert code == 2
        assert [line.split(": stopped: ")[0] for line in out.splitlines() if ": stopped: " in line] == [
            "four impossible seed 0", "four corrupt seed 0", "four diverges seed 0",
        ]  # fmt: skip
        assert "cannot read the image" in out
        assert re.search(r"^ +– +good ", out, re.MULTILINE)  # on the board
        assert err.startswith("error: 3 of 4 runs stopped: four impossible seed 0, four corrupt seed 0, four diverges")

    def test_the_last_good_round_is_kept(self, refused, call, tmp_path):
        overrides = ("method.class=tests.benchmark.cli.test_main.Diverging", "row=own", *self.ALL)
        folder = tmp_path / "runs" / "all" / "own" / "seed0"
        line = refused("run", TINY, "fedavg", *overrides)
        assert "the loss of client 1 became nan in round 2, phase 'fit'" in line
        state = checkpoint(folder)
        assert state["round"] == len(state["history"]) == 1
        assert len((folder / "rounds.jsonl").read_text().splitlines()) == 1
        assert call("run", TINY, "fedavg", "row=good", *self.ALL)[0] == 0
        good = [json.loads(row) for row in (folder.parents[1] / "good/seed0/rounds.jsonl").read_text().splitlines()]
        assert state["history"][0]["loss"] == good[0]["loss"]
        assert line == refused("run", TINY, "fedavg", *overrides)
        assert same(checkpoint(folder)["server"], state["server"])


def interrupt(monkeypatch, visit, how):
    """Calls `how` at the end of visit number `visit`."""
    seen, hook = [], Display.on_visit_end

    def on_visit_end(self, loop, result):
        seen.append(result)
        if len(seen) == visit:
            how()
        hook(self, loop, result)

    monkeypatch.setattr(Display, "on_visit_end", on_visit_end)


def control_c():
    raise KeyboardInterrupt


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


class TestInterruption:
    @pytest.mark.parametrize(("how", "again"), [(control_c, "run"), (terminate, "resume")])
    def test_130_and_the_same_command_goes_on_to_the_same_end(self, call, tmp_path, monkeypatch, how, again):
        assert call("run", TINY, "ssd", "accelerator=cpu", where="whole")[0] == 0
        with monkeypatch.context() as patch:
            interrupt(patch, 7, how)  # in the second round: the first has 4 visits of the phase assign and 2 of fit
            code, _, err = call("run", TINY, "ssd", "accelerator=cpu")
        assert (code, err.count("\n")) == (130, 1)
        whole, folder = (tmp_path / where / "tiny" / "ssd" / "seed0" for where in ("whole", "runs"))
        assert checkpoint(folder)["round"] == 1
        assert not (folder / "result.json").exists()
        assert call(*(("run", TINY, "ssd", "accelerator=cpu") if again == "run" else ("resume", str(folder))))[0] == 0
        resumed, uninterrupted = checkpoint(folder), checkpoint(whole)
        assert resumed["round"] == 3
        for key in ("server", "memory", "ledger"):
            assert same(resumed[key], uninterrupted[key])
        results = [store.read(run_folder / "result.json") for run_folder in (folder, whole)]
        assert results[0]["scores"] == results[1]["scores"]
        assert results[0]["bytes"] == results[1]["bytes"]


class TestTime:
    """`minutes` ends a command before a round that would end too late."""

    @pytest.fixture
    def short(self, monkeypatch):
        """A function that lets the deadline pass after the given number of rounds."""

        def ends(rounds):
            check = FederatedLoop.check_deadline

            def check_deadline(loop, deadline, seconds):
                check(loop, 0.0 if loop.round == rounds else deadline, seconds)

            monkeypatch.setattr(FederatedLoop, "check_deadline", check_deadline)

        return ends

    def test_the_same_command_goes_on(self, call, tmp_path, monkeypatch, short):
        words = ("run", TINY, "scaffold", "evaluation.every=1")
        assert call(*words, where="whole")[0] == 0
        folder = tmp_path / "runs" / "tiny" / "scaffold" / "seed0"
        with monkeypatch.context():
            short(2)
            code, _, err = call(*words, "minutes=10")
        assert code == EX_TEMPFAIL
        assert err.startswith(
            "time is up: tiny scaffold seed 0: 2 of 3 rounds are done, the next would not end in time; every finished"
        )
        early = store.read(folder / "partial.json")
        assert early["rounds"] == {"done": 2, "planned": 3}
        assert early["scores"] == {}
        assert [point["round"] for point in early["curve"]] == [1, 2]
        monkeypatch.undo()
        assert call(*words, "minutes=10")[0] == 0
        assert not (folder / "partial.json").exists()
        resumed, uninterrupted = (
            store.read(tmp_path / where / "tiny/scaffold/seed0/result.json") for where in ("runs", "whole")
        )
        assert (resumed["scores"], resumed["bytes"]) == (uninterrupted["scores"], uninterrupted["bytes"])

    def test_no_round_begins_that_would_end_too_late(self, call):
        code, _, err = call("run", TINY, "fedavg", "minutes=0")
        assert code == EX_TEMPFAIL
        assert "0 of 3 rounds" in err

    def test_what_is_not_yet_over_can_be_taken_onto_a_board(self, call, tmp_path, short):
        short(2)
        assert call("run", TINY, "fedavg", "minutes=10")[0] == EX_TEMPFAIL
        folder = tmp_path / "boards"
        code, out, _ = call("board", f"collect={tmp_path / 'runs'}", f"folder={folder}")
        assert code == 0
        assert "1 run in" in out
        assert "1 of them not over" in out
        assert "Left out: fedavg, seed 0, 2 of 3 rounds." in (folder / "README.md").read_text()


class TestOurMistakes:
    @pytest.mark.parametrize("error", [RuntimeError("boom"), ValueError("boom"), KeyError("boom")])
    def test_exit_code_1_with_a_traceback(self, call, monkeypatch, error):
        def run_round(self, round):
            raise error

        monkeypatch.setattr(FederatedLoop, "run_round", run_round)
        code, _, err = call("run", TINY, "fedavg")
        assert code == 1
        assert "Traceback" in err
        assert "boom" in err


def test_list_names_everything(call):
    code, out, err = call("list")
    assert (code, err) == (0, "")
    words = set(out.split())
    for group in ("suite", "campaign", "scenario", "method", "objective"):
        assert set(available(group)) <= words
    assert set(PROTOCOLS) <= words
    assert {"methods.server.Yogi", "set>/v1", "set>/v2"} <= words  # transfer-<data set>/v1


def test_the_help_of_list_names_its_groups(call):
    titles = re.findall(r"^(\w+) *$", call("list")[1], re.MULTILINE)
    assert f"list [{' | '.join(titles)}]" in call("list", "--help")[1]


def test_the_keys_in_the_help_of_run_are_keys(call):
    code, out, _ = call("run", "--help")
    assert code == 0
    words = set(re.findall(r"[\w.]+=", out)) - {"key=", "suite=", "methods=", "seeds="}
    assert {"objective=", "data.root=", "output=", "logger=", "devices=", "row=", "scenario="} <= words
    sections = {key.rpartition(".")[::2] for key in (word.strip("=") for word in words) if "KEY" not in key}
    config = compose("digits", "ssd", [])
    assert not [(section, key) for section, key in sections if key not in (config[section] if section else config)]


def test_list_of_one_group(call):
    code, out, _ = call("list", "server_optimizers")
    assert code == 0
    assert {f"methods.server.{name}" for name in ("Momentum", "Adam", "Yogi")} <= set(out.split())
    assert not set(available("method")) & set(out.split())


def test_list_of_the_encoders_is_of_all_constructors_of_one(call):
    code, out, _ = call("list", "encoders")
    assert code == 0
    named = {word.removeprefix("methods.networks.") for word in out.split() if word.startswith("methods.networks.")}
    assert {"resnet18", "vit_tiny", "vit_small", "mobilenet_v3", "convnext_tiny", "timm", "torchvision"} <= named
    assert not named & {"mlp", "normalisation", "constructors", "timm_model"}


class TestCite:
    def test_the_papers_and_the_suite_are_printed_each_once(self, call):
        code, out, _ = call("cite", "ssd", "fedavg-byol", "fedx/cifar10", "ssd", "methods.server.Yogi")
        assert code == 0
        assert re.findall(r"^@\w+\{(\w+),$", out, re.MULTILINE) == [
            "ssd",
            "fedavg",
            "byol",
            "fedx",
            "fedopt",
            "fulcrum",
        ]
        assert "Fang, Hung-Chieh" in out

    def test_a_method_over_two_papers_has_both(self, call):
        assert re.findall(r"\{(\w+),$", call("cite", "scaffold-fedx")[1], re.MULTILINE) == [
            "fedx",
            "scaffold",
            "fulcrum",
        ]

    def test_a_baseline_has_none(self, call):
        assert call("cite", "untrained")[1].startswith("% untrained: no paper\n@misc{fulcrum,")

    def test_other_names_are_refused(self, refused):
        assert "unknown name 'sdd' (did you mean 'ssd'?)" in refused("cite", "sdd")
        assert "usage: python -m benchmark cite" in refused("cite")


class TestPrivacy:
    SMALL = "encoder.class=methods.networks.convnet"

    def test_named_methods_are_shown(self, call, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        code, out, _ = call("privacy", "fedsc", "scaffold", self.SMALL)
        assert code == 0
        words = out.split()
        assert {"correlate", "delta_w", "delta_c", "1,048,576"} <= set(words)
        assert "fedsc: spectral, networks of fedsc/cifar10; stays with the client: nothing" in out
        assert "stays with the client: c, " in out
        assert not list(tmp_path.iterdir())

    def test_without_a_name_the_pages_are_written(self, call, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("benchmark.cli.reports.available", lambda group: ["fedsc", "untrained"])
        (tmp_path / "leaderboards" / "results").mkdir(parents=True)
        (tmp_path / "docs").mkdir()
        guide = tmp_path / "docs" / "privacy.md"
        guide.write_text(f"before\n{privacy.START}\nold\n{privacy.END}\nafter\n")
        (tmp_path / "docs" / "reproduction.md").write_text(f"{reproduction.START}\n{reproduction.END}\n")
        assert call("privacy")[0] == 0
        whole = privacy.read(tmp_path / "leaderboards" / "privacy.json")
        assert [method.name for method in whole.methods] == ["fedsc", "untrained"]
        page = guide.read_text()
        assert page.startswith("before\n")
        assert page.endswith("after\n")
        assert "old" not in page
        assert "| fedsc | correlate | R | 512 x 512 | 1,048,576 |" in page
        board = (tmp_path / "leaderboards" / "README.md").read_bytes()
        assert b"## What leaves a client" in board
        assert call("board")[0] == 0
        assert (tmp_path / "leaderboards" / "README.md").read_bytes() == board

    def test_mistakes(self, refused, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        assert "unknown method 'fedvag' (did you mean 'fedavg'?)" in refused("privacy", "fedvag")
        assert "digits is a scenario, and a sheet is of a method alone" in refused("privacy", "digits", "fedsc")
        assert "of which method?" in refused("privacy", "method.sigma=1")
        assert "docs/privacy.md" in refused("privacy")


class TestBoard:
    def test_finished_runs_are_taken_in(self, call, tmp_path):
        for method in ("fedavg", "ssd"):
            assert call("run", TINY, method)[0] == 0
        folder = tmp_path / "boards"
        (tmp_path / "docs" / "methods").mkdir(parents=True)
        beside = tmp_path / "docs" / "methods" / "ssd.md"
        beside.write_text(f"{pages.START}\nof another board\n{pages.END}\n")
        code, out, _ = call("board", f"collect={tmp_path / 'runs'}", f"folder={folder}")
        assert code == 0
        assert "of another board" in beside.read_text()
        assert "2 runs in" in out
        for method in ("fedavg", "ssd"):
            kept = store.read(folder / "results" / "tiny" / method / "seed0.json")
            assert kept == store.read(tmp_path / "runs" / "tiny" / method / "seed0" / "result.json")
            assert method in out
            assert method in (folder / "README.md").read_text()
        page = (folder / "README.md").read_bytes()
        shutil.rmtree(tmp_path / "runs")
        assert call("board", f"folder={folder}")[0] == 0
        assert (folder / "README.md").read_bytes() == page

    def test_collected_runs_have_a_board_beside_them_and_the_repository_is_as_it_was(self, call, tmp_path, monkeypatch):
        checkout = tmp_path / "checkout"
        (checkout / "leaderboards" / "results").mkdir(parents=True)
        monkeypatch.chdir(checkout)
        assert call("run", TINY, "fedavg")[0] == 0
        code, out, _ = call("board", f"collect={tmp_path / 'runs'}")
        assert code == 0
        assert "1 run in" in out
        assert (tmp_path / "runs-board" / "results" / "tiny" / "fedavg" / "seed0.json").is_file()
        assert "fedavg" in (tmp_path / "runs-board" / "README.md").read_text()
        assert not [file for file in checkout.rglob("*") if file.is_file()]

    def test_collected_runs_go_into_the_repository_where_that_is_asked_for(self, call, tmp_path, monkeypatch):
        for folder in (tmp_path / "leaderboards" / "results", tmp_path / "docs"):
            folder.mkdir(parents=True)
        (tmp_path / "docs" / "reproduction.md").write_text(f"{reproduction.START}\n{reproduction.END}\n")
        monkeypatch.chdir(tmp_path)
        assert call("run", TINY, "fedavg")[0] == 0
        assert call("board", f"collect={tmp_path / 'runs'}", "into=repository")[0] == 0
        assert (tmp_path / "leaderboards" / "results" / "tiny" / "fedavg" / "seed0.json").is_file()

    def test_where_a_board_cannot_be_is_one_line(self, refused, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert "give into=repository" in refused("board", "collect=runs", "into=here")
        assert "give one of them" in refused("board", "into=repository", "folder=mine")
        assert "run this from a checkout" in refused("board", "collect=runs", "into=repository")
        assert "give folder=BOARD" in refused("board", "collect=/")

    def test_what_the_board_would_refuse_is_not_taken_in(self, call, refused, tmp_path):
        folder = tmp_path / "boards"
        assert call("run", TINY, "fedavg", "federation.rounds=1", "scenario=short")[0] == 0
        assert call("board", f"collect={tmp_path / 'runs'}", f"folder={folder}")[0] == 0
        before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        other = ("federation.rounds=2", "scenario=short", "seed=1")
        assert call("run", TINY, "fedavg", *other, where="more")[0] == 0
        line = refused("board", f"collect={tmp_path / 'more'}", f"folder={folder}")
        assert "short/fedavg/seed1 are not one setting of a row" in line
        assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before

    def test_a_suite_ends_in_its_board(self, call, tmp_path):
        suite = tmp_path / "mine.yaml"
        content = {"scenarios": [TINY], "methods": ["fedavg", "ssd method.alpha=5"], "seeds": [0, 1, 2]}
        suite.write_text(yaml.safe_dump(content))
        code, out, _ = call("run", f"suite={suite}", "seeds=1", "federation.rounds=1", "scenario=short")
        assert code == 0
        rows = {file.parent.relative_to(tmp_path / "runs").as_posix() for file in tmp_path.rglob("result.json")}
        assert rows == {"short/fedavg/seed1", "short/ssd+alpha=5/seed1"}
        assert "ssd+alpha=5" in out.split("ssd+alpha=5 seed 1: knn/v1")[-1]


class TestEvaluate:
    def test_scores_of_other_protocols_stay_and_none_is_doubled(self, folder, call, tmp_path):
        first = store.read(folder / "result.json")
        assert set(first["scores"]) == {"knn/v1"}
        before = checkpoint(folder)
        assert call("evaluate", str(folder), "protocols=geometry/v1,label-free/v1")[0] == 0
        second = store.read(folder / "result.json")
        assert set(second["scores"]) == {"knn/v1", "geometry/v1", "label-free/v1"}
        del second["settings"]["optimizer.momentum"]  # like a record written before this setting existed
        first["settings"] = second["settings"]
        store.write(folder / "result.json", second)
        assert call("evaluate", str(folder))[0] == 0
        third = store.read(folder / "result.json")
        assert set(third["evaluated"]) == set(third["scores"])
        for key in set(first) - {"seconds", "scores", "encoders", "evaluated"}:
            assert third[key] == second[key] == first[key]
        assert third["scores"] == third["encoders"]["global"] == second["scores"]
        assert third["scores"]["knn/v1"] == first["scores"]["knn/v1"]
        assert len(list(tmp_path.rglob("result.json"))) == 1
        assert same(checkpoint(folder), before)

    def test_what_cannot_be_measured_is_named_and_the_rest_is_kept(self, folder, call, refused, monkeypatch):
        monkeypatch.setattr("benchmark.tracking.plots.of_run", lambda *_: 1 / 0)  # a drawing error loses no score
        assert call("evaluate", str(folder), "protocols=geometry/v1")[0] == 1
        assert set(store.read(folder / "result.json")["scores"]) == {"knn/v1", "geometry/v1"}
        monkeypatch.undo()
        monkeypatch.setattr("eval.factories.tsne", lambda *_: (_ for _ in ()).throw(EvalError("no map")))
        line = refused("evaluate", str(folder), "protocols=embed/v1,spectrum/v1")
        assert "has its record, but without embed/v1: no map" in line
        record = store.read(folder / "result.json")
        assert set(record["scores"]) == set(record["evaluated"]) == {"knn/v1", "geometry/v1", "spectrum/v1"}
        monkeypatch.setattr("eval.factories.spectrum", lambda *_: (_ for _ in ()).throw(EvalError("no spectrum")))
        assert "without spectrum/v1: no spectrum" in refused("evaluate", str(folder), "protocols=spectrum/v1")
        assert store.read(folder / "result.json")["scores"] == record["scores"]

    def test_drift_is_measured_twice_alike(self, call, tmp_path):
        folder = tmp_path / "runs" / "tiny" / "fedu" / "seed0"
        assert call("run", TINY, "fedu", "federation.participation=1", "row=fedu", "scenario=tiny")[0] == 0
        scores = []
        for _ in range(2):
            assert call("evaluate", str(folder), "protocols=drift/v1")[0] == 0
            scores.append(store.read(folder / "result.json")["scores"]["drift/v1"])
        assert scores[0] == scores[1]

    def test_an_unknown_protocol_leaves_the_record_alone(self, folder, refused):
        before = (folder / "result.json").read_bytes()
        assert "unknown protocol 'knn/v7'" in refused("evaluate", str(folder), "protocols=knn/v7")
        assert (folder / "result.json").read_bytes() == before

    def test_a_key_it_does_not_take(self, call, refused, tmp_path):
        assert call("run", TINY, "fedavg")[0] == 0
        assert "protocol" in refused(
            "evaluate", str(tmp_path / "runs" / "tiny" / "fedavg" / "seed0"), "protocol=knn/v1"
        )

    def test_a_folder_named_by_what_was_changed(self, call, tmp_path):
        """A folder whose path contains `=` is not read as an override."""
        assert call("run", TINY, "fedavg", "federation.rounds=1", "optimizer.lr=0.1")[0] == 0
        folder = str(tmp_path / "runs" / "tiny+federation.rounds=1" / "fedavg+optimizer.lr=0.1" / "seed0")
        assert call("evaluate", folder, "protocols=geometry/v1")[0] == 0
        assert call("resume", folder)[0] == 0
        assert set(store.read(Path(folder) / "result.json")["scores"]) == {"knn/v1", "geometry/v1"}

    def test_an_unfinished_run_can_still_be_finished(self, call, tmp_path, monkeypatch):
        folder = tmp_path / "runs" / "tiny" / "fedavg" / "seed0"
        with monkeypatch.context() as patch:
            interrupt(patch, 4, control_c)
            assert call("run", TINY, "fedavg")[0] == 130
        begun = (folder / "config.yaml").read_text()
        call("evaluate", str(folder))
        assert (folder / "config.yaml").read_text() == begun  # an evaluation's number of ranks is not saved
        assert call("resume", str(folder))[0] == 0
        assert checkpoint(folder)["round"] == 3
        assert store.read(folder / "result.json")["rounds"] == {"done": 3, "planned": 3}


class TestOneRunAFolder:
    def test_a_second_process_is_refused_and_takes_nothing_away(self, call, tmp_path):
        """`evaluate` on a running run would delete client state that the checkpoint does not list yet."""
        overrides = ("method.class=tests.benchmark.cli.test_main.Meddled", "method.folder=" + str(tmp_path), "row=own")
        (tmp_path / "call").write_text("")
        code, _, err = call("run", TINY, "scaffold", *overrides)
        assert code == 0, err
        lines = (tmp_path / "call").read_text().splitlines()
        assert len(lines) == 2
        assert set(lines) == {f"{EX_TEMPFAIL} is being used by another process"}
        folder = tmp_path / "runs" / "tiny" / "own" / "seed0"
        assert call("evaluate", str(folder), "trust=true")[0] == 0
        assert checkpoint(folder)["round"] == 3

    def test_a_finished_run_says_what_it_was_not_asked_for(self, call, tmp_path):
        assert call("run", TINY, "fedavg")[0] == 0
        code, out, _ = call("run", TINY, "fedavg", "evaluation.protocols=[knn/v1,geometry/v1]")
        folder = tmp_path / "runs" / "tiny" / "fedavg" / "seed0"
        assert code == 0
        assert f"it has no geometry/v1: python -m benchmark evaluate {folder} protocols=geometry/v1" in out

    def test_it_keeps_its_name_and_may_be_taken_up_elsewhere(self, folder, call, refused, tmp_path):
        for command in ("resume", "evaluate"):
            assert "row: fedavg -> other" in refused(command, str(folder), "row=other")
            assert "scenario: tiny -> other" in refused(command, str(folder), "scenario=other")
        assert call("evaluate", str(folder), f"data.cache={tmp_path / 'again'}", "protocols=geometry/v1")[0] == 0
        assert (tmp_path / "again").is_dir()
        assert "geometry/v1" in store.read(folder / "result.json")["scores"]

    def test_who_is_refused_writes_nothing(self, tmp_path):
        common = ("row=x", f"output={tmp_path / 'runs'}", f"data.cache={tmp_path / 'cache'}", "logger=csv")
        first, second = (
            Experiment(compose(TINY, "fedavg", [*common, f"optimizer.lr={rate}"]), Display(Console(quiet=True)))
            for rate in (0.01, 0.02)
        )
        second.refuse_changed_config()  # the folder is free
        with first.open():
            before = {file: file.read_bytes() for file in first.folder.rglob("*") if file.is_file()}
            with pytest.raises(BusyError, match="is being used by another process"), second.open():
                pass
        with pytest.raises(ConfigError, match="holds a run of another config"), second.open():
            pass
        assert {file: file.read_bytes() for file in first.folder.rglob("*") if file.is_file()} == before

    def test_a_file_system_without_locks(self, call, monkeypatch):
        def unknown(*_):
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr("benchmark.experiment.lock.fcntl.flock", unknown)
        assert call("run", TINY, "fedavg", "federation.rounds=1")[0] == 0

    def test_a_folder_that_cannot_be_made_is_named(self, refused, tmp_path):
        (tmp_path / "runs").write_text("")
        assert str(tmp_path / "runs") in refused("run", TINY, "fedavg")

    def test_a_lost_memory_is_named(self, call, refused, tmp_path, monkeypatch):
        folder = tmp_path / "runs" / "tiny" / "scaffold" / "seed0"
        with monkeypatch.context() as patch:
            interrupt(patch, 4, control_c)
            assert call("run", TINY, "scaffold")[0] == 130
        shutil.rmtree(folder / "checkpoint" / "memory")
        assert "memory" in refused("resume", str(folder))

    def test_a_record_is_written_last(self, call, tmp_path, monkeypatch):
        folder = tmp_path / "runs" / "tiny" / "fedavg" / "seed0"
        with monkeypatch.context() as patch:
            patch.setattr("benchmark.tracking.plots.of_run", lambda *_: control_c())
            assert call("run", TINY, "fedavg")[0] == 130
        assert not (folder / "result.json").exists()
        assert call("run", TINY, "fedavg")[0] == 0
        assert {file.name for file in (folder / "figures").iterdir()} == {"partition.png", "curves.png"}


@pytest.mark.ranks
class TestTwoRanks:
    """Output of a run on two ranks: a board, a table and an error of either rank are printed once."""

    def test_a_suite_that_goes_on_past_an_error(self, tmp_path):
        suite = tmp_path / "mine.yaml"
        broken = "fedavg method.class=tests.benchmark.cli.test_main.Undeclared row=broken"
        suite.write_text(yaml.safe_dump({"scenarios": [TINY], "methods": [broken, "scaffold"], "seeds": [0]}))
        job = Job(tmp_path, "devices=2", words=[f"suite={suite}", "federation.rounds=2", "scenario=short"])
        assert job.end(120) == [2], job.out.read_text()
        printed = job.out.read_text()
        assert "Traceback" not in printed
        assert printed.count("short broken seed 0: stopped: ") == 1
        assert printed.count("short scaffold seed 0: knn/v1") == 1
        assert printed.count("seconds") == 1  # the heading of a column of the board
        assert printed.count("error: ") == 1
        assert store.read(tmp_path / "runs" / "short" / "scaffold" / "seed0" / "result.json")["world_size"] == 2

    def test_an_error_of_the_second_rank_is_an_error_of_the_run(self, tmp_path):
        own = ("method.class=tests.benchmark.cli.test_main.Undeclared", "row=own")
        job = Job(tmp_path, "devices=2", words=[TINY, "fedavg", *own])
        assert job.end(120) == [2], job.out.read_text()
        (line,) = job.errors
        assert line.startswith("error: ")
        assert "replied with extra, which phase 'fit' does not declare" in line
        assert "Traceback" not in job.out.read_text()


class TestTune:
    GRID = ("optimizer.lr=0.01,1", "partition.name=iid", "federation.rounds=1")

    def ranked(self, tmp_path, where):
        (file,) = (tmp_path / f"{where}-tune").glob("*/*/*-seed0.json")
        return json.loads(file.read_text())

    def test_a_grid_is_ranked_without_a_label(self, call, tmp_path, monkeypatch):
        code, out, _ = call("tune", TINY, "fedavg", *self.GRID)
        assert code == 0
        lines = self.ranked(tmp_path, "runs")["tried"]
        assert f"best: {lines[0]['point'][0]}" in out
        assert self.ranked(tmp_path, "runs")["best"] == lines[0]["point"]
        assert all(set(line["evaluated"]) == {"git", "dirty", "hardware", "date"} for line in lines)
        assert "label-free/v1 0." in out
        assert {tuple(line["point"]) for line in lines} == {(f"optimizer.lr={rate}",) for rate in (0.01, 1)}
        scores = [line["score"] for line in lines]
        assert scores == sorted(scores, reverse=True)
        assert len(set(scores)) == 2
        table = out.partition("best: ")[0]
        places = [table.rindex(line["point"][0] + " ") for line in lines]
        assert places == sorted(places)

        def shuffled(*args, **kwargs):
            images, rng = source(*args, **kwargs), np.random.default_rng(0)
            splits = (Split(split.images, rng.permutation(split.labels)) for split in (images.train, images.test))
            return Source(images.name, *splits, images.classes, images.sha256)

        source = data.source
        monkeypatch.setattr(data, "source", shuffled)
        assert call("tune", TINY, "fedavg", *self.GRID, where="shuffled")[0] == 0
        assert [line | {"evaluated": 0} for line in self.ranked(tmp_path, "shuffled")["tried"]] == [
            line | {"evaluated": 0} for line in lines
        ]

    def test_without_a_grid_it_is_orchestras(self, call, tmp_path):
        assert call("tune", TINY, "fedavg", "partition.name=iid", "federation.rounds=1")[0] == 0
        tried = {line["point"][0] for line in self.ranked(tmp_path, "runs")["tried"]}
        assert tried == {f"optimizer.lr={rate}" for rate in ("0.03", "0.01", "0.003", "0.001")}

    def test_a_target_has_its_momentum_in_orchestras_grid_and_what_is_given_is_not_searched(self, call, tmp_path):
        overrides = ("objective=byol", "optimizer.lr=0.05", "federation.rounds=1", "training.steps=1")
        assert call("tune", TINY, "fedavg", *overrides)[0] == 0
        tried = {tuple(line["point"]) for line in self.ranked(tmp_path, "runs")["tried"]}
        assert tried == {(f"objective.momentum={m}",) for m in ("0.9", "0.99", "0.996")}

    def test_the_score_is_held_against_accuracy_once_the_choice_is_written(self, call, tmp_path, monkeypatch):
        chosen = []
        evaluate = Run.evaluate

        def watched(run, protocols):
            chosen.append((list(protocols), list((tmp_path / "runs-tune").glob("*/*/*-seed0.json"))))
            return evaluate(run, protocols)

        monkeypatch.setattr(Run, "evaluate", watched)
        code, out, err = call("tune", TINY, "fedavg", "compare=true", "optimizer.lr=0.01,0.1,1", *self.GRID[1:])
        assert code == 0, err
        assert [protocols for protocols, _ in chosen] == [["label-free/v1"]] * 3 + [["knn/v1"]] * 3
        assert all(bool(written) == (protocols == ["knn/v1"]) for protocols, written in chosen)
        records = [json.loads(file.read_text()) for file in (tmp_path / "runs-tune").rglob("result.json")]
        x = [record["scores"]["label-free/v1"]["score"] for record in records]
        y = [record["scores"]["knn/v1"]["accuracy"] for record in records]
        assert f"correlate by {np.corrcoef(x, y)[0, 1]:.2f}" in out
        (picture,) = (tmp_path / "runs-tune").glob("*/*/*-seed0.png")
        with Image.open(picture) as image:
            assert min(image.size) > 100

    def test_a_grid_over_what_makes_another_scenario(self, call, tmp_path):
        assert call("tune", TINY, "fedavg", "training.epochs=1,2", "federation.rounds=1")[0] == 0
        assert len(self.ranked(tmp_path, "runs")["tried"]) == 2

    def test_a_point_that_diverges_is_last_and_the_others_count(self, call, tmp_path):
        code, out, _ = call("tune", TINY, "fedavg", "optimizer.lr=1e30,0.01", "federation.rounds=1")
        assert code == 0
        assert "fedavg+optimizer.lr=1e_30 seed 0: stopped: the loss of client" in out
        assert "best: optimizer.lr=0.01" in out
        last = self.ranked(tmp_path, "runs")["tried"][-1]
        assert last == {"point": ["optimizer.lr=1e30"], "score": None, "alignment": None, "uniformity": None}
        assert (
            "every point of the grid failed"
            in call("tune", TINY, "fedavg", "optimizer.lr=1e30,2e30", "federation.rounds=1")[2]
        )

    def test_a_point_whose_features_overflow_is_a_point_that_diverges(self, call, tmp_path):
        """The loss of its only step and its weights are finite, but the features of its encoder are not."""
        code, out, err = call(
            "tune", TINY, "fedavg", "optimizer.lr=1e30,0.01", "training.steps=1", "training.batch_size=9",
            "federation.rounds=1",
        )  # fmt: skip
        assert code == 0, err
        assert "stopped: " in out
        assert "the encoder diverged" in out
        assert self.ranked(tmp_path, "runs")["best"] == ["optimizer.lr=0.01"]

    def test_every_point_is_looked_at_before_the_first_is_played(self, refused, tmp_path):
        line = refused("tune", TINY, "fedavg", "federation.participation=0.5,abc", "federation.rounds=1")
        assert "federation.participation" in line
        assert not list(tmp_path.rglob("config.yaml"))


class TestTransfer:
    """Protocols on a data set that is not on this machine."""

    MISSING = "transfer-cifar10/v1"

    def test_the_other_protocols_are_scored_and_the_missing_data_set_is_named(self, folder, call, tmp_path):
        before = store.read(folder / "result.json")["scores"]
        where = f"data.root={tmp_path / 'nothing'}"
        code, out, _ = call("evaluate", str(folder), f"protocols=spectrum/v1,{self.MISSING}", where)
        assert code == 0
        (line,) = [line for line in out.splitlines() if self.MISSING in line]
        assert "cannot be measured: " in line
        assert "cifar10" in line
        assert store.read(folder / "result.json")["scores"].keys() == before.keys() | {"spectrum/v1"}

    def test_where_nothing_can_be_scored_the_command_fails(self, folder, refused, tmp_path):
        before = (folder / "result.json").read_bytes()
        where = f"data.root={tmp_path / 'nothing'}"
        assert self.MISSING in refused("evaluate", str(folder), f"protocols={self.MISSING}", where)
        assert (folder / "result.json").read_bytes() == before

    def test_a_run_stops_before_it_trains(self, refused, tmp_path):
        where = f"data.root={tmp_path / 'nothing'}"
        assert "cifar10" in refused("run", TINY, "fedavg", f"evaluation.protocols=[knn/v1,{self.MISSING}]", where)
        assert not (tmp_path / "runs").exists()
