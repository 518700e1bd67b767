"""Costs that papers state or compare: operations and memory of our methods' steps, counted without training."""

from functools import cache
from typing import Any

import torch

from benchmark.audit.computations.messages import DEVICE
from benchmark.configuration.compose import compose
from benchmark.execution.counting import operations
from benchmark.experiment.costs import costs
from leaderboards.papers.computed import Printed, computation
from leaderboards.papers.tables import Published
from methods.maths import equal_clusters

STEP = 64
"""Images of one step: ratios of operations do not depend on more of them."""
STAGED = {"LW-FedSSL": ("lwfedssl", "method.alignment=0"), "Prog-FedSSL": ("progfedssl",)}
ROTATED = ((), ("objective.rotation_weight=0",))
BATCH, WIDTH = 16, 512
"""Of Orchestra's clients, and of their embeddings."""
LINEAR = 4 * (WIDTH + 1) * 4
"""Bytes of a linear layer with four outputs."""
SLACK = 1.01
"""A pass through the linear layer is part of the extra pass."""


@cache
def counted(scenario: str, method: str, *overrides: str, images: int = STEP) -> dict[str, Any]:
    """What a client pays, at the batches of the scenario or of all its images."""
    return costs(compose(scenario, method, overrides), images)


# --- LW-FedSSL and Prog-FedSSL


@computation("costs/stages", stored=True)
def stages(cell: Published, _: Printed) -> list[float]:
    """Operations of end-to-end training over those of training in a stage for each of 12 layers."""
    whole = counted("reference", "fedavg", "encoder.class=methods.networks.vit_tiny")
    return [whole["flops"] / counted("reference", *STAGED[cell.row.partition(",")[0]])["flops"]]


# --- Orchestra


@computation("costs/orchestra-rotation", stored=True)
def rotation(cell: Published, _: Printed) -> list[float]:
    """What the rotated view adds to a step: a forward and a backward pass, and the memory of a linear layer."""
    with_it, without = (counted(DEVICE, "orchestra", *each, "federation.rounds=1", images=BATCH) for each in ROTATED)
    if cell.row == "rotation, memory":
        return [float(with_it[key] - without[key] > LINEAR) for key in ("up", "memory")]
    more = with_it["phases"]["fit"]["flops"] - without["phases"]["fit"]["flops"]
    forward = with_it["phases"]["initialise"]["flops"]  # a pass over as many images; backward is two of them
    steps = compose(DEVICE, "orchestra").training.epochs
    return [float(more > SLACK * 3 * forward * steps)]


@computation("costs/orchestra-clustering", stored=True)
def clustering(_: Published, __: Printed) -> list[float]:
    """Percent of a client's operations in a round that its clustering makes."""
    config, stream = compose(DEVICE, "orchestra"), torch.Generator().manual_seed(0)
    rows = torch.randn(config.objective.bank, WIDTH, generator=stream)
    _, own = operations(lambda: equal_clusters(rows, config.method.local_clusters, stream))
    whole = counted(DEVICE, "orchestra", "federation.rounds=1", images=500)["phases"]["fit"]["flops"]
    return [100 * own / whole]
