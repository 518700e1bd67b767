"""The config of a pretraining: one place trains on the images of the clients that a later federation holds out."""

import json
from collections.abc import Sequence

import numpy as np
from omegaconf import DictConfig

from benchmark.configuration.compose import compose
from benchmark.configuration.partitions import is_natural
from benchmark.errors import ConfigError
from benchmark.experiment.data import source
from benchmark.experiment.natural_clients import held_out


def pretraining(scenario: str, objective: str, overrides: Sequence[str]) -> DictConfig:
    """The config of a `centralized` run that holds out all clients but those that a scenario holds out.

    objective: what it trains by. overrides: of the scenario, and of the training.

    Raises ConfigError: the scenario holds out nobody, others under each seed, or clients that the data do not name.
    """
    config = compose(scenario, "fedavg", [f"objective={objective}", *overrides])
    section = config.partition
    if (given := section.get("held_out")) is None:
        raise ConfigError(
            f"pretrain {scenario} {objective} trains on clients that nobody else trains on: hold some out, e.g. "
            f"partition.held_out=0.2 partition.seed=0; on all of {config.data.name} `run {scenario} centralized` does"
        )
    if isinstance(given, float) and section.get("seed") is None:
        raise ConfigError(
            f"partition.held_out={given} holds out other clients under each seed: give partition.seed too, and both to "
            "the runs that start from this encoder"
        )
    if is_natural(section) and section.get("name") != "folders":
        raise ConfigError("pretrain takes clients that the data name: choose partition.name=folders or a rule by label")
    images = source(config)
    out = held_out(config, images)
    assert out is not None
    clients = (images.whole or images).train.clients
    assert clients is not None
    others = json.dumps([name for name in np.unique(clients).tolist() if name not in out.names], ensure_ascii=False)
    named_here = ("scenario", "row", "partition.held_out")
    kept = [word for word in overrides if word.partition("=")[0] not in named_here]
    names = [f"scenario={config.scenario}", f"row={config.row.replace('fedavg', 'pretrain', 1)}"]
    return compose(scenario, "centralized", [f"objective={objective}", *names, *kept, f"partition.held_out={others}"])
