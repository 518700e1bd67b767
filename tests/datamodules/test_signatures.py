"""The arguments that a config may set, against Python's own binding of calls."""

import inspect
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from datamodules.signatures import signature_of

NAMES = ("alpha", "beta", "gamma", "delta")
KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def source(kinds, keywords):
    """The parameters of a function, of these kinds in order, as they are written."""
    each = [inspect.Parameter(name, kind, default=0) for name, kind in zip(NAMES, kinds, strict=False)]
    rest = [inspect.Parameter("rest", inspect.Parameter.VAR_KEYWORD)] if keywords else []
    return str(inspect.Signature([*each, *rest])).strip("()")


def network(kinds, keywords, base=nn.Module):
    """A class whose constructor has these parameters and passes the rest on to its base."""
    space = {"base": base}
    text = f"self, {source(kinds, keywords)}".removesuffix(", ")
    exec(f"class Made(base):\n def __init__({text}):\n  base.__init__(self{', **rest' if keywords else ''})", space)
    return space["Made"]


def accepted(target, names):
    """Those of the names that a call takes as keywords."""
    taken = set()
    for name in names:
        with suppress(TypeError):
            target(**{name: 1})
            taken.add(name)
    return taken


kinds = st.lists(st.sampled_from(KINDS), max_size=3).map(lambda each: sorted(each, key=KINDS.index))


@settings(derandomize=True)
@given(kinds, st.booleans())
def test_a_function_takes_what_python_binds(kinds, keywords):
    exec(f"def target({source(kinds, keywords)}): pass", space := {})
    made = signature_of(target := space["target"])
    positional_only = set(NAMES[: kinds.count(inspect.Parameter.POSITIONAL_ONLY)])
    assert set(made.named) == accepted(target, NAMES[: len(kinds)]) - positional_only
    assert made.passes_on == keywords


@settings(derandomize=True)
@given(kinds, kinds, st.booleans())
def test_a_class_takes_what_its_constructor_and_those_it_passes_on_to_bind(own, inherited, keywords):
    base = network(inherited, False)
    target = network(own, keywords, base)
    hidden = set(NAMES[: own.count(inspect.Parameter.POSITIONAL_ONLY)])  # **rest takes these names too
    assert set(signature_of(target).named) - hidden == accepted(target, NAMES) - hidden
    assert not signature_of(target).passes_on


def test_what_is_given_by_position_is_left_out_and_a_class_that_hands_keywords_to_something_else_takes_any():
    def made(encoder, width: "Nowhere" = 3, *, depth=2):  # noqa: F821 - an unreadable annotation is anything
        pass

    class Wrapper(nn.Module):
        def __init__(self, name="x", **options):
            super().__init__()

    assert list(signature_of(made, filled=1).named) == ["width", "depth"]
    assert (list(signature_of(Wrapper).named), signature_of(Wrapper).passes_on) == (["name"], True)
    for target in (dict, type("Empty", (nn.Module,), {})):  # without a constructor of its own
        assert not signature_of(target).named
