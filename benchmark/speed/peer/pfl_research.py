"""Workload in pfl-research's simulation, in one process: `python -m benchmark.speed.peer.pfl_research VIEWS BATCH`.

In its first round pfl-research evaluates every client's data before and after training; no setting turns that off.
"""

import os
import sys
from functools import partial
from typing import Any

os.environ["PFL_PYTORCH_DEVICE"] = "cpu"

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchDataDataset, PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor

from benchmark.speed.peer import workload
from benchmark.speed.peer.workload import CLIENTS, COHORT, ROUNDS, SGD, report_round


class Model(workload.Network):
    """The network with the methods that pfl-research requires beside `loss`."""

    def metrics(self, view_a: Tensor, view_b: Tensor) -> dict[str, Any]:
        """A constant, so that metrics cost nothing."""
        return {"images": Weighted(0.0, len(view_a))}


class RoundTimer(TrainingProcessCallback):
    """Reports when a round ends."""

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        """Report it; training continues."""
        report_round()
        return False, Metrics()


def dataset(views: str, client: int) -> Any:
    """A client's pairs of views."""
    if views == "simclr":
        return PyTorchDataDataset(workload.Augmented(workload.images(client)), user_id=str(client), shuffle=True)
    return PyTorchTensorDataset(workload.mirrored(client), user_id=str(client))


def run(views: str, batch_size: int) -> None:
    """Run the rounds."""
    network = Model()
    optimizer = partial(torch.optim.SGD, **{name: value for name, value in SGD.items() if name != "lr"})
    model = PyTorchModel(network, optimizer, torch.optim.SGD(network.parameters(), lr=1.0))
    clients = FederatedDataset(partial(dataset, views), get_user_sampler("random", list(range(CLIENTS))))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS, evaluation_frequency=ROUNDS + 1, train_cohort_size=COHORT, val_cohort_size=0
        ),
        SimulatedBackend(clients, None),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=SGD["lr"], local_batch_size=batch_size),
        NNEvalHyperParams(local_batch_size=batch_size),
        callbacks=[RoundTimer()],
    )


if __name__ == "__main__":
    torch.set_num_threads(workload.CORES)
    run(sys.argv[1], int(sys.argv[2]))
