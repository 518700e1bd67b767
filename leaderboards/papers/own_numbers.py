"""Claims and sums of papers, checked against the numbers of their own tables.

Rounded numbers are added up in steps of their last digit, so that a mean of them may differ by one; a claim of an order
is contradicted by every comparison of two numbers that has the other order, and one of a rise by equal ones too.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from statistics import fmean

from leaderboards.papers.computed import Compute, Printed, computation
from leaderboards.papers.tables import Published

Rows = Mapping[str, Mapping[str, float]]
CLIENTS = tuple(f"C{client}" for client in range(6))
"""Headings of FLESD's clients."""
ALPHAS = ("alpha 100", "alpha 1", "alpha 0.01")
BASELINES = ("FedSimCLR", "FedMoCo", "FedBYOL", "FedProtoCL", "FedU")
"""Rows of FedX's Table 1, each followed by its own with FedX."""


def claim(name: str, table: str) -> Callable[[Callable[[Rows], Iterable[bool]]], Compute]:
    """Enters a function of a table's rows that gives, for each comparison, whether it is as the paper says."""

    def enter(function: Callable[[Rows], Iterable[bool]]) -> Compute:
        @computation(f"own/{name}")
        def against(_: Published, printed: Printed) -> list[float]:
            return [float(not holds) for holds in function(printed[table])]

        return against

    return enter


def raised(row: Mapping[str, float]) -> list[bool]:
    """Whether each number of a row is above the one before it."""
    return [later > earlier for earlier, later in pairwise(row.values())]


def highest(
    rows: Rows, best: str, others: Iterable[str] | None = None, columns: Iterable[str] | None = None
) -> list[bool]:
    """Whether a row is above each of the others in each column; without them above all other rows, in all columns."""
    others = tuple(name for name in rows if name != best) if others is None else tuple(others)
    columns = rows[best] if columns is None else columns
    return [rows[best][column] > rows[other][column] for column in columns for other in others]


def leading(rows: Rows, best: str, *others: str) -> list[bool]:
    """Whether a column is above each of the others in each row; without them above all other columns."""
    return [row[best] > row[other] for row in rows.values() for other in others or row if other != best]


def named(names: Iterable[str], *words: str) -> list[str]:
    """The names that have one of some words."""
    return [name for name in names if any(word in name for word in words)]


def among_unsupervised(rows: Rows, words: str) -> list[bool]:
    """Whether Orchestra is above each other unsupervised method in the columns that have these words."""
    return highest(rows, "Orchestra", named(rows, "f-", "RotPred"), named(rows["Orchestra"], words))


# 1 % of the similarities is better than all of them, at every alpha
claim("flesd-kept", "flesd, table 7")(lambda rows: leading(rows, "1%", "100%"))
# 512 anchors are better than 128, at every alpha
claim("flesd-more-anchors", "flesd, table 9")(lambda rows: leading(rows, "512", "128"))
# every larger number of anchors is worse than 512, at every alpha
claim("flesd-most-anchors", "flesd, table 9")(lambda rows: leading(rows, "512", "1024", "2048", "4096"))
# a momentum of 0.999 is better than each other, at every alpha
claim("flesd-momentum", "flesd, table 10")(lambda rows: leading(rows, "0.999"))
# a batch of 256 is better than 128, 512 and 1024, at every alpha
claim("flesd-batch", "flesd, table 11")(lambda rows: leading(rows, "256", "128", "512", "1024"))
# the global distillation is above each alternative, in every column
claim("fedx-global", "fedx, table 2")(lambda rows: highest(rows, *named(rows, "global-KD")))
# 5 % of the labels are better than 1 %, in every column
claim("fedx-more-labels", "fedx, table 4")(lambda rows: highest(rows, "5%", ["1%"]))
# Orchestra is above each unsupervised method with few clients, in every column; with many by the linear probe
claim("orchestra-silo", "orchestra, table 1")(lambda rows: among_unsupervised(rows, " silo "))
claim("orchestra-device-linear", "orchestra, table 1")(lambda rows: among_unsupervised(rows, " device linear"))
# SSD has the highest probe accuracy and effective rank after transfer, from both data sets
claim("ssd-transfer", "ssd, transfer")(lambda rows: highest(rows, "SSD", columns=named(rows["SSD"], "LP", "ERank")))
# DSR with PD is above either alone and above neither, in every column
claim("ssd-both", "ssd, ablation")(lambda rows: highest(rows, *named(rows, "(SSD)")))


