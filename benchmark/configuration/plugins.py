"""Names that installed packages add to the suite's, by entry points; nothing of a package is imported to know them.

A name stands for the import path of its entry, also in the config of a run folder, so that the rules for code from
outside the suite hold for it. Shipped names come first.
"""

from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any, NamedTuple

from benchmark.errors import ConfigError

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

        if name not in (*EMBEDDED, *ARCHIVES) and (plugin := plugins("sources").get(name)):
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
