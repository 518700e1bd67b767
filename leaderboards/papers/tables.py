"""The papers' numbers: every cell of their results tables, its setting, and which number of ours stands beside it.

A file of `published/` is a paper; a line of its `rows` is a line of the paper's table, so that one can be read against
the other. What a table, a column and a row say of a cell adds up, the later over the earlier:

    paper, name, cite  what is quoted. remark, unit, setting: of all its cells
    tables             by their number in the paper, each with a `title` and
      columns          heading -> what it adds, left to right
      rows             name -> `values`, left to right, and what it adds; a value is a number, [number, spread], words
                       or null (the paper has none there); remarks: by heading, of one cell

What adds up are `unit`, keys of SETTINGS, and of ours `scenario`, `row` and `score` ("protocol metric"), in which
`{alpha}` stands for the setting of that name; null takes back what was said before. A row may give a list, left to
right as its values. A cell that has all three is held against that score of ours. Remarks are all kept.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from leaderboards.schema import RecordError, is_number

SETTINGS = {
    "data": "trained on",
    "partition": "rule by which clients get their images",
    "target": "evaluated on, where that is another data set",
    "clients": "K",
    "alpha": "of the Dirichlet partition",
    "participation": "share of the clients in a round",
    "rounds": "R, or T",
    "epochs": "local, E",
    "batch_size": "local",
    "encoder": "network",
    "evaluation": "how it is scored",
    "labels": "percent that fine-tuning sees",
    "pick": "last round or best",
    "data_share": "percent of the training images",
    "client": "whose network",
    "method": "where no row of ours says it",
    "public": "public data set",
    "public_share": "percent of the public data set",
    "kept": "percent of a similarity matrix",
    "temperature": "of the distillation",
    "anchors": "of the distillation",
    "momentum": "of the key encoder",
    "distil_batch_size": "of the distillation",
    "global_clusters": "G",
    "local_clusters": "L",
    "epsilon": "of differential privacy",
}
"""What a cell may say of its setting."""

WORDS = {"data", "partition", "target", "encoder", "evaluation", "pick", "method", "public"}
EITHER = {"client", "local_clusters"}
"""Settings that are words, and those that may be; the others are numbers."""

UNITS = ("%", "classes", "degrees", "dimensions", "distance^2", "nats", "words")

OURS = ("scenario", "row", "score")
SAID = ("unit", "remark")


class Ours(NamedTuple):
    """The number of ours beside a published one: a row of a scenario, and its score, "protocol metric"."""

    scenario: str
    row: str
    score: str


@dataclass(frozen=True)
class Published:
    """One cell. spread: the paper's standard deviation, None where it gives none; ours: None where we have no such.

    column_index: of its column, from the left.
    """

    paper: str
    name: str
    cite: str
    table: str
    title: str
    row: str
    column: str
    value: float | str
    spread: float | None
    unit: str
    setting: Mapping[str, object]
    remarks: tuple[str, ...]
    ours: Ours | None
    column_index: int

    @property
    def where(self) -> str:
        """Its table, as one calls it."""
        return f"table {self.table}" if self.table[0].isdigit() else self.table

    @property
    def place(self) -> str:
        """Where it is printed, in words."""
        return f"{self.paper}, {self.where}, {self.row}, {self.column}"


FOLDER = Path(__file__).parents[1] / "published"


def collect(folder: Path = FOLDER) -> list[Published]:
    """Every published cell, paper by paper, in the order of its tables.

    Raises:
        RecordError: one line for a file, a table or a cell that is not as this module says, with its place.
    """
    cells = [cell for file in sorted(folder.glob("*.yaml")) for cell in read(file)]
    whose: dict[str, str] = {}
    for cell in cells:
        if whose.setdefault(cell.paper, cell.cite) != cell.cite:
            raise RecordError(f"{folder}: two papers are called {cell.paper}: {whose[cell.paper]}; {cell.cite}")
    return cells


def read(file: Path) -> list[Published]:
    """The cells of one paper."""
    try:
        paper = yaml.load(file.read_text(encoding="utf-8"), _Once)
    except (OSError, yaml.YAMLError) as error:
        raise RecordError(f"{file}: not a readable YAML file ({' '.join(str(error).split())})") from error
    _expect(file.name, paper, needed=("paper", "name", "cite", "tables"), may=("setting", *SAID))
    cells = []
    for name, table in paper["tables"].items():
        where = f"{file.name}, table {name}"
        _expect(where, table, needed=("title", "columns", "rows"), may=("setting", *SAID, *OURS))
        cells += list(_cells(where, paper, str(name), table))
    return cells


class _Once(yaml.SafeLoader):
    """YAML in which a key stands once: of a row given twice the last would win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := [str(key) for place, key in enumerate(keys) if key in keys[:place]]:
            raise yaml.YAMLError(f"{twice[0]!r} stands twice, again in line {node.start_mark.line + 1} and below")
        return dict(super().construct_mapping(node, deep))


