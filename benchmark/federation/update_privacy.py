"""Differential privacy of clients' updates: clipped, with Gaussian noise (McMahan et al. 2018, DP-FedAvg).

All that a client's training changes in a phase is one vector: its reply less what it was sent, over the entries that
are averaged or summed. The vector is scaled down to the norm C. Under `central` the server adds noise of deviation z C
to the sum of the clients' vectors, which is z C / n in the mean of n; under `local` every client adds it to its own,
before it is sent.

Decisions
- Clients count equally in a mean: its weights, such as numbers of images, would reveal something about a client's data.
- Where the cohort is a Poisson sample, a mean divides by the expected number of replies: the number itself would tell
  who was drawn. A round without any reply is noise alone.
- Running statistics of BatchNorm are refused: noise would make variances negative.
- SCAFFOLD's clients keep control variates of their training as it was, before it was clipped.
- Entries of another kind (`Each`, `Cat`), and those of phases that do not train, are sent as they are.
- Neighbouring federations differ in one whole client. `central`: its update is there or is zero, which changes the sum
  by at most C. `local`: it is any other update, at most 2 C away.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from benchmark.federation.clipping import Clipping
from benchmark.federation.stages import Exchange, Reply, Stage, refuse_partial
from benchmark.federation.updates import combined_entries, refuse_whole_numbers, start_of
from benchmark.rng import Streams
from methods import trees
from methods.base import Mean, Message, MethodError, Phase, Reduction, Replies, Sum, Tree

UNDER_CLIP = "within_clip"
"""Entry of a reply under an adaptive clip: whether the update was within it."""


class UpdatePrivacy(Stage):
    """What happens to the updates of a run.

    Args:
        mechanism: "central" or "local".
        clipping: the bound on a client's update in a phase, of norm C.
        noise_multiplier: z >= 0, the noise's standard deviation over C; 0: no noise, and no guarantee.
        streams: of the run, from which the noise is drawn.
        sampling: probability that a client is drawn, where the cohort is a Poisson sample; else None.
    """

    def __init__(
        self,
        mechanism: str,
        clipping: Clipping,
        noise_multiplier: float,
        streams: Streams,
        sampling: float | None = None,
    ) -> None:
        self.mechanism, self.clipping, self.noise_multiplier = mechanism, clipping, noise_multiplier
        self.streams, self.sampling = streams, sampling

    def reductions(self, phase: Phase, reductions: Mapping[str, Reduction]) -> Mapping[str, Reduction]:
        """Means of updates count clients equally."""
        covered = combined_entries(phase)
        means = {entry: Mean("clients") for entry in covered if isinstance(phase.uplink[entry], Mean)}
        within = {UNDER_CLIP: Sum()} if covered and self.clipping.adaptive else {}
        return {**reductions, **means, **within}

    def multipliers(self, phase: Phase) -> dict[str, float]:
        """What a client's reply costs its account: the covered entries, which are one release -> its multiplier."""
        if not (covered := combined_entries(phase)) or not self.noise_multiplier:
            return {}
        sensitivity = 1 if self.mechanism == "central" else 2  # in units of C
        return {" and ".join(covered) + " by client": self.noise_multiplier / sensitivity}

    def check(self, exchange: Exchange) -> None:
        """MethodError where a Poisson sample's updates have no start that all clients share, or are no mean."""
        phase = exchange.phase
        if self.sampling is None:
            return
        if missing := [entry for entry in combined_entries(phase) if entry not in exchange.common]:
            raise MethodError(
                f"privacy.sampling=poisson: {', '.join(missing)} of phase {phase.name!r} is not sent to all clients "
                "alike, so a round that draws nobody has nothing to add the noise to: use privacy.sampling=fixed"
            )
        sums = [entry for entry in combined_entries(phase) if isinstance(phase.uplink[entry], Sum)]
        if combined_entries(phase) and (sums or phase.cohort == "all"):
            what = f"{', '.join(sums)} is a sum" if sums else "it has all clients"
            raise MethodError(
                f"privacy.sampling=poisson: phase {phase.name!r} averages no sample ({what}): use sampling=fixed"
            )

    @torch.no_grad()
    def client(self, reply: Reply, exchange: Exchange) -> Reply:
        """A reply after this stage: its update clipped and, under `local`, with noise.

        An entry that the client was not sent, such as SCAFFOLD's differences, is an update itself.
        """
        visit, message = reply.visit, reply.message
        covered = combined_entries(visit.phase)
        refuse_partial("privacy.mechanism", covered, reply)
        entries = [entry for entry in covered if any(trees.leaves(message.get(entry, {})))]
        for entry in entries:
            refuse_whole_numbers(entry, message[entry], "privacy.mechanism")
        starts = {entry: start_of(visit.message, message, entry) for entry in entries}
        updates = {entry: trees.subtract(message[entry], starts[entry]) for entry in entries}
        clipped, within = self.clipping.clipped(updates)
        if clipped is not updates:
            message = {**message, **{entry: trees.add(starts[entry], clipped[entry]) for entry in entries}}
        if self.mechanism == "local" and self.noise_multiplier:
            stream = self.streams.generator("noise", round=visit.round, phase=visit.phase.name, client=visit.client.id)
            message = {**message, **{entry: self._noisy(message[entry], 1.0, stream) for entry in entries}}
        if covered and self.clipping.adaptive:
            message = {**message, UNDER_CLIP: {"n": torch.tensor(0.5 if within else -0.5)}}
        return replace(reply, message=message)

    @torch.no_grad()
    def server(self, replies: Replies, exchange: Exchange) -> Replies:
        """The combined replies, under `central` with noise: in a mean, that of the sum over the number of clients."""
        phase, common = exchange.phase, exchange.common
        covered = combined_entries(phase)
        if self.mechanism != "central" or not covered:
            return replies
        stream, values = self.streams.generator("noise", round=exchange.round, phase=phase.name), dict(replies)
        clients = len(replies.clients) if self.sampling is None else exchange.expected
        within = values.pop(UNDER_CLIP, {"n": torch.zeros(())})["n"]
        if self.sampling is not None:
            values |= {entry: self._expected_mean(phase, entry, replies, common, clients) for entry in covered}
        for entry in (entry for entry in covered if entry in values):
            share = 1 / clients if isinstance(phase.uplink[entry], Mean) else 1
            values[entry] = self._noisy(values[entry], share, stream)
        if self.clipping.adaptive:
            noise = float(torch.randn((), generator=stream)) if self.noise_multiplier else 0.0
            self.clipping.update_norm(float(within), clients, noise)
        return Replies(values, replies.clients)

    def _expected_mean(self, phase: Phase, entry: str, replies: Replies, common: Message, expected: float) -> Tree:
        """A Poisson sample's mean, start + sum of updates / expected; a sum as it is; and the start without replies."""
        if entry not in replies or not isinstance(phase.uplink[entry], Mean):
            return replies.get(entry, common[entry])
        start, share = start_of(common, replies, entry), len(replies.clients) / expected
        return trees.map(lambda start, mean: start + share * (mean - start), start, replies[entry])

    def _noisy(self, tree: Tree, share: float, stream: torch.Generator) -> Tree:
        """The tree with independent noise of deviation `share` z C on every number; of more under an adaptive clip."""
        deviation = share * self.clipping.noise_multiplier(self.noise_multiplier) * self.clipping.norm
        if not deviation:
            return tree
        noisy = trees.map_in_order(
            lambda leaf: leaf + deviation * torch.randn(leaf.shape, generator=stream).to(leaf), tree
        )
        return trees.overlay(tree, noisy)  # over `tree`, whose branches may have no leaves

    def describe(self, phase: Phase, entry: str) -> str | None:
        """A covered entry's protection, for the privacy sheet."""
        if entry == UNDER_CLIP and self.clipping.adaptive:
            return "whether the update was within the clip; its noise is a part of that of the updates"
        if entry not in combined_entries(phase):
            return None
        where = "on the sum, by the server" if self.mechanism == "central" else "by the client"
        deviation = self.clipping.noise_multiplier(self.noise_multiplier) * self.clipping.norm
        noise = f", Gaussian noise of {deviation:.3g} {where}"
        others = " and ".join(other for other in combined_entries(phase) if other != entry)
        together = f", together with {others}," * bool(others)
        bound = f"clipped to norm {self.clipping.norm:g}{noise * bool(self.noise_multiplier)}"
        return f"a client's update{together} {bound}"
