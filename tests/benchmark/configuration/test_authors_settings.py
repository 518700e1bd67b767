"""A paper's scenario tells its authors' settings once, each with its source, and its rows get what is told for them."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from omegaconf import OmegaConf

from benchmark.configuration.compose import compose
from benchmark.configuration.files import CONFIGS, available, lineage, read

SCENARIOS = [name for name in available("scenario") if "/" in name]


def flat(settings: Mapping[str, Any], around: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of all settings."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{around}{key}.")
        else:
            yield f"{around}{key}", value


def rows(name: str) -> Iterator[tuple[list[str], str]]:
    """The rows that a scenario or an ancestor of it adjusts: their words, and the key of that row in `adjust`."""
    for key in sorted({key for _, content in lineage(name) for key in content.get("adjust", {})}):
        method, _, objective = key.rpartition("-")
        if key in available("method"):
            yield [key], key
        elif key in available("objective"):
            yield ["fedavg", f"objective={key}"], f"fedavg-{key}"
        else:
            yield [method, f"objective={objective}"], key


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_row_has_what_its_scenario_tells_for_it_and_the_rest_is_that_of_all(name):
    """An objective's settings give way to a method's, these to the row's, and all to those of a younger scenario."""
    for words, row in rows(name):
        config = compose(name, words[0], words[1:])
        told, adjusted = {}, {}
        for _, layer in lineage(name):
            adjust = layer.pop("adjust", {})
            told |= dict(flat({key: value for key, value in layer.items() if key != "authors"}))
            for key in (config.objective["name"], words[0], row):
                adjusted |= dict(flat(adjust.get(key, {})))
        own = dict(flat(read("objective", config.objective["name"]) | read("method", words[0])))  # above a scenario's
        for setting, value in (told | adjusted).items():
            if setting in adjusted or setting not in own:
                assert OmegaConf.select(config, setting) == value, (words, setting)


def test_what_differs_from_its_authors_is_a_setting():
    """The record names each whose value is another (`test_settings_that_are_not_the_authors_are_named`)."""
    for name in (name for name in SCENARIOS if any("authors" in content for _, content in lineage(name))):
        config = compose(name, name.partition("/")[0])
        assert config.authors
        assert all(OmegaConf.select(config, key) is not None for key in config.authors)


def unsourced(text: str) -> list[str]:
    """Settings of a scenario without a comment on their line or on that of a section around them.

    The data set stands in the first line; the monitor, precision and memory format are the suite's own.
    """
    own = ("like", "evaluation", "authors", "precision", "channels_last")
    missing, around = [], [(-1, False)]
    for line in text.splitlines():
        content, _, comment = line.partition("#")
        stripped, indent = content.strip(), len(content) - len(content.lstrip())
        if not stripped:
            continue
        while around[-1][0] >= indent:
            around.pop()
        key, _, value = stripped.partition(":")
        has_source = bool(comment) or around[-1][1] or key in own
        if not value.strip() or value.strip().startswith("&"):
            around.append((indent, has_source or key in ("data", "authors")))
        elif not has_source and not value.strip().startswith("*"):
            missing.append(stripped)
    return missing


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_setting_of_a_paper_names_its_source(name):
    text = (CONFIGS / "scenario" / f"{name}.yaml").read_text()
    assert unsourced(text) == []
