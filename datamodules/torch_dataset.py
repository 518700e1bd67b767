"""Images of a torch `Dataset`: a user's own class, of which nothing is certain, or one of torchvision.

What its class raises, when it is made or read, is one line that names the class and the split or item.
"""

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from datamodules.errors import DataError, one_line
from datamodules.pictures import Picture, as_image
from datamodules.raw import Raw, raw
from datamodules.signatures import signature_of
from datamodules.splits import SPLITS, Part, is_missing, split_names

FINGERPRINT = 32
"""Items of a `Dataset` whose content decides whether its decoded images are still those."""
LABELS = ("targets", "labels")
"""Attributes that may have the label of each item."""


def of_dataset(target: Any, options: Mapping[str, Any]) -> tuple[Callable[[], Raw], str]:
    """A torch `Dataset` of (image, label), or of images alone, whose images are read later; and a hash of its content.

    Labels are read now: without `targets` or `labels`, those of every item.

    The hash is of some images and of all labels, clients and classes.

    `target` is called with `split="train"` and `split="test"`, or with `train=True` and `train=False`, where it has
    such an argument, else once. Its objects may have `classes` (names by label) and `clients` (a name an item).

    Args:
        options: its other arguments; `splits` names the values of `split`, {train: ..., test: ...}, where null for test
            stands for none.

    Raises DataError: it cannot be made or read.
    """
    where = f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', repr(target))}".lstrip(".")
    options = dict(options)
    splits = dict(zip(SPLITS, SPLITS, strict=True)) | split_names(options.pop("splits", {}))
    content = hashlib.sha256(repr((where, sorted(options.items()))).encode())
    parts = {}
    for split, arguments in _variants(target, options, splits, where).items():
        dataset, length = _made(target, options, arguments, where)
        if not length:
            raise DataError(f"{where} has no item in {split}")
        parts[split] = part = _Items(dataset, length, f"{where}, {split}" if split != "train" else where)
        content.update(f"{split} {length}".encode())
        for position in np.linspace(0, length - 1, min(FINGERPRINT, length)).astype(int):
            content.update(part.image(int(position)).values.tobytes())
    notes: list[str] = []
    classes = {split: list(map(str, part.listed("classes", notes) or ())) for split, part in parts.items()}
    if any(names != classes["train"] for names in classes.values()):
        raise DataError(f"{where}: train and test have other `classes`: give both the same, in one order")
    clients = {split: names for split, part in parts.items() if (names := part.clients(notes))}
    labels = _labels(parts, notes, where)
    content.update(repr((labels, classes, clients)).encode())
    items = {
        split: Part([(part, position) for position in range(part.length)], labels.get(split), clients.get(split))
        for split, part in parts.items()
    }
    named = (classes["train"] or None) if labels else None
    kept = tuple(dict.fromkeys(notes))
    read = partial(raw, items, where, lambda item: item[0].image(item[1]), named, kept)
    return read, content.hexdigest()


def _variants(
    target: Any, options: Mapping[str, Any], splits: Mapping[str, Any], where: str
) -> dict[str, dict[str, Any]]:
    """The arguments of each split. Raises DataError: options that it does not take, or arguments without a value."""
    parameters, takes_all = signature_of(target)
    if not takes_all and (unknown := sorted(options.keys() - parameters.keys())):
        raise DataError(f"data.options.{unknown[0]}: {where} has {', '.join(parameters) or 'no arguments'}")
    variants: dict[str, dict[str, Any]] = {"train": {}}
    if "split" in parameters and "split" not in options:
        variants = {split: {"split": name} for split, name in splits.items() if name is not None}
    elif "train" in parameters and "train" not in options:
        variants = {split: {"train": split == "train"} for split in SPLITS if splits[split] is not None}
    if list(splits.values()) not in (list(SPLITS), ["train", None]) and "split" not in variants["train"]:
        if "split" in options:
            raise DataError(f"data.options.split={options['split']} already names the split that is read: leave it out")
        raise DataError(f"data.options.splits: {where} has no argument split that it could be for")
    given = options.keys() | variants["train"].keys()
    if missing := [name for name, each in parameters.items() if each.default is each.empty and name not in given]:
        raise DataError(f"{where} cannot be made without its argument {missing[0]}: set data.options.{missing[0]}")
    return variants


