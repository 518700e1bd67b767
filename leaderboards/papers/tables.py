"""The papers' numbers: every cell of their results tables, its setting, and which of our numbers it is compared with.

docs/how-to/boards.md describes the files of `published/`. A level (paper, table, column, row) gives its cells `unit`,
keys of SETTINGS, and for our number `scenario`, `row` and `score` ("protocol metric"), where `{alpha}` stands for the
setting of that name; `no_run` says why there is none. `computed` names what calculates our number without a run
(`computed.py`), `within` the largest difference that agrees, `agrees` on which side (AGREES). A later level replaces
what an earlier one gives, null removes it; a row may give a list, one item for each column. A `remark` of any level is
kept, but a paper's on numbers that are computed; a row's `remarks`, by heading, are on one cell each. A paper's
`training` is described in `training.py`. A table with `rows_of` has the values of another table's rows, all or those
that `rows` names, under its own headings.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from leaderboards.papers import bibliography, training
from leaderboards.papers.training import Given, Patterns
from leaderboards.schema import RecordError, is_number
from leaderboards.store import load_yaml


class Setting(NamedTuple):
    """A setting of published cells; `published_settings.yaml` says what the fields mean."""

    meaning: str
    field: str = ""
    kind: str = "number"
    unit: float = 1


SETTINGS = {key: Setting(**fields) for key, fields in load_yaml("published_settings.yaml").items()}
CLAIM = "claim"
"""Unit of a sentence that comparisons may contradict."""
TEXTS = ("words", CLAIM)
"""Units whose values are words."""
UNITS = (
    *("%", "bytes", "classes", "correlation", "degrees", "dimensions", "distance^2", "error", "images", "nats"),
    *("points", "rounds", "x", *TEXTS),
)
AGREES = ("equal", "at most", "at least")
"""What our number has to be of a published one to agree with it, up to the difference that is allowed."""
OURS = ("scenario", "row", "score")
KEYS = ("unit", "no_run", "computed", "within", "agrees", *OURS)
"""What any level may give, beside settings and remarks."""
Content = Mapping[str, Any]
"""What a level of a file gives its cells."""


class Ours(NamedTuple):
    """Our number that is compared with a published one: the score, "protocol metric", of a scenario's row."""

    scenario: str
    row: str
    score: str


@dataclass(frozen=True)
class Published:
    """One published cell.

    spread: the paper's standard deviation, None where it gives none. ours: None where we measure no such number, and
    no_run: why. column_index: of its column, from the left. training: how the paper trained, where we measure it.
    computed: what calculates our number without a run. within: the largest difference that agrees, None: the unit's.
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
    no_run: str = ""
    training: Mapping[str, Given] = field(default_factory=dict)
    computed: str = ""
    within: float | None = None
    agrees: str = AGREES[0]

    @property
    def where(self) -> str:
        """Its table in words, e.g. "table 4"."""
        return f"table {self.table}" if self.table[0].isdigit() else self.table

    @property
    def place(self) -> str:
        """Where the paper prints it, in words."""
        return f"{self.paper}, {self.where}, {self.row}, {self.column}"


FOLDER = Path(__file__).parents[1] / "published"


def collect(folder: Path = FOLDER) -> list[Published]:
    """Every published cell, paper by paper, in the order of its tables.

    Raises RecordError: one line for a file, a table or a cell that is not as this module says, with its place.
    """
    cells = [cell for file in sorted(folder.glob("*.yaml")) for cell in read(file)]
    cites: dict[str, str] = {}
    for cell in cells:
        if cites.setdefault(cell.paper, cell.cite) != cell.cite:
            raise RecordError(f"{folder}: two papers are called {cell.paper}: {cites[cell.paper]}; {cell.cite}")
    return cells


def read(file: Path) -> list[Published]:
    """The cells of one paper."""
    try:
        paper = yaml.load(file.read_text(encoding="utf-8"), _UniqueKeys)
    except (OSError, yaml.YAMLError) as error:
        raise RecordError(f"{file}: not a readable YAML file ({' '.join(str(error).split())})") from error
    optional = ("cite", "setting", "remark", "unit", "no_run", "training")
    _check_keys(file.name, paper, ("paper", "name", "tables"), optional)
    if "cite" not in paper and paper["paper"] not in bibliography.read():
        raise RecordError(f"{file.name}: cite is missing, and {bibliography.FILE.name} has no entry {paper['paper']!r}")
    cite = paper["cite"] if "cite" in paper else bibliography.read()[paper["paper"]].line
    patterns = training.read(file.name, paper.get("training", {}))
    cells: list[Published] = []
    for name, table in paper["tables"].items():
        where = f"{file.name}, table {name}"
        _check_keys(where, table, ("title", "columns"), ("rows", "rows_of", "setting", "remark", *KEYS))
        source = {**{key: paper[key] for key in ("paper", "name")}, "cite": cite, "table": str(name)}
        source |= {"title": table["title"]}
        for row, content in _rows(where, paper, table).items():
            cells += _row(f"{where}, {row}", paper, table, content, patterns, {**source, "row": str(row)})
    if idle := training.unused(patterns, (cell.training for cell in cells)):
        why = "sets nothing for any scenario and row of the file"
        raise RecordError(f"{file.name}: training pattern {idle[0]!r} {why}")
    return cells


def _rows(where: str, paper: Content, table: Content) -> Mapping[str, Content]:
    """The rows of a table; with `rows_of` the values that another table prints under the same headings."""
    if "rows_of" not in table:
        _check_keys(where, table, ("rows",), tuple(table))
        return dict(table["rows"])
    source = paper["tables"].get(table["rows_of"], {})
    if "rows_of" in source or "rows" not in source:
        raise RecordError(f"{where}: rows_of is {table['rows_of']!r}, which is no table of the file with rows")
    unknown = [name for name in table.get("rows", ()) if name not in source["rows"]]
    unknown += [name for name in table["columns"] if name not in source["columns"]]
    if unknown:
        raise RecordError(f"{where}: table {table['rows_of']} has no {unknown[0]!r}")
    places = [list(source["columns"]).index(name) for name in table["columns"]]
    values = {name: source["rows"][name]["values"] for name in table.get("rows", source["rows"])}
    return {name: {"values": [row[place] for place in places]} for name, row in values.items()}


class _UniqueKeys(yaml.SafeLoader):
    """A YAML loader that refuses a key given twice, of which plain YAML keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := [str(key) for index, key in enumerate(keys) if key in keys[:index]]:
            raise yaml.YAMLError(f"{twice[0]!r} stands twice, again in line {node.start_mark.line + 1} and below")
        return dict(super().construct_mapping(node, deep))


