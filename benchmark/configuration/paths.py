"""Paths that a config names."""

from pathlib import Path

from benchmark.errors import ConfigError


def expanded(path: str, key: str) -> Path:
    """A path with the user's folder in the place of `~`. key: that names it. Raises ConfigError: no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{key}={path}: there is no such user: write the folder out") from error
