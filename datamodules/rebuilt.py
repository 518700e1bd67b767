"""Federations that anybody can build again from packages of npm at fixed versions: `typefaces` and `icons`.

`datamodules/locks` has of each the packages and, in a JSON file, the facts of the set that they give: the hash of its
content and its counts, which pages show. After a change of either, `data` builds another one: copy its JSON file there.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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
STEPS = 3
"""Of `build`."""


def listed(name: str) -> dict[str, Any]:
    """The facts of the set as it was built for this version of the suite, as `build` gives them."""
    facts: dict[str, Any] = json.loads((packages.LOCKS / f"{name}.json").read_text(encoding="utf-8"))
    return facts


def is_built(name: str, root: Path) -> bool:
    """Whether a folder has the listed set, by the hash of all that is in its file."""
    known = listed(name)
    try:
        facts = json.loads((root / f"{name}.json").read_text(encoding="utf-8"))
        if not all(facts[key] == known[key] for key in ("lock", "sha256")):  # whatever has drawn it
            return False
        with np.load(root / f"{name}.npz") as file:
            return whole_sha256({key: file[key] for key in file.files}) == known["arrays"]
    except Exception:  # a damaged file may raise any error of numpy, zipfile, zlib or tokenize
        return False


def build(
    name: str, root: Path, begin: Callable[[str], object], progress: Callable[[float], object]
) -> tuple[Gathered, dict[str, Any]]:
    """The images of a federation, and their facts: what they are made of, their hash and their counts.

    Args:
        name: of FEDERATIONS. root: packages are kept in `<root>/packages/<name>/`.
        begin: called at the start of the STEPS, with their names. progress: called with the share of a step done.

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
    facts = {"lock": lock, "tools": tools, "sha256": sha256(made.arrays)}
    facts |= {"arrays": whole_sha256(made.arrays), **counts(made)}
    begin("nearly equal images")
    return made, {**facts, "nearly equal": nearly_equal(made.arrays, progress)}


def sha256(arrays: dict[str, np.ndarray]) -> str:
    """The hash that the data set of these arrays has in a record, see `datamodules.order`."""
    classes = np.unique(arrays["train_labels"])
    pairs = ((arrays[f"{s}_images"][:, None], np.searchsorted(classes, arrays[f"{s}_labels"])) for s in SPLITS)
    return hashes(pairs).sha256


def whole_sha256(arrays: Mapping[str, np.ndarray]) -> str:
    """A hash of everything in a set's file: also clients, and names of classes and images."""
    digest = hashlib.sha256()
    for key, array in sorted(arrays.items()):
        digest.update(f"{key} {array.dtype.str} {array.shape}\n".encode() + array.tobytes())
    return digest.hexdigest()


def nearly_equal(arrays: dict[str, np.ndarray], progress: Callable[[float], object]) -> dict[str, Any]:
    """Test images that another client trains on nearly so, in their class: the cosine of their pixels is above ALIKE.

    Returns: how many test images are, and how many of those of clients that nobody trains on; and the names of the
    clients at least half of whose test images are.
    """
    (trained, tested), (known, labels), (others, clients) = (
        [arrays[f"{s}_{kind}"] for s in SPLITS] for kind in ("images", "labels", "clients")
    )
    found, classes = np.zeros(len(tested), bool), np.unique(labels)
    for done, label in enumerate(classes, 1):
        (rows,), (columns,) = np.nonzero(labels == label), np.nonzero(known == label)
        # of images this small sums of products, and their squares, are below 2^53: the same on every machine
        each, training = (part.reshape(len(part), -1).astype(np.float64) for part in (tested[rows], trained[columns]))
        squares = np.outer(np.square(each).sum(1), np.square(training).sum(1))
        other = clients[rows, None] != others[columns]
        found[rows] = (other & ((each @ training.T) ** 2 > ALIKE**2 * squares)).any(1)
        progress(done / len(classes))
    unseen = ~np.isin(clients, others)
    names = [str(client) for client in np.unique(clients) if 2 * found[clients == client].mean() >= 1]
    parts = {"test": found, "of clients nobody trains on": found[unseen]}
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
        "nearly equal to a training image of another client": [
            ", of them ".join(f"{count:,} {part}" for part, count in each["nearly equal"]["images"].items())
            for each in known.values()
        ],
        "clients at least half of whose test images are": [
            ", ".join(each["nearly equal"]["clients"]) or "none" for each in known.values()
        ],
    }
    head = [f"| | {' | '.join(f'`{name}`' for name in known)} |", "|---" * (len(known) + 1) + "|"]
    return "\n".join([*head, *(f"| {title} | {' | '.join(cells)} |" for title, cells in rows.items())])
