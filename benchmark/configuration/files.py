"""Config files: shipped files by name, a user's files by path."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError

from benchmark.configuration.typecheck import nearest
from benchmark.errors import ConfigError

CONFIGS = Path(__file__).parents[1] / "configs"


def available(group: str) -> list[str]:
    """Names of the shipped configs of a group: scenario | method | objective | suite | campaign."""
    folder = CONFIGS / group
    return sorted(str(file.relative_to(folder).with_suffix("")) for file in folder.rglob("*.yaml"))


def read(group: str, name: str) -> dict[str, Any]:
    """A shipped config by name, or any file by a path that ends in .yaml."""
    is_path = name.endswith(".yaml")
    file = Path(name) if is_path else CONFIGS / group / f"{name}.yaml"
    if not file.is_file():
        problem = f"no file {name}" if is_path else f"unknown {group} {name!r}{nearest(name, available(group))}"
        raise ConfigError(f"{problem}; there are: {', '.join(available(group))}; or give the path of a .yaml file")
    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(file)) or {}
    except (YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must hold a mapping of sections")
    return content


def lineage(name: str) -> list[tuple[str, dict[str, Any]]]:
    """(name, content) of a scenario and its ancestors by `like`, the oldest first."""
    content = read("scenario", name)
    parent = content.pop("like", None)
    return [*(lineage(parent) if parent else []), (name, content)]


def summary(group: str, name: str) -> str:
    """The first comment line of a shipped config, which summarises it."""
    first = (CONFIGS / group / f"{name}.yaml").read_text().splitlines()[:1]
    return first[0].lstrip("# ") if first and first[0].startswith("#") else ""
