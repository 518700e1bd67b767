"""What a local step of ResNet-18 launches on a GPU, and how often a visit waits and uploads, against committed numbers.

`python -m tests.test_kernels` measures those that `tests/kernels.json` lacks, with `all` all of them again, and writes
it; the site has them as a table. `before` has the kernels of the time before the suite was rehearsed on a simulated
GPU, and waits and uploads of commit 94604bc.
"""

import json
import sys
import tempfile
from pathlib import Path

import pytest

from tests.gpu_helpers import MOCO, TRAINED, Case, train_on_gpu
from tests.methods.test_orchestra import SMALL

FILE = Path(__file__).with_name("kernels.json")
TWO_ROUNDS = (
    *("federation.rounds=2", "federation.participation=1", "partition.clients=2"),
    *("training.steps=2", "executor=sequential"),
)
RESNET = ("encoder={class: methods.networks.resnet18}", "heads.projector=[512,512]")
TOLERANCE = 0.02
SHORT = ("fedprox",)
"""Those of `make test`."""
VIT = ("encoder={class: methods.networks.vit_tiny}",)
SETTINGS: dict[str, Case] = {
    "ldawa": ("method.start=1",), "orchestra": SMALL, "lwfedssl": VIT, "progfedssl": VIT,
}  # fmt: skip
CASES: dict[str, Case] = {
    **{name: (name, *SETTINGS.get(name, ())) for name in TRAINED if name not in ("flesd", "local")},  # steps of FedAvg
    **{f"fedavg over {name}": ("fedavg", f"objective={name}") for name in ("align_uniform", "byol", "simsiam")},
    "fedavg over moco": ("fedavg", *MOCO),
    "fedavg, Adam": ("fedavg", "optimizer={class: torch.optim.Adam, lr: 0.001}"),
    "fedavg, LARS": ("fedavg", "optimizer={class: methods.optimizers.LARS, lr: 1.0}"),
    "fedavg, clipped": ("fedavg", "training.clip_norm=1.0"),
}
"""Name -> method and overrides, over ResNet-18 (ViT-Tiny where it has to be one) with a projector of two layers."""


def measured(folder: Path, case: Case) -> dict[str, int]:
    """Kernels of the last step, also a server's; waits and uploads by visit of the second round, rounded up."""
    networks = RESNET[1:] if any(word.startswith("encoder=") for word in case) else RESNET
    run = train_on_gpu(folder, (case[0], *networks, *case[1:]), streams=False, tried=TWO_ROUNDS)
    return {
        "kernels": sum(run.steps[-1].values()),
        "waits": run.of_a_visit("wait"),
        "uploads": run.of_a_visit("upload"),
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in CASES]
)
def test_a_step_launches_no_more_than_it_did(name, tmp_path):
    expected, found = json.loads(FILE.read_text()).get(name), measured(tmp_path, CASES[name])
    assert expected, "measure what is missing: make pages"
    assert found["kernels"] == pytest.approx(expected["kernels"], rel=TOLERANCE)
    assert (found["waits"], found["uploads"]) == (expected["waits"], expected["uploads"])


def test_every_case_is_measured():
    assert list(json.loads(FILE.read_text())) == list(CASES), "measure what is missing: make pages"


def main(words: list[str]) -> None:
    """Measures what is missing, or all, and writes the file."""
    known = json.loads(FILE.read_text())
    for name, case in CASES.items():
        if name not in known or words == ["all"]:
            with tempfile.TemporaryDirectory() as folder:
                now = measured(Path(folder), case)
            known[name] = {**now, "before": known.get(name, {}).get("before", now)}
            print(f"{name:24} {known[name]}", flush=True)  # noqa: T201
    FILE.write_text("{\n" + ",\n".join(f" {json.dumps(name)}: {json.dumps(known[name])}" for name in CASES) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
