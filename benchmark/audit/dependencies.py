"""Known-bad versions of dependencies: refused where they are pinned, installed, or within a range of `pyproject.toml`.

`python -m benchmark.audit.dependencies` prints a line for each, and exits with 1 where there is one. Without a network:
the advisories are a file of this package.
"""

import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
ADVISORIES = Path(__file__).with_name("advisories.yaml")


class Advisory(NamedTuple):
    """Versions of a package that are not to be used, by which advisory, and why."""

    versions: SpecifierSet
    id: str
    why: str


def advisories(file: Path = ADVISORIES) -> dict[str, list[Advisory]]:
    """Package -> its advisories."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {name: [Advisory(SpecifierSet(line[0]), *line[1:]) for line in lines] for name, lines in content.items()}


def pinned(file: Path) -> dict[str, str]:
    """Package -> version of a constraints file."""
    lines = (line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def required(file: Path) -> list[Requirement]:
    """The requirements of a `pyproject.toml`, extras included."""
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(line) for lines in lists for line in lines]


def problems(
    known: Mapping[str, list[Advisory]], versions: Mapping[str, Mapping[str, str]], requirements: list[Requirement]
) -> Iterator[str]:
    """A line for each version an advisory names.

    versions: where they come from -> package -> version. Of a range only the versions that an advisory names singly are
    looked for, as those of an attacker: a range's old end is for the user's own pins to decide.
    """
    for source, chosen in versions.items():
        for name, version in chosen.items():
            for advisory in known.get(name, []):
                if advisory.versions.contains(version, prereleases=True):
                    yield f"{source}: {name} {version} is not to be used ({advisory.id}: {advisory.why})"
    for requirement in requirements:
        for advisory in known.get(canonicalize_name(requirement.name), []):
            for single in (each.version for each in advisory.versions if each.operator == "=="):
                if requirement.specifier.contains(single):
                    yield f"pyproject.toml: {requirement} admits {single} ({advisory.id}: {advisory.why})"


def main() -> int:
    """Prints the problems of this checkout and its environment."""
    installed: dict[str, str] = {
        canonicalize_name(each.metadata["Name"]): each.version for each in metadata.distributions()
    }
    chosen = {"constraints.txt": pinned(ROOT / "constraints.txt"), "installed": installed}
    lines = list(problems(advisories(), chosen, required(ROOT / "pyproject.toml")))
    checked = len({name for names in chosen.values() for name in names})
    print(*(lines or [f"{checked} packages, none of a version that {ADVISORIES.name} names"]), sep="\n")  # noqa: T201
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
