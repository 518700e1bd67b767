"""Scores of all encoders that a run leaves: which protocols it can have, and their numbers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import nn

from benchmark.configuration.keys import nearest
from benchmark.distributed.collectives import on_rank_zero
from benchmark.errors import ConfigError, exit_code, message
from benchmark.evaluation.drift import drift_unavailable, observe_drift
from benchmark.evaluation.evaluator import Evaluator
from benchmark.evaluation.inversion import observe_step, step_unavailable
from benchmark.evaluation.personal import own_features, owner_of
from benchmark.evaluation.protocols import OPTIONAL, Scores, expanded, transfer_targets
from benchmark.evaluation.shares import observe_replies, replies_unavailable
from benchmark.federation.loop import FederatedLoop
from datamodules.federated import FederatedDataModule
from eval.inputs import REASONS
from eval.official import find
from eval.tokens import tokens_of


class Progress(Protocol):
    """What is shown of a long evaluation."""

    def print(self, line: str) -> None:
        """Prints a line."""

    def during(self, activity: str) -> AbstractContextManager[None]:
        """Names an activity that has no count."""

    def counting(self, activity: str, total: int) -> AbstractContextManager[Any]:
        """Counts the steps of a long activity."""


class Revisit(NamedTuple):
    """An input of a protocol for which clients are visited once more after the last round.

    doing: what is shown meanwhile. unavailable: why a run of such a loop and data has it not, in one line, or None.
    observe: returns it, called by every rank; settings: the protocol's.
    """

    doing: str
    unavailable: Callable[[FederatedLoop, FederatedDataModule], str | None]
    observe: Callable[[FederatedLoop, Evaluator, Mapping[str, Any]], Callable[..., Any]]

    def has(self, loop: FederatedLoop, data: FederatedDataModule) -> bool:
        """Whether a run that ended so has it."""
        return loop.round > 0 and self.unavailable(loop, data) is None


REVISITS: Mapping[str, Revisit] = {
    "local_models": Revisit(
        "visiting the clients once more",
        lambda loop, _: drift_unavailable(loop),
        lambda loop, evaluator, _: observe_drift(loop, evaluator),
    ),
    "local_step": Revisit(
        "watching one step of a client",
        lambda loop, _: step_unavailable(loop),
        lambda loop, evaluator, settings: observe_step(loop, evaluator.data, settings["images"]),
    ),
    "client_replies": Revisit(
        "watching a round's replies",
        replies_unavailable,
        lambda loop, evaluator, _: observe_replies(loop, evaluator.data),
    ),
}
"""What a protocol requires (`eval.official.Protocol.requires`) -> how a run gets it."""


class Scored(NamedTuple):
    """Scores by encoder, earlier ones of other protocols included; the data set of each new protocol, where it is not
    the run's; the protocols that could not be measured, with the reason; what a reader has to know, in lines."""

    encoders: dict[str, Scores]
    datasets: dict[str, dict[str, str]]
    failed: dict[str, str]
    notes: list[str]