# --- FedX


@computation("own/fedx-gain")
def fedx_gain(cell: Published, printed: Printed) -> list[float]:
    """Mean gain of the best rounds of Table 1 on the cell's data set, over the five baselines."""
    rows, column = printed["fedx, table 1"], f"{cell.row} best"
    return [fmean(rows[f"{name} + FedX"][column] - rows[name][column] for name in BASELINES)]


@claim("fedx-best", "fedx, table 1")
def fedx_best(rows: Rows) -> list[bool]:
    """FedX has the higher best accuracy in all pairs but FedProtoCL's on F-MNIST, which is higher by itself."""
    columns = [column for column in rows["FedU"] if column.endswith("best")]
    return [
        (rows[f"{name} + FedX"][column] > rows[name][column]) != (name == "FedProtoCL" and "F-MNIST" in column)
        for name in BASELINES
        for column in columns
    ]


@claim("fedx-last", "fedx, table 1")
def fedx_last(rows: Rows) -> list[bool]:
    """FedX has the higher accuracy of the last round, for every baseline and data set."""
    columns = [column for column in rows["FedU"] if column.endswith("last")]
    return [each for name in BASELINES for each in highest(rows, f"{name} + FedX", [name], columns)]


@computation("own/fedx-every-setting")
def fedx_every_setting(_: Published, printed: Printed) -> list[float]:
    """FedX is above the baseline in every row of Tables 3a to 3c, by the last and by the best round."""
    rows = [row for part in "abc" for row in printed[f"fedx, table 3{part}"].values()]
    pairs = [(row[f"Baseline {pick}"], row[f"Baseline + FedX {pick}"]) for row in rows for pick in ("last", "best")]
    return [float(without >= with_fedx) for without, with_fedx in pairs]


@claim("fedx-data", "fedx, table 3a")
def fedx_data(rows: Rows) -> list[bool]:
    """Accuracy rises with the share of the data, in every column."""
    return [each for column in rows["100%"] for each in raised({name: row[column] for name, row in rows.items()})]


@claim("fedx-clients", "fedx, table 3b")
def fedx_clients(rows: Rows) -> list[bool]:
    """Accuracy falls with the number of clients, in every column."""
    return [not each for column in rows["10"] for each in raised({name: row[column] for name, row in rows.items()})]


@claim("fedx-labels", "fedx, table 4")
def fedx_labels(rows: Rows) -> list[bool]:
    """FedX is above the baseline at 5 and 10 % of the labels: exceptions are at 1 % only."""
    return [
        rows[share][f"{name} FedX"] > rows[share][f"{name} vanilla"] for share in ("5%", "10%") for name in BASELINES
    ]


# --- FLESD


@computation("own/flesd-clients")
def flesd_clients(cell: Published, printed: Printed) -> list[float]:
    """The mean or the minimum of the clients of a row of Table 3."""
    row = printed["flesd, table 3"][cell.row]
    clients = [row[client] for client in CLIENTS]
    return [min(clients) if cell.column == "Min" else fmean(clients)]


@computation("own/flesd-min-local")
def flesd_min_local(cell: Published, printed: Printed) -> list[float]:
    """The smallest client of Table 3, beside Min-Local of Table 1."""
    data, _, alpha = cell.column.partition(" ")
    row = printed["flesd, table 3"][f"{data} SimCLR, probe, {alpha}"]
    return [min(row[client] for client in CLIENTS)]


