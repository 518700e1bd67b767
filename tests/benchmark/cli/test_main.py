"""The words of a command, a user's mistakes and ours, interruptions, and time that is up."""

import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import yaml

from benchmark.api import compose
from benchmark.cli.main import main, parsers
from benchmark.cli.runs import configs_of
from benchmark.configuration.identity import identity
from benchmark.errors import EX_TEMPFAIL
from benchmark.federation.loop import FederatedLoop
from leaderboards import store
from tests.benchmark.cli.cli_helpers import checkpoint, control_c, interrupt, terminate
from tests.run_helpers import TINY, same

ROOT = Path(__file__).parents[3]


def test_one_row_under_several_seeds_and_the_version(call, tmp_path):
    code, out, _ = call("run", TINY, "fedavg", "federation.rounds=1", "scenario=short", "seeds=0,1,1")
    assert (code, "fedavg" in out.splitlines()[-2]) == (0, True)  # the board
    assert sorted(file.name for file in (tmp_path / "runs" / "short" / "fedavg").iterdir()) == ["seed0", "seed1"]
    code, out, _ = call("--version")
    assert code == 0
    assert re.fullmatch(r"fulcrum [\w.+]+(, commit [0-9a-f]{40}[+]?)?\n", out)


def test_without_words_five_lines_say_what_to_do_first_and_their_commands_are_understood(call):
    code, out, err = call()
    assert (code, out, err.count("\n")) == (2, "", 5)
    for line in err.splitlines()[1:]:
        words = re.split(r" {2,}", line.strip())[0].split()[3:]
        parsed = parsers()[0].parse_args(words) if words != ["--help"] else None
        assert parsed is None or parsed.command == "list" or configs_of(parsed.words)[0]


def test_the_version_imports_nothing_heavy():
    """`--version` took seconds for torch, which it does not need."""
    code = "import sys; from benchmark.cli.main import main; main(['--version']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    version, modules = done.stdout.splitlines()
    assert version.startswith("fulcrum ")
    assert not {"torch", "lightning", "torchvision", "sklearn", "pandas", "wandb", "matplotlib"} & set(modules.split())


def test_several_methods_of_a_scenario_are_rows_by_seed():
    configs, several = configs_of(["digits", "methods=fedavg-byol,ssd", "seeds=1,0", "federation.rounds=1"])
    assert several
    rows = [("fedavg", "objective=byol"), ("ssd", "federation.rounds=1")]
    words = [(method, {word, "federation.rounds=1", f"seed={seed}"}) for seed in (1, 0) for method, word in rows]
    assert configs == [compose("digits", method, sorted(given)) for method, given in words]


