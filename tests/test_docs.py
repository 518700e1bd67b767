"""The guides hold: what they print can be copied and runs."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_guide_shows_the_example_as_it_is():
    guide = (ROOT / "docs" / "add-a-method.md").read_text()
    blocks = re.findall(r"^## [^\n]*`([\w.]+)`\n.*?^```\w+\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in blocks] == ["fedexp.py", "fedexp.yaml", "test_fedexp.py"]
    for name, text in blocks:
        assert text == (ROOT / "examples" / name).read_text()
    assert len((ROOT / "examples" / "fedexp.py").read_text().splitlines()) < 80


def test_the_guides_trainer_trains(tmp_path, monkeypatch):
    guide = (ROOT / "docs" / "add-a-method.md").read_text()
    (code,) = re.findall(r"^```python\n(from lightning.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code, names)
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
