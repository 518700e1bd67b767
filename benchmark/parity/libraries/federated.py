"""The server's rules and clients' corrections, beside Flower's strategies and pfl-research's algorithms."""

import logging
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from benchmark.federation.aggregation import Aggregation
from benchmark.parity.libraries.objectives import rows
from benchmark.parity.libraries.registry import case
from datamodules.federated import Batch as ImageBatch
from methods import server
from methods.base import Batch, Client, FederatedMethod, Mean, Objective, Outputs, Phase, Visit
from methods.fedprox import FedProx, Proximal
from methods.networks import Encoder
from methods.scaffold import Scaffold

SIZES, ROUNDS, STEPS, RATE = (7, 30, 1), 3, 4, 0.1
WITHOUT_CORRECTION = (
    "theirs starts its second moment at 0, ours at τ² as in Reddi et al., Algorithm 2: theirs is started there"
)


def replies(round: int) -> list[tuple[dict[str, Tensor], int]]:
    """The weights of three clients in a round, and their numbers of images."""
    return [
        (dict(zip("ab", (each.detach() for each in rows(2, 3, 2, seed=10 * round + k)), strict=True)), size)
        for k, size in enumerate(SIZES)
    ]


def by_flower(strategy: Any, before: Callable[[int], None] = lambda _: None, rounds: int = ROUNDS) -> list[np.ndarray]:
    """The weights after each round of a Flower strategy. before: called with the round's number, from 1."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

    logging.getLogger("flwr").setLevel(logging.ERROR)

    def record(weights: dict[str, Any]) -> Any:
        return ArrayRecord({name: Array(np.asarray(value)) for name, value in weights.items()})

    weights, seen = record({name: np.zeros((3, 2)) for name in "ab"}), []
    no_clients = SimpleNamespace(get_node_ids=lambda: [1, 2], push_messages=None)
    for round in range(1, rounds + 1):
        # nothing is sent: the replies are given
        getattr(strategy, "strategy", strategy)._construct_messages = lambda *_: []
        strategy.configure_train(round, weights, ConfigRecord({}), no_clients)
        before(round)
        messages = [
            SimpleNamespace(
                content=RecordDict({"arrays": record(sent), "metrics": MetricRecord({"num-examples": size})}),
                has_error=lambda: False,
            )
            for sent, size in replies(round)
        ]
        weights, _ = strategy.aggregate_train(round, messages)
        seen += [array.numpy() for array in weights.values()]
    return seen


def by_suite(optimizer: server.ServerOptimizer | None) -> list[Tensor]:
    """The weights after each round of the suite's mean, or of a server optimiser's step towards it."""
    fabric, phase = Fabric(accelerator="cpu", devices=1), Phase("fit", uplink={"weights": Mean("examples")})
    weights: dict[str, Any] = {name: torch.zeros(3, 2) for name in "ab"}
    state, seen = optimizer.init(weights) if optimizer else {}, []
    for round in range(1, ROUNDS + 1):
        total = Aggregation(phase.uplink)
        for k, (sent, size) in enumerate(replies(round)):
            visit = Visit(0, 1, phase, Client(k, size), {}, {}, torch.Generator())
            total.add(visit, {"weights": sent}, {})
        mean = total.merged(fabric, [total.staged(fabric)])["weights"]
        weights, state = optimizer.step(weights, mean, state) if optimizer else (mean, {})
        seen += list(weights.values())
    return seen


@case("flwr.serverapp.strategy.FedAvg", Mean, '"examples": self.client.examples', '"examples": 1', within=Visit.weight)
def fedavg(FedAvg: Any) -> tuple[Any, Any]:
    """FedAvg's mean by numbers of images."""
    return by_suite(None), by_flower(FedAvg())


@case("flwr.serverapp.strategy.FedAvgM", server.Momentum, "self.momentum)", "1)", within=server.Momentum.step)
def fedavgm(FedAvgM: Any) -> tuple[Any, Any]:
    """FedAvgM over three rounds."""
    theirs = FedAvgM(server_learning_rate=0.5, server_momentum=0.9)
    return by_suite(server.Momentum(lr=0.5, momentum=0.9)), by_flower(theirs)


