"""Workload in Flower's simulation on Ray, one actor a core: `python -m benchmark.speed.peer.flower VIEWS BATCH`."""

import os
import sys
from collections.abc import Iterable
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmark.speed.peer.workload import CLIENTS, COHORT, CORES, ROUNDS, SGD, Network, batches, images, report_round

BACKEND = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"num_cpus": CORES, "include_dashboard": False, "logging_level": 40},
}


class TimedFedAvg(FedAvg):
    """FedAvg that reports when a round ends, and raises an error if a client fails: Flower itself would go on."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Mean of the clients' weights."""
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed or len(replies) != COHORT:
            raise RuntimeError(f"round {server_round}: {len(replies)} of {COHORT} clients replied; errors: {failed}")
        result = super().aggregate_train(server_round, replies)
        report_round()
        return result


def client(views: str, batch_size: int) -> ClientApp:
    """A client app that trains the received weights for one epoch."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        network, client_id = Network(), int(context.node_config["partition-id"])
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(network.parameters(), **SGD)
        for pair in batches(client_id, views, batch_size):
            optimizer.zero_grad()
            loss = network.loss(*pair)
            loss.backward()
            optimizer.step()
        metrics = MetricRecord({"loss": loss.item(), "num-examples": len(images(client_id))})
        content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def server() -> ServerApp:
    """A server app that runs the rounds."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        # a fraction alone counts the clients registered so far, which in the first round are not all of them
        cohort = {"fraction_train": COHORT / CLIENTS, "min_train_nodes": COHORT, "min_available_nodes": CLIENTS}
        strategy = TimedFedAvg(**cohort, fraction_evaluate=0.0)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(Network().state_dict()), num_rounds=ROUNDS)

    return app


if __name__ == "__main__":
    run_simulation(server(), client(sys.argv[1], int(sys.argv[2])), num_supernodes=CLIENTS, backend_config=BACKEND)
