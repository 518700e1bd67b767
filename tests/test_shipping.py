"""A method, an objective and a protocol are shipped in a copy of the checkout by few files and `make pages`."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (".github", ".ci", "benchmark", "datamodules", "docs", "eval", "examples", "leaderboards", "methods", "tests")
PAGES = re.search(r"\npages:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text())[1]
COMMANDS = re.findall(r"-m ([\w.]+)$", PAGES, re.MULTILINE)
"""The modules that `make pages` runs."""
BIBTEX = """
@misc{{{0},
  author = {{Nobody, Anna}},
  title = {{Half of the Way}},
  year = {{2024}},
}}
"""

METHOD = {
    "methods/fedhalf.py": '''"""FedHalf: a dummy.

| symbol | name | equation |
|---|---|---|
| a | `share` | 1 |

Decisions
- None.
"""

from typing import Any

from methods import trees
from methods.base import Objective, Replies, RoundContext, Tree, check_number
from methods.fedavg import FedAvg


class FedHalf(FedAvg):
    """The server goes a share of the way to the mean.

    Args:
        share: a, 1 is FedAvg.
    """

    def __init__(self, objective: Objective, *, share: float = 0.5, **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        self.share = check_number("method.share", share, above=0)

    def update(self, server: Tree, round_context: RoundContext, replies: Replies) -> Tree:
        """The weights, moved by the share."""
        mean = super().update(server, round_context, replies)["weights"]
        moved = trees.map(lambda old, new: old + self.share * (new - old), server["weights"], mean)
        return {**server, "weights": moved}
''',
    "benchmark/configs/method/fedhalf.yaml": """# FedHalf: half of the way to the mean (Nobody 2024)
# title: FedHalf
# paper: fedhalf
# source: paper
# over: fedavg-simclr
objective: simclr
method:
  class: methods.fedhalf.FedHalf
""",
    "tests/methods/test_fedhalf.py": """from tests.methods.contract import MethodContract


class TestFedHalf(MethodContract):
    method = "fedhalf"
    choices = ("method.share=0.3",)
""",
    "docs/methods/fedhalf.md": """# FedHalf

Nobody: *Half of the Way*. 2024. File: `methods/fedhalf.py`.

The server goes half of the way to the mean.

## Config

| key | default | meaning |
|---|---|---|
| `objective` | simclr | any |
| `method.share` | 0.5 | 1 is FedAvg |
""",
    "leaderboards/papers.bib": BIBTEX.format("fedhalf"),
    "benchmark/configs/suite/digits.yaml": "  - fedhalf\n",
    "CHANGELOG.md": "- The method FedHalf.\n",
}
OBJECTIVE = {
    "methods/objectives/halved.py": '''"""Half of alignment: a dummy."""

from torch import Tensor

from methods.base import Batch, Outputs, Projected
from methods.maths import alignment


class Halved(Projected):
    """Alignment alone, halved."""

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """A mean over the images."""
        return alignment(*out.embeddings) / 2
''',
    "benchmark/configs/objective/halved.yaml": """# Half of the alignment (Nobody 2024)
# title: halved
# paper: halved
# loss: mean ||u_a - u_b||^2 / 2
objective:
  class: methods.objectives.halved.Halved
""",
    "tests/methods/objectives/test_halved.py": """import torch

from methods.base import Outputs
from methods.maths import alignment
from methods.objectives.halved import Halved
from tests.methods.objectives import encoder


def test_it_is_half_of_the_alignment():
    z = torch.randn(2, 5, 4)
    loss = Halved(encoder(), projector=(4,)).loss(Outputs((), tuple(z)), None)
    torch.testing.assert_close(2 * loss, alignment(*z))
""",
    "leaderboards/papers.bib": BIBTEX.format("halved"),
    "CHANGELOG.md": "- The objective `halved`.\n",
}
PROTOCOL = {
    "eval/norms.py": '''"""Norms of features: a dummy."""

from eval.features import Features


def mean_norm(features: Features, power: float) -> dict[str, float]:
    """The mean norm of the test images' features."""
    return {"norm": float(features.test_x.norm(p=power, dim=1).mean())}
