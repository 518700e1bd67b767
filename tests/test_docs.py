"""The code, links and tables of the guides are correct, their code runs, and a page that is named is there."""

import inspect
import json
import math
import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from pydoc import locate
from types import SimpleNamespace

import pytest
import torch
import yaml
from omegaconf import DictConfig, OmegaConf

from benchmark.cli.main import COMMANDS, EXAMPLES, main
from benchmark.cli.runs import configs_of
from benchmark.configuration.compose import compose
from benchmark.configuration.partitions import RULES
from benchmark.configuration.suites import suite
from datamodules import partition
from eval.features import Features
from eval.inputs import Crop
from eval.own import load
from eval.protocol import PROTOCOLS, evaluate, find
from leaderboards.markdown import anchor
from methods import trees
from methods.base import Replies
from methods.server import Adam
from tests import run_helpers
from tests.test_statements import HELD

ROOT = Path(__file__).parent.parent


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


def blocks(page: str, language: str = "python", start: str = "") -> list[str]:
    """The blocks of a language on a page, or those that begin like this."""
    return re.findall(rf"^```{language}\n({start}.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE)


def test_the_guide_shows_the_example_as_it_is():
    block = re.compile(r"^## [^\n]*`([\w.]+)`\n.*?^```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    shown, names = block.findall(text_of("add-a-method.md")), ("fedexp.py", "fedexp.yaml", "test_fedexp.py")
    assert shown == [(name, (ROOT / "examples" / name).read_text()) for name in names]
    assert len(shown[0][1].splitlines()) < 80


def test_the_guides_objective_runs(tmp_path, monkeypatch):
    for language, ending in (("python", "py"), ("yaml", "yaml")):
        (code, *_) = blocks("add-an-objective.md", language)
        (tmp_path / f"decoupled.{ending}").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    run = run_helpers.train_run(tmp_path, "ssd", f"objective={tmp_path / 'decoupled.yaml'}")
    assert all(math.isfinite(row["loss"]) for row in run.loop.history)
    alike = SimpleNamespace(embeddings=torch.ones(2, 5, 3))  # all cosines are 1: the log of the number of negatives
    assert float(run.loop.method.objective.loss(alike, None)) == pytest.approx(math.log(4), rel=1e-5)


def test_the_guides_protocol_measures_a_power_law(tmp_path, monkeypatch):
    (tmp_path / "spectra.py").write_text(blocks("add-a-protocol.md", "python")[0])
    monkeypatch.syspath_prepend(tmp_path)
    orthogonal = torch.linalg.qr(torch.randn(64, 33, generator=torch.Generator().manual_seed(0))).Q
    centred = torch.linalg.qr(orthogonal - orthogonal.mean(dim=0)).Q[:, :32]
    x = centred * torch.arange(1, 33) ** -0.6  # eigenvalues fall as rank^-1.2
    features = Features(train_x=x, train_y=torch.arange(64) % 2, test_x=x, test_y=torch.arange(64) % 2, num_classes=2)
    (score,) = evaluate(features, [load("spectra.alpha_req:last=20").id])
    assert (score.metric, score.value) == ("alpha", pytest.approx(1.2, rel=1e-4))


def test_the_scenario_and_the_suite_of_their_page_compose(tmp_path, monkeypatch):
    scenario, runs = blocks("how-to/scenario-files.md", "yaml")
    (tmp_path / "leaves.yaml").write_text(scenario)
    (tmp_path / "afternoon.yaml").write_text(runs)
    monkeypatch.chdir(tmp_path)
    assert compose("leaves.yaml", "ssd").optimizer.lr == 0.05
    assert compose("leaves.yaml", "fedavg", ["objective=byol"]).optimizer.lr == 0.1
    assert compose("leaves.yaml", "ssd", ["objective=byol"]).method.alpha == 5
    assert compose("leaves.yaml", "orchestra").objective.clusters == 16
    configs = suite("afternoon.yaml", {}, [])
    assert len(configs) == 30
    assert {config.scenario for config in configs} == {"leaves", "leaves-all"}
    assert {config.row for config in configs} == {"untrained", "fedavg", "fedavg-byol", "ssd", "ssd-dsr"}
    words = re.findall(r"`run (leaves.yaml methods=\S+ seeds=\S+)`", text_of("how-to/scenario-files.md"))
    assert len(configs_of(words[0].split())[0]) == 9


def test_the_pages_trainer_trains_and_monitors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    (code,) = blocks("how-to/trainer.md")
    exec(code.replace("max_epochs=5", "max_epochs=1, log_every_n_steps=10"), names)
    table = set(re.findall(r"`(train/\w+)`", text_of("how-to/trainer.md")))
    assert table == set(names["trainer"].callback_metrics)
    assert Path(names["best"].best_model_path).is_file()


def test_the_method_of_the_first_page_goes_a_part_of_the_way(tmp_path, monkeypatch):
    (code,) = blocks("start/own-method.md")
    (tmp_path / "cautious.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    method = run_helpers.build_run(tmp_path, "fedavg", "method.class=cautious.Cautious", "method.pace=0.25").loop.method
    start = trees.map(torch.zeros_like, method.weights(statistics=False))
    replies = Replies({"weights": trees.map(torch.ones_like, start)}, clients=(0, 1))
    moved = method.update({"weights": start}, None, replies)["weights"]
    assert all((leaf == 0.25).all() for _, leaf in trees.leaves(moved))


NAMED = re.compile(r"\bdocs/[\w/-]+\.(?:md|svg|json|png)\b")
"""A page or a figure by its path from the root."""
TEXT = (".py", ".md", ".yaml", ".yml", ".ipynb", ".j2")
MADE_UP = ("test_docs.py", "test_docs_site.py", "test_new.py", "test_shipping.py")
"""Tests that name pages that there are not."""
TO_BE_WRITTEN = ("add-a-method.md", "docs/methods/fedexp.md")


def test_a_page_that_code_or_a_page_names_is_there():
    folders = ("benchmark", "datamodules", "docs", "eval", "examples", "leaderboards", "methods", "tests", ".github")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in TEXT]
    files += [file for file in (*ROOT.glob("*.*"), ROOT / "Makefile") if file.is_file()]
    named = {(file, page) for file in files if file.name not in MADE_UP for page in NAMED.findall(file.read_text())}
    assert len(named) > 40
    assert {(file.name, page) for file, page in named if not (ROOT / page).exists()} == {TO_BE_WRITTEN}


def test_there_are_few_pages_at_the_top_and_a_kind_for_each_other():
    assert len([*(ROOT / "docs").glob("*.md")]) <= 15
    kinds = {page.parent.name for page in (ROOT / "docs").glob("*/*.md")}
    assert kinds == {"start", "how-to", "reference", "explanation", "methods", "studies"}
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90


def test_links_between_pages_lead_somewhere():
    pages = [file for pattern in ("*.md", "docs/**/*.md", "leaderboards/*.md") for file in ROOT.glob(pattern)]
    assert len(pages) > 5
    found = [(page, re.findall(r"\]\(([^)#\s]*)(#[^)\s]+)?[^)]*\)", page.read_text())) for page in pages]
    links = [
        (page, page.parent / to if to else page, part) for page, each in found for to, part in each if "://" not in to
    ]
    assert not [(page, to) for page, to, _ in links if not to.exists()]
    assert not [(page, part) for page, to, part in links if part and part[1:] not in anchors(to)]


@cache
def anchors(page: Path) -> set[str]:
    """The addresses of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return {anchor(re.sub(r"[`\\]", "", heading)) for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)}


def test_the_page_of_commands_and_the_examples_of_the_help_have_every_command():
    for text in (text_of("how-to/run.md"), EXAMPLES):
        assert set(re.findall(r"python -m benchmark (\w+)", text)) == COMMANDS.keys()


def run_commands():
    """The commands of all pages that run something with what is shipped: page, words."""
    unshipped = (
        "SCENARIO", "suite=NAME", "=mine.", "=decoupled.yaml", "cautious.", "=encoder.pt", "leaves.yaml", "afternoon",
    )  # fmt: skip
    for page in (ROOT / "README.md", ROOT / "leaderboards" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text().replace("\\\n", " ")
        for line in re.findall(r"(?:^|`)python -m benchmark run ([^`\n]+)", text, re.MULTILINE):
            if not any(word in line for word in unshipped):
                words = shlex.split(line, comments=True)
                yield pytest.param(words, id=f"{page.stem} {' '.join(words)}")


@pytest.mark.parametrize("words", [*run_commands()])
def test_a_command_that_a_page_gives_composes(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    one = [] if any(word.startswith("seeds=") for word in words) or "suite=" not in " ".join(words) else ["seeds=0"]
    configs_of([*words, *one])  # refuses unknown keys and rows, and what contradicts itself


def test_an_encoder_of_ones_own_is_evaluated_in_ten_lines(monkeypatch):
    code, more = blocks("how-to/evaluate.md")
    assert len([line for line in code.splitlines() if line and "import" not in line]) <= 10
    names: dict = {}
    exec(code, names)
    scores = {(score.protocol, score.metric): score.value for score in names["scores"]}
    assert 50 < scores["linear/v1", "accuracy"] <= 100  # the encoder is untrained; chance is 10 %
    short = replace(find("semi/v1"), compute=lambda inputs, **_: {"accuracy_10pct": len(inputs.train)})
    monkeypatch.setitem(PROTOCOLS, "semi/v1", short)  # tests the example, without minutes of fine-tuning
    exec(more, names)
    assert names["scores"][0].value == 1200
    crop = Crop((0.5, 1.0))
    assert names["inputs"].batch(torch.arange(4), crop, torch.Generator().manual_seed(0)).shape == (4, 3, 8, 8)


def test_the_notebook_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code in blocks("how-to/python.md"):
        exec(code, names)
    rounds = names["folder"].parent / "seed1" / "rounds.jsonl"
    assert names["features"].shape == (1, names["encoder"].dim)
    assert names["table"]["linear/v1 accuracy"].iloc[0] == names["record"]["scores"]["linear/v1"]["accuracy"]
    assert not names["encoder"].training
    assert names["losses"] == [point["loss"] for point in map(json.loads, rounds.read_text().splitlines())]
    assert len(names["losses"]) == 2


def test_the_page_of_data_has_a_dataset_and_a_function_that_run(tmp_path, monkeypatch, capsys):
    run, evaluate = re.findall(r"^PYTHONPATH=[.] python -m benchmark (.*)$", text_of("reference/data.md"), re.MULTILINE)
    (code,) = blocks("reference/data.md")
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    quick = ["federation.rounds=1", "logger=csv", "devices=1", f"data.cache={tmp_path}"]
    assert main([*run.split(), *quick]) == 0
    assert main(evaluate.split()) == 0
    assert "clusters/v1" in capsys.readouterr().out


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "methods").glob("*.md")), ids=lambda page: page.stem)
def test_a_methods_page_gives_the_defaults_of_its_config_and_no_other_decimal(page):
    """Other decimals are written by the board command, or held by test_statements.py."""
    config, text = compose("reference", page.stem, []), page.read_text()

    def default(key: str) -> object:
        section, name = key.partition(".")[::2]
        if section == "server_optimizer":
            return {"class": "none", "lr": 1.0}.get(name) or inspect.signature(Adam).parameters[name].default
        value = OmegaConf.select(config, key)
        if value is None and section in ("method", "objective") and name:
            signatures = [inspect.signature(base).parameters for base in locate(config[section]["class"]).__mro__[:-1]]
            value = next(parameters[name].default for parameters in signatures if name in parameters)
        return value.name if isinstance(value, DictConfig) else value

    table = text.partition("## Config")[2].partition("## ")[0]
    known = set(OTHER_DECIMALS.get(page.stem, ()))
    for names, shown in (line.split(" | ")[:2] for line in re.findall(r"^\| (`.*)$", table, re.MULTILINE)):
        keys, values = re.findall(r"`([\w.]+)`", names), re.sub(r" \(.*\)", "", shown).split(", ")
        for key, value in zip(keys, values * (len(keys) if len(values) == 1 else 1), strict=False):
            if not key.startswith(("public", "partition")):  # words of FLESD's and the reference's own
                assert yaml.safe_load(value.replace("1e-", "1.0e-")) == default(key), key
            known.add(value)
    for written in ("ours", "published"):
        text = re.sub(f"<!-- {written}.*?<!-- end of {written} -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    for file, start, end in HELD:
        if file.endswith(f"/{page.name}"):
            text = text.replace(text.partition(re.sub("`.*`", "", start))[2].partition(end)[0], "")
    assert set(re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", text)) <= known


OTHER_DECIMALS = {
    "fedavg": ["0.01"],  # the default rate of Adam and Yogi
    "fedema": ["0.5"],  # a bound in EasyFL's code
    "fedsc": ["0.00104"],  # its paper's scenarios have it
    "ssd": ["0.5"],  # a temperature in the code's equation
}


def test_the_messages_in_troubleshooting_are_those_of_the_code():
    rows = re.findall(r"^\| (.*?) \|", text_of("how-to/troubleshooting.md"), re.MULTILINE)
    quotes = [quote for row in rows for quote in re.findall("`(.*?)`", row)]
    pieces = {piece.strip(" :,`") for quote in quotes for piece in quote.split("...")}
    packages = ("benchmark", "datamodules", "eval", "leaderboards", "methods")
    code = "".join(file.read_text() for package in packages for file in (ROOT / package).rglob("*.py"))
    code = re.sub(r'"\s*f?"', "", code)  # strings that go on in the next line
    assert len(pieces) > 12
    assert [piece for piece in pieces if len(piece) > 10 and piece not in code] == []


def test_the_rules_of_partitions_are_listed_with_their_parameters():
    table = text_of("reference/clients.md").partition("| `partition.name` |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:4] for line in table.splitlines() if line.startswith("| `")]
    listed = {name.strip(" `"): re.findall(r"`(\w+)`(?: \((\d+)\))?", given) for name, _, given in rows}
    assert tuple(listed) == RULES
    for name in RULES:
        arguments = inspect.signature(getattr(partition, name)).parameters.values()
        of_rule = [one for one in arguments if one.name not in ("labels", "num_clients", "seed")]
        assert listed[name] == [(one.name, "" if one.default is one.empty else f"{one.default}") for one in of_rule]