VISION = "{class: methods.networks.torchvision"
ALIGNED = "method.addons='[{class: methods.lwfedssl.RepresentationAlignment}]' row=x"
RUNS = [
    ("fedvag", "unknown method 'fedvag' (did you mean 'fedavg'?)"),
    ("", "usage: python -m benchmark run SCENARIO METHOD"),
    ("fedavg suite=digits", "not both"),
    ("fedavg methods=ssd", "run SCENARIO METHOD | SCENARIO methods=A,B"),
    ("fedavg scenarios=digits", "scenarios=digits is for suite=NAME"),
    ("fedavg seed = 1", "one word with an equals sign, as in seed=1"),
    ("fedavg --seed=1", "overrides have no dashes: seed=1"),
    ("fedavg accelerator=gpu", "(did you mean 'cuda'?)"),
    ("fedavg seeds=0,1 seed=2", "seed=2: these are runs of several seeds: leave it out"),
    ("fedavg partition.clients=1000", "1000 clients for 79 examples: give 1 to 79"),
    ("fedavg partition.alpha=0", "alpha=0"),
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
    ("fedavg --learning-rate 1", "overrides have no dashes: optimizer.lr=1)"),
    ("fedavg schedule.milestones=0.5", "e.g. schedule.milestones=[a,b]"),
    ("fedavg encoder=resnet18", "as in encoder.class=methods.networks.resnet18"),
    ("fedavg optimizer=Adam", "as in optimizer.class=torch.optim.Adam"),
    ("fedavg schedule=3", "as in schedule.KEY=VALUE"),
    ("fedavg learning_rate=1", "(did you mean optimizer.lr?)"),
    ("fedavg optimizer.learning_rate=1", "(did you mean 'lr'?)"),
    ("fedavg objective=byol heads.predictor=0", "widths [8, 0, 8]"),
    ("fedavg heads.projector=[-1,8]", "widths [8, -1, 8]"),
    ("fedavg heads.projector=128", "heads.projector=128: methods.objectives"),
    ("fedavg encoder.widths=[0,8]", "give whole numbers of at least 1"),
    (f"fedavg encoder='{VISION}}}'", "required keyword-only argument: 'na"),
    (
        f"fedavg encoder='{VISION}, name: resnet18, image_size: 64}}'",
        "encoder.image_size=64: the run's images have a sid",
    ),
    ("fedavg encoder.name=resnet18", "unknown key 'encoder.name'"),
    ("fedavg data.root=~nobody-here/x", "data.root=~nobody-here/x: there is no such user"),
    ("fedavg partition='{name: file, path: ~nobody-here/x}'", "partition.path=~nobody-here/x: there is no such user"),
    ("scaffold optimizer='{class: methods.optimizers.LARS}'", "defined for SGD, not LARS"),
    ("fedavg method.addons=[prox]", "give an import path"),
    ("scaffold optimizer.momentum=1", "optimizer.momentum=1: SCAFFOLD needs it below 1"),
    ("fedx objective=supervised", "which Supervised has not"),
    ("fedx objective=dino objective.local_views=2", "two views, which DINO has not: set objective.local_views=0"),
    ("lwfedssl objective=dino objective.local_views=2", "not: set method.alignment=0, or set objective.local_views=0"),
    ("lwfedssl method.stays=[projector]", "the server would calibrate with one that nobody"),
    ("fedu-fedx method.addons.0.temperature=0.2", "give the whole list, method.addons='[{class"),
    ("fedx method.local_relation=-1", "method.local_relation=-1: give a number of at least 0"),
    ("fedavg method.weighting=sizes", "method.weighting='sizes': choose examples"),
    ("local server_optimizer.class=methods.server.Adam", "would change nothing"),
    ("fedavg server_optimizer.lr=1", "methods.server.Adam or methods.server.Yogi"),
    ("local federation.batch_norm=recalibrate", "needs a method with one global encoder"),
    ("fedavg encoder.norm=group heads.head_norm=false federation.batch_norm=recalibrate", "no network here has BatchN"),
    ("fedavg objective=swav objective.keep_queue=false", "there is no queue: set objective.queue_size"),
    (f"local {ALIGNED}", "the received encoder, and Local sends none"),
    (f"fedavg {ALIGNED} method.stays=[encoder]", "has to send the encoder"),
    ("fedavg evaluation.protocols=[knn/v9]", "unknown protocol 'knn/v9'"),
    ("fedavg evaluation.protocols=[transfer-nosuch/v1]", "nosuch"),
    ("flesd evaluation.protocols=[drift/v1]", "has no global model of whole networks"),
    ("fedavg evaluation.protocols=[semi-orchestra/v2]", "public.share=0.1"),
    ("fedavg evaluation.best_on_test=linear/v1", "also in evaluation.protocols"),
    ("fedavg evaluation.best_on_test=geometry/v1", "an accuracy of features"),
    (
        "fedavg objective=supervised evaluation.protocols=[projected/v1]",
        "projected/v1: it scores the outputs of a proj",
    ),
    ("fedavg schedule.name=step schedule.gamma=-1", "schedule.gamma=-1.0: give a number"),
    ("fedavg schedule.gamma=0.5", "schedule.gamma: it belongs to schedule.name=step, not cosine"),
    ("fedavg objective.temperature=.inf", "temperature=inf: give a finite number"),
    ("fedavg minutes=.inf", "minutes=inf"),
    ("fedavg heads.predictor=-3", "simclr has no predictor, so it would change nothing"),
    ("fedavg objective=simsiam heads.predictor=16", "objective.predictor=64 is set, so it would change nothing"),
    ("fedavg devices=100000", "devices=100000 is too many for this machine"),
    ("fedavg objective=", "objective=None: give a name"),
    ("fedavg seed=${nope}", "'nope' not found"),
    ("fedavg views.size=100000", "out of memory (760000000000 bytes were asked for)"),
    ("fedavg optimizer.class=torch.optim.LBFGS", "LBFGS can make no step here"),
    ("fedavg method.addons=5", "method.addons=5: give a list"),
    ("fedavg partition.seed=-1", "partition.seed=-1: give a number of at least 0"),
    ("fedavg data.options=[1]", "data.options=[1]: "),
]
"""Words after `run` and the tiny scenario, and what the error says."""
COMMANDS = [
    ("run suite=digits method=ssd", "to choose some of a suite's methods, give methods=A,B"),
    ("run fedavg digits", "give the scenario first, digits fedavg"),
    ("tune fedavg digits", "give the scenario first, digits fedavg"),
    ("run suite=digits methods=sdd", "(did you mean 'ssd'?)"),
    ("run ROOT fedavg", "a folder, not a scenario: name a scenario, and give images by data.root="),
    ("run fedx/cifar fedavg", "more (`python -m benchmark list scenarios`)"),
    ("run TINY fedavg jobs=2", "jobs=2 is for several runs"),
    ("runs TINY fedavg", "unknown command 'runs' (did you mean 'run'?); there are: run, resume"),
    ("run suite=fedx methods=fedx-loca", "unknown row 'fedx-loca' of suite fedx (did you mean 'fedx-local'?)"),
    ("run suite=digits seed=3", "seed=3: these are runs of several seeds: give seeds=3"),
    ("run suite=digits methods=fedavg,fedavg", "fedavg/seed0 twice"),
    ("list method", "no group 'method' (did you mean 'methods'?)"),
    ("resume nowhere", "nowhere is not a run folder"),
    ("evaluate nowhere", "nowhere is not a run folder"),
    ("resume", "usage: python -m benchmark resume RUN_DIR"),
    ("tune TINY fedavg optimizer.lr=0.1", "tune needs a grid"),
    ("tune TINY fedavg compare=3", "compare=3: give true or false"),
    ("tune TINY fedavg threads=1,2", "threads=1 and threads=2 are one run"),
    ("tune TINY fedavg optimizer.lr=0.1,", "a value is missing"),
    ("run suite=1", "unknown suite '1'"),
    ("run suite=digits methods=\"[' ']\"", "an empty line names nothing"),
    ("run suite=digits methods=", "methods= has no value"),
    ("run TINY methods=[]", "give at least one method and one seed"),
    ("run TINY fedavg seeds=[]", "give at least one method and one seed"),
    ("run '\x1b[31m' fedavg", "unknown scenario '\\x1b[31m'"),
    ("board folder=nowhere", "nowhere/results: no such folder"),
    ("board colect=runs", "colect"),
]
"""Whole commands."""


