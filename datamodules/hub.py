"""A Hugging Face data set of its hub, or of a local folder or parquet file, for `data.class`."""

from pathlib import Path
from typing import Any

from PIL.Image import Image
from torch.utils.data import Dataset

from datamodules import columns
from datamodules.arrays import opened_image


class HuggingFace(Dataset):
    """A split of a Hugging Face data set: items (image, label), or images alone where it has no labels.

    Args:
        path: a name on the hub, a folder, or a parquet file. split: its name there. name: of its configuration.
        image, label, client: columns; None: the first of images, the first of class labels, and no clients.

    Raises DataError: another column, see `columns.chosen`; ValueError, OSError and others: what the library raises.
    """

    def __init__(
        self,
        path: str,
        split: str = "train",
        *,
        name: str | None = None,
        image: str | None = None,
        label: str | None = None,
        client: str | None = None,
    ) -> None:
        import datasets

        source = {"path": "parquet", "data_files": path} if Path(path).suffix == ".parquet" else {"path": path}
        rows: Any = datasets.load_dataset(**source, name=name, split=split)
        given = {"image": image, "client": client, **({} if label is None else {"label": label})}
        (image, label, client), _ = columns.chosen(rows.features, given, path)
        self.path, self.column = path, image
        # the library would also fetch addresses, and open any path
        self.images = rows.select_columns([image]).cast_column(image, datasets.Image(decode=False))
        self.classes = None if label is None else getattr(rows.features[label], "names", None)
        self.targets = None if label is None else list(rows[label])
        self.clients = None if client is None else list(rows[client])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Image, ...]:
        image = opened_image(self.images[index][self.column], f"{self.path}, image {index}")
        return (image,) if self.targets is None else (image, self.targets[index])
