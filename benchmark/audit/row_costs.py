"""What a client pays in each committed row of some boards, counted from the row's config as `costs=true` counts it."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from benchmark.configuration.compose import compose
from benchmark.configuration.identity import identity
from benchmark.configuration.suites import config_of
from benchmark.experiment import data, factory
from benchmark.experiment.costs import costs, mean_client
from benchmark.tracking.progress import Display
from datamodules.sources import Source, Split
from leaderboards import row_costs
from leaderboards.row_costs import RowCost
from leaderboards.schema import Record

FILE = Path("leaderboards") / row_costs.FILE.name
BOARDS = ("cifar10-drift", "cifar10-micro", "cifar10-mini", "digits")
"""Scenarios whose rows are counted: those of many methods."""
STAND_IN = {"cifar10": (10, 5_000, (3, 32, 32))}
"""Data set -> its classes, training images of each, and their shape: enough for a count, which reads no image."""


def rows(records: Iterable[Record]) -> dict[str, Record]:
    """`scenario/row` -> the record of its first seed, of the boards' rows whose clients work.

    Rows that others have submitted, whose configs are theirs, and those that say what they cost are left out.
    """
    found: dict[str, Record] = {}
    for record in sorted(records, key=lambda each: each["seed"]):
        if record["scenario"] in BOARDS and record["bytes"]["visits"] and not {"costs", "submission"} & record.keys():
            found.setdefault(row_costs.key(record), record)
    return dict(sorted(found.items()))


def missing(records: Iterable[Record]) -> list[str]:
    """The rows that have no count in the committed file, or one of another config."""
    known = row_costs.read(FILE)
    return [
        name
        for name, record in rows(records).items()
        if name not in known or known[name].config != record["provenance"]["config"]
    ]


def counted(record: Record) -> RowCost:
    """What a client of a record's row pays; the partition is that of the record's seed."""
    config = config_of(record)
    images = images_of(config.data.name)
    method = factory.method(config, images)
    found = costs(config.copy(), *mean_client(factory.data(config, images, method, images_of)))
    return RowCost(identity(config), found["flops"], found["memory"])


@cache
def images_of(name: str) -> Source:
    """A data set with its labels; without its pixels where they are not embedded."""
    if name not in STAND_IN:
        return data.source(compose("digits", "fedavg", [f"data.name={name}"]))
    classes, each, shape = STAND_IN[name]
    labels = np.repeat(np.arange(classes), each)
    split = Split(np.broadcast_to(np.uint8(0), (len(labels), *shape)), labels)
    return Source(name, split, split, tuple(map(str, range(classes))), "")


def update(records: Sequence[Record], display: Display, anew: bool = False) -> int:
    """Counts the rows that are missing, or all anew, and writes the file; returns how many it has."""
    working, wanted = rows(records), None if anew else missing(records)
    if wanted == []:
        return len(working)
    found = {} if wanted is None else row_costs.read(FILE)
    display.begin("costs of rows")
    for name, record in working.items():
        if wanted is None or name in wanted:
            with display.during(name):
                found[name] = counted(record)
    row_costs.write(FILE, {name: found[name] for name in working})
    return len(working)
