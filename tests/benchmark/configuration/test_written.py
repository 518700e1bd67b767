"""What was written is read by the type of its key: text stays as it is, numbers are decimal."""

from collections.abc import Sequence

import pytest
import torch
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from benchmark import api
from benchmark.cli.runs import configs_of
from benchmark.configuration.compose import compose, load, parse, save
from benchmark.configuration.files import read, read_yaml
from benchmark.configuration.instantiate import construct
from benchmark.configuration.suites import suite
from benchmark.configuration.written import value_of
from benchmark.errors import ConfigError
from tests.run_helpers import TINY

generated = settings(derandomize=True, deadline=None, max_examples=60)
composed = settings(generated, max_examples=20)
"""For tests that compose a config for every example."""

LOOKS_OTHER = (
    "on", "off", "yes", "no", "y", "True", "null", "~", "1e3", "1.5e-3", "12:30", "1:30.5", "007", "08", "0o17", "0x10",
    "0b1", "1_000", "2024-01-01", "2024-01-01T10:00:00", ".inf", ".nan", "+1", "-.5", "1.", "=", "<<", "a: b", "a #b",
    "[1, 2", "{a: 1}", "*a", "&a b", "!x y", "| x", "- a", "? a", "%a", "@a", "it's", 'a "b"', " a ", "a\\b", "a,b",
)  # fmt: skip
"""Words that YAML reads as something else, or not at all."""
words = st.one_of(
    st.sampled_from(LOOKS_OTHER),
    st.text("0123456789", min_size=1, max_size=12),
    st.text("0123456789abcdefox_:.+-eE", min_size=1, max_size=8),
    st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_categories="CZ"), min_size=1, max_size=9),
).filter(lambda text: text.isprintable() and "${" not in text and text != "???" and (text[0], text[-1]) not in QUOTED)
QUOTED = (("'", "'"), ('"', '"'))
FLOATS = st.one_of(st.floats(-1e100, 1e100), st.sampled_from((float("inf"), -float("inf"))))
names = st.one_of(
    st.sampled_from(("on", "1e3", "007", "0x10", "1_000", "2024-01-01", "null", "08", "yes")),
    st.from_regex(r"[0-9a-z][0-9a-z_.+-]{0,9}", fullmatch=True),
)
"""Names of rows and scenarios."""
TEXTS = ("data.name", "data.root", "output", "data.probe", "partition.path", "encoder.weights", "data.resize")
MAY_BE_NULL = ("data.probe", "partition.path", "encoder.weights", "data.resize")


def at(content, key):
    for name in key.split("."):
        content = content[name]
    return content


def expected(key, text):
    return None if key in MAY_BE_NULL and text in ("null", "Null", "NULL", "~") else text


class Labelled(torch.nn.Module):
    """A class of a user's."""

    def __init__(self, *, label: str, labels: Sequence[str] = (), width: int = 1) -> None:
        super().__init__()
        self.label, self.labels, self.width = label, labels, width


class TestText:
    @generated
    @given(key=st.sampled_from(TEXTS), text=words)
    @example(key="data.name", text="on")
    @example(key="data.root", text="~")
    def test_a_key_of_type_text_keeps_what_was_typed(self, key, text):
        assert at(parse([f"{key}={text}"]), key) == expected(key, text)

    @composed
    @given(text=words)
    def test_it_is_the_same_in_a_config_its_file_and_from_python(self, tmp_path_factory, text):
        for made, overrides in ((compose, [f"data.name={text}"]), (api.compose, {"data.name": text})):
            config = made(TINY, "fedavg", overrides)
            file = tmp_path_factory.mktemp("run") / "config.yaml"
            save(config, file)
            assert config.data.name == load(file).data.name == text

    @composed
    @given(row=names, scenario=names, items=st.lists(names, min_size=1, max_size=4))
    def test_names_and_lists_of_text(self, row, scenario, items):
        words = ["encoder.class=methods.networks.timm", f"encoder.name={row}"]
        words += [f"row={row}", f"scenario={scenario}", f"evaluation.protocols=[{','.join(items)}]"]
        config = compose(TINY, "fedavg", words)
        assert (config.row, config.scenario, list(config.evaluation.protocols)) == (row, scenario, items)
        assert str(config.encoder.name) == row  # the object is built with the text of a number

    @composed
    @given(text=st.one_of(names, st.sampled_from(("12:30", "~", ".inf"))))
    def test_a_file_of_the_users(self, tmp_path_factory, text):
        """Unquoted in YAML: also the names of architectures, and what belongs to a class."""
        folder = tmp_path_factory.mktemp("files")
        encoder = f"{{class: methods.networks.timm, name: {text}, clients: [01]}}"
        lines = f"like: {TINY}\ndata: {{root: {text}}}\npartition: {{path: x{text}}}\n"
        (folder / "mine.yaml").write_text(f"{lines}federation: {{rounds: 010, encoders: {{on: {encoder}}}}}\n")
        config = compose(str(folder / "mine.yaml"), "fedavg")
        assert (config.data.root, config.partition.path, config.federation.rounds) == (text, f"x{text}", 10)
        ((kind, section),) = OmegaConf.to_container(config.federation.encoders).items()
        assert (kind, str(section["name"]), section["clients"]) == ("on", text, [1])

    def test_an_object_is_built_with_text_where_its_class_takes_text_without_quotes(self):
        section = {"class": f"{__name__}.Labelled", "label": 5, "labels": [1, True, "a"], "width": 3}
        built = construct(section, "encoder")
        assert (built.label, built.labels, built.width) == ("5", ["1", "true", "a"], 3)
        parsed = parse(["data.name='on'", 'data.root="a: b"', "data.probe='null'"])
        assert parsed == {"data": {"name": "on", "root": "a: b", "probe": "null"}}

    @pytest.mark.parametrize("text", ["a\x00", "a\udcff", "???", "a\nb"])
    def test_what_no_file_could_hold_is_refused_in_a_line(self, text):
        with pytest.raises(ConfigError, match=r"data\.name") as error:
            compose(TINY, "fedavg", [f"data.name={text}"])
        assert "\n" not in str(error.value)


