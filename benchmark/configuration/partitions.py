"""Sections whose meaning is known before anything is built: rules of `partition`, weights of encoders.

A file that a config names is a part of a run's identity by its content, which the config has as a hash beside the path
once it is composed; the path is not a part.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf

from benchmark import disk
from benchmark.configuration.keys import nearest
from benchmark.errors import ConfigError
from datamodules import partition

LIBRARY = "methods.networks.torchvision"
"""The encoder that takes names of weights."""
WEIGHTS = Path(__file__).parents[1] / "configs" / "weights"
"""Files of weights that come with the suite, which a config names without a folder."""


def encoder_sections(config: DictConfig) -> Iterator[tuple[str, DictConfig]]:
    """(dotted key, section) of every encoder of a config, live."""
    yield "encoder", config.encoder
    for name, section in config.federation.encoders.items():
        yield f"federation.encoders.{name}", section


def weights_file(section: Any, where: str) -> Path | None:
    """The file that an encoder starts from; None: it starts from torchvision's weights of a name, or from none.

    A name without a folder that the working folder does not have is that of a file of WEIGHTS.

    Raises ConfigError: the value is neither.
    """
    value = section.get("weights")
    if value is None:
        return None
    example = f"a file ({where}.weights=encoder.pt) or, under {LIBRARY}, a name such as IMAGENET1K_V1"
    if not isinstance(value, str) or not value or "://" in value:
        raise ConfigError(f"{where}.weights={value!r}: give {example}; nothing is fetched from an address")
    if re.fullmatch(r"[A-Z0-9_]+", value):
        if section.get("class") != LIBRARY:
            raise ConfigError(f"{where}.weights={value}: {section.get('class')} takes no name: give {example}")
        return None
    file = expanded(value, f"{where}.weights")
    shipped = WEIGHTS / file.name
    return shipped if str(file) == file.name and not file.exists() and shipped.is_file() else file


def sha256(file: Path, key: str) -> str:
    """Hash of a regular file's content; ConfigError where there is none. key: that names it, for the message."""
    if not file.is_file():  # a device or a pipe may have no end
        raise ConfigError(f"{key}={file}: there is no such file")
    return disk.sha256(file)


def pin(config: DictConfig) -> DictConfig:
    """The config with the hash of each file that an encoder starts from; the same object where there is none.

    Raises ConfigError: a file is missing, or a section has the hash of another content.
    """
    if not any(section.get("weights") or section.get("weights_sha256") for _, section in encoder_sections(config)):
        return config
    pinned: Any = OmegaConf.create(OmegaConf.to_container(config))
    for where, section in encoder_sections(pinned):
        file = weights_file(section, where)
        if file is None:
            if section.get("weights_sha256") is not None:
                raise ConfigError(f"{where}.weights_sha256: there is no file whose content it could be: leave it out")
            continue
        found = sha256(file, f"{where}.weights")
        if section.get("weights_sha256") not in (None, found):
            raise changed_content(where, file)
        section["weights_sha256"] = found
    return pinned


def changed_content(where: str, file: Path) -> ConfigError:
    """The error that a file has another content than the config's hash says."""
    return ConfigError(
        f"{where}.weights={file}: its content is not that of {where}.weights_sha256: restore the file, or start a run "
        "of its own without that key"
    )


def expanded(path: str, key: str) -> Path:
    """A path with the user's folder in the place of `~`. key: that names it. Raises ConfigError: no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{key}={path}: there is no such user: write the folder out") from error


COMMON: dict[str, Any] = {
    "seed": int | None,
    "share": float,
    "held_out": float | list[str | int] | None,
    "shift": list[str] | None,
}
"""Keys of every partition, whatever its rule, and their types."""
BY_SIZE = ("iid", "linear", "square", "exponential", "lognormal")
"""Rules that read no label."""
RULES = (*BY_SIZE, "dirichlet", "dirichlet_min", "dirichlet_balanced", "classes", "blocks")
"""Functions of `datamodules.partition`."""
NATURAL: dict[str, dict[str, Any]] = {
    "folders": {"min_size": int, "twin": str | float},
    "file": {"path": str, "partial": bool, "min_size": int, "path_sha256": str, "twin": str | float},
}
"""Partitions by clients that the data or a file name, and their parameters; `clients` draws some of them."""


def parameters(name: str) -> dict[str, Any]:
    """Parameter -> type of a rule, beside clients, seed and share; ConfigError where there is none of this name."""
    if name in NATURAL:
        return NATURAL[name]
    if name not in RULES:
        known = (*RULES, *NATURAL)
        raise ConfigError(f"partition.name={name!r}{nearest(name, known)}: choose {', '.join(known)}")
    hints = get_type_hints(getattr(partition, name))
    return {key: hint for key, hint in hints.items() if key not in ("labels", "num_clients", "seed", "return")}


def is_natural(section: Mapping[str, Any]) -> bool:
    """Whether the number of clients follows from the data, a file, or a user's function."""
    return bool(section.get("class")) or section.get("name") in NATURAL


def is_by_names(section: Mapping[str, Any]) -> bool:
    """Whether names of clients, which no hash of images covers, decide who trains on what."""
    return is_natural(section) or section.get("held_out") is not None


def drop_replaced(section: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Remove what belongs to the rule that a layer replaces by another; parameters that both have remain."""
    rule = "class" if layer.get("class") else "name"
    if layer.get(rule) in (None, section.get(rule)):
        return
    kept = set(COMMON)
    if rule == "name":
        kept |= {"clients", *parameters(str(layer["name"]))}
        # a natural partition has its own number of clients, and leaves small ones out instead of drawing again
        kept -= {"clients", "min_size"} if is_natural(layer) or is_natural(section) else set()
    for key in section.keys() - kept:
        del section[key]


def with_hash(config: DictConfig) -> DictConfig:
    """The config with `partition.path_sha256` where a file names the clients; ConfigError where there is no such file.

    So its content, not its path, is part of a run's identity.
    """
    if config.partition.get("name") != "file" or not isinstance(path := config.partition.get("path"), str):
        return config
    content: Any = OmegaConf.to_container(config)
    content["partition"]["path_sha256"] = file_hash(path)
    return OmegaConf.create(content)


def file_hash(path: str) -> str:
    """sha256 of a file of clients. Raises ConfigError: there is none."""
    return sha256(expanded(path, "partition.path"), "partition.path")