def _made(target: Any, options: Mapping[str, Any], arguments: Mapping[str, Any], where: str) -> tuple[Any, int]:
    """The object for a split, and its length."""
    given = "".join(f" with {key}={value}" for key, value in arguments.items())
    try:
        dataset = target(**options, **arguments)
    except Exception as error:  # it is a user's own code
        about = "split" in arguments and re.search(rf"\b{re.escape(str(arguments['split']))}\b", str(error))
        hint = "data.options.splits={train: NAME, test: NAME} names its splits, and test: null holds a fifth out"
        text = reason(error).replace("download=True", "data.download=true")  # as it is called here
        raise DataError(f"{where} cannot be made{given}: {text}{f'; {hint}' if about else ''}") from error
    try:
        return dataset, len(dataset)
    except Exception as error:
        raise DataError(f"{where} has no length{given}: {reason(error)}: give it __len__ and __getitem__") from error


def reason(error: Exception) -> str:
    """An error in one line, with its class."""
    text = one_line(error).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class _Items(NamedTuple):
    """A split: its dataset and number of items. where: for messages."""

    dataset: Any
    length: int
    where: str

    def item(self, position: int) -> tuple[Any, ...]:
        """What an item has: its image, and its label where it has one."""
        try:
            content = self.dataset[position]
        except Exception as error:
            raise DataError(f"{self.where}, item {position} cannot be read: {reason(error)}") from error
        if isinstance(content, Mapping):
            keys = ", ".join(map(str, content))
            raise DataError(f"{self.where}, item {position} is a mapping of {keys}: give (image, label), or an image")
        return tuple(content) if isinstance(content, tuple | list) and len(content) else (content,)

    def image(self, position: int) -> Picture:
        """The image of an item."""
        return as_image(self.item(position)[0], f"{self.where}, item {position}")

    def listed(self, name: str, notes: list[str]) -> list[Any] | None:
        """An attribute that is a list; None where there is none, or something else, which a note then says."""
        try:
            value = getattr(self.dataset, name, None)
            if value is None:
                return None
            if not callable(value) and not isinstance(value, str | bytes | Mapping):
                return list(value.tolist() if hasattr(value, "tolist") else value)
        except Exception as error:
            if not isinstance(error, TypeError) or "iter" not in str(error):  # it is no list
                raise DataError(f"{self.where}: its `{name}` cannot be read: {reason(error)}") from error
        kind = "a method" if inspect.ismethod(value) else f"of type {type(value).__name__}"
        notes.append(f"{self.where}: its `{name}` is {kind}, no list, and is not used")
        return None

    def clients(self, notes: list[str]) -> list[str]:
        """The names of the items' clients; empty where there are none."""
        names = self.listed("clients", notes) or []
        if all(name is None for name in names):
            return []
        if len(names) != self.length:
            raise DataError(
                f"{self.where}: clients has {len(names)} names for {self.length} items: give one an item, or None"
            )
        if None in names:
            raise DataError(f"{self.where}, item {names.index(None)} has no client, others have: give all one, or none")
        return list(map(str, names))

    def labels(self, notes: list[str]) -> list[int | str | None]:
        """The label of each item: of `targets` or `labels`, else the second value of each item."""
        stored = next((each for name in LABELS if len(each := self.listed(name, notes) or ()) == self.length), None)
        if stored is None:
            items = map(self.item, range(self.length))
            stored = [item[1] if len(item) > 1 else None for item in items]
        return [self._label(label, position) for position, label in enumerate(stored)]

    def _label(self, label: Any, position: int) -> int | str | None:
        """A label as a plain number or text."""
        if label is None or type(label) in (int, str):
            return None if is_missing(label) else label
        with_type = type(label).__name__
        try:
            array = np.asarray(label)
            if array.size == 1 and array.dtype.kind in "biuU":
                value = array.item()
                return None if is_missing(value) else value if isinstance(value, str) else int(value)
            with_type = f"{array.dtype} {list(array.shape)}" if array.dtype != object else with_type
        except Exception:  # nothing that could be a number
            pass
        raise DataError(
            f"{self.where}, item {position}: a label is no whole number or text, but {with_type}: give (image, label)"
        )


def _labels(parts: Mapping[str, _Items], notes: list[str], where: str) -> dict[str, list[int | str]]:
    """Label of each item by split; empty where items are images alone and nothing lists their labels."""
    train = parts["train"]
    if len(train.item(0)) < 2 and not any(train.listed(name, []) for name in LABELS):
        return {}
    labels = {split: part.labels(notes) for split, part in parts.items()}
    if all(label is None for label in labels["train"]):
        return {}
    for split, each in labels.items():
        if None in each:
            way = "; data.options.splits.test=null holds a fifth out" if set(each) == {None} else ""
            raise DataError(
                f"{where}: item {each.index(None)} of {split} has no label, others have: give all one, or none{way}"
            )
    return {split: [label for label in each if label is not None] for split, each in labels.items()}