class TestMistakes:
    @pytest.mark.parametrize(("words", "line"), [*((f"run TINY {words}", line) for words, line in RUNS), *COMMANDS])
    def test_one_line_and_exit_code_2(self, refused, words, line):
        assert line in refused(*shlex.split(words.replace("TINY", TINY).replace("ROOT", str(ROOT))))

    def test_a_number_is_a_name(self, call, tmp_path):
        assert call("run", TINY, "fedavg", "row=1", "scenario=2", "federation.rounds=1")[0] == 0
        assert (tmp_path / "runs" / "2" / "1" / "seed0" / "result.json").exists()

    def test_a_launchers_variable_that_is_no_number(self, refused, monkeypatch):
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "SLURM_NTASKS"):
            with monkeypatch.context() as patch:
                patch.setenv(name, "x")
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
    def test_a_folders_config_of_something_else(self, refused, tmp_path, content):
        (tmp_path / "config.yaml").write_bytes(content)
        line = refused("resume", str(tmp_path))
        assert refused("evaluate", str(tmp_path)) == line
        assert (f"{tmp_path}/config.yaml is not a run's config" in line, "method.class" in line) == (True, False)

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

    @pytest.mark.usefixtures("folder")
    def test_a_finished_run_advises_no_command_that_fails(self, call, refused):
        assert "unknown protocol 'nope/v1'" in refused("run", TINY, "fedavg", "evaluation.protocols=[nope/v1]")
        code, out, _ = call("run", TINY, "fedavg", "evaluation.protocols=[semi-orchestra/v2]")
        assert (code, "public.share" in out, "python -m benchmark evaluate" in out) == (0, True, False)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU is needed")
    def test_no_gpu(self, refused):
        assert "accelerator=cuda" in refused("run", TINY, "fedavg", "accelerator=cuda")

    def test_a_missing_dataset_says_where_it_looked_and_how_to_get_it(self, refused, tmp_path):
        line = refused("run", TINY, "fedavg", "data.name=cifar10", f"data.root={tmp_path / 'data'}")
        for word in (str(tmp_path / "data" / "cifar10"), "data.download=true", "data.root="):
            assert word in line

    def test_a_batch_no_client_can_fill(self, refused, call):
        """A batch size above every client is refused only for losses that compare the images of a batch."""
        line = refused("run", TINY, "fedavg", "training.batch_size=64")
        assert re.search("the largest holds 33 images.* training.batch_size=33 or less", line)
        for words in (("training.batch_size=64", "objective=byol"), ("training.batch_size=33",)):
            assert call("run", TINY, "fedavg", *words, "federation.rounds=1")[0] == 0

    def test_a_run_is_resumed_as_it_is(self, folder, refused, call):
        assert "optimizer.lr: 0.05 -> 0.5" in refused("resume", str(folder), "optimizer.lr=0.5")
        assert call("resume", str(folder), "threads=1")[0] == 0

    def test_a_changed_checkpoint_or_config_file(self, folder, refused, call):
        (folder / "result.json").unlink()
        file, checkpoint = folder / "config.yaml", folder / "checkpoint" / "state.pt"
        written, saved = yaml.safe_load(file.read_text()), checkpoint.read_bytes()
        file.write_text(yaml.safe_dump(written | {"seed": 5}))
        assert "another config" in refused("resume", str(folder))
        file.write_text(yaml.safe_dump(written))
        checkpoint.write_bytes(b"broken")
        assert "cannot be read" in refused("resume", str(folder))
        file.write_text("seed: [1")
        line = refused("resume", str(folder))
        assert "config.yaml is not a run's config: it is not valid YAML: line " in line
        assert line.count("config.yaml") == 1
        file.unlink()
        checkpoint.write_bytes(saved)
        assert call("run", TINY, "fedavg")[0] == 0  # the advice
        assert identity(yaml.safe_load(file.read_text())) == identity(written)


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
        assert all(same(resumed[key], uninterrupted[key]) for key in ("server", "memory", "ledger"))
        records = [store.read(run_folder / "result.json") for run_folder in (folder, whole)]
        assert all(records[0][key] == records[1][key] for key in ("scores", "bytes"))