''',
    "eval/protocols.yaml": """norms/v1:
  uses_labels: false
  summary: Mean norm of the features of test images.
  compute: eval.norms.mean_norm
  settings: {power: 2.0}
  headline: norm
""",
    "tests/eval/test_protocol.py": """

PINNED["norms/v1"] = {"power": 2.0}


def test_the_mean_norm(subject):
    expected = subject.features.test_x.square().sum(1).sqrt().mean()
    assert PROTOCOLS["norms/v1"].function(subject.features, power=2.0)["norm"] == pytest.approx(float(expected))
""",
}
SHEET = "tests/benchmark/audit/test_privacy_sheet.py"
LISTS = (
    *("tests/benchmark/audit/test_pages.py", "tests/benchmark/audit/test_regression.py", "tests/test_docs.py"),
    *("tests/leaderboards/papers/test_bibliography.py", "tests/test_results.py"),
    *("tests/benchmark/configuration/test_compose.py", "tests/benchmark/configuration/test_suites.py"),
)
"""Tests that look at all that is shipped, whatever it is."""
SHIPPED = {
    "method": (
        *("tests/methods/test_fedhalf.py", "tests/leaderboards/test_palette.py", "tests/test_kernels.py"),
        *(f"{SHEET}::test_every_shipped_method_is_on_the_sheet", f"{SHEET}::test_bytes_are_those_counted_by_hand"),
        f"{SHEET}::test_the_committed_sheet_is_up_to_date[fedhalf]",
        f"{SHEET}::test_bytes_equal_those_of_a_run_in_which_clients_train[fedhalf]",
        "tests/methods/test_measures.py::test_killed_and_resumed_or_on_two_ranks_it_is_the_unbroken_run"
        "[fedhalf-central-secure-dropouts]",
    ),
    "objective": ("tests/methods/objectives/test_halved.py", "tests/methods/objectives/test_empty_projector.py"),
    "protocol": ("tests/eval/test_protocol.py", "tests/benchmark/evaluation/test_protocols.py"),
}
"""What is shipped -> further tests that ask for it."""
FILES = {"method": (METHOD, 7), "objective": (OBJECTIVE, 5), "protocol": (PROTOCOL, 3)}
"""What is shipped -> what is written by hand, and how many files that may be."""


def copy_of(checkout: Path, *added: dict[str, str]) -> Path:
    """A copy with new files, and lines at the end of those that there are."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file() and file.name != ".git":
            shutil.copy(file, checkout)
    for name, text in (pair for files in added for pair in files.items()):
        file = checkout / name
        file.write_text((file.read_text() if file.exists() else "") + text)
    return checkout


def python(checkout: Path, *words: str) -> str:
    """What a command of Python prints, run in a copy."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-8000:]}{done.stderr[-2000:]}"
    return done.stdout


def test_what_is_missing_is_named_with_the_command_that_writes_it(tmp_path):
    for files, limit in FILES.values():
        assert len(files) <= limit
    said = python(copy_of(tmp_path, METHOD, OBJECTIVE, PROTOCOL), "-m", "benchmark.audit.pages", "check=true")
    assert said.splitlines() == [
        *(f"{page} is not as the configs' heads have it" for page in ("README.md", "docs/reference/objectives.md")),
        "leaderboards/methods.json is not as the configs' heads have it",
        "leaderboards/golden.json has no row fedhalf",
        "leaderboards/privacy.json has no method fedhalf",
        "leaderboards/costs.json has no method fedhalf",
        "write it: make pages",
    ]


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("what", SHIPPED)
def test_nothing_more_is_asked_than_its_files_and_one_command(what, tmp_path):
    checkout = copy_of(tmp_path, FILES[what][0])
    for command in COMMANDS:
        python(checkout, "-m", command)
    assert python(checkout, "-m", "benchmark.audit.pages", "check=true") == "nothing is missing\n"
    python(checkout, "-m", "ruff", "check", ".")
    python(checkout, "-m", "ruff", "format", "--check", ".")
    python(checkout, "-c", "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())")
    python(checkout, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *LISTS, *SHIPPED[what])
