"""Columns of a Hugging Face data set: which have images and labels, by their types, and clients, where one is named."""

from collections.abc import Callable, Mapping
from typing import Any

from datamodules.errors import DataError

COLUMNS = ("image", "label", "client")
"""What `data.options` names columns for."""
NAMES_OF_LABELS = ("label", "target", "class", "category")
"""Words in the name of a column that has labels, whatever its type."""


def chosen(
    features: Mapping[str, Any], options: Mapping[str, Any], where: str
) -> tuple[tuple[str, str | None, str | None], list[str]]:
    """The column of images, labels and clients, None where there is none; and notes.

    By default the first column of images and the first of class labels.

    Args:
        features: type of each column. options: COLUMNS, where null stands for none. where: for messages.

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
    client = options.get("client")
    label = options["label"] if "label" in options else _first(features, datasets.ClassLabel)
    free = {name: feature for name, feature in features.items() if name not in (image, client)}
    notes = _without_labels(free, where) if label is None and "label" not in options else []
    for key, name in (("label", label), ("client", client)):
        if name is not None and not _has_names(features[name]):
            raise DataError(
                f"column {name} of {where} is {kind(features[name])}: give one {key} an image, a class label, a whole "
                f"number or a text{_others(features, _has_names, key)}"
            )
    return (image, label, client), notes


def _without_labels(features: Mapping[str, Any], where: str) -> list[str]:
    """A note of the columns that could be labels. Raises DataError: the name of one says that it is."""
    possible = [name for name, feature in features.items() if _has_names(feature)]
    named = [name for name in features if any(word in name.lower() for word in NAMES_OF_LABELS)]
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


def _others(features: Mapping[str, Any], fits: Callable[[Any], bool], key: str = "image") -> str:
    """The columns that would do, as advice."""
    names = [name for name, feature in features.items() if fits(feature)]
    return f"; set data.options.{key} to one of: {', '.join(names)}" if names else ""


def _has_pictures(feature: Any) -> bool:
    """Whether a column has the bytes of image files."""
    if isinstance(feature, Mapping):
        return "bytes" in feature
    return kind(feature) in ("of type Image", "of type binary", "of type large_binary")


def _has_names(feature: Any) -> bool:
    """Whether a column has one name or whole number in a row."""
    plain = ("ClassLabel", "int", "uint", "bool", "string", "large_string")
    return kind(feature).startswith(tuple(f"of type {name}" for name in plain))


def kind(feature: Any) -> str:
    """A column's type in words."""
    import datasets

    if isinstance(feature, Mapping):
        return f"a mapping of {', '.join(feature)}"
    inner = feature[0] if isinstance(feature, list) and feature else getattr(feature, "feature", None)
    if isinstance(feature, list) or inner is not None:
        return "a list of images" if isinstance(inner, datasets.Image) else "a list"
    return f"of type {feature.dtype if isinstance(feature, datasets.Value) else type(feature).__name__}"
