"""Columns of a Hugging Face data set: which of them have the images, the labels and the clients, by their types."""

from collections.abc import Mapping, Sequence
from typing import Any

from datamodules.errors import DataError

COLUMNS = ("image", "label", "client")
"""What `data.options` names columns for."""
NAMES_OF_LABELS = ("label", "target", "class", "category")
"""Words in the name of a column that has labels, whatever its type."""


def chosen(features: Mapping[str, Any], options: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    """The column of images, labels and clients, None where there is none; and notes.

    By default the first column of images and the first of class labels.

    Args:
        features: type of each column. options: `image`, `label`, `client`, where null stands for none. where: for
            messages.

    Raises DataError: no such column, one of another type, no images, or labels that only their column's name tells of.
    """
    import datasets

    for key in COLUMNS:
        if (name := options.get(key)) is not None and name not in features:
            raise DataError(f"data.options.{key}={name!r}: the columns of {where} are {', '.join(features)}")
    image = options.get("image") or _first(features, datasets.Image)
    if image is None:
        columns = ", ".join(f"{name} ({kind(feature)})" for name, feature in features.items())
        raise DataError(f"{where} has no column of images: its columns are {columns}; set data.options.image")
    if not _has_pictures(features[image]):
        images = _others(features, _has_pictures)
        raise DataError(f"column {image} of {where} is {kind(features[image])}: give one image a row{images}")
    label, client = options.get("label"), options.get("client")
    notes: list[str] = []
    if "label" not in options:
        label = _first(features, datasets.ClassLabel)
        if label is None:
            notes = _without_labels(features, (image, client), where)
    for key, name in (("label", label), ("client", client)):
        if name is not None and not _has_names(features[name]):
            raise DataError(
                f"column {name} of {where} is {kind(features[name])}: give one {key} an image, a class label, a whole "
                f"number or a text{_others(features, _has_names, key)}"
            )
    return {"image": image, "label": label, "client": client}, notes


def _without_labels(features: Mapping[str, Any], taken: Sequence[Any], where: str) -> list[str]:
    """A note of the columns that could be labels. Raises DataError: the name of one says that it is."""
    possible = [name for name, feature in features.items() if name not in taken and _has_names(feature)]
    named = [name for name in features if name not in taken and any(word in name.lower() for word in NAMES_OF_LABELS)]
    if usable := [name for name in named if name in possible]:
        raise DataError(
            f"{where} has no column of class labels: set data.options.label to one of: {', '.join(usable)}; or to null "
            "for images without labels"
        )
    if named:
        raise DataError(
            f"column {named[0]} of {where} is {kind(features[named[0]])}: give one label an image, or set "
            "data.options.label=null for images without labels"
        )
    if not possible:
        return []
    return [f"no labels, as no column is of class labels: data.options.label could be one of: {', '.join(possible)}"]


def _first(features: Mapping[str, Any], wanted: type) -> str | None:
    return next((name for name, feature in features.items() if isinstance(feature, wanted)), None)


def _others(features: Mapping[str, Any], fits: Any, key: str = "image") -> str:
    """The columns that would do, as advice."""
    names = [name for name, feature in features.items() if fits(feature)]
    return f"; set data.options.{key} to one of: {', '.join(names)}" if names else ""


def _has_pictures(feature: Any) -> bool:
    """Whether a column has the bytes of image files."""
    import datasets

    if isinstance(feature, Mapping):
        return "bytes" in feature
    return isinstance(feature, datasets.Image) or _of_type(feature) in ("binary", "large_binary")


def _has_names(feature: Any) -> bool:
    """Whether a column has one name or whole number in a row."""
    import datasets

    return isinstance(feature, datasets.ClassLabel) or _of_type(feature).startswith(
        ("int", "uint", "bool", "string", "large_string")
    )


def _of_type(feature: Any) -> str:
    """The type of a plain value; empty for anything else."""
    import datasets

    plain = isinstance(feature, datasets.Value)
    return str(feature.dtype) if plain else ""


def kind(feature: Any) -> str:
    """A column's type in words."""
    import datasets

    if isinstance(feature, Mapping):
        return f"a mapping of {', '.join(feature)}"
    inner = feature[0] if isinstance(feature, list) and feature else getattr(feature, "feature", None)
    if isinstance(feature, list) or inner is not None:
        return "a list of images" if isinstance(inner, datasets.Image) else "a list"
    return f"of type {_of_type(feature) or type(feature).__name__}"
