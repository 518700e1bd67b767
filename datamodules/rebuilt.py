"""Federations that anybody can build again from packages of npm at fixed versions: `typefaces` and `icons`.

`datamodules/locks` has of each the packages and, in a JSON file, the facts of the set that they give: the hash of its
content and its counts, which pages show. After a change of either, `data` builds another one: copy its JSON file there.
"""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zipfile import BadZipFile

import numpy as np

from datamodules import glyphs, icons, packages
from datamodules.gathered import Drawn, Gathered, gathered
from datamodules.order import hashes
from datamodules.packages import Package
from datamodules.splits import SPLITS

T = TypeVar("T")
ALIKE = 0.995
"""Cosine of the pixels above which images are counted as nearly equal."""
QUANTILES = {"least": 0.0, "quarter": 0.25, "median": 0.5, "three quarters": 0.75, "most": 1.0}


class Federation(NamedTuple):
    """What makes a federation of its packages, and words for it.

    draw: `draw(packages, folder)` yields the images of each. tools: what draws -> the package on PyPI.
    """

    draw: Callable[[Sequence[Package], Path], Iterator[list[Drawn]]]
    clients: str
    classes: str
    tools: dict[str, str]


FEDERATIONS = {
    "typefaces": Federation(glyphs.of_packages, "typefaces", "characters", {"Pillow": "pillow"}),
    "icons": Federation(icons.of_packages, "families of icons", "names of icons", {"resvg": "resvg-py"}),
}
"""Name -> how it is made."""


def listed(name: str) -> dict[str, Any]:
    """The facts of the set as it was built for this version of the suite, as `build` gives them."""
    facts: dict[str, Any] = json.loads((packages.LOCKS / f"{name}.json").read_text(encoding="utf-8"))
    return facts


def is_built(name: str, root: Path) -> bool:
    """Whether a folder has the listed set, by the hash of what is in it."""
    try:
        facts, known = json.loads((root / f"{name}.json").read_text(encoding="utf-8")), listed(name)
        if not all(facts[key] == known[key] for key in ("lock", "sha256")):  # whatever has drawn it
            return False
        with np.load(root / f"{name}.npz") as file:
            return sha256({key: file[key] for key in file.files}) == known["sha256"]
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error):
        return False


def build(
    name: str, root: Path, begin: Callable[[str], object], progress: Callable[[float], object]
) -> tuple[Gathered, dict[str, Any]]:
    """The images of a federation, and their facts: what they are made of, their hash and their counts.

    Args:
        name: of FEDERATIONS. root: packages are kept in `<root>/packages/<name>/`.
        begin: called at the start of the three steps, with their names. progress: called with the share of a step done.

    Raises DataError: a package cannot be fetched or read.
    """
    federation, folder, locked = FEDERATIONS[name], root / "packages" / name, packages.locked(name)

    def counted(step: str, each: Iterable[T]) -> Iterator[T]:
        begin(step)
        for done, one in enumerate(each, 1):
            progress(done / len(locked))
            yield one

    for _ in counted("packages", packages.fetch(locked, folder)):
        pass
    made = gathered(counted("images", federation.draw(locked, folder)))
    lock = hashlib.sha256((packages.LOCKS / f"{name}.lock").read_bytes()).hexdigest()
    tools = {tool: version(package) for tool, package in federation.tools.items()}
    facts = {"lock": lock, "tools": tools, "sha256": sha256(made.arrays), **counts(made)}
    begin("nearly equal images")
    return made, {**facts, "nearly equal": nearly_equal(made.arrays, progress)}


def sha256(arrays: dict[str, np.ndarray]) -> str:
    """The hash that the data set of these arrays has in a record, see `datamodules.order`."""
    classes = np.unique(arrays["train_labels"])
    pairs = ((arrays[f"{s}_images"][:, None], np.searchsorted(classes, arrays[f"{s}_labels"])) for s in SPLITS)
    return hashes(pairs).sha256


