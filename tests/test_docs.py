"""The guides hold: what they print can be copied and runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_guides_method_passes_its_own_test(tmp_path):
    guide = (ROOT / "docs" / "add-a-method.md").read_text()
    blocks = re.findall(r"^## [^\n]*`([\w.]+)`\n.*?^```\w+\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in blocks] == ["fedavgm.py", "fedavgm.yaml", "test_fedavgm.py"]
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    # of the contract the quick part: every shipped method goes through the whole of it
    few = "momentum or by_hand or hand_count or declared"
    words = [sys.executable, "-m", "pytest", "-c", "setup.cfg", str(tmp_path / "test_fedavgm.py"), "-k", few]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "failed" not in done.stdout


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
