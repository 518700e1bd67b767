"""Weights that encoders start from: `encoder.weights`, a file or the name of torchvision's, and the file's content.

A file is a part of a run's identity by its content, `weights_sha256`, which is set beside the path when the config is
composed; the path is not part of it.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from benchmark.configuration.paths import expanded
from benchmark.errors import ConfigError

BLOCK = 1 << 20
"""Bytes of a file that are hashed at once."""
LIBRARY = "methods.networks.torchvision"
"""The encoder that takes names of weights."""


def encoder_sections(config: DictConfig) -> Iterator[tuple[str, DictConfig]]:
    """(dotted key, section) of every encoder of a config, live."""
    yield "encoder", config.encoder
    for kind, section in config.federation.encoders.items():
        yield f"federation.encoders.{kind}", section


def weights_file(section: Any, where: str) -> Path | None:
    """The file that an encoder starts from; None: it starts from torchvision's weights of a name, or from none.

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
    return expanded(value, f"{where}.weights")


def sha256(file: Path, key: str) -> str:
    """Hash of a regular file's content; ConfigError where there is none. key: that names it, for the message."""
    if not file.is_file():  # a device or a pipe may have no end
        raise ConfigError(f"{key}={file}: there is no such file")
    with file.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


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
