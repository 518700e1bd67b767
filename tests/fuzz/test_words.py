"""Commands, overrides and YAML files as nobody should write them."""

import copy
import string
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchmark.configuration.layers import FREE, HINTS, TYPED
from leaderboards.papers import tables
from tests.fuzz.outcome import NUMBERS, TEXTS, Case, cases, content, empty_folder, hostile, tiny
from tests.run_helpers import TINY

SLOW = ("rounds", "epochs", "steps", "max_epochs", "examples", "widths", "size", "image_size", "every")
"""Last words of keys whose large values are no mistake, only hours of work."""
ELSEWHERE = ("output", "root", "cache", "devices", "nodes", "logger", "compile", "download", "executor")
"""Last words of keys that have tests of their own: where files go, and what starts processes or a compiler."""
KEYS_OF_CLASSES = {
    "partition": "name clients alpha seed share held_out shift min_size classes_per_client",
    "encoder": "class widths strides norm",
    "objective": "class name temperature momentum dim",
    "method": "class addons mu name",
    "optimizer": "class lr momentum betas nesterov foreach weight_decay",
    "server_optimizer": "class lr",
    "views": "size crop_scale crop_ratio flip jitter grey blur blur_kernel",
    "data.options": "examples classes channels seed",
    "federation.encoders": "a a.class a.clients",
}


def known_keys() -> list[str]:
    """Dotted keys of the schema, and of the sections whose keys belong to a class."""
    keys = [f"{section}.{name}" for section, names in (*TYPED.items(), *FREE.items()) for name in names]
    keys += [section for section in HINTS if section not in TYPED]
    keys += [f"{section}.{name}" for section, names in KEYS_OF_CLASSES.items() for name in names.split()]
    return sorted(set(keys))


def is_mistake(key: str, value: Any) -> bool:
    """Whether a value of a key is to be tried, see SLOW and ELSEWHERE."""
    last, text = key.rpartition(".")[2], str(value)
    large = text in ("0x1F", "1_0", "1e5") or text.lstrip("-").startswith("1000")
    return last not in ELSEWHERE and not (last in SLOW and large)


keys = st.sampled_from(known_keys()) | st.text(string.ascii_lowercase + "._[]0", min_size=1, max_size=12)
override = st.tuples(keys, hostile).filter(lambda pair: is_mistake(*pair)).map("=".join)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a finished run, which is whole after all cases."""
    path = tmp_path_factory.mktemp("fuzz")
    assert Case(tiny(path, "row=finished", "scenario=kept", "minutes=null")).check().code == 0
    before = content(path / "runs" / "kept")
    yield path
    assert content(path / "runs" / "kept") == before


@cases("words")
@given(st.lists(override, min_size=1, max_size=3), st.sampled_from(["fedavg", "fedema", "scaffold"]))
def test_overrides(root: Path, words: list[str], method: str) -> None:
    with empty_folder(root / "empty"):
        Case(tiny(root, *words, method=method)).check()


COMMANDS: dict[str, Callable[[Path, str, str], list[str]]] = {
    "run": lambda root, a, b: ["run", a, b, "minutes=0", "logger=csv", f"output={root}/runs"],
    "suite": lambda root, a, b: ["run", f"suite={a}", f"seeds={b}", "minutes=0", "logger=csv", f"output={root}/runs"],
    "methods": lambda root, a, b: ["run", "suite=digits", f"methods={a}", f"scenarios={b}", "minutes=0", "logger=csv"],
    "resume": lambda root, a, b: ["resume", a, f"trust={b}"],
    "evaluate": lambda root, a, b: ["evaluate", f"{root}/runs/kept/finished/seed0", f"protocols={a}", f"x={b}"],
    "tune": lambda root, a, b: ["tune", *tiny(root, f"optimizer.lr={a},{b}", "minutes=0")[1:]],
    "search": lambda root, a, b: ["tune", "suite=digits", f"methods={a}", f"minutes={b}", "plan=true"],
    "campaign": lambda root, a, b: ["campaign", a, f"minutes={b}", "plan=true"],
    "plan": lambda root, a, b: ["campaign", "ssd-main", f"devices={a}", f"jobs={b}", "plan=true"],
    "board": lambda root, a, b: ["board", f"collect={a}", f"folder={root}/{'board' if b else b}"],
    "list": lambda root, a, b: ["list", a, b],
    "parity": lambda root, a, b: ["parity", a, f"accelerator={b}"],
    "publish": lambda root, a, b: ["publish", f"folder={root}/no-board", f"project={a}", f"entity={b}"],
    "regress": lambda root, a, b: ["regress", f"capture={a}", f"x={b}"],
    "privacy": lambda root, a, b: ["privacy", a, f"x={b}"],
    "submit": lambda root, a, b: ["submit", a, f"chosen={b}"],
    "verify": lambda root, a, b: ["verify", a, f"replay={b}"],
    "new": lambda root, a, b: ["new", a, b],
    "name": lambda root, a, b: ["new", "method", f"{a}-{b}"],
}
"""Commands that would do little even where both words happened to be right."""


@cases("commands")
@given(st.sampled_from(sorted(COMMANDS)), hostile, hostile)
def test_words_of_commands(root: Path, command: str, a: str, b: str) -> None:
    with empty_folder(root / "empty"):
        Case(COMMANDS[command](root, a, b)).check()


TEXT_FILES = (
    "", "\x00\x01", "- a\n- b", "5", "null", "!!set {a, b}", "1: 2", "? [a]\n: b", "a: &x [*x]", "data: *none", "{",
    "\t- a", "like: {name}", "like: {file}", "like: [a]", "like: 5", "row: x", "adjust: 5", "adjust: {fedavg: 5}",
    "adjust: {5: {}}", "seed: !!python/object/apply:os.system [x]", "data: !!binary aGk=", "seed: 2020-01-01",
    "a: b: c", "--- a\n--- b", "\ufeffseed: 1",
)  # fmt: skip
"""Contents of a scenario's file; {file} is its path, {name} its name."""

