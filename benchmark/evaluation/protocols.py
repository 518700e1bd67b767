"""Groups of protocols, and the combined scores of several encoders."""

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from benchmark.configuration import files
from eval.clients import summary
from eval.inputs import REASONS
from eval.official import OF, OWN, PROTOCOLS, TRANSFER
from eval.own import load
from leaderboards.encoders import MEAN

Scores = dict[str, dict[str, float]]
"""Protocol id -> metric -> value; accuracies in percent."""

OPTIONAL = REASONS.keys() - {"encoder_inputs", "views", "target"}
"""Inputs that not every run has, see `eval.official.Protocol.requires`."""

CHOICES = ("k", "rate", "strength")
"""Metrics that are a choice, of which there is no mean."""


def expanded(names: Iterable[str], data: str, inputs: Collection[str] = (), *, labelled: bool = True) -> list[str]:
    """Ids of protocols, once each: `all` stands for all but the long ones, `papers` for the long ones.

    A word of an own protocol, or the name of an installed package's, is imported, see `eval.own`.

    Args:
        data: the run's data set; `all` transfers to the embedded digits where this is another one.
        inputs: of `OPTIONAL`, those that the run has; protocols that require others are in no group, nor are those
            that another one replaces.
        labelled: whether there are labels; without them, protocols that use them are in no group.
    """
    missing = OPTIONAL - set(inputs)
    groups: dict[str, list[str]] = {"all": [], "papers": []}
    for each in PROTOCOLS.values():
        if each.requires not in missing and (labelled or not each.uses_labels) and not each.replaced_by:
            groups["papers" if each.long else "all"].append(each.id)
    groups["all"] += ["transfer-digits/v1"] if data != "digits" else []
    ids = (id for name in names for id in groups.get(name, [files.protocol(name)]))
    return list(dict.fromkeys(load(id).id if OWN.fullmatch(id) else id for id in ids))


def transfer_targets(protocols: Iterable[str]) -> list[str]:
    """The data sets that these protocols transfer to."""
    return [match[1] for name in protocols if (match := re.fullmatch(TRANSFER, name))]


def combine(encoders: Mapping[str, Scores]) -> Scores:
    """One score for a method that leaves several encoders, as records have it; `leaderboards.encoders` shows the mean.

    An accuracy is the worst encoder's, as the literature's Min-Local has it, with the mean beside it as
    `accuracy_mean` (`accuracy_1pct_mean`, ...); every other metric is the mean. What not all have is left out, as the
    spectra of encoders of several widths, and so are choices that differ. One encoder's scores are returned unchanged.
    A protocol by which each encoder has the accuracy of another client alone is one score over these clients.
    """
    each = list(encoders.values())
    if len(each) < 2:
        return each[0] if each else {}
    combined: Scores = {}
    for protocol in dict.fromkeys(itertools.chain(*each)):
        if clients := _own_accuracies([scores[protocol] for scores in each if protocol in scores]):
            combined[protocol] = summary(clients)
            continue
        means: dict[str, float] = {}
        for metric in each[0].get(protocol, ()):
            values = [scores[protocol][metric] for scores in each if metric in scores.get(protocol, {})]
            if len(values) == len(each) and (metric not in CHOICES or len(set(values)) == 1):
                mean = sum(values) / len(values)
                is_accuracy = metric.startswith("accuracy")
                means |= {metric: min(values), f"{metric}{MEAN}": mean} if is_accuracy else {metric: mean}
        if means:
            combined[protocol] = means
    return combined


def _own_accuracies(encoders: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Client -> the accuracy by its own encoder, where each of the encoders' metrics are of one client alone."""
    clients = [[metric for metric in metrics if metric.startswith(OF)] for metrics in encoders]
    names = [metric.removeprefix(OF) for metrics in clients for metric in metrics]
    if not all(len(metrics) == 1 for metrics in clients) or len(set(names)) < len(names):
        return {}
    return {name: metrics[OF + name] for name, metrics in zip(names, encoders, strict=True)}
