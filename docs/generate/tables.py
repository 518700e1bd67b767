"""Pages of the reference that are made from the code's own tables: keys, protocols, record fields, commands, speed."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, is_dataclass
from typing import Any
from unittest.mock import patch

import yaml

from benchmark.cli.main import parsers
from benchmark.configuration.files import available, facts, papers, summary
from benchmark.configuration.keys import Key, keys
from benchmark.configuration.schema import KEYS
from benchmark.speed import report
from datamodules.recipe import Recipe
from eval.official import PROTOCOLS, Protocol, find
from generate.links import ROOT
from leaderboards.papers import bibliography
from leaderboards.schema import json_schema

TRANSFER = "svhn"
"""The data set of which the page of protocols shows the ones on another data set."""
NEEDS = {
    "": "features alone",
    "encoder_inputs": "the encoder and its images",
    "held_out": "the encoder, its images, and labelled images that nobody trained on",
    "local_models": "the models of clients and the aggregated one",
    "client_replies": "the replies of a round as the server sees them",
    "local_step": "a step of a client, and its reply as the server gets it",
    "members": "the encoder, its images, and which of them it was trained on",
    "projector": "the projector",
    "views": "features of two views of each client's images",
    "test_clients": "test images that name a client or a domain",
    "tokens": "the encoder, whose features are pooled from tokens or a map, and its images",
}
"""`Protocol.requires` -> its words."""


def pages() -> dict[str, str]:
    """Place in the site -> Markdown."""
    return {
        "reference/config.md": config_page(),
        "reference/protocols.md": protocols_page(),
        "reference/record.md": record_page(),
        "reference/commands.md": commands_page(),
        "reference/measurements.md": measurements_page(),
        "reference/kernels.md": kernels_page(),
        "methods/index.md": methods_page(),
        "studies/index.md": studies_page(),
    }


def config_page() -> str:
    """Every key of a config: type, default and meaning."""
    lines = [
        "# Config keys",
        "",
        "On the command line a key is written `key=value`, in a file as YAML. `null` is YAML's word for None.",
        "The sections `method`, `objective`, `encoder`, `optimizer` and `server_optimizer` name a `class`. Their other",
        "keys are the arguments of that class: see [methods](methods-papers.md), [objectives](methods.objectives.md),",
        "[networks](methods.networks.md) and [server optimisers](methods.md#methods.server).",
    ]
    known = [*KEYS.values(), *keys(Recipe, "views.")]
    sections = dict.fromkeys(key.name.rpartition(".")[0] for key in known if "." in key.name)
    for section in ("", *sections):
        lines += ["", f"## `{section}`" if section else "## Keys without a section"]
        lines += [line for key in known if key.name == section for line in ("", _code_words(key.meaning))]
        for key in known:
            if key.name not in sections and key.name.rpartition(".")[0] == section:
                lines += ["", f"### `{key.name}` {{ #{key.name} }}", *_type_lines(key), "", _code_words(key.meaning)]
    return _text(lines)


def _type_lines(key: Key) -> Iterator[str]:
    """Type and default of a key, as a paragraph; none where there is nothing to say."""
    if key.name == "views.size":
        default = "; default: the side of the data's images"
    else:
        default = f"; default `{_as_yaml(key.default)}`" if key.default is not MISSING else ""
    if line := f"{key.type}{default}".removeprefix("; "):
        yield from ("", line)


def protocols_page() -> str:
    """Every protocol: what it does, its settings, its metrics."""
    lines = [
        "# Protocols",
        "",
        "A protocol is a fixed way to score an encoder. Its numbers never change under its id: other numbers are a new",
        "version. [Evaluate](../how-to/evaluate.md) says how to choose.",
    ]
    further = [find(f"transfer-{TRANSFER}/v{version}") for version in (1, 2)]
    for protocol in [*PROTOCOLS.values(), *further]:
        shown, meaning = (text.replace(TRANSFER, "<data set>") for text in (protocol.id, protocol.summary))
        lines += ["", f"## `{shown}` {{ #{protocol_anchor(shown)} }}", "", _code_words(meaning), ""]
        lines += [f"- {line}" for line in _facts(protocol)]
        if settings := dict(_flat(protocol.arguments)):
            lines += ["", "| setting | value |", "|---|---|"]
            lines += [f"| `{name}` | `{value}` |" for name, value in settings.items()]
    return _text(lines)


def protocol_anchor(protocol: str) -> str:
    """The anchor of a protocol: `linear-v1` for `linear/v1`."""
    return re.sub(r"[^\w.-]+", "-", protocol).strip("-")


def _facts(protocol: Protocol) -> Iterator[str]:
    better = protocol.better(protocol.headline)
    yield f"Headline: `{protocol.headline}`{f', {better} is better' if better else ''}."
    target = protocol.requires.startswith("target ")
    yield f"Requires {'images and labels of the other data set' if target else NEEDS[protocol.requires]}."
    yield "Needs labels." if protocol.uses_labels else "Needs no labels of the training data set."
    if protocol.units:
        yield f"Units: {', '.join(f'`{metric}` in {unit}' for metric, unit in protocol.units.items())}."
    if protocol.long:
        yield "Long: as many passes through the encoder, or steps, as in the paper."


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted setting and its value, of nested settings, defaults included."""
    for name, value in settings.items():
        if is_dataclass(value) and not isinstance(value, type):
            value = asdict(value)
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _as_yaml(value)