@case(
    "flwr.serverapp.strategy.FedAdam",
    server.Adam,
    "(1 - self.decay) * delta.square()",
    "delta.square()",
    within=server.Adam.second,
    note=f"{WITHOUT_CORRECTION}. Theirs also multiplies the rate of round t by √(1 - β₂ᵗ⁺¹) / (1 - β₁ᵗ⁺¹), which the "
    "paper has not: it is given a rate divided by it",
)
def fedadam(FedAdam: Any) -> tuple[Any, Any]:
    """FedAdam over three rounds."""
    theirs = FedAdam(eta=0.1, beta_1=0.9, beta_2=0.99, tau=0.01)
    theirs.v_t = {name: np.full((3, 2), 0.01**2) for name in "ab"}

    def before(round: int) -> None:
        theirs.eta = 0.1 * (1 - 0.9 ** (round + 1)) / (1 - 0.99 ** (round + 1)) ** 0.5

    return by_suite(server.Adam(lr=0.1, adaptivity=0.01)), by_flower(theirs, before)


@case(
    "flwr.serverapp.strategy.FedYogi",
    server.Yogi,
    "delta.square()",
    "delta.abs()",
    within=server.Yogi.second,
    note=WITHOUT_CORRECTION,
)
def fedyogi(FedYogi: Any) -> tuple[Any, Any]:
    """FedYogi over three rounds."""
    theirs = FedYogi(eta=0.1, beta_1=0.9, beta_2=0.99, tau=0.01)
    theirs.v_t = {name: np.full((3, 2), 0.01**2) for name in "ab"}
    return by_suite(server.Yogi(lr=0.1, adaptivity=0.01)), by_flower(theirs)


class Regression(Objective):
    """Mean squared distance of a linear map's outputs `[B, 1]` to the second of two views."""

    travels = ("encoder",)

    def __init__(self) -> None:
        super().__init__(Encoder(nn.Linear(3, 1), 1))

    def forward(self, *views: Tensor, **kwargs: Any) -> Outputs:
        """The map of the first view; the second is the target."""
        return Outputs((self.encoder(views[0]),), (), targets=(views[1],))

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """Mean squared distance."""
        return (out.representations[0] - out.targets[0]).square().mean()


class Theirs(nn.Linear):
    """The same for pfl-research."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean squared distance."""
        return (self(x) - y).square().mean()

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """None: nothing is evaluated."""
        return {}


def visited(method: FederatedMethod, data: list[Tensor], **entries: Any) -> tuple[Any, Visit]:
    """(a client's reply, its visit) after STEPS steps on all its data.

    entries: of the message, beside the weights; `memory`: the control variate in the client's memory.
    """
    memory = {"c": entries.pop("memory")} if "memory" in entries else {}
    message = {"weights": method.weights(), **entries}
    message["weights"] = {part: {k: v.clone() for k, v in t.items()} for part, t in message["weights"].items()}
    visit = Visit(0, 1, method.phases[0], Client(0, len(data[0])), message, memory, torch.Generator())
    method.start_visit(visit)
    optimizer = method.configure_optimizers()
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    for _ in range(STEPS):
        batch: Any = ImageBatch(tuple(data), torch.arange(len(data[0])), draws={})
        optimizer.zero_grad()
        method.training_step(batch)["loss"].backward()
        method.on_before_optimizer_step(optimizer)
        optimizer.step()
    visit.steps, visit.lr_sum = STEPS, STEPS * RATE
    return method.reply(visit), visit


def pfl_client(first: Objective, data: list[Tensor]) -> tuple[Any, Any, Any, Any]:
    """(model, data set, hyperparameters, bridges) of pfl-research, from the same weights."""
    from pfl.data.dataset import Dataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.internal.bridge import FrameworkBridgeFactory
    from pfl.model.pytorch import PyTorchModel

    network = Theirs(3, 1)
    network.load_state_dict(first.encoder.backbone.state_dict())
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    model._prepare_batch = list  # theirs would round the data to float32
    settings = NNTrainHyperParams(local_num_epochs=STEPS, local_learning_rate=RATE, local_batch_size=None)
    return model, Dataset(tuple(data), user_id="0"), settings, FrameworkBridgeFactory


