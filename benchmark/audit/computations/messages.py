"""Bytes that papers state or compare, counted from the messages of our methods over the papers' networks."""

from collections.abc import Sequence
from functools import cache
from statistics import fmean

from omegaconf import DictConfig

from benchmark.configuration.compose import compose
from benchmark.experiment.dry import IMAGES as CLIENT
from benchmark.experiment.dry import dry_loop
from leaderboards.papers.computed import Printed, computation
from leaderboards.papers.tables import Published
from methods import networks, trees
from methods.base import Phase, RoundContext, Tree
from methods.lwfedssl import LWFedSSL
from methods.networks.transformers import layer_of
from methods.objectives.simclr import SimCLR
from methods.progfedssl import ProgFedSSL, sub_model

DEVICE, SILO = "orchestra/cifar10-cross-device", "ssd/cifar10-cross-silo"
IMAGES, FEW_CLIENTS = 50_000, 10
"""Training images of CIFAR-10, and the clients of Orchestra's comparison with SwAV."""
FLESD = "flesd/cifar10-a1"
KEPT = (("flesd",), ("flesd", "method.kept=0.01"))
ROUNDS = {"FLESD": 2, "FedAvg": 10}
"""Of Table 1."""
STAGED = {"LW-FedSSL": LWFedSSL, "Prog-FedSSL": ProgFedSSL}
LAYERS = 12


def exchanged(config: DictConfig, rounds: int = 1, images: int = CLIENT) -> list[int]:
    """Bytes of one client of so many images, up and down, in each of the first rounds."""
    with dry_loop(config, images=images) as loop:
        for round in range(rounds):
            loop.run_round(round)
        totals = [[loop.ledger.total(direction, round) for direction in ("up", "down")] for round in range(rounds)]
    return [sum(sum(entries.values()) for entries in both) for both in totals]


# --- Orchestra


def swav_exchanges(config: DictConfig) -> int:
    """Steps of a client in one round of Orchestra: SwAV would exchange at each of them."""
    images, batch = IMAGES // config.partition.clients, config.training.batch_size
    steps = images // batch if config.training.drop_last else -(-images // batch)
    return config.training.epochs * steps


@computation("bytes/swav")
def swav(cell: Published, _: Printed) -> list[float]:
    """SwAV's cost over Orchestra's: exchanges, or their bytes where SwAV exchanges its networks at every step."""
    config = compose(DEVICE, "orchestra", [f"partition.clients={FEW_CLIENTS}"])
    exchanges = swav_exchanges(config)
    if cell.row == "exchanges":
        return [float(exchanges)]
    each = exchanged(compose(DEVICE, "fedavg", ["objective=swav"]))[0]
    return [exchanges * each / exchanged(config, 2)[1]]


# --- SSD


@cache
def _beside_base(overrides: tuple[str, ...] = ()) -> Sequence[int]:
    ours, base = compose(SILO, "ssd", [*overrides]), compose(SILO, "fedavg", ["objective=align_uniform"])
    return [more - less for more, less in zip(exchanged(ours, 2), exchanged(base, 2), strict=True)]


@computation("bytes/ssd")
def ssd(cell: Published, _: Printed) -> list[float]:
    """What SSD sends beside FedAvg over the same networks, at the beginning or in each later round."""
    first, later = _beside_base(("method.basis=axis",))
    return [float(first if cell.row == "at initialisation" else later)]


# --- FedSC


@computation("bytes/fedsc")
def fedsc(_: Published, __: Printed) -> list[float]:
    """A correlation matrix is smaller than the predictor that other methods share, on the way up and down."""
    with dry_loop(compose("fedsc/cifar10", "fedavg", ["objective=byol"])) as loop:
        predictor = trees.nbytes(loop.method.weights()["predictor"])
    with dry_loop(compose("fedsc/cifar10", "fedsc")) as loop:
        loop.run_round(0)
        matrix = loop.ledger.total("up", 0)["R"]  # the mean of the others', on the way down, has the same shape
    return [float(matrix >= predictor)] * 2


# --- LW-FedSSL and Prog-FedSSL


def of_blocks(weights: Tree) -> int:
    """Bytes of the encoder's blocks, without embedding, last LayerNorm and heads."""
    return sum(leaf.nbytes for (*_, name), leaf in trees.leaves(weights["encoder"]) if layer_of(str(name)) is not None)


@computation("bytes/stages")
def stages(cell: Published, _: Printed) -> list[float]:
    """Bytes of end-to-end training over those of training in a stage for each layer, of the blocks alone."""
    method = STAGED[cell.row.partition(",")[0]](SimCLR(networks.vit_tiny()))
    rounds = [RoundContext(round, LAYERS, Phase("fit"), (), (), None) for round in range(LAYERS)]  # type: ignore[arg-type]
    server = method.init_server(rounds[0])
    weights = server["weights"]
    down = [of_blocks(method.send(server, each).common["weights"]) for each in rounds]
    up = [of_blocks(sub_model(weights, method.trained(each))) for each in rounds]  # type: ignore[arg-type]
    return [2 * of_blocks(weights) / (fmean(down) + fmean(up))]


# --- FedX and FLESD


@computation("bytes/fedx")
def fedx(_: Published, __: Printed) -> list[float]:
    """FedX has as many exchanges in a round as FedAvg, and sends weights alone."""
    found = []
    for method in ("fedavg", "fedx"):
        with dry_loop(compose("fedx/cifar10", method)) as loop:
            loop.run_round(0)
            found.append((len(loop.plan(0)), loop.ledger.total("up").keys() | loop.ledger.total("down").keys()))
    (exchanges, entries), (exchanges_of_fedx, entries_of_fedx) = found
    return [float(exchanges_of_fedx > exchanges), float(entries_of_fedx != entries)]


@computation("bytes/flesd")
def flesd(_: Published, __: Printed) -> list[float]:
    """All bytes of a client in the rounds of Table 1: FLESD's, with whole matrices and 1 % of them, below FedAvg's."""
    images = 50_000 // compose(FLESD, "flesd").partition.clients
    each = [exchanged(compose(FLESD, name, words), images=images)[0] for name, *words in (*KEPT, ("fedavg",))]
    return [float(ROUNDS["FLESD"] * of_flesd >= ROUNDS["FedAvg"] * each[-1]) for of_flesd in each[:-1]]
