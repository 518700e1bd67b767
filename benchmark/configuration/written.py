"""What was written, on a command line or in a YAML file, read by the type of its key.

A number is written in decimal digits, with a point or an exponent; zeros in front of it mean nothing (`010` is 10).
Anything else, such as `0x10`, `1_000` or `12:30`, is text. A key of type text keeps what was written, also where that
reads as a number, as true or false (`on`), or as null.
"""

import re
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, ClassVar, Union, get_args, get_origin

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.reader import Reader

from benchmark.configuration.keys import fits

INTEGER = r"[-+]?[0-9]+"
FLOAT = r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
NAMED = r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
TRUE = ("yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON")
FALSE = ("no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")
NULL = ("", "~", "null", "Null", "NULL")
MOST_NODES = 10_000
"""Most values of a file, each counted as often as aliases repeat it."""
TAG = "tag:yaml.org,2002:"

Hint = Any
"""A key's type; UNKNOWN where the class that a section names decides."""
UNKNOWN = object()
TEXTS = str | list[str] | None
WORD = str | dict | None
"""What a whole section is given: its keys, or a word that is refused or names its content."""


class Written(str):
    """What was written for a key whose type is not known yet. value: what it reads as, where that is no text."""

    value: Any

    def __new__(cls, text: str, value: Any) -> "Written":
        """The text with its value."""
        made = super().__new__(cls, text)
        made.value = value
        return made

    def __getnewargs__(self) -> tuple[str, Any]:  # type: ignore[override]
        return str(self), self.value


def value_of(text: str) -> Any:
    """What an unquoted word reads as: a number, true, false, null, or itself."""
    if re.fullmatch(INTEGER, text):
        return int(text)
    if re.fullmatch(f"{FLOAT}|{NAMED}", text):
        return float(text.replace(".inf", "inf").replace(".nan", "nan") if "." in text else text)
    if text in TRUE or text in FALSE:
        return text in TRUE
    return None if text in NULL else text


def spelling(value: Any) -> str:
    """The usual spelling of a number, true or false."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_written(value: Any, hint: Hint) -> Any:
    """What a `Written` value is: what it reads as where its key's type takes that, else its text where the type takes
    text. Of a list, item by item; any other value is left as it is.

    hint: the type; if UNKNOWN, the value remains `Written`, unless it has its usual spelling.
    """
    if isinstance(value, list):
        items = [get_args(option)[0] for option in _options(hint) if get_origin(option) in (list, tuple, Sequence)]
        inner = items[0] if items else UNKNOWN if hint is UNKNOWN else Any
        return [as_written(item, inner) for item in value]
    if not isinstance(value, Written):
        return value
    text, read = str(value), value.value
    if hint is UNKNOWN:
        return read if read is not None and text == spelling(read) else value
    return text if text and not fits(read, hint) and fits(text, hint) else read


def respelt(value: Any, hint: Hint) -> Any:
    """An argument of a class, in which a number, true or false is text again where its type takes text alone."""
    return as_written(_spelt(value), hint)


def _spelt(value: Any) -> Any:
    if isinstance(value, list):
        return [_spelt(item) for item in value]
    return Written(spelling(value), value) if isinstance(value, int | float) else value


def settled(content: Any) -> Any:
    """Content whose values are what they read as, where no type has asked for the text."""
    if isinstance(content, Mapping):
        return {key: settled(value) for key, value in content.items()}
    if isinstance(content, list):
        return [settled(value) for value in content]
    return content.value if isinstance(content, Written) else content


def _options(hint: Hint) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def read_yaml_text(text: str) -> Any:
    """The content of a YAML file; a number, true, false or null is `Written`. Raises YAMLError, ValueError."""
    return yaml.load(text, _Loader)


def read_value(text: str, hint: Hint) -> Any:
    """The value of `key=text` on a command line. Text may be in quotes, which do not belong to it.

    hint: the key's type. Raises YAMLError, ValueError, RecursionError: it is no YAML, or has a key twice; of text: a
    character that no file can hold, or quotes that are not closed.
    """
    verbatim = set(_options(hint)) <= {str, type(None)} or (hint in (TEXTS, WORD) and not text.startswith(("[", "{")))
    if verbatim and not re.fullmatch(r"""(["']).*\1""", text, re.DOTALL):
        if unreadable := Reader.NON_PRINTABLE.search(text):
            raise yaml.YAMLError(f"no file of a run could hold the character {unreadable[0]!a}")
        value = value_of(text)
        return as_written(value if isinstance(value, str) else Written(text, value), hint)
    return read_yaml_text(text)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML whose plain words are read by `value_of`, and among whose keys `on` and its like are text.

    It refuses keys that are given twice, and aliases that contain themselves or repeat too much.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_document(self, node: Node) -> Any:
        """The document's content."""
        self._count(node, {})
        return super().construct_document(node)

    def _count(self, node: Node, counts: dict[Node, int]) -> int:
        """The values in a node, each as often as aliases repeat it."""
        if node not in counts:
            counts[node] = MOST_NODES  # of an alias within itself
            children = node.value if isinstance(node, SequenceNode) else []
            if isinstance(node, MappingNode):
                keys = [key for key, _ in node.value if isinstance(key, ScalarNode) and key.tag != f"{TAG}merge"]
                first: dict[str, Node] = {}
                if twice := [key for key in keys if first.setdefault(key.value, key) is not key]:
                    raise ConstructorError(None, None, f"found duplicate key {twice[0].value}", twice[0].start_mark)
                for key in keys:  # a number is no name of a key, which `check_plain` says
                    key.tag = f"{TAG}str" if key.tag == f"{TAG}bool" else key.tag
                children = [child for pair in node.value for child in pair]
            counts[node] = 1 + sum(self._count(child, counts) for child in children)
        if counts[node] > MOST_NODES:
            problem = f"more than {MOST_NODES} values, or aliases that contain themselves"
            raise ConstructorError(None, None, problem, node.start_mark)
        return counts[node]


def _written(loader: _Loader, node: ScalarNode) -> Any:
    value = value_of(node.value)
    kinds = {"int": int, "float": int | float, "bool": bool, "null": None}
    if not fits(value, kinds[node.tag.removeprefix(TAG)]):  # of a tag that somebody has written
        raise ConstructorError(None, None, f"{node.value!r} is not of the type {node.tag}", node.start_mark)
    return Written(node.value, float(value) if node.tag == f"{TAG}float" else value)


for _kind, _pattern, _first in (
    ("int", INTEGER, "-+0123456789"),
    ("float", f"{FLOAT}|{NAMED}", "-+.0123456789"),
    ("bool", "|".join((*TRUE, *FALSE)), "yYtToOnNfF"),
    ("null", "|".join(NULL), ["~", "n", "N", ""]),
    ("merge", "<<", "<"),
):
    _Loader.add_implicit_resolver(f"{TAG}{_kind}", re.compile(rf"(?:{_pattern})\Z"), list(_first))
    _Loader.add_constructor(f"{TAG}{_kind}", _Loader.construct_scalar if _kind == "merge" else _written)
