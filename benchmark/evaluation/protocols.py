"""Which protocols are meant by a word, and what several encoders' scores come to."""

import re
from collections.abc import Iterable, Mapping

from eval.protocol import PROTOCOLS, TRANSFER

Scores = dict[str, dict[str, float]]
"""Protocol id -> metric -> value; accuracies in percent."""

CHOICES = ("k", "rate", "strength")
"""Metrics that say what was chosen: of several there is no mean."""


def expanded(words: Iterable[str], data: str, drifts: bool) -> list[str]:
    """Ids of protocols, once each: `all` stands for all but the long ones, `papers` for those.

    Args:
        data: the run's data set; the embedded digits are `all`'s data set to transfer to, where it is another.
        drifts: whether `all` has clients to compare.
    """
    everything = [one.id for one in PROTOCOLS.values() if not one.long and (drifts or one.requires != "local_models")]
    everything += ["transfer-digits/v1"] if data != "digits" else []
    groups = {"all": everything, "papers": [one.id for one in PROTOCOLS.values() if one.long]}
    return list(dict.fromkeys(name for word in words for name in groups.get(word, [word])))


def transfer_targets(protocols: Iterable[str]) -> list[str]:
    """The data sets that some of these protocols are about."""
    return [found[1] for name in protocols if (found := re.fullmatch(TRANSFER, name))]


def combine(encoders: Mapping[str, Scores]) -> Scores:
    """One score for a method that leaves several encoders.

    An accuracy is the worst encoder's, as the literature's Min-Local has it, with the mean beside it as
    `accuracy_mean` (`accuracy_1pct_mean`, ...); every other metric is the mean. What not all have is left out, as the
    spectra of encoders of several widths, and so is what was chosen for each. One encoder stands for itself.
    """
    each = list(encoders.values())
    if len(each) < 2:
        return each[0] if each else {}
    combined: Scores = {}
    for protocol in each[0]:
        for metric in each[0][protocol]:
            values = [scores[protocol][metric] for scores in each if metric in scores.get(protocol, {})]
            if len(values) < len(each) or (metric in CHOICES and len(set(values)) > 1):
                continue
            mean = sum(values) / len(values)
            if metric.startswith("accuracy"):
                combined.setdefault(protocol, {}).update({metric: min(values), f"{metric}_mean": mean})
            else:
                combined.setdefault(protocol, {})[metric] = mean
    return combined