numbers = [number for number in NUMBERS if not isinstance(number, str)]
leaf = st.sampled_from([*TEXTS[:40], *numbers, None, True, [], {}, [1], {"a": 1}, {1: 2}])


@st.composite
def damaged_scenario(draw: st.DrawFn) -> str:
    """The tiny scenario with up to three of its keys removed, renamed or given another value."""
    scenario = yaml.safe_load(Path(TINY).read_text())
    for _ in range(draw(st.integers(1, 3))):
        where, key, path = scenario, draw(st.sampled_from(sorted(scenario, key=str))), []
        while isinstance(where[key], dict) and where[key] and draw(st.booleans()):
            path.append(str(key))
            where = where[key]
            key = draw(st.sampled_from(sorted(where, key=str)))
        change = draw(st.sampled_from(["replace", "replace", "remove", "rename"]))
        value = where.pop(key)
        if change == "replace":
            value = draw(leaf.filter(lambda value: is_mistake(".".join([*path, str(key)]), value)))  # noqa: B023
        if change != "remove":
            name = draw(st.sampled_from([5, None, "x", "\x1b", 1.5, True])) if change == "rename" else key
            where[name] = copy.deepcopy(value)
        if not scenario:
            break
    return yaml.safe_dump(scenario, allow_unicode=True)


@cases("yaml")
@given(st.sampled_from(TEXT_FILES) | damaged_scenario())
def test_scenario_files(root: Path, text: str) -> None:
    file = root / "scenario.yaml"
    file.write_text(text.replace("{file}", str(file)).replace("{name}", "scenario"), encoding="utf-8")
    with empty_folder(root / "empty"):
        Case(tiny(root, scenario=str(file))).check()


def test_scenario_files_of_no_encoding(root: Path) -> None:
    file = root / "scenario.yaml"
    for bytes_of_file in (b"\xff\xfe\x00", b"seed: \xff", bytes(range(256)), b"\x80" * 50):
        file.write_bytes(bytes_of_file)
        with empty_folder(root / "empty"):
            assert Case(tiny(root, scenario=str(file))).check().code == 2


OTHER_FILES = {
    "method": (
        *(f"objective: {value}" for value in ("5", "[]", "{}", "{name: 5}", "null", "{name: }", "nope")),
        *(f"method: {value}" for value in ("5", "{class: 5}", "{name: 5}", "{class: methods.fedavg.FedAvg, name: x}")),
        *(f"partition: {value}" for value in ("5", "[]", "{name: 5}")),
        "method: {class: methods.fedavg.FedAvg}\nobjective: {name: simclr, temperature: x}",
        *("training: 5", "like: digits", "x: 1", "5: 1", "- a", "5", "", "heads: 5"),
    ),
    "suite": (
        *("scenarios: 5", "more: 5", "methods: null\nscenarios: null\nseeds: null", "- a", "5", "", "5: 1"),
        *(f"scenarios: {value}\nmethods: [fedavg]\nseeds: [0]" for value in ("{a: b}", "[[a]]", "['digits =']")),
        *(f"scenarios: [digits]\nmethods: {value}\nseeds: [0]" for value in ("5", "[null]", "['fedavg a b']")),
        *(f"scenarios: [digits]\nmethods: [fedavg]\nseeds: {value}" for value in ("1", "x", "[1.5]")),
    ),
    "campaign": (
        *("parts: 5", "parts: [5]", "parts: [{5: 6}]", "parts: [{scenarios: 5, methods: 5, seeds: 5}]"),
        "parts: [{scenarios: [digits], methods: [''], seeds: [0]}]",
        *(f"parts: [{{scenarios: [digits], methods: [fedavg], seeds: {value}}}]" for value in ("[x]", "{a: 1}")),
        "parts: [{scenarios: [digits], methods: [fedavg], seeds: [0]}]\nunknown: {a: b}",
        *("parts: []\nunknown: 5", "unknown: 5", "- a", "5", "", "5: 1"),
    ),
}
"""Kind of file -> its contents; those of methods stand for objectives too."""
WORDS = {
    "method": ("run", "digits", "{file}"),
    "objective": ("run", "digits", "fedavg", "objective={file}"),
    "suite": ("run", "suite={file}"),
    "campaign": ("campaign", "{file}", "plan=true"),
}


@pytest.mark.parametrize("kind", WORDS)
def test_other_files(root: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "collect", cache(tables.collect))  # the papers' tables, which every campaign reads
    file, common = root / f"{kind}.yaml", [f"output={root}/runs"]
    common += [] if kind == "campaign" else [f"data.cache={root}/cache", "minutes=0", "logger=csv"]
    for text in (*OTHER_FILES[kind if kind in OTHER_FILES else "method"], *TEXT_FILES):
        file.write_text(text, encoding="utf-8")
        with empty_folder(root / "empty"):
            Case([*(word.replace("{file}", str(file)) for word in WORDS[kind]), *common]).check()
