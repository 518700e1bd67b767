"""Parity files: what a run of the authors' code gave, as numbers, with the setting it ran in (`tests/parity`)."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import getitem
from pathlib import Path
from typing import Any

from benchmark.errors import ConfigError
from benchmark.parity.inputs import Fingerprint

SERVER = -1
"""In the place of a client's id: the server."""

KINDS = ("losses", "weights")
"""What numbers are of."""

RoundClient = tuple[int, int]
"""The file's number of a round, and a client's id or SERVER."""
Fingerprints = dict[str, Fingerprint]


@dataclass
class Numbers:
    """What one run gave.

    losses: of each visit, by step. weights: fingerprints by the tensors' names, after a visit, and at the server after
    a round.
    """

    losses: dict[RoundClient, list[float]] = field(default_factory=dict)
    weights: dict[RoundClient, Fingerprints] = field(default_factory=dict)


@dataclass(frozen=True)
class ParityFile:
    """A parity file, read."""

    path: Path
    what: Mapping[str, Any]
    setting: Mapping[str, Any]
    content: Mapping[str, Any]

    def get(self, *names: str) -> Any:
        """The setting under the first of some names that the file has; `a.b`: what `a` has under `b`."""
        for name in names:
            first, *inner = name.split(".")
            if first in self.setting:
                return reduce(getitem, inner, self.setting[first])
        raise ConfigError(f"{self.path}: its setting has no {' or '.join(names)}")

    @property
    def repository(self) -> str:
        """Of the authors' code, as OWNER/NAME."""
        return str(self.what.get("repository", "")).removeprefix("github.com/")

    @property
    def steps(self) -> int:
        """Steps of all clients and of the server."""
        return sum(map(len, next(iter(self.sections.values())).losses.values()))

    @property
    def seed(self) -> int:
        """Seed of all inputs."""
        return int(self.get("seed"))

    @property
    def sizes(self) -> list[int]:
        """Number of images of each client."""
        return list(self.get("n", "images", "examples"))

    @cached_property
    def sections(self) -> dict[str, Numbers]:
        """Precision -> the numbers in it."""
        first = "64-true" if self.setting.get("dtype") == "float64" else "32-true"
        sections = {first: numbers(self.content)}
        if "float64" in self.content:
            sections["64-true"] = numbers(self.content["float64"])
        return sections

    @cached_property
    def rounding(self) -> dict[int, dict[str, float]]:
        """Round -> departure of losses and of weights when the authors' code starts from perturbed weights."""
        rounding = self.content.get("rounding", {})
        return {int(round): {kind: by[kind] for kind in KINDS} for round, by in rounding.items() if round.isdigit()}


def read(path: Path) -> ParityFile:
    """A parity file; ConfigError for any other file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path} is no parity file: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is no parity file: it holds no table")
    for section in ("what", "setting", "losses", "weights"):
        if not isinstance(content.get(section), dict):
            raise ConfigError(f"{path} is no parity file: it has no table {section!r}")
    read = ParityFile(path, content["what"], content["setting"], content)
    try:
        read.sections, read.rounding  # noqa: B018 # reads the numbers now
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: its numbers cannot be read: {type(error).__name__} {error}") from error
    if not all(section.weights for section in read.sections.values()):
        raise ConfigError(f"{path} is no parity file: it has no weights")
    return read


def numbers(content: Mapping[str, Any]) -> Numbers:
    """The numbers of one run, from a file or from its section of another precision."""
    losses = {
        (int(round), int(client)): totals(steps)
        for client, rounds in content["losses"].items()
        for round, steps in rounds.items()
    }
    for round, steps in content.get("distillation", {}).items():
        losses[int(round), SERVER] = [step[2] for step in steps]  # FLESD's divergence, after its two parts
    weights = {
        round_and_client(key): {name: as_fingerprint(values) for name, values in tensors.items()}
        for key, tensors in content["weights"].items()
        if key != "start"
    }
    return Numbers(losses, weights)


def as_fingerprint(values: Sequence[float]) -> Fingerprint:
    """Three finite numbers; ValueError for anything else."""
    mean, deviation, product = map(float, values)
    if not all(map(math.isfinite, (mean, deviation, product))):
        raise ValueError(f"a fingerprint that is not finite: {values}")
    return mean, deviation, product


def totals(steps: Any) -> list[float]:
    """The whole loss of each step, which a file may hold beside or before its terms."""
    if isinstance(steps, Mapping):
        steps = steps["total"]
    return [float(step[0] if isinstance(step, Sequence) else step) for step in steps]


def round_and_client(key: str) -> RoundClient:
    """Round and client named by a key of `weights`: "round0/client1", "visit of client 1, round 0", "after round 0"."""
    round, client = re.search(r"round ?(\d+)", key), re.search(r"client ?(\d+)", key)
    if round is None:
        raise ValueError(f"the key {key!r} of weights names no round")
    return int(round[1]), int(client[1]) if client else SERVER