def _row(
    where: str, paper: Content, table: Content, content: Content, patterns: Patterns, source: Content
) -> Iterator[Published]:
    """The cells of a row; where the paper has no number there is none. source: fields that all of them share."""
    columns = table["columns"]
    _check_keys(where, content, ("values",), ("remark", "remarks", *KEYS, *SETTINGS))
    for key, value in content.items():
        if isinstance(value, list) and len(value) != len(columns):
            raise RecordError(f"{where}: {len(value)} {key} under {len(columns)} headings")
    if not isinstance(content["values"], list):
        raise RecordError(f"{where}: values {content['values']!r} are not a list")
    if unknown := sorted(set(content.get("remarks", {})) - set(columns)):
        raise RecordError(f"{where}: a remark on {unknown[0]!r}, which is no heading")
    for index, (column, column_content) in enumerate(columns.items()):
        here = f"{where}, {column}"
        _check_keys(here, column_content, (), ("remark", *KEYS, *SETTINGS))
        row_content = {key: value[index] if isinstance(value, list) else value for key, value in content.items()}
        if row_content["values"] is None:
            continue
        levels = (paper.get("setting", {}), paper, table.get("setting", {}), table, column_content, row_content)
        merged = {key: level[key] for level in levels for key in (*KEYS, *SETTINGS) if key in level}
        merged = {key: value for key, value in merged.items() if value is not None}
        if "unit" not in merged:
            raise RecordError(f"{here}: no unit, give one to the paper, the table or the column")
        value, spread = _value(here, row_content["values"], merged["unit"])
        setting = {key: _setting(here, key, merged[key]) for key in SETTINGS if key in merged}
        of_paper = {} if merged.get("computed") else paper
        remarks = [level.get("remark") for level in (of_paper, table, column_content, content)]
        remarks.append(content.get("remarks", {}).get(column))
        ours = _ours(here, merged, setting)
        yield Published(
            **source,
            column=str(column),
            value=value,
            spread=spread,
            unit=merged["unit"],
            setting=setting,
            remarks=tuple(dict.fromkeys(remark for remark in remarks if remark)),
            ours=ours,
            column_index=index,
            no_run=str(merged.get("no_run", "")),
            computed=str(merged.get("computed", "")),
            within=_within(here, merged),
            agrees=_agrees(here, merged),
            training=training.of_row(here, patterns, ours.scenario, ours.row) if ours else {},
        )