def _cells(where: str, paper: Mapping[str, Any], name: str, table: Mapping[str, Any]) -> Iterator[Published]:
    columns = table["columns"]
    base = {**_added(paper), **_added(table)}
    for row, line in table["rows"].items():
        _expect(f"{where}, {row}", line, needed=("values",), may=("remark", "remarks", "unit", *OURS, *SETTINGS))
        for key, given in line.items():
            if isinstance(given, list) and len(given) != len(columns):
                raise RecordError(f"{where}, {row}: {len(given)} {key} under {len(columns)} headings")
        if not isinstance(line["values"], list):
            raise RecordError(f"{where}, {row}: values {line['values']!r} are not a list")
        if unknown := sorted(set(line.get("remarks", {})) - set(columns)):
            raise RecordError(f"{where}, {row}: a remark on {unknown[0]!r}, which is no heading")
        for place, (column, extra) in enumerate(columns.items()):
            here = f"{where}, {row}, {column}"
            _expect(here, extra, needed=(), may=("remark", "unit", *OURS, *SETTINGS))
            own = {key: given[place] if isinstance(given, list) else given for key, given in line.items()}
            if (value := own.pop("values")) is None:
                continue
            said = {key: given for key, given in {**base, **extra, **own}.items() if given is not None}
            remarks = [part.get("remark") for part in (paper, table, extra, line)]
            remarks.append(line.get("remarks", {}).get(column))
            if "unit" not in said:
                raise RecordError(f"{here}: no unit, give one to the paper, the table or the column")
            known, spread = _value(here, value, said["unit"])
            setting = {key: _setting(here, key, said[key]) for key in SETTINGS if key in said}
            yield Published(
                paper=paper["paper"],
                name=paper["name"],
                cite=paper["cite"],
                table=name,
                title=table["title"],
                row=str(row),
                column=str(column),
                value=known,
                spread=spread,
                unit=said["unit"],
                setting=setting,
                remarks=tuple(dict.fromkeys(remark for remark in remarks if remark)),
                ours=_ours(here, said, setting),
                column_index=place,
            )


def _setting(where: str, key: str, value: object) -> object:
    """A setting that is a number, or words, as its key asks for."""
    words = isinstance(value, str)
    fits = words if key in WORDS else is_number(value) or (key in EITHER and words)
    if not fits:
        raise RecordError(f"{where}: {key} is {value!r}, expected {'words' if key in WORDS else 'a number'}")
    return value


def _value(where: str, value: object, unit: object) -> tuple[float | str, float | None]:
    """A cell's number, or its words, and its spread."""
    if unit not in UNITS:
        raise RecordError(f"{where}: unit is {unit!r}; there are {', '.join(UNITS)}")
    parts: list[Any] = value if isinstance(value, list) and len(value) == 2 else [value]
    if unit == "words" and isinstance(value, str):
        return value, None
    if unit == "words" or any(isinstance(part, bool) or not isinstance(part, int | float) for part in parts):
        raise RecordError(f"{where}: {value!r} is not a value in {unit}")
    if not all(math.isfinite(part) for part in parts):
        raise RecordError(f"{where}: {value!r} is not finite")
    if unit == "%" and not 0 <= parts[0] <= 100:
        raise RecordError(f"{where}: {value!r} is not from 0 to 100 %")
    if len(parts) == 2 and parts[1] < 0:
        raise RecordError(f"{where}: the spread of {value!r} is below 0")
    return parts[0], parts[1] if len(parts) == 2 else None


def _added(part: Mapping[str, Any]) -> dict[str, Any]:
    """What a paper or a table says of its cells."""
    return {**part.get("setting", {}), **{key: part[key] for key in ("unit", *OURS) if key in part}}


def _ours(where: str, said: Mapping[str, Any], setting: Mapping[str, object]) -> Ours | None:
    if any(key not in said for key in OURS):
        return None
    try:
        ours = Ours(*(str(said[key]).format_map(setting) for key in OURS))
    except (KeyError, ValueError, IndexError) as error:
        raise RecordError(f"{where}: {error} is asked for in scenario, row or score, but is no setting") from error
    for key, fits in FITTING.items():
        if key in setting and not fits(setting, ours.score):
            raise RecordError(f"{where}: {key} {setting[key]} is not what {ours.score} measures")
    return ours


MEASURES = {"linear probe": "linear-", "fine-tuning": "semi-", "angle between class prototypes, eq. 16": "drift/"}
"""A paper's way to score -> how the ids of the protocols that do so begin."""

FITTING: dict[str, Callable[[Mapping[str, object], str], bool]] = {
    "evaluation": lambda said, score: "target" in said or score.startswith(MEASURES.get(str(said["evaluation"]), " ")),
    "target": lambda said, score: score.startswith(f"transfer-{plain(said['target'])}/"),
    "labels": lambda said, score: score.endswith(f"accuracy_{said['labels']}pct"),
    "pick": lambda said, _: said["pick"] == "last",
}
"""Settings that no record holds: what they say has to be what the score of ours measures."""


def plain(name: object) -> str:
    """A name without case, hyphens and where a class lives: ResNet-18 is methods.networks.resnet18."""
    return str(name).rpartition(".")[2].lower().replace("-", "").replace("_", "")


def _expect(where: str, part: object, needed: tuple[str, ...], may: tuple[str, ...]) -> None:
    if not isinstance(part, Mapping):
        raise RecordError(f"{where}: {part!r} is not a mapping")
    if missing := [key for key in needed if not part.get(key)]:
        raise RecordError(f"{where}: {missing[0]} is missing")
    if unknown := sorted(str(key) for key in part if key not in (*needed, *may)):
        raise RecordError(f"{where}: {unknown[0]} is unknown; there are {', '.join((*needed, *may))}")
    if unknown := sorted(str(key) for key in part.get("setting", {}) if key not in SETTINGS):
        raise RecordError(f"{where}: setting {unknown[0]} is unknown; there are {', '.join(SETTINGS)}")
