"""Config files: shipped files by name, a user's files by path, and names that installed packages add by entry points.

A name of a package stands for the import path of its entry, also in the config of a run folder, so that the rules for
code from outside the suite hold for it; nothing of a package is imported to know it. Shipped names come first.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from benchmark.configuration.keys import check_plain, nearest
from benchmark.configuration.layers import renamed, typed
from benchmark.configuration.written import read_yaml_text, settled
from benchmark.errors import ConfigError

CONFIGS = SHIPPED = Path(__file__).parents[1] / "configs"
FACTS = {"title", "paper", "source", "over", "networks", "tunes", "loss", "keeps", "further"}
"""Keys of the head of a method's or an objective's config."""
RECONSTRUCTED = "reconstructed"
"""The `source` of a method whose paper's formulas and authors' own code could not be read."""


def available(group: str) -> list[str]:
    """Names of the shipped configs of a group: scenario | method | objective | suite | campaign."""
    folder = CONFIGS / group
    return sorted(str(file.relative_to(folder).with_suffix("")) for file in folder.rglob("*.yaml"))


def named(group: str) -> list[str]:
    """Names of the shipped configs of a group, and those that installed packages add."""
    further = plugins(f"{group}s") if group in ("method", "objective") else {}
    return list(dict.fromkeys([*available(group), *further]))


def read(group: str, name: str) -> dict[str, Any]:
    """A shipped config by name, any file by a path that ends in .yaml, or a method's or objective's class by its import
    path, such as `decoupled.Decoupled`, or by a name of an installed package, with the defaults of its arguments."""
    if group in ("method", "objective") and is_import_path(name):
        if (shipped := name.rpartition(".")[2].lower()) in available(group):
            raise _taken(name, group, shipped)
        return {group: {"class": name}}
    is_path = name.endswith(".yaml")
    file = Path(name) if is_path else CONFIGS / group / f"{name}.yaml"
    if not file.is_file():
        if not is_path and group in ("method", "objective") and name in (theirs := plugins(f"{group}s")):
            return {group: {"class": theirs[name].path}}
        if group == "scenario" and Path(name).is_dir():
            folder = Path(name).resolve()
            data = f"data.root={folder.parent} data.name={folder.name}"
            raise ConfigError(f"{name} is a folder, not a scenario: name a scenario, and give images by {data}")
        if name.endswith(".yml"):
            raise ConfigError(f"{name}: config files end in .yaml: rename it")
        names = named(group)
        problem = f"no file {name}" if is_path else f"unknown {group} {name!r}{nearest(name, names)}"
        short = [each for each in names if "/" not in each]
        more = (
            f" and {len(names) - len(short)} more (`python -m benchmark list {group}s`)"
            if len(short) < len(names)
            else ""
        )
        raise ConfigError(f"{problem}; there are: {', '.join(short)}{more}; or give the path of a .yaml file")
    content, shipped_file = read_yaml(file), CONFIGS / group / file.name
    if is_path and shipped_file.is_file() and settled(content) != read_yaml(shipped_file):
        raise _taken(name, group, file.stem)
    return content


def _taken(name: str, group: str, shipped: str) -> ConfigError:
    said = f"{name} has the name of the shipped {group} {shipped!r}, for which its runs would be taken"
    return ConfigError(f"{said}: give {shipped}, or give yours another name")


def is_import_path(name: str) -> bool:
    """Whether a name is that of a class in a module, not of a shipped config or a file."""
    parts = name.split(".")
    return len(parts) > 1 and all(map(str.isidentifier, parts)) and parts[-1] not in ("yaml", "yml")


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file; a ConfigError that begins with the file's path where it is `mapping`'s."""
    try:
        return deepcopy(_shipped(file)) if SHIPPED in file.parents else mapping(file)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


@cache
def _shipped(file: Path) -> dict[str, Any]:
    """The mapping in a shipped file, which stays as it is while a process runs."""
    content: dict[str, Any] = settled(mapping(file))
    return content