def _within(where: str, merged: Content) -> float | None:
    within = merged.get("within")
    if within is not None and not (is_number(within) and within >= 0):
        raise RecordError(f"{where}: within is {within!r}, expected a number, at least 0")
    return within


def _agrees(where: str, merged: Content) -> str:
    agrees = merged.get("agrees", AGREES[0])
    if agrees not in AGREES:
        raise RecordError(f"{where}: agrees is {agrees!r}; there are {', '.join(AGREES)}")
    return str(agrees)


def _setting(where: str, key: str, value: object) -> object:
    """The value of a setting, checked against its kind."""
    kind = SETTINGS[key].kind
    text = kind in ("text", "name")
    if not (isinstance(value, str) if text else is_number(value) or (kind == "either" and isinstance(value, str))):
        raise RecordError(f"{where}: {key} is {value!r}, expected {'words' if text else 'a number'}")
    return value


def _value(where: str, value: object, unit: object) -> tuple[float | str, float | None]:
    """A cell's number, or its text, and its spread."""
    if unit not in UNITS:
        raise RecordError(f"{where}: unit is {unit!r}; there are {', '.join(UNITS)}")
    if unit in TEXTS and isinstance(value, str):
        return value, None
    numbers: list[Any] = value if isinstance(value, list) and len(value) == 2 else [value]
    if unit in TEXTS or not all(map(is_number, numbers)):
        raise RecordError(f"{where}: {value!r} is not a value in {unit}")
    if unit == "%" and not 0 <= numbers[0] <= 100:
        raise RecordError(f"{where}: {value!r} is not from 0 to 100 %")
    if len(numbers) == 2 and numbers[1] < 0:
        raise RecordError(f"{where}: the spread of {value!r} is below 0")
    return numbers[0], numbers[1] if len(numbers) == 2 else None


def _ours(where: str, merged: Mapping[str, Any], setting: Mapping[str, object]) -> Ours | None:
    if any(key not in merged for key in OURS):
        return None
    try:
        ours = Ours(*(str(merged[key]).format_map(setting) for key in OURS))
    except (KeyError, ValueError, IndexError) as error:
        raise RecordError(f"{where}: {error} is used in scenario, row or score, but is no setting") from error
    for key, fits in FITTING.items():
        if key in setting and not fits(setting, ours.score):
            raise RecordError(f"{where}: {key} {setting[key]} is not what {ours.score} measures")
    return ours


MEASURES = {"linear probe": "linear-", "fine-tuning": "semi-", "angle between class prototypes, eq. 16": "drift/"}
"""A paper's evaluation -> prefix of the ids of the protocols that do the same."""

WHOSE = {"min": " accuracy_worst", "mean": " accuracy"}
"""A paper's client -> our metric as it is shown (`encoders.shown`), where every client has an encoder of its own. Of a
client by its number, it is the accuracy of that client's encoder."""

FITTING: dict[str, Callable[[Mapping[str, object], str], bool]] = {
    "evaluation": lambda setting, score: (
        "target" in setting or score.startswith(MEASURES.get(str(setting["evaluation"]), " "))
    ),
    "target": lambda setting, score: score.startswith(f"transfer-{plain(setting['target'])}/"),
    "labels": lambda setting, score: score.endswith(f"accuracy_{setting['labels']}pct"),
    "client": lambda setting, score: score.endswith(WHOSE.get(str(setting["client"]), WHOSE["mean"])),
    "pick": lambda setting, score: setting["pick"] == ("best" if score.endswith("_best_on_test") else "last"),
}
"""Settings that no record holds -> whether our score, by its name, measures what they ask for."""


def plain(name: object) -> str:
    """A name without its Python module, case and hyphens: ResNet-18 and methods.networks.resnet18 give the same."""
    return str(name).rpartition(".")[2].lower().replace("-", "").replace("_", "")


def _check_keys(where: str, content: Content, required: Sequence[str], optional: Sequence[str]) -> None:
    if not isinstance(content, Mapping):
        raise RecordError(f"{where}: {content!r} is not a mapping")
    if missing := [key for key in required if not content.get(key)]:
        raise RecordError(f"{where}: {missing[0]} is {'empty' if missing[0] in content else 'missing'}")
    settings = content.get("setting", {})
    for what, keys, known in (("", content, (*required, *optional)), ("setting ", settings, SETTINGS)):
        if unknown := sorted(str(key) for key in keys if key not in known):
            raise RecordError(f"{where}: {what}{unknown[0]} is unknown; there are {', '.join(known)}")
