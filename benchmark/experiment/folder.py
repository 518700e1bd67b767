"""The config of a run folder, and what it may name before the folder is believed."""

from collections.abc import Iterable
from pathlib import Path

from omegaconf import DictConfig

from benchmark.configuration.compose import load, merge
from benchmark.configuration.files import protocol
from benchmark.configuration.identity import differences
from benchmark.configuration.instantiate import foreign_code, refuse_foreign_classes
from benchmark.configuration.partitions import pin
from benchmark.configuration.words import config_of_run
from benchmark.errors import ConfigError
from benchmark.experiment.initial_weights import refuse_download
from eval.official import OWN


def refuse_links(folder: Path) -> None:
    """ConfigError where something in a folder is a link to the outside: the run would write or delete it there.

    What lies in a folder of W&B's runs is W&B's own, with a link to its log: it is read again at most, links are not.
    """
    inside = folder.resolve()
    for file in folder.rglob("*"):
        parts = file.relative_to(folder).parts
        if parts[0] == "wandb" and len(parts) > 2:
            continue
        if file.is_symlink() and not file.resolve().is_relative_to(inside):
            raise ConfigError(f"{file} is a link out of its run folder: remove it, or add trust=true if it is yours")


def refuse_own_protocols(names: Iterable[str], file: str, key: str) -> None:
    """ConfigError where a file that somebody else may have written names protocols by an import path.

    key: under which it names them.
    """
    if own := [name for name in names if OWN.fullmatch(str(protocol(name)))]:
        raise foreign_code(file, f"{key}={own[0]}")


def load_folder(path: Path, overrides: Iterable[str] = (), *, trust: bool = False) -> DictConfig:
    """The config of a run folder; overrides may change how it runs (devices, minutes), not its result.

    trust: whether it may name classes from outside the suite, and hold links to the outside.
    """
    file = config_of_run(path)
    before = load(file)
    if not trust:
        refuse_foreign_classes(before, str(file))
        refuse_own_protocols(before.evaluation.protocols, str(file), "evaluation.protocols")
        refuse_download(before, str(file))
        refuse_links(path)
    config = merge(before, overrides)
    changed = differences(before, config)
    changed += [f"{key}: {before[key]} -> {config[key]}" for key in ("scenario", "row") if before[key] != config[key]]
    if changed:
        raise ConfigError(
            f"{path} cannot be resumed or evaluated with a changed config ({'; '.join(changed)}): "
            "drop the override, or start a run of its own with `run`"
        )
    pin(config)  # an override may have left the hash of a file of weights without its file
    return config
