"""Protocols that an import path names: what they are given, their ids, and what is refused in one line."""

import sys

import pytest
import torch

from eval import own
from eval.features import EvalError, Features
from eval.own import load
from eval.protocol import evaluate, find

CODE = """
from functools import partial
from eval.protocol import Protocol

def spread(test_x, scale=1.0, name="x"):
    return float(test_x.std()) * scale

def counted(train_y, num_classes, members=None):
    return {"classes": num_classes, "rows": len(train_y)}

def by_clients(view_a, test_clients):
    return 0

def needs(test_x, top):
    return top

def second_view(view_b):
    return {}

def further(test_x, **more):
    return float("nan")

def fails(test_x):
    return test_x @ test_x

def says(test_x):
    return "much"

twice = partial(spread, scale=2.0)
declared = Protocol("x", spread, "spread", settings={"scale": 3.0}, headline="value", lower=("value",))
from torch import mean as unsigned
number = 3
"""


@pytest.fixture
def blobs():
    """Features of 40 and 20 rows with 8 dimensions, of three classes."""
    draws = torch.Generator().manual_seed(0)
    made = {f"{split}_x": torch.randn(rows, 8, generator=draws) for split, rows in (("train", 40), ("test", 20))}
    made |= {f"{split}_y": torch.arange(rows) % 3 for split, rows in (("train", 40), ("test", 20))}
    return Features(**made, num_classes=3)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A function that writes the module `owned` and forgets what was imported of it."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(code=CODE):
        (tmp_path / "owned.py").write_text(code)
        sys.modules.pop("owned", None)

    write()
    yield write
    sys.modules.pop("owned", None)


def scores(features, word):
    return {score.metric: score.value for score in evaluate(features, [load(word).id])}


def test_it_is_given_what_it_declares_and_its_settings(module, blobs):
    spread = scores(blobs, "owned.spread")["value"]
    assert spread == pytest.approx(float(blobs.test_x.std()))
    for word, factor in {
        "owned.spread:scale=2": 2,
        "owned.twice": 2,
        "owned.declared": 3,
        "owned.declared:scale=1e-1": 0.1,
        "owned.declared:name=y": 3,
    }.items():
        assert scores(blobs, word)["value"] == pytest.approx(factor * spread)
    assert scores(blobs, "owned.counted") == {"classes": blobs.num_classes, "rows": len(blobs.train_y)}
    assert scores(blobs, "owned.needs:top=7") == {"value": 7}


def test_what_it_requires_follows_from_its_arguments(module):
    found = {name: load(f"owned.{name}") for name in ("spread", "counted", "by_clients", "second_view", "declared")}
    assert [each.requires for each in found.values()] == ["", "", "test_clients", "views", ""]
    assert [each.uses_labels for each in found.values()] == [False, True, False, False, False]
    assert [each.uses_views for each in found.values()] == [False, False, True, True, False]
    assert (found["declared"].better("value"), found["spread"].leading(["a", "b"])) == ("lower", "a")


def test_other_code_or_settings_are_another_protocol(module, tmp_path, blobs):
    first, other = load("owned.spread").id, load("owned.spread:scale=2").id
    assert (first.split("/")[0], other.split("/")[0]) == ("owned.spread", "owned.spread:scale=2")
    assert load(first).id == first
    (tmp_path / "names.py").write_text("from owned import spread, declared")
    named = load("names.declared").id
    (tmp_path / "names.py").write_text("from owned import spread\nfrom owned import declared")
    del sys.modules["names"], own.IMPORTED["names.declared"]
    assert load("names.declared").id.split("/")[0] == named.split("/")[0] != named
    assert load("names.declared").id != named  # the module that declares it counts too
    (tmp_path / "owned.py").write_text(CODE.replace("* scale", "* scale + 2"))
    with pytest.raises(EvalError, match="its file has changed since this process imported it"):
        load("owned.spread")  # whose function is the old one
    module(CODE.replace("* scale", "* scale + 1"))
    assert load("owned.spread").id != first
    with pytest.raises(EvalError, match=r"its code has changed since, and is /\w{8} now: give owned.spread"):
        load(first)
    assert find("other.of_somebody/0123abcd").leading(["alpha"]) == "alpha"  # in a table, without its code
    for name in ("owned.spread", "other.of_somebody/0123abcd"):
        with pytest.raises(EvalError, match="was not imported"):
            evaluate(blobs, [name])


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("owned.spred", "module 'owned' has no spred"),
        ("nowhere.spread", "No module named 'nowhere'.*is its folder in PYTHONPATH"),
        ("owned.number", "no function and no eval.protocol.Protocol"),
        ("owned.needs", "needs 'top': give owned.needs:top=VALUE"),
        ("owned.spread:scall=2", r"no setting 'scall' \(did you mean 'scale'\?\): scale, name"),
        ("owned.spread:scale", "give an import path, with settings as"),
        ("owned.spread:scale=1:scale=2", "a setting is given twice"),
        ("owned.spread:name=a b", "a setting has a space: leave it out"),
        ("owned.unsigned", "its arguments cannot be read: wrap it in a function"),
    ],
)
def test_a_mistake_is_one_line(module, word, line):
    with pytest.raises(EvalError, match=line) as error:
        load(word)
    assert "\n" not in str(error.value)


def test_its_own_error_is_one_line_with_its_place_and_others_are_scored(module, blobs):
    failures: dict[str, str] = {}
    ids = [load(f"owned.{name}").id for name in ("fails", "says", "further", "spread")]
    found = evaluate(blobs, ids, failures=failures)
    assert [score.protocol for score in found] == ids[3:]
    assert "RuntimeError" in failures[ids[0]]
    assert failures[ids[0]].endswith("(owned.py, line 24)")
    for id, shown in zip(ids[1:3], ("'much'", "nan"), strict=True):
        assert failures[id].endswith(f"it returned {shown}: let it return a finite number, or some by name")


def test_the_module_that_imports_nothing_is_refused_by_its_own_error(module):
    module("raise OSError('no\\nlicence')")
    with pytest.raises(EvalError, match=r"OSError: no licence \(owned.py, line 1\)"):
        load("owned.spread")


def test_a_metric_of_a_tensor_is_a_number(module, blobs):
    module("def mean(test_x):\n    return {'mean': test_x.mean()}\n")
    assert scores(blobs, "owned.mean")["mean"] == pytest.approx(float(torch.mean(blobs.test_x)))
