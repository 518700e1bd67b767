"""Differential privacy of clients' updates: clipped, with Gaussian noise (McMahan et al. 2018, DP-FedAvg).

All that a client's training changes in a phase is one vector: its reply less what it was sent, over the entries that
are averaged or summed. The vector is scaled down to the norm C. Under `central` the server adds noise of deviation z C
to the sum of the clients' vectors; under `local` every client adds it to its own, before it is sent.

Decisions
- Clients count equally in a mean: its weights, such as numbers of images, would reveal something about a client's data.
- Running statistics of BatchNorm are refused: noise would make variances negative.
- SCAFFOLD's clients keep control variates of their training as it was, before it was clipped.
- Entries of another kind (`Each`, `Cat`), and those of phases that do not train, are sent as they are.
- Neighbouring federations differ in one whole client. `central`: its update is there or is zero, which changes the sum
  by at most C. `local`: it is any other update, at most 2 C away.
"""

from collections.abc import Mapping

import torch

from benchmark.federation.updates import combined_entries, start_of, trains_clients
from benchmark.rng import Streams
from methods import trees
from methods.base import Each, FederatedMethod, Mean, Message, MethodError, Phase, Reduction, Replies, Sum, Tree, Visit

MECHANISMS = ("central", "local")


class UpdatePrivacy:
    """What happens to the updates of a run.

    Args:
        mechanism: "central" or "local".
        clip: C > 0, the largest Euclidean norm of a client's update in a phase.
        noise_multiplier: z >= 0, the noise's standard deviation over C; 0: no noise, and no guarantee.
        streams: of the run, from which the noise is drawn.
    """

    def __init__(self, mechanism: str, clip: float, noise_multiplier: float, streams: Streams) -> None:
        self.mechanism, self.clip, self.noise_multiplier, self.streams = mechanism, clip, noise_multiplier, streams

    def covered(self, phase: Phase) -> list[str]:
        """The entries of a phase's replies that are clipped and get noise."""
        return combined_entries(phase)

    def uplink(self, phase: Phase) -> Mapping[str, Reduction]:
        """How the replies of a phase are combined: covered means count clients equally."""
        means = {entry for entry in self.covered(phase) if isinstance(phase.uplink[entry], Mean)}
        return {entry: Mean("clients") if entry in means else how for entry, how in phase.uplink.items()}

    def releases(self, phase: Phase) -> dict[str, float]:
        """What a client's reply costs its account: the covered entries, which are one release -> its multiplier."""
        if not (covered := self.covered(phase)) or not self.noise_multiplier:
            return {}
        sensitivity = 1 if self.mechanism == "central" else 2  # in units of C
        return {" and ".join(covered) + " by client": self.noise_multiplier / sensitivity}

    @torch.no_grad()
    def sent(self, visit: Visit, message: Message) -> Message:
        """A reply as it is sent: its update clipped and, under `local`, with noise.

        An entry that the client was not sent, such as SCAFFOLD's differences, is an update itself.
        """
        entries = [entry for entry in self.covered(visit.phase) if any(trees.leaves(message.get(entry, {})))]
        for entry in entries:
            if not all(leaf.is_floating_point() for _, leaf in trees.leaves(message[entry])):
                raise MethodError(f"privacy.mechanism: {entry!r} has whole numbers, which no noise hides: send floats")
        starts = {entry: start_of(visit, message, entry) for entry in entries}
        updates = {entry: trees.subtract(message[entry], starts[entry]) for entry in entries}
        norm = sum(float(trees.squared_norm(trees.to(tree, dtype=torch.float64))) for tree in updates.values()) ** 0.5
        if norm > self.clip:
            factor = self.clip / norm
            clipped = {
                entry: trees.map(lambda start, leaf: start + factor * leaf, starts[entry], updates[entry])
                for entry in entries
            }
            message = {**message, **clipped}
        if self.mechanism == "local" and self.noise_multiplier:
            stream = self.streams.generator("noise", round=visit.round, phase=visit.phase.name, client=visit.client.id)
            message = {**message, **{entry: self._noisy(message[entry], 1.0, stream) for entry in entries}}
        return message

    @torch.no_grad()
    def combined(self, phase: Phase, replies: Replies, round: int) -> Replies:
        """The combined replies, under `central` with noise: in a mean, that of the sum over the number of clients."""
        if self.mechanism != "central" or not self.noise_multiplier:
            return replies
        stream, values = self.streams.generator("noise", round=round, phase=phase.name), dict(replies)
        for entry in self.covered(phase):
            if entry in values:
                clients = len(replies.clients) if isinstance(phase.uplink[entry], Mean) else 1
                values[entry] = self._noisy(values[entry], 1 / clients, stream)
        return Replies(values, replies.clients)

    def _noisy(self, tree: Tree, share: float, stream: torch.Generator) -> Tree:
        """The tree with independent noise of deviation `share` z C on every number."""
        deviation = share * self.noise_multiplier * self.clip
        return trees.map(lambda leaf: leaf + deviation * torch.randn(leaf.shape, generator=stream).to(leaf), tree)

    def describe(self, phase: Phase, entry: str) -> str | None:
        """A covered entry's protection, for the privacy sheet."""
        if entry not in self.covered(phase):
            return None
        where = "on the sum, by the server" if self.mechanism == "central" else "by the client"
        noise = f", Gaussian noise of {self.noise_multiplier * self.clip:.3g} {where}" * bool(self.noise_multiplier)
        others = " and ".join(other for other in self.covered(phase) if other != entry)
        return f"a client's update{f', together with {others},' * bool(others)} clipped to norm {self.clip:g}{noise}"


def refuse_uncovered(method: FederatedMethod, rounds: int) -> None:
    """MethodError where a method's updates are not averaged or summed alike, or have noise of their own kind."""
    name, covered = type(method).__name__, False
    for phase in (phase for round in range(rounds) for phase in method.plan(round)):
        if not trains_clients(phase):
            continue
        for entry, how in phase.uplink.items():
            if isinstance(how, Each) or (isinstance(how, Mean) and (callable(how.by) or how.over != "weights")):
                kind = "reads every client's" if isinstance(how, Each) else "weighs each client's"
                raise MethodError(
                    f"privacy.mechanism protects what is averaged alike or summed, but {name}'s server {kind} "
                    f"{entry!r} by itself: leave it out"
                )
            covered = covered or isinstance(how, Mean | Sum)
    if not covered:
        raise MethodError(
            f"privacy.mechanism protects updates that are averaged or summed, and no phase in which {name}'s clients "
            "train sends any: leave it out"
        )
    if method.batch_norm != "local" and any(trees.leaves(method.statistics())):
        raise MethodError(
            "privacy.mechanism: BatchNorm's running statistics would be useless with noise: set "
            "federation.batch_norm=local, or use networks without BatchNorm"
        )