@dataclass
class Scoring:
    """Scores of a run's encoders.

    dataset: its name. method: the method's. arrays: encoder -> protocol -> arrays that figures are drawn from, filled
    by `score`.
    """

    loop: FederatedLoop
    evaluator: Evaluator
    dataset: str
    method: str
    display: Progress
    arrays: dict[str, dict[str, Any]] = field(default_factory=dict)

    def available(self, protocols: Iterable[str]) -> list[str]:
        """Ids of the protocols that words name; those whose data sets cannot be read are left out, with a line.

        Raises ConfigError: all are, or one requires what the run has not; of `REVISITS`, `score` raises it. EvalError:
        there is no such protocol.
        """
        ids = expanded(protocols, self.dataset, self.inputs(), labelled=self.evaluator.images.labelled)
        self.check_inputs(ids)
        unreadable = on_rank_zero(self.loop.fabric, lambda: dict(self._unreadable_targets(ids)))
        lines = {
            name: f"{name} cannot be measured: {unreadable[target]}"
            for name in ids
            for target in transfer_targets([name])
            if target in unreadable
        }
        if lines and len(lines) == len(ids):
            raise ConfigError("; ".join(lines.values()))
        for line in lines.values():
            self.display.print(line)
        return [name for name in ids if name not in lines]

    def _unreadable_targets(self, protocols: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Data sets that protocols transfer to and that cannot be read, with the reason."""
        for target in transfer_targets(protocols):
            try:
                self.evaluator.other(target)
            except Exception as error:
                if exit_code(error) is None:
                    raise
                yield target, message(error)

    def exported_encoder(self, name: str | None = None) -> tuple[str, nn.Module]:
        """The name of an encoder that the method leaves, and a copy of it on the CPU in eval mode, as it is evaluated.

        name: of the encoder; None: the global one, or the only one. Raises ConfigError: the run has none of this name.
        """
        exported = self.loop.export()
        chosen = name or ("global" if "global" in exported or not exported else next(iter(exported)))
        if chosen not in exported or (name is None and chosen != "global" and len(exported) > 1):
            listed = ", ".join(list(exported)[:8]) + (", ..." if len(exported) > 8 else "")
            problem = "it has several encoders" if name is None else f"encoder={name}{nearest(str(name), exported)}"
            raise ConfigError(f"{problem}: choose one of this run's: encoder=NAME of {listed or 'none'}")
        return chosen, deepcopy(self.evaluator.encoder(exported[chosen], chosen)).cpu()

    def inputs(self) -> set[str]:
        """Those of the optional inputs of protocols that this run has."""
        data, images = self.evaluator.data, self.evaluator.images
        has = {
            **{kind: revisit.has(self.loop, data) for kind, revisit in REVISITS.items()},
            "members": images is data.source,
            "projector": self.evaluator.has_projector(),
            "tokens": tokens_of(self.evaluator.method.part("encoder")) is not None,
            "held_out": self.evaluator.holds_out,
            "test_clients": images.test.clients is not None,
        }
        return {name for name, available in has.items() if available}

    def check_inputs(self, protocols: Iterable[str]) -> None:
        """ConfigError where a protocol requires labels or an optional input that the run has not."""
        lacking = OPTIONAL - REVISITS.keys() - self.inputs()
        images = self.evaluator.images
        for name in protocols:
            if (kind := find(name).requires) in lacking:
                raise ConfigError(f"{name}: {REASONS[kind]}")
            if find(name).uses_labels and not images.labelled:
                raise ConfigError(
                    f"{name} uses labels, and {images.name} has no two classes: put labelled images into its folder "
                    "probe/{train,test}/<class>/, name a labelled data set by data.probe, or choose the protocols "
                    "geometry/v1,label-free/v1 (`run`: evaluation.protocols=[...], `evaluate`: protocols=...)"
                )

    def score(self, protocols: list[str], before: dict[str, Scores]) -> Scored:
        """Scores of every exported encoder, on the first rank; before: earlier ones, by encoder. Raises ConfigError."""
        inputs = dict[str, Any]()
        for protocol in map(find, protocols):
            if (revisit := REVISITS.get(protocol.requires)) is not None:  # clients are visited once more, by all ranks
                with self.display.during(revisit.doing):
                    inputs[protocol.requires] = revisit.observe(self.loop, self.evaluator, protocol.arguments)
        return on_rank_zero(self.loop.fabric, lambda: self._score(protocols, before, inputs))

    def _score(self, protocols: list[str], before: dict[str, Scores], inputs: Mapping[str, Any]) -> Scored:
        evaluator, exported = self.evaluator, self.loop.export()
        if not exported:
            raise ConfigError(
                f"{self.method} has no encoder to evaluate before a client was visited: "
                "set federation.rounds to at least 1"
            )
        scores, failed, notes = dict[str, Scores](), dict[str, str](), list[str]()
        for name, weights in exported.items():
            with self.display.counting(f"evaluating {name}", len(protocols) + 1) as steps:
                scores[name] = evaluator.scores(
                    evaluator.encoder(weights, name),
                    protocols,
                    steps,
                    steps.progress,
                    self.arrays.setdefault(name, {}),
                    failed,
                    notes.append,
                    projector=evaluator.projector(weights, name),
                    own_features=own_features(evaluator, self.loop, exported, name),
                    members=evaluator.members(owner_of(self.loop, name)),
                    **inputs,
                )
        encoders = {  # a protocol that fails for one encoder counts for none; earlier scores stay
            name: before.get(name, {}) | {id: made for id, made in scores.get(name, {}).items() if id not in failed}
            for name in before | scores
        }
        beside = [] if evaluator.images is evaluator.data.source else [evaluator.images]
        datasets = {}
        for name in protocols:
            targets = [evaluator.other(target) for target in transfer_targets([name])]
            datasets[name] = next(({"dataset": source.sha256} for source in targets or beside), {})
        return Scored(encoders, datasets, failed, list(dict.fromkeys(notes)))
