"""Faults of a device, planted into copies of the code: the tests on the simulated GPU have to fail on each."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmark", "datamodules", "eval", "leaderboards", "methods", "tests")
TESTS = (
    "test_one_by_one_it_has_the_bits_of_the_cpu_and_no_step_waits",
    "test_side_by_side_it_has_them_up_to_rounding_and_no_stream_overtakes",
)
OTHER_DEVICE = "test_a_run_goes_on_on_the_other_device"
NOISE = "torch.randn(shape, generator=stream).to(device, non_blocking=True)"
EYE = "torch.eye(len(anchors), dtype=torch.bool, device=a.device)"
RATES = "torch.zeros((), device=self.device) for _ in"
SERVER = "trees.to(self.method.init_server(turn), self.fabric.device, self.method.dtype)"

FAULTS = {  # name -> file, what is replaced and by what, and the tests' case
    "parameters of views stay on the CPU": (
        *("datamodules/ops.py", "parameters.to(images.device, non_blocking=True)", "parameters", "fedavg"),
    ),
    "images stay on the CPU": (
        *("datamodules/federated.py", "(np.array(pool)).to(device)", "(np.array(pool))", "fedavg"),
    ),
    "labels stay on the CPU": (
        *("datamodules/federated.py", "labels[held]).to(device) if", "labels[held]) if", "objective supervised"),
    ),
    "rows of a loss on the CPU": (
        *("methods/maths/losses.py", "torch.arange(len(a), device=a.device)", "torch.arange(len(a))"),
        "objective simclr, one-way",
    ),
    "a diagonal on the CPU": ("methods/maths/losses.py", EYE, "torch.eye(len(anchors), dtype=torch.bool)", "fedavg"),
    "classes of a queue on the CPU": (
        *("methods/maths/losses.py", "dtype=torch.long, device=q.device", "dtype=torch.long", "objective moco"),
    ),
    "noise on the CPU": ("methods/fedu2.py", NOISE, "torch.randn(shape, generator=stream)", "fedu2"),
    "noise by the CPU's generator": (
        *("methods/fedu2.py", NOISE, "torch.randn(shape, generator=stream, device=device)", "fedu2"),
    ),
    "noise by the device's generator": ("methods/fedu2.py", NOISE, "torch.randn(shape, device=device)", "fedu2"),
    "released noise on the CPU": (
        "methods/maths/privacy.py",
        "generator=generator).to(matrix)",
        "generator=generator)",
        "fedsc with noise",
    ),
    "a solution on the CPU": ("methods/fedu2.py", "solution.to(weights.device)", "solution", "fedu2"),
    "clusters on the CPU": (
        *("methods/objectives/protocl.py", "dtype=torch.long, device=self.prototypes.device", "dtype=torch.long"),
        "objective protocl",
    ),
    "memory read onto the CPU": (
        *("benchmark/federation/client_state.py", "trees.move(tree, self.device)", "tree", "scaffold"),
    ),
    "a checkpoint read onto the CPU": (
        *("benchmark/federation/checkpoint.py", "map_location=device", 'map_location="cpu"', OTHER_DEVICE),
    ),
    "the server's state on the CPU": ("benchmark/federation/loop.py", SERVER, "self.method.init_server(turn)", "ssd"),
    "a step that looks at its loss": (
        *("methods/base.py", '"loss": loss,', '"loss": loss * (1.0 if float(loss) > -1e9 else 0.0),', "fedavg"),
    ),
    "a sum of losses on the CPU": (
        *("benchmark/execution/sequential.py", "torch.zeros((), device=fabric.device)", "torch.zeros(())", "fedavg"),
    ),
    "a lane that does not wait for the caller": (
        *(
            "benchmark/execution/parallel.py",
            "        self.stream.wait_stream(torch.cuda.current_stream())\n",
            "",
            "fedavg",
        ),
    ),
    "learning rates on the CPU": ("benchmark/execution/cuda_graphs.py", RATES, "torch.zeros(()) for _ in", "fedavg"),
    "a batch that is not copied to its recording": (
        *("benchmark/execution/cuda_graphs.py", "        _copy(static_batch, batch)\n", "", "fedavg"),
    ),
    "momentum left from the last visit": ("benchmark/execution/cuda_graphs.py", "value.zero_()", "pass", "fedavg"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_code_has_what_the_fault_replaces(name):
    """So that a change of the code is noticed before the long test."""
    file, old, new, _ = FAULTS[name]
    assert old in (ROOT / file).read_text()
    assert new != old


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_seen(name, tmp_path):
    file, old, new, case = FAULTS[name]
    for folder in FOLDERS:
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "results", "site")
        )
    text = (tmp_path / file).read_text()
    (tmp_path / file).write_text(text.replace(old, new))
    tests = [f"{OTHER_DEVICE}[ssd]"] if case == OTHER_DEVICE else [f"{test}[{case}]" for test in TESTS]
    words = [
        "-m",
        "pytest",
        "-q",
        "-x",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "-m",
        "long or not long",
        "-c",
        os.devnull,
    ]
    done = subprocess.run(
        [sys.executable, *words, "--rootdir", tmp_path, *(f"tests/methods/test_on_gpu.py::{test}" for test in tests)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout[-2000:]
    assert " failed" in done.stdout.splitlines()[-1]