@computation("own/flesd-text")
def flesd_text(cell: Published, printed: Printed) -> list[float]:
    """What section 2 says of a block of Table 3: its mean at alpha 100 and 0.01, their difference, a client."""
    block = {alpha: printed["flesd, table 3"][f"{cell.row}, {alpha}"] for alpha in ALPHAS}
    if cell.column.startswith("client "):
        return [block["alpha 0.01"][f"C{cell.column.removeprefix('client ')}"]]
    ends = [block[alpha]["Mean"] for alpha in ("alpha 100", "alpha 0.01")]
    return [ends[0] - ends[1] if cell.column == "drop" else ends[cell.column == "alpha 0.01"]]


@computation("own/flesd-gap")
def flesd_gap(cell: Published, printed: Printed) -> list[float]:
    """Smallest gap between the bound without federation and the federated rows of Table 1, over the alphas."""
    rows = printed["flesd, table 1"]
    federated = max(rows[name][f"{cell.row} {alpha}"] for name in ("FedAvg", "FLESD") for alpha in ALPHAS)
    return [rows["Non-FL"][f"{cell.row} alpha 1"] - federated]


@computation("own/flesd-above-local")
def flesd_above_local(cell: Published, printed: Printed) -> list[float]:
    """A method of Table 1 is above Min-Local, on the four data sets at the three alphas."""
    rows = printed["flesd, table 1"]
    columns = [column for column in rows["Min-Local"] if "to" not in column.split()]
    return [float(rows[cell.row][column] <= rows["Min-Local"][column]) for column in columns]


@computation("own/flesd-peak")
def flesd_peak(cell: Published, printed: Printed) -> list[float]:
    """The number of rounds at which a row of Table 4 is highest."""
    row = printed["flesd, table 4"][f"{cell.row}, {cell.column}"]
    return [float(max(row, key=lambda column: row[column]).removeprefix("T="))]


@claim("flesd-longer", "flesd, table 6")
def flesd_longer(rows: Rows) -> list[bool]:
    """FLESD improves with every doubling of its local epochs."""
    return [each for alpha in ALPHAS for each in raised(rows[f"FLESD, {alpha}"])]


@claim("flesd-fedavg-longer", "flesd, table 6")
def flesd_fedavg_longer(rows: Rows) -> list[bool]:
    """FedAvg falls with every doubling of its local epochs, at alpha 1 and 0.01."""
    return [not each for alpha in ALPHAS[1:] for each in raised(rows[f"FedAvg, {alpha}"])]


# --- Orchestra


@computation("own/orchestra-private")
def orchestra_private(_: Published, printed: Printed) -> list[float]:
    """With privacy Orchestra is above each alternative of Table 1 without it."""
    private = printed["orchestra, table 7"]["Orchestra"]
    rows = printed["orchestra, table 1"]
    others = [rows[name]["CIFAR-10 device linear"] for name in rows if name.startswith("f-")]
    return [float(value <= other) for name, value in private.items() if "epsilon" in name for other in others]


# --- SSD


@computation("own/ssd-no-projector")
def ssd_no_projector(_: Published, printed: Printed) -> list[float]:
    """What DSR adds to -L_uniform without a projector."""
    rows = printed["ssd, projector"]
    return [rows["none + DSR"]["-L_uniform"] - rows["none"]["-L_uniform"]]


@claim("ssd-projector", "ssd, projector")
def ssd_projector(rows: Rows) -> list[bool]:
    """With a projector the probe is better than without, also than with DSR."""
    return [rows[with_]["LP"] > rows[none]["LP"] for with_ in ("with", "with + DSR") for none in ("none", "none + DSR")]


@claim("ssd-hard", "ssd, separation")
def ssd_hard(rows: Rows) -> list[bool]:
    """Hard separation has the highest uniformity and the lowest alignment."""
    others = [name for name in rows if name != "HSD"]
    lowest = [rows["HSD"]["-L_align"] < rows[other]["-L_align"] for other in others]
    return [*highest(rows, "HSD", others, ["-L_uniform"]), *lowest]
