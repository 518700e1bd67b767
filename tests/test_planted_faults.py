"""Faults of a device, planted into copies of the code: the tests on the simulated GPU have to fail on each."""

import inspect
import os
import pkgutil
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
DRAW = "methods.fedu2.UniformRegulariser.draw"
NOISE = "torch.randn(shape, generator=stream).to(device, non_blocking=True)"
PREPARE = "benchmark.execution.cuda_graphs.RecordedSteps.prepare"

_MATHS, _DATA, _STEPS = "methods.maths", "datamodules.federated.FederatedDataModule", "benchmark.execution"
FAULTS = {  # name -> a function, what is replaced in its source and by what, and the tests' case
    "parameters of views stay on the CPU": (
        *("datamodules.ops.send", "parameters.to(images.device, non_blocking=True)", "parameters", "fedavg"),
    ),
    "images stay on the CPU": (f"{_DATA}.resident", "(np.array(pool)).to(device)", "(np.array(pool))", "fedavg"),
    "labels stay on the CPU": (
        *(f"{_DATA}.batches", "labels[held]).to(device) if", "labels[held]) if", "objective supervised"),
    ),
    "rows of a loss on the CPU": (
        *(f"{_MATHS}.losses.nt_xent", "torch.arange(len(a), device=a.device)", "torch.arange(len(a))"),
        "objective simclr, one-way",
    ),
    "a diagonal on the CPU": (f"{_MATHS}.losses.nt_xent", "torch.bool, device=a.device", "torch.bool", "fedavg"),
    "classes of a queue on the CPU": (
        *(f"{_MATHS}.losses.info_nce", "torch.long, device=q.device", "torch.long", "objective moco"),
    ),
    "noise on the CPU": (DRAW, NOISE, "torch.randn(shape, generator=stream)", "fedu2"),
    "noise by the CPU's generator": (DRAW, NOISE, "torch.randn(shape, generator=stream, device=device)", "fedu2"),
    "noise by the device's generator": (DRAW, NOISE, "torch.randn(shape, device=device)", "fedu2"),
    "released noise on the CPU": (
        *(f"{_MATHS}.privacy.gaussian_mechanism", "generator=generator).to(matrix)", "generator=generator)"),
        "fedsc with noise",
    ),
    "a solution on the CPU": ("methods.fedu2.unified", "solution.to(weights.device)", "solution", "fedu2"),
    "clusters on the CPU": (
        *("methods.objectives.protocl.ProtoCL.receive", "torch.long, device=self.prototypes.device", "torch.long"),
        "objective protocl",
    ),
    "memory read onto the CPU": (
        *("benchmark.federation.client_state.ClientState.__getitem__", "trees.move(tree, self.device)", "tree"),
        "scaffold",
    ),
    "a checkpoint read onto the CPU": (
        *("benchmark.federation.checkpoint.Checkpoint.load", "map_location=device", 'map_location="cpu"', OTHER_DEVICE),
    ),
    "the server's state on the CPU": (
        "benchmark.federation.loop.FederatedLoop.restore",
        *("trees.to(self.method.init_server(round_context), self.fabric.device, self.method.dtype)",),
        *("self.method.init_server(round_context)", "ssd"),
    ),
    "a step that looks at its loss": (
        *("methods.base.FederatedMethod.training_step", '"loss": parts["loss"],'),
        *('"loss": parts["loss"] * (1.0 if float(parts["loss"]) > -1e9 else 0.0),', "fedavg"),
    ),
    "a sum of losses on the CPU": (
        f"{_STEPS}.sequential.SequentialExecutor.__init__",
        *("torch.zeros((), device=fabric.device)", "torch.zeros(())", "fedavg"),
    ),
    "a lane that does not wait for the caller": (
        *(f"{_STEPS}.parallel.Lane.current", "self.stream.wait_stream(torch.cuda.current_stream())", "pass", "fedavg"),
    ),
    "learning rates on the CPU": (
        *(PREPARE, "torch.zeros((), device=self.device) for _ in", "torch.zeros(()) for _ in", "fedavg"),
    ),
    "a batch that is not copied to its recording": (
        *(f"{_STEPS}.cuda_graphs.RecordedSteps.take", "_copy(static_batch, batch)", "pass", "fedavg"),
    ),
    "momentum left from the last visit": (PREPARE, "value.zero_()", "pass", "fedavg"),
}


def planted(name):
    """The file of a fault within the repository, and its text with the fault."""
    path, old, new, _ = FAULTS[name]
    function = pkgutil.resolve_name(path)
    source, file = inspect.getsource(function), Path(inspect.getsourcefile(inspect.unwrap(function)))
    assert source.count(old) == 1
    text = file.read_text()
    assert text.count(source) == 1
    return file.relative_to(ROOT), text.replace(source, source.replace(old, new))


def test_the_function_has_what_a_fault_replaces():
    """So that a change of the code is noticed before the long test."""
    for name in FAULTS:
        file, text = planted(name)
        assert text != (ROOT / file).read_text()
        compile(text, str(file), "exec")


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_seen(name, tmp_path):
    file, text = planted(name)
    case = FAULTS[name][3]
    for folder in FOLDERS:
        without = shutil.ignore_patterns("__pycache__", "results", "site")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=without)
    (tmp_path / file).write_text(text)
    tests = [f"{OTHER_DEVICE}[ssd]"] if case == OTHER_DEVICE else [f"{test}[{case}]" for test in TESTS]
    options = f"-q -x --no-header -p no:cacheprovider -c {os.devnull} --rootdir {tmp_path}".split()
    words = [*options, "-m", "long or not long", *(f"tests/methods/test_on_gpu.py::{test}" for test in tests)]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout[-2000:]
    assert " failed" in done.stdout.splitlines()[-1]
