"""Data sets that torchvision knows, from their archives in a folder."""

import pickle
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from datamodules.embedded import EMBEDDED
from datamodules.errors import DataError, first, nearest, one_line
from datamodules.raw import Raw
from datamodules.splits import SPLITS

ARCHIVES = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "fashion_mnist": "FashionMNIST"}
ARCHIVES |= {"stl10": "STL10", "svhn": "SVHN"}
"""Name -> class of torchvision."""
NAMED = ("cifar10", "cifar100")
"""Those that give each image the name of a file, which torchvision does not read."""


def archive(name: str, root: Path, download: bool) -> Raw:
    """The data set of this name. Raises DataError: there is none, or no archive of it."""
    missing = f"no data set {name!r}: looked for {root / name}/, {name}.csv, {name}.npz"
    if name not in ARCHIVES:
        from datamodules.rebuilt import FEDERATIONS

        if name in FEDERATIONS and (root.is_dir() or not root.exists()):
            raise DataError(
                f"no data set {name!r} in {root}: `python -m benchmark data {name} {shlex.quote(f'data.root={root}')}` "
                "builds it; or set data.root=... to the folder that holds it"
            )
        choices = ", ".join((*EMBEDDED, *ARCHIVES, *FEDERATIONS))
        files = list(root.iterdir()) if root.is_dir() else []
        here = sorted(file.stem for file in files if file.is_dir() or file.suffix in (".csv", ".npz"))
        if not root.is_dir():
            missing = f"no data set {name!r}: data.root={root} is no folder"
        elif near := nearest(name, [*here, *FEDERATIONS, *EMBEDDED, *ARCHIVES]):
            missing = f"no data set {name!r} in {root}{near}"
        else:
            missing += f"; {root} has {first(here, 5) or 'none'}"
        raise DataError(f"{missing}; set data.root=... to the folder that holds {name}/, or choose one of {choices}")
    from torchvision import datasets

    kind = getattr(datasets, ARCHIVES[name])
    images, labels, names = {}, {}, {}
    for split in SPLITS:
        selection: dict[str, Any] = {"split": split} if name in ("svhn", "stl10") else {"train": split == "train"}
        try:
            data = kind(root, download=download, **selection)
        except (RuntimeError, OSError) as error:
            reason = one_line(error).partition(". You can use download")[0]  # it is `data.download` here
            raise DataError(
                f"{missing} and for torchvision's {kind.__name__} archive in {root} ({reason}); "
                "set data.download=true, or data.root=... to the folder that holds one of them"
            ) from error
        array = np.asarray(data.data)  # [N, H, W], [N, H, W, 3] or [N, 3, H, W]
        array = array[:, None] if array.ndim == 3 else array
        images[split] = array.transpose(0, 3, 1, 2) if array.shape[-1] == 3 else array
        labels[split] = np.asarray(data.labels if name in ("svhn", "stl10") else data.targets)
        if name in NAMED and (found := _names(root / kind.base_folder, getattr(kind, f"{split}_list"))):
            names[split] = found
    return Raw(tuple(getattr(data, "classes", "0123456789")), images, labels, names=names)


def _names(folder: Path, batches: list[list[str]]) -> list[str]:
    """The name of each image, in the order of torchvision's arrays; empty where the batches have none.

    batches: files of the archive, pickles whose md5 torchvision has compared.
    """
    contents = [pickle.loads((folder / file).read_bytes(), encoding="latin1") for file, _ in batches]
    return [name for content in contents for name in content.get("filenames", ())]
