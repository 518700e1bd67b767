"""Commands where a GPU is the default accelerator: the simulated one."""

import json

import pytest
import torch

from benchmark.cli.main import main
from methods import trees
from tests.device import SimulatedGPU
from tests.methods.test_orchestra import SMALL
from tests.run_helpers import TINY


@pytest.mark.parametrize(
    ("method", "keys", "further"),
    [
        pytest.param("fedavg", (), "drift/v1", id="fedavg"),
        pytest.param("orchestra", SMALL, "linear/v1", id="orchestra", marks=pytest.mark.long),
    ],
)
def test_a_run_takes_the_gpu_and_what_it_leaves_needs_none(tmp_path, method, keys, further):
    protocols = "evaluation.protocols=[knn/v1,geometry/v1,clusters/v1]"
    words = ["logger=csv", f"output={tmp_path}", "scenario=on-gpu", "row=row", "evaluation.every=1", protocols, *keys]
    with SimulatedGPU(streams=False):
        assert main(["run", TINY, method, *words]) == 0
        (folder,) = tmp_path.rglob("seed0")
        assert main(["evaluate", str(folder), f"protocols={further}"]) == 0
        assert main(["export", str(folder), str(tmp_path / "encoder.pt")]) == 0
        assert main(["run", TINY, method, *words]) == 0  # already done
    record = json.loads((folder / "result.json").read_text())
    assert record["provenance"]["hardware"].startswith("simulated GPU")
    assert record["rounds"] == {"done": 3, "planned": 3}
    weights = [leaf for _, leaf in trees.leaves(torch.load(tmp_path / "encoder.pt", weights_only=True))]
    assert {leaf.device.type for leaf in weights} == {"cpu"}
    assert main(["evaluate", str(folder), "protocols=spectrum/v1"]) == 0  # on the CPU, from the GPU's checkpoint