plain_sgd = partial(torch.optim.SGD, lr=RATE)


def client_data() -> list[Tensor]:
    """Inputs `[12, 3]` and targets `[12, 1]`."""
    return [rows(1, 12, 3)[0].detach(), rows(1, 12, 1, seed=1)[0].detach()]


@case("pfl.algorithm.FedProx", FedProx, "self.mu / 2", "self.mu", within=Proximal.forward)
def fedprox() -> tuple[Any, Any]:
    """A client's steps with FedProx's term."""
    ours, data = FedProx(Regression(), mu=0.3, optimizer=plain_sgd), client_data()
    model, dataset, settings, bridges = pfl_client(ours.objective, data)
    bridges.fedprox_bridge().do_proximal_sgd(model, dataset, settings, mu=0.3)
    (message, _), _ = visited(ours, data)
    return list(message["weights"]["encoder"].values()), list(model.pytorch_model.parameters())


@case(
    "pfl.algorithm.SCAFFOLD",
    Scaffold,
    'self.context["correction"])',
    'self.context["correction"], -1)',
    within=Scaffold.adjust_gradients,
    note="the steps between two messages; Flower has no SCAFFOLD",
)
def scaffold() -> tuple[Any, Any]:
    """A client's steps with SCAFFOLD's control variates."""
    ours, data = Scaffold(Regression(), optimizer=plain_sgd), client_data()
    model, dataset, settings, bridges = pfl_client(ours.objective, data)
    names = list(model.variable_map)
    local, common = ({n: rows(1, *model.variable_map[n].shape, seed=s)[0].detach() for n in names} for s in (2, 3))
    bridges.scaffold_bridge().do_control_variate_sgd(model, dataset, settings, local_c=local, server_c=common)
    start = [value.clone() for value in ours.weights()["encoder"].values()]
    controls = [{"encoder": {f"backbone.{name}": c[name] for name in names}} for c in (local, common)]
    (message, _), _ = visited(ours, data, memory=controls[0], c=controls[1])
    changed = message["delta_w"]["encoder"].values()
    return [a + b for a, b in zip(start, changed, strict=True)], list(model.pytorch_model.parameters())


@case(
    "pfl.algorithm.SCAFFOLD",
    Scaffold,
    "effective_steps(momentum, visit.steps)",
    "visit.steps**2",
    within=Scaffold.reply,
    note="from controls of 0 ours is (x - y) / (K η), the mean gradient, as in Algorithm 1, and theirs its negative, "
    "in float32, although its steps add c - c_i as the algorithm does: theirs is negated",
)
def scaffold_controls(SCAFFOLD: Any) -> tuple[Any, Any]:
    """A client's new control variate of SCAFFOLD."""
    from pfl.algorithm.scaffold import SCAFFOLDParams
    from pfl.data.user_state import InMemoryUserStateStorage

    ours, data, store = Scaffold(Regression(), optimizer=plain_sgd), client_data(), InMemoryUserStateStorage()
    model, dataset, settings, _ = pfl_client(ours.objective, data)
    zeros = {"encoder": {f"backbone.{name}": torch.zeros_like(value) for name, value in model.variable_map.items()}}
    (_, memory), _ = visited(ours, data, memory=zeros, c=zeros)
    theirs, start = SCAFFOLD(), model.get_parameters()
    theirs._server_c = start.apply_elementwise(torch.zeros_like)
    params = SCAFFOLDParams(
        1, 1, 1, None, population=1, use_gradient_as_control_variate=False, user_state_storage=store
    )
    theirs.train_one_user(start, model, dataset, SimpleNamespace(algorithm_params=params, model_train_params=settings))
    controls = [-value for _, value in store.load_state("0", "local_c").items()]
    return list(memory["c"]["encoder"].values()), controls