class TestNumbers:
    @composed
    @given(number=st.integers(0, 10**6), zeros=st.integers(0, 4))
    def test_zeros_in_front_mean_nothing(self, tmp_path_factory, number, zeros):
        text = "0" * zeros + str(number)
        keys = ("seed", "federation.rounds", "lanes")
        given_ = [f"{key}={text}" for key in keys if number or key != "lanes"]
        config = compose(TINY, "fedavg", [*given_, f"heads.projector=[{text},1]", f"objective.temperature={text}.50"])
        assert (config.seed, config.federation.rounds, *config.heads.projector) == (number, number, number, 1)
        assert config.objective.temperature == number + 0.5
        file = tmp_path_factory.mktemp("files") / "mine.yaml"
        file.write_text(f"seed: {text}\nviews: {{mean: [{text}]}}\nseeds: [{text}]\n")
        assert [*map(value_of, (text, f"-{text}"))] == [number, -number]
        assert read_yaml(file)["seed"] == number
        assert configs_of([TINY, "fedavg", f"seeds={text},{number}"])[0][0].seed == number
        assert len(configs_of([TINY, "fedavg", f"seeds=[{text},{number}]"])[0]) == 1

    @composed
    @given(
        text=st.one_of(
            st.from_regex(r"0[xX][0-9a-f]{1,4}|0[bB][01]{1,6}|0[oO][0-7]{1,4}", fullmatch=True),
            st.from_regex(r"[1-9][0-9]{0,2}_[0-9]{3}|[1-9][0-9]?:[0-5][0-9](:[0-5][0-9])?", fullmatch=True),
        )
    )
    def test_other_spellings_are_refused_and_name_the_key(self, text):
        assert parse([f"optimizer.lr={text}"]) == {"optimizer": {"lr": text}}  # an argument of a class
        for key in ("seed", "data.image_size", "federation.rounds", "privacy.clip"):
            with pytest.raises(ConfigError, match=f"^{key}='{text}': give a "):
                compose(TINY, "fedavg", [f"{key}={text}"])

    @composed
    @given(number=st.floats(allow_nan=False, allow_infinity=False, width=32).map(abs).filter(lambda x: 0 < x < 1e30))
    def test_floats_in_every_spelling(self, number):
        for text in {str(number), f"{number:e}", f"0{number!r}", yaml.safe_dump(number).split()[0]}:
            assert compose(TINY, "fedavg", [f"optimizer.lr={text}"]).optimizer.lr == pytest.approx(number, rel=1e-6)

    def test_true_and_false_keep_their_words(self):
        for word in ("on", "yes", "true", "True", "off", "no", "false"):
            assert parse([f"data.labels={word}"]) == {"data": {"labels": word in ("on", "yes", "true", "True")}}


class TestFiles:
    def test_a_suites_lines_and_an_objective_are_text_and_seeds_are_decimal(self, tmp_path):
        (tmp_path / "007.yaml").write_text(f"like: {TINY}\n")
        file = tmp_path / "mine.yaml"
        file.write_text(f"scenarios: [{tmp_path}/007.yaml]\nmethods: [fedavg row=1e3]\nseeds: [010, 08]\n")
        seeds = [(c.scenario, c.row, c.seed) for c in suite(str(file), {}, [])]
        assert seeds == [("007", "1e3", 10), ("007", "1e3", 8)]
        file.write_text("objective: on\nmethod: {class: methods.fedavg.FedAvg}\n")
        with pytest.raises(ConfigError, match="unknown objective 'on'"):
            compose(TINY, str(file))

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("data: {name: a, name: b}", "line 1: found duplicate key name"),
            ("data: &a\n  x: *a\n", "aliases that contain themselves"),
            ("a: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
             "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d,*d]\n", "more than 10000 values"),
            ("seed: !!int 0x10", "is not of the type"),
            ("seed: !!python/name:os.system x", "could not determine a constructor"),
        ],
    )  # fmt: skip
    def test_what_yaml_must_not_hold(self, tmp_path, text, line):
        (tmp_path / "mine.yaml").write_text(text)
        with pytest.raises(ConfigError, match=line):
            read("scenario", str(tmp_path / "mine.yaml"))

    def test_merged_and_repeated_mappings_are_read(self, tmp_path):
        (tmp_path / "mine.yaml").write_text("a: &a {x: 010, y: 1}\nb: {<<: *a, y: 2}\nc: *a\n")
        first = {"x": 10, "y": 1}
        assert read_yaml(tmp_path / "mine.yaml") == {"a": first, "b": {"x": 10, "y": 2}, "c": first}

    @composed
    @given(value=st.one_of(words, st.integers(-(10**99), 10**99), FLOATS, st.booleans(), st.none()))
    def test_a_run_folders_config_loads_as_it_was_written(self, tmp_path_factory, value):
        """As earlier versions wrote it, by OmegaConf: every value of an argument, of whatever type."""
        config = compose(TINY, "fedavg")
        config.data.options = {"argument": value, "several": [value]}
        file = tmp_path_factory.mktemp("run") / "config.yaml"
        file.write_text(OmegaConf.to_yaml(config, resolve=True), encoding="utf-8")
        loaded = load(file).data.options
        assert (loaded.argument, type(loaded.argument), loaded.several) == (value, type(value), [value])