def test_a_command_ends_before_a_round_that_would_end_too_late_and_the_same_goes_on(call, tmp_path, monkeypatch):
    words = ("run", TINY, "scaffold", "evaluation.every=1")
    assert call(*words, where="whole")[0] == 0
    folder, whole = (tmp_path / where / "tiny" / "scaffold" / "seed0" for where in ("runs", "whole"))
    code, _, err = call(*words, "minutes=0")
    assert (code, "0 of 3 rounds" in err) == (EX_TEMPFAIL, True)
    check = FederatedLoop.check_deadline

    def check_deadline(loop, deadline, seconds):
        check(loop, 0.0 if loop.round == 2 else deadline, seconds)

    with monkeypatch.context() as patch:
        patch.setattr(FederatedLoop, "check_deadline", check_deadline)
        code, _, err = call(*words, "minutes=10")
    assert code == EX_TEMPFAIL
    line = "time is up: tiny scaffold seed 0: 2 of 3 rounds are done, the next would not end in time; every finished"
    assert err.startswith(line)
    early = store.read(folder / "partial.json")
    assert (early["rounds"], early["scores"]) == ({"done": 2, "planned": 3}, {})
    assert [point["round"] for point in early["curve"]] == [1, 2]
    code, out, _ = call("board", f"collect={tmp_path / 'runs'}", f"folder={tmp_path / 'boards'}")
    assert (code, "1 run in" in out, "1 of them not over" in out) == (0, True, True)
    assert "Left out: scaffold, seed 0, 2 of 3 rounds." in (tmp_path / "boards" / "README.md").read_text()
    assert call(*words, "minutes=10")[0] == 0
    assert not (folder / "partial.json").exists()
    records = [store.read(run_folder / "result.json") for run_folder in (folder, whole)]
    assert all(records[0][key] == records[1][key] for key in ("scores", "bytes"))


@pytest.mark.parametrize("error", [RuntimeError("boom"), ValueError("boom"), KeyError("boom")])
def test_our_mistake_is_exit_code_1_with_a_traceback(call, monkeypatch, error):
    monkeypatch.setattr(FederatedLoop, "run_round", Mock(side_effect=error))
    code, _, err = call("run", TINY, "fedavg")
    assert (code, "Traceback" in err, "boom" in err) == (1, True, True)


@pytest.mark.parametrize(("rank", "on_all_ranks", "printed"), [(0, True, 1), (1, True, 0), (1, False, 1)])
def test_a_mistake_that_all_ranks_raise_is_printed_by_the_first(capsys, monkeypatch, rank, on_all_ranks, printed):
    monkeypatch.setenv("RANK", str(rank))
    error = RuntimeError("boom")
    error.on_all_ranks = on_all_ranks
    assert main(["list"], command=Mock(side_effect=error)) == 1
    assert capsys.readouterr().err.count("Traceback") == printed