def nearly_equal(arrays: dict[str, np.ndarray], progress: Callable[[float], object]) -> dict[str, Any]:
    """Images that another client has nearly so, in the same class: the cosine of their pixels is above ALIKE.

    Counted in integers, so it is the same on every machine.

    Returns: how many of the training images, of the test images, and of those of clients that nobody trains on are;
    and the names of the clients of which at least half are.
    """
    images, labels, clients = (
        np.concatenate([arrays[f"{s}_{kind}"] for s in SPLITS]) for kind in ("images", "labels", "clients")
    )
    pixels, found = images.reshape(len(images), -1), np.zeros(len(images), bool)
    classes = np.unique(labels)
    for done, label in enumerate(classes, 1):
        (of_class,) = np.nonzero(labels == label)
        each = pixels[of_class].astype(np.float64)  # sums of products are below 2^53, so they are exact
        products, squares = each @ each.T, np.square(each).sum(1)
        other = clients[of_class, None] != clients[of_class]
        found[of_class] = (other & (products**2 > ALIKE**2 * np.outer(squares, squares))).any(1)
        progress(done / len(classes))
    trained = len(arrays["train_labels"])
    unseen = ~np.isin(clients, arrays["train_clients"])
    parts = {"training": found[:trained], "test": found[trained:], "of clients nobody trains on": found[unseen]}
    names = [str(client) for client in np.unique(clients) if 2 * found[clients == client].mean() >= 1]
    return {"images": {part: int(each.sum()) for part, each in parts.items()}, "clients": names}


def drawn_by(facts: Mapping[str, Any]) -> str:
    """The tool that has drawn a set, with its version."""
    return " and ".join(f"{tool} {number}" for tool, number in facts["tools"].items())


def counts(made: Gathered) -> dict[str, Any]:
    """How many clients, classes and images there are; of images and classes a client some quantiles."""
    arrays = made.arrays
    both = {kind: np.concatenate([arrays[f"{s}_{kind}"] for s in SPLITS]) for kind in ("clients", "labels")}
    names, sizes = np.unique(both["clients"], return_counts=True)
    of_client = np.unique(np.stack([both["clients"], both["labels"]]), axis=1)[0]
    by_client = {"images": sizes, "classes": np.unique(of_client, return_counts=True)[1]}
    return {
        "clients": len(names),
        "held out": len(names) - len(np.unique(arrays["train_clients"])),
        "classes": len(np.unique(both["labels"])),
        "images": {split: len(arrays[f"{split}_labels"]) for split in SPLITS},
        "left out": made.left_out,
        "a client": {
            kind: {word: int(np.quantile(each, share, method="nearest")) for word, share in QUANTILES.items()}
            for kind, each in by_client.items()
        },
    }


def page(name: str, root: Path, facts: dict[str, Any]) -> str:
    """A page in Markdown: what the set is made of, with the licence of every package and whose it is."""
    lines = [
        f"# {name}",
        "",
        f"`python -m benchmark data {name}` has drawn it with {drawn_by(facts)}, from packages of npm whose",
        f"licences are below. Content hash: `{facts['sha256']}`.",
        "",
        "| package | version | licence | by |",
        "|---|---|---|---|",
    ]
    for package in packages.locked(name):
        licence, holder = packages.licence(root / "packages" / name / package.file)
        lines.append(f"| {package.name} | {package.version} | {licence} | {holder.replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def counts_table() -> str:
    """The counts of the listed sets as a table in Markdown."""
    known = {name: listed(name) for name in FEDERATIONS}
    rows = {
        "clients": [f"{each['clients']:,} {FEDERATIONS[name].clients}" for name, each in known.items()],
        "of these, nobody trains on": [f"{each['held out']:,}" for each in known.values()],
        "classes": [f"{each['classes']:,} {FEDERATIONS[name].classes}" for name, each in known.items()],
        **{
            f"{word} images": [f"{each['images'][split]:,}" for each in known.values()]
            for split, word in (("train", "training"), ("test", "test"))
        },
        **{
            f"{kind} a client: {', '.join(QUANTILES)}": [
                ", ".join(f"{value:,}" for value in each["a client"][kind].values()) for each in known.values()
            ]
            for kind in ("images", "classes")
        },
        "left out": [
            ", ".join(f"{count:,} {reason}" for reason, count in each["left out"].items()) for each in known.values()
        ],
        "nearly equal images": [
            ", ".join(f"{count:,} {part}" for part, count in each["nearly equal"]["images"].items())
            for each in known.values()
        ],
        "clients half of whose images are": [", ".join(each["nearly equal"]["clients"]) for each in known.values()],
    }
    head = [f"| | {' | '.join(f'`{name}`' for name in known)} |", "|---" * (len(known) + 1) + "|"]
    return "\n".join([*head, *(f"| {title} | {' | '.join(cells)} |" for title, cells in rows.items())])