def mapping(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file, whose interpolations are left as they are; one without content is empty.

    A value of an argument whose type is not known yet is `Written`.

    Raises ConfigError: the file is not readable, or holds something else; the message does not name the file.
    """
    try:
        content: Any = typed(read_yaml_text(file.read_text(encoding="utf-8")))
        if "${" in str(content):
            OmegaConf.create(settled(content))  # refuses what is no interpolation
    except MarkedYAMLError as error:  # its text would name the file again, and quote lines of it
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ConfigError(f"it is not valid YAML: {line}{error.problem or error.context}") from error
    except (YAMLError, UnicodeDecodeError, OmegaConfBaseException, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"it is not valid YAML: {' '.join(str(error).split())[:300]}") from error
    content = {} if settled(content) is None else content
    if not isinstance(content, dict):
        raise ConfigError("it must hold a mapping of sections")
    check_plain(content)
    return with_paths(renamed(content))


def lineage(name: str) -> list[tuple[str, dict[str, Any]]]:
    """(name, content) of a scenario and its ancestors by `like`, the oldest first."""
    layers: list[tuple[str, dict[str, Any]]] = []
    parent: Any = name
    while parent is not None:
        if not isinstance(parent, str) or parent in (ancestor for ancestor, _ in layers):
            raise ConfigError(f"scenario {layers[0][0]}: like: {parent!r} is not the name of another scenario")
        content = read("scenario", parent)
        ancestor, parent = parent, content.pop("like", None)
        layers.insert(0, (ancestor, content))
    return layers


def summary(group: str, name: str) -> str:
    """The first comment line of a shipped config, which summarises it; of a reconstructed method it says so."""
    line = next(_head(group, name), "")
    return f"{line}, {RECONSTRUCTED}" if group == "method" and source(name) == RECONSTRUCTED else line


def facts(group: str, name: str) -> dict[str, str]:
    """What the comment lines after the first say about a shipped method or objective, as `# key: value`.

    title: as pages write it. paper: keys of papers.bib. source: of the code, `code` (the authors'), `paper` (its
    formulas) or `reconstructed` (from an abstract, or from copies of the code that others have changed). over: rows
    that it builds on. networks: the scenario with those of its paper. tunes: the constant that `tune suite=` searches
    and values around the paper's, `key=value,value,...`. Of an objective: loss, keeps, further: cells of the table in
    docs/reference/objectives.md.
    """
    found = dict(line.split(": ", 1) for line in list(_head(group, name))[1:] if ": " in line)
    if unknown := sorted(set(found) - FACTS):
        raise ConfigError(f"{group}/{name}.yaml: its head has {unknown[0]!r}{nearest(unknown[0], sorted(FACTS))}")
    return found


def source(method: str) -> str | None:
    """Where a shipped method is from: its own head's `source`, or that of another method of the same class."""
    own = facts("method", method).get("source")
    if own is not None:
        return own
    cls = read("method", method)["method"]["class"]
    same = (name for name in available("method") if read("method", name)["method"]["class"] == cls)
    return next((head["source"] for name in same if "source" in (head := facts("method", name))), None)


def papers(head: Mapping[str, str]) -> list[str]:
    """Keys of the papers that a head names."""
    return head["paper"].split(", ") if "paper" in head else []


def _head(group: str, name: str) -> Iterator[str]:
    """The comment lines that a shipped config begins with."""
    for line in (CONFIGS / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            return
        yield line.lstrip("# ")


GROUPS = ("methods", "objectives", "protocols", "sources")
"""Groups of entry points, `fulcrum.methods` and so on."""


class Plugin(NamedTuple):
    """An entry: its import path, and the wheel that it is from, `NAME VERSION`."""

    path: str
    wheel: str


@cache
def plugins(group: str) -> dict[str, Plugin]:
    """Name -> entry of a group. Raises ConfigError: two packages have the same name, or one has no import path."""
    found: dict[str, Plugin] = {}
    for entry in metadata.entry_points(group=f"fulcrum.{group}"):
        wheel = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "no wheel"
        plugin = Plugin(f"{entry.module}.{entry.attr}", wheel)
        if not entry.attr:
            raise ConfigError(f"{wheel}: fulcrum.{group} {entry.name}={entry.value}: give module:NAME")
        if found.setdefault(entry.name, plugin) != plugin:
            both = f"{found[entry.name].wheel} and {wheel}"
            raise ConfigError(f"{both} both have {entry.name!r} among their {group}: uninstall one of them")
    return found


def with_paths(content: dict[str, Any]) -> dict[str, Any]:
    """A layer of a config whose source and protocols are import paths where a package has their names."""
    data, evaluation = content.get("data"), content.get("evaluation")
    if isinstance(data, dict) and isinstance(name := data.get("name"), str) and data.get("class") is None:
        from datamodules.archives import ARCHIVES  # imports numpy, which a config without images needs not
        from datamodules.embedded import EMBEDDED
        from datamodules.rebuilt import FEDERATIONS

        if name not in (*EMBEDDED, *ARCHIVES, *FEDERATIONS) and (plugin := plugins("sources").get(name)):
            del data["name"]
            data["class"] = plugin.path
    if isinstance(evaluation, dict) and isinstance(evaluation.get("protocols"), list):
        evaluation["protocols"] = list(map(protocol, evaluation["protocols"]))
    return content


def protocol(word: Any) -> Any:
    """A protocol's word, its name in a package replaced by its import path: `theirs:top=10` keeps its settings."""
    if not isinstance(word, str) or word in ("all", "papers") or "/" in word or "." in word.partition(":")[0]:
        return word
    name, sign, settings = word.partition(":")
    found: Mapping[str, Plugin] = plugins("protocols")
    return f"{found[name].path}{sign}{settings}" if name in found else word
