"""Keys of a config, declared once: bounds in words, what a key is a part of."""

import dataclasses

import pytest

from benchmark.configuration.keys import EXECUTION, key, keys, section
from benchmark.errors import ConfigError


@dataclasses.dataclass
class Inner:
    share: float | None = key(0.5, within="a share in (0, 1]")
    warmup: float = key(0.0, within="a share in [0, 1)")
    norm: float | None = key(None, within="a number above 0, or null")
    size: float = key(1.0, within="the largest number, at least 1")
    kind: str = key("a", choices=("a", "b"), hashed_at_default=True)
    places: int = key(1, minimum=1, part=EXECUTION)


@dataclasses.dataclass
class Schema:
    inner: Inner = section(Inner, part="row")
    older: str | None = key(None, older="squash")


KEYS = {each.name: each for each in keys(Schema)}


@pytest.mark.parametrize(
    ("name", "possible", "refused"),
    [
        ("inner.share", (1e-9, 1, None), (0, 1.001, float("inf"))),
        ("inner.warmup", (0, 0.99), (-1e-9, 1)),
        ("inner.norm", (1e-9, 5, None), (0, float("inf"))),
        ("inner.size", (1, 64), (0.99, float("inf"))),
        ("inner.kind", ("a", "b"), ("c", None)),
        ("inner.places", (1, 2, None), (0, "x", float("inf"))),
    ],
)
def test_bounds(name, possible, refused):
    for value in possible:
        KEYS[name].check(value)
    for value in refused:
        with pytest.raises(ConfigError, match=rf"^{name}="):
            KEYS[name].check(value)


def test_a_keys_part_is_its_own_or_its_sections_and_what_older_runs_had_is_its_default():
    assert [KEYS[name].part for name in ("inner.share", "inner.places", "older")] == ["row", EXECUTION, "scenario"]
    assert (KEYS["inner.share"].older, KEYS["older"].older) == (0.5, "squash")
    assert [name for name, each in KEYS.items() if each.hashed_at_default] == ["inner.kind"]