def record_page() -> str:
    """Every field of a record, with its type and meaning."""
    schema = json_schema()
    lines = [
        "# Fields of a record",
        "",
        "A run's `result.json` has the fields below. [Reproduce a number](../how-to/reproduce.md) says where the file",
        "is, and how to get a number from it again. An object may hold more than is listed here. A field that may be",
        "absent is missing in records from before the field existed, or where it has no content.",
    ]
    for name, field in schema["properties"].items():
        kind = _json_type(field, schema) + ("" if name in schema["required"] else ", may be absent")
        lines += ["", f"## `{name}`", "", f"{field['description']}", "", f"Type: {kind}."]
        if rows := [(f"`{name}.{path}`", *row) for path, *row in _fields(field, schema)]:
            lines += ["", "| field | type | meaning |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return _text(lines)


def _fields(field: Mapping[str, Any], schema: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """The fields within a field: dotted name, type, meaning. Objects by a free key have `*` in its place."""
    for option in _options(field, schema):
        if isinstance(inner := option.get("additionalProperties"), Mapping):
            yield from _fields(inner, schema, f"{prefix}*.")
        for name, child in option.get("properties", {}).items():
            absent = "" if name in option.get("required", ()) else ", may be absent"
            yield f"{prefix}{name}", _json_type(child, schema) + absent, child["description"]
            yield from _fields(child, schema, f"{prefix}{name}.")


def _options(field: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The types that a field may have, with references resolved."""
    if "$ref" in field:
        return [schema["$defs"][field["$ref"].rpartition("/")[2]]]
    if "anyOf" in field:
        return [found for option in field["anyOf"] for found in _options(option, schema)]
    return [field]


def _json_type(field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """A type of JSON schema in words."""
    words = []
    for option in _options(field, schema):
        match option:
            case {"type": "object", "additionalProperties": Mapping() as inner}:
                words.append(f"object of: {_json_type(inner, schema)}")
            case {"type": "array", "items": inner}:
                words.append(f"list of: {_json_type(inner, schema)}")
            case {"type": "integer", "minimum": minimum}:
                words.append(f"whole number, at least {minimum}")
            case {"type": kind}:
                words.append({"string": "text", "boolean": "true or false", "integer": "whole number"}.get(kind, kind))
    return " or ".join(words)


def commands_page() -> str:
    """Every command with its help."""
    general, commands = parsers()
    lines = [
        "# Help of the commands",
        "",
        "What `--help` prints. [Commands](../how-to/run.md) has examples with explanations.",
        "",
    ]
    with patch.dict(os.environ, COLUMNS="88"):  # argparse wraps by it
        lines += _block(general.format_help())
        for name, command in commands.items():
            lines += ["", f"## `{name}`", "", *_block(command.format_help())]
    return _text(lines)


def measurements_page() -> str:
    """Every measurement of speed, whole."""
    lines = ["# Measurements", "", "What [performance](performance.md) explains, in full."]
    for content in report.read(ROOT / "docs" / "reference").values():
        lines += ["", f"## {content['title']}", "", report.measurement_table(content)]
    return _text(lines)


def kernels_page() -> str:
    """What a local step of each method launches on a GPU, and how often a visit waits and uploads."""
    lines = [
        "# Kernels of a step",
        "",
        "Of a local step of ResNet-18, measured on a [simulated GPU](../explanation/executors.md#rehearsed-on-a-cpu);",
        "the *reconstructed* LW-FedSSL and Prog-FedSSL step a ViT-Tiny, and the last step of LW-FedSSL and of FedMKD",
        "(*reconstructed* too) is the server's. Waits and uploads are those of a visit of the second round, over two",
        "batches. Before an arrow: kernels before lists of tensors were given to torch in one call, waits and uploads",
        "before images and memories moved as a whole.",
        "",
        "| method | kernels a step | waits a visit | uploads a visit |",
        "|---|---:|---:|---:|",
    ]
    for name, now in json.loads((ROOT / "tests" / "kernels.json").read_text(encoding="utf-8")).items():
        cells = [f"{then} → {now[key]}" if then != now[key] else f"{then}" for key, then in now["before"].items()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return _text(lines)


def bibtex(method: str) -> str:
    """The end of a method's page: the entries of its papers; empty where it has none."""
    entries = "\n".join(bibliography.read()[key].text for key in papers(facts("method", method)))
    return f"\n## BibTeX\n\n```bibtex\n{entries}```\n" if entries else ""


def methods_page() -> str:
    """The methods, by the first line of their configs."""
    lines = [
        "# Methods",
        "",
        "Each method is a file in `methods/` and a config, whose name `run SCENARIO METHOD` takes.",
        "",
    ]
    lines += ["| name | method |", "|---|---|"]
    for name in available("method"):
        page = ROOT / "docs" / "methods" / f"{name}.md"
        shown = f"[`{name}`]({name}.md)" if page.is_file() else f"`{name}`"
        lines.append(f"| {shown} | {summary('method', name)} |")
    return _text([*lines, "", "The local losses are on the page of [objectives](../reference/objectives.md)."])


def studies_page() -> str:
    """The studies, by their questions."""
    lines = [
        "# Studies",
        "",
        "A study answers one question at small scale. Where a paper asks it, its numbers stand beside ours.",
        "",
    ]
    for page in sorted((ROOT / "docs" / "studies").glob("*.md")):
        lines.append(f"- [{page.read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}]({page.name})")
    return _text(lines)


def _block(text: str) -> list[str]:
    return ["```text", text.rstrip(), "```"]


def _code_words(text: str) -> str:
    """Prose as Markdown: names with dots or underscores become code, and names of pages become links."""

    def marked(part: str) -> str:
        plain = part.replace("<", "&lt;").replace("*", r"\*")
        linked = re.sub(r"docs/((?:[\w-]+/)*)([\w-]+)\.md", r"[\2](../\1\2.md)", plain)
        return re.sub(r"(?<![\w/.`(])(\w*[a-z]\w*(?:[._]\w+)+)(?![\w/])", r"`\1`", linked)

    return "".join(part if part.startswith("`") else marked(part) for part in re.split(r"(`[^`]*`)", text))


def _as_yaml(value: Any) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=1000).strip()
    return text.removesuffix("...").strip()


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"
