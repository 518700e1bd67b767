"""The code, links and tables of the guides are correct, and the code runs."""

import re
from dataclasses import replace
from pathlib import Path

import torch

from eval.inputs import Crop
from eval.protocol import PROTOCOLS, find

ROOT = Path(__file__).parent.parent


def python_block(page: str, start: str = "") -> str:
    """The only block of Python on a page, or the only one that begins like this."""
    (code,) = python_blocks(page, start)
    return code


def python_blocks(page: str, start: str = "") -> list[str]:
    """The blocks of Python on a page, or those that begin like this."""
    text = (ROOT / "docs" / page).read_text()
    return re.findall(rf"^```python\n({start}.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_the_guide_shows_the_example_as_it_is():
    guide = (ROOT / "docs" / "add-a-method.md").read_text()
    blocks = re.findall(r"^## [^\n]*`([\w.]+)`\n.*?^```\w+\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in blocks] == ["fedexp.py", "fedexp.yaml", "test_fedexp.py"]
    for name, text in blocks:
        assert text == (ROOT / "examples" / name).read_text()
    assert len((ROOT / "examples" / "fedexp.py").read_text().splitlines()) < 80


def test_the_guides_trainer_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(python_block("add-a-method.md", "from lightning"), names)
    assert names["trainer"].global_step > 0


def test_links_between_pages_lead_somewhere():
    pages = [file for pattern in ("*.md", "docs/**/*.md", "leaderboards/*.md") for file in ROOT.glob(pattern)]
    assert len(pages) > 5
    dead = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if not link.startswith(("http", "mailto:")) and not (page.parent / link).exists()
    ]
    assert not dead, dead


def test_an_encoder_of_ones_own_is_evaluated_in_ten_lines(monkeypatch):
    guide = (ROOT / "docs" / "evaluation.md").read_text()
    code, more = re.findall(r"^```python\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    assert len([line for line in code.splitlines() if line and "import" not in line]) <= 10
    names: dict = {}
    exec(code, names)
    scores = {(score.protocol, score.metric): score.value for score in names["scores"]}
    assert 50 < scores["linear/v1", "accuracy"] <= 100  # the encoder is untrained; chance is 10 %
    short = replace(find("semi/v1"), compute=lambda subject, *_, **__: {"accuracy_10pct": len(subject.inputs.train)})
    monkeypatch.setitem(PROTOCOLS, "semi/v1", short)  # tests the example, without minutes of fine-tuning
    exec(more, names)
    assert names["scores"][0].value == 1200
    crop = Crop((0.5, 1.0))
    assert names["inputs"].batch(torch.arange(4), crop, torch.Generator().manual_seed(0)).shape == (4, 3, 8, 8)


def test_the_page_of_protocols_names_all_of_them():
    from eval.protocol import PROTOCOLS

    guide = (ROOT / "docs" / "evaluation.md").read_text()
    (table,) = re.findall(r"^\| id \|.*?\n\n", guide, re.DOTALL | re.MULTILINE)
    short = {"linear-ssd/v1": "`-ssd`", "linear-fedu/v1": "`-fedu`", "linear-ldawa/v1": "`-ldawa`"}
    short["linear-ldawa/v2"] = "`-ldawa/v2`"
    assert all(short.get(name, f"`{name}`") in table for name in PROTOCOLS)


def test_the_notebook_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in python_blocks("python.md"):
        exec(block, names)
    assert names["features"].shape == (1, names["encoder"].dim)
    assert names["table"]["linear/v1 accuracy"].iloc[0] == names["record"]["scores"]["linear/v1"]["accuracy"]
    assert not names["encoder"].training


def test_the_page_of_data_has_a_dataset_and_a_function_that_run(tmp_path, monkeypatch, capsys):
    from benchmark.cli.main import main

    page = (ROOT / "docs" / "data.md").read_text()
    commands = re.findall(r"^PYTHONPATH=[.] python -m benchmark (.*)$", page, re.MULTILINE)
    assert len(commands) == 2
    (tmp_path / "mine.py").write_text(python_block("data.md"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    quick = ["federation.rounds=1", "logger=csv", "devices=1", f"data.cache={tmp_path}"]
    assert main([*commands[0].split(), *quick]) == 0
    assert main(commands[1].split()) == 0
    assert "clusters/v1" in capsys.readouterr().out
