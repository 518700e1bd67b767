"""Composition of a run's config: shipped files by name, a user's own files by path, and `key=value` overrides.

Later layers take precedence: defaults, scenario, objective, method, `adjust` and what `tune suite=NAME` chose on the
scenario, overrides, the partition of a method's file. An unknown key is refused with the nearest known one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from benchmark.configuration.files import is_import_path, lineage, mapping, read, with_paths
from benchmark.configuration.identity import changes_name, identity, part_of, variant
from benchmark.configuration.keys import IMAGES, check_plain, fits
from benchmark.configuration.layers import (
    FREE,
    check_keys,
    convert_types,
    defaults,
    read_override,
    renamed,
    renamed_word,
    resolve,
    short_error,
    stack,
    update,
)
from benchmark.configuration.partitions import pin, with_hash
from benchmark.configuration.schema import KEYS
from benchmark.configuration.tuned import RATE, chosen
from benchmark.configuration.written import settled
from benchmark.disk import replacing
from benchmark.errors import ConfigError, UnusedKeyError


def compose(
    scenario: str, method: str, overrides: Iterable[str] = (), line: Iterable[str] = (), *, tuned: bool = True
) -> DictConfig:
    """The config of one run from a scenario, a method and `key=value` overrides.

    line: overrides that belong to a named row; of a key that both have, the other override is used. Its `row` and
    `scenario` are names to which the changes by the others are added.
    tuned: whether the settings that a search has chosen for the row are its own, also in place of the line's.
    """
    line, overrides = map(renamed_word, line), [renamed_word(override) for override in overrides]
    given = {override.partition("=")[0] for override in overrides}
    line = [override for override in line if override.partition("=")[0] not in given]
    named, overrides = parse(line), [*line, *overrides]
    command_line = parse(overrides)
    objective = _objective(command_line)
    label = stem(method) + (f"-{stem(objective)}" if objective else "")
    choices = chosen(scenario, _names(method, objective, named.get("row"))) if tuned else {}
    searched = {word.partition("=")[0]: word for words in choices.values() for word in words}
    if replaced := searched.keys() - given:  # in its place, as another class before it drops what lower layers set
        written = {word.partition("=")[0] for word in overrides}
        dropped = [RATE] if "row" in named and "optimizer.class" in written - given else []
        overrides = [searched[key] if (key := word.partition("=")[0]) in replaced else word for word in overrides]
        overrides += [searched[key] for key in dropped if key in replaced - written]
        command_line = parse(overrides)
    # a reference's own partition is the last layer: `centralized` has one client, whatever the scenario's clients
    *layers, reference = _layers(scenario, method, objective, label, choices)
    shipped = stack(defaults(), layers)
    asked = stack(shipped, [("", command_line)])
    content = stack(asked, [reference])
    try:
        resolved = resolve(content)
        if resolved != content:  # interpolations have become values of their own types
            check_keys(resolved)
            convert_types(resolved, [section for section in resolved if section not in FREE])
        run = identity(asked)
        changed = []
        for override in sorted(overrides):
            if changes_name(key := override.partition("=")[0]):
                other = stack(shipped, [("", parse(each for each in overrides if each != override))])
                if run != identity(other) or (part_of(key) == IMAGES and asked != other):
                    changed.append(key)
    except OmegaConfBaseException as error:
        raise ConfigError(short_error(error)) from error
    config = with_hash(pin(OmegaConf.create(resolved)))
    requested = config if asked == resolved else with_hash(pin(OmegaConf.create(asked)))
    for name, made, rows in (("scenario", stem(scenario), False), ("row", label, True)):
        if official := named.get(name):
            others = [key for key in changed if key in given]
            config[name] = variant(str(official), others, command_line, requested, rows)
        else:
            config[name] = str(command_line.get(name) or variant(made, changed, command_line, requested, rows))
    validate(config)
    _refuse_unused(config, changed)
    return config


def _refuse_unused(config: DictConfig, changed: Iterable[str]) -> None:
    """Refuse changed keys that have no effect: the run would be another's twin under a name of its own."""
    for key in changed:
        if key in ("schedule.gamma", "schedule.milestones") and config.schedule.name != "step":
            raise UnusedKeyError(key, f"it belongs to schedule.name=step, not {config.schedule.name}")
    if heads := [key for key in changed if key.startswith("heads.")]:
        from benchmark.configuration.instantiate import arguments, locate  # imports torch: most commands do without

        known = arguments(locate(config.objective, "objective"))
        for key in heads:
            if (name := key.removeprefix("heads.")) not in known:
                raise UnusedKeyError(key, f"{config.objective['name']} has no {name}")
            if name in config.objective:
                raise UnusedKeyError(key, f"objective.{name}={config.objective[name]} is set")


def _objective(command_line: Mapping[str, Any]) -> str | None:
    """The objective that a command line names. ConfigError: it is no name, or the length of a visit is given twice."""
    training = command_line.get("training")
    if isinstance(training, Mapping) and None not in (training.get("steps"), training.get("epochs")):
        raise ConfigError("training.steps and training.epochs both say how long a visit is: give one of them")
    section = command_line.get("objective", {})
    objective = section.get("name")
    if not isinstance(objective, str | None) or (objective is None and "name" in section):
        raise ConfigError(f"objective={objective!r}: give a name, and its arguments as in objective.temperature=0.2")
    return objective


def _names(method: str, objective: str | None, row: Any) -> list[str]:
    """The names of a row: its line's, of ROW+CHANGES also ROW, or METHOD and METHOD-OBJECTIVE where that is its own."""
    if row is not None:
        return [str(row), str(row).partition("+")[0]]
    own = settled(read("method", method)).get("objective", "simclr")
    own = own.get("name") if isinstance(own, Mapping) else own
    both = [stem(method), f"{stem(method)}-{stem(str(objective or own))}"]
    return both if objective is None else both[::-1] if stem(objective) == own else both[1:]


def _layers(
    scenario: str, method: str, objective: str | None, label: str, choices: Mapping[str, Sequence[str]]
) -> list[tuple[str, dict[str, Any]]]:
    """The layers of shipped files, the lowest first: prefix of error messages and content.

    objective: of the command line, which replaces the method's. choices: see `tuned.chosen`. The last layer is the
    partition of the method's file.
    """
    content = read("method", method)
    loss = content.pop("objective", "simclr")
    loss = {"name": loss} if isinstance(loss, str) else loss
    if not isinstance(loss, Mapping) or not isinstance(loss.get("name"), str):
        raise ConfigError(f"method {method}: objective={loss!r}: give a name, or {{name: NAME}} and its arguments")
    if objective not in (None, loss["name"]):
        loss = {"name": objective}
    reference = {"partition": content.pop("partition", {})}
    content |= {"objective": loss, "method": {"name": stem(method), **_section(f"method {method}", content, "method")}}
    shipped = read("objective", loss["name"])
    shipped["objective"] = {**_section(f"objective {loss['name']}", shipped, "objective"), "name": loss["name"]}
    scenarios, adjusted = [], []
    ancestors = lineage(scenario)
    for depth, (ancestor, layer) in enumerate(ancestors, 1):
        adjust = layer.pop("adjust", None) or {}
        if not isinstance(adjust, Mapping) or not all(isinstance(changes, Mapping) for changes in adjust.values()):
            raise ConfigError(f"scenario {ancestor}: adjust={adjust!r}: give {{METHOD or OBJECTIVE: {{its changes}}}}")
        for key in ("scenario", "row"):
            if key in layer:
                raise ConfigError(f"scenario {ancestor}: {key} is a name that the command line gives, {key}=NAME")
        scenarios.append((f"scenario {ancestor}: ", layer))
        for key in dict.fromkeys((loss["name"], stem(method), label)):
            adjusted.append((f"scenario {ancestor}, adjust.{key}: ", adjust.get(key, {})))
        own = {key for _, heir in ancestors[depth:] for key in heir.get("optimizer") or {}}  # of all its heir's rows
        words = [
            word for word in choices.get(ancestor, []) if word.partition("=")[0] != RATE or not own & {"lr", "class"}
        ]
        adjusted.append((f"leaderboards/tuned/{ancestor}: ", parse(words)))
    prefix = f"method {method}: "
    return [*scenarios, (f"objective {loss['name']}: ", shipped), (prefix, content), *adjusted, (prefix, reference)]


def _section(file: str, content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of a file, empty where it is left out."""
    section = content.get(name) or {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"{file}: {name}={section!r}: {name} is a section: give its keys")
    return section


def parse(overrides: Iterable[str]) -> dict[str, Any]:
    """`["a.b=1", "c=x"]` -> nested dict, values read by the types of their keys, see `written`."""
    keys, overrides = set[str](), [renamed_word(override) for override in overrides]
    for override in overrides:
        key, sign, _ = override.partition("=")
        if not sign:
            raise ConfigError(f"{override!r} is not an override: write key=value, e.g. seed=1 or method.alpha=5")
        if key in keys:
            raise ConfigError(f"{key} is given twice: give each key one value")
        keys.add(key)
    content: dict[str, Any] = {}
    try:
        for override in overrides:
            key, _, text = override.partition("=")
            value: Any = read_override(key, text)
            if "${" in text:
                OmegaConf.create({"value": settled(value)})  # refuses what is no interpolation
            # `objective=byol` names the objective; `objective.temperature=0.2` beside it sets its arguments
            for name in reversed(re.sub("^objective$", "objective.name", key).split(".")):
                value = {name: value}
            update(content, value)
    except (OmegaConfBaseException, YAMLError, ValueError, TypeError, RecursionError) as error:
        if len(overrides) > 1:  # one at a time, so that the message names the wrong one
            for override in overrides:
                parse([override])
        raise ConfigError(f"cannot read {' '.join(overrides)}: {' '.join(str(error).split())}") from error
    check_plain(content)
    return with_paths(renamed(content))


def merge(config: DictConfig, overrides: Iterable[str]) -> DictConfig:
    """A run's config with overrides merged into it, validated."""
    content: Any = OmegaConf.to_container(config)
    merged = OmegaConf.create(stack(content, [("", parse(overrides))]))
    validate(merged)
    return merged


def load(file: Path) -> DictConfig:
    """A resolved config written by an earlier run."""
    try:
        layer = settled(mapping(file))
        for section in ("method", "objective", "scenario", "row"):
            if not layer.get(section):
                raise ConfigError(f"it has no {section}")
        if "${" in yaml.safe_dump(layer):
            raise ConfigError("it has an interpolation, ${...}")
        config = OmegaConf.create(stack(defaults(), [("", _older()), ("", layer)]))
        validate(config)
    except ConfigError as error:
        raise ConfigError(
            f"{file} is not a run's config: {error}; "
            "remove the file and repeat the run's command, which writes it again and resumes"
        ) from error
    return config


def as_begun(config: DictConfig, file: Path) -> DictConfig:
    """A run's config with the images of the run that began with an older file: `older` of keys that no hash has."""
    known = mapping(file).get("data", {})
    lacks = [key for name, key in KEYS.items() if key.part == IMAGES and name.rpartition(".")[2] not in known]
    return merge(config, [f"{key.name}={str(key.older).lower()}" for key in lacks])


def _older() -> dict[str, Any]:
    """What runs ran with whose files lack a key, where that is not its default now."""
    content: dict[str, Any] = {}
    for name, key in KEYS.items():
        if key.older != key.default:
            section, _, inner = name.partition(".")
            content.setdefault(section, {})[inner] = key.older
    return content


def save(config: DictConfig, file: Path) -> None:
    """Writes the resolved config, whole or not at all. Raises ConfigError: it is so long that it could not be read."""
    with replacing(file) as beside:
        beside.write_text(OmegaConf.to_yaml(config, resolve=True), encoding="utf-8")
        mapping(beside)  # now, not when the run is to be resumed


def stem(name: str) -> str:
    """Name of a shipped config, of the file that a path leads to, or of an import path's class in small letters."""
    if is_import_path(name):
        return name.rpartition(".")[2].lower()
    return Path(name).stem if name.endswith(".yaml") else name


BOUNDED = [key for key in KEYS.values() if key.choices or key.within or key.minimum is not None]


def validate(config: DictConfig) -> None:
    """Refuse values that are not possible, and values that contradict each other."""
    for key in ("scenario", "row"):  # they are folders under `output`
        if config[key] and not re.fullmatch(r"\w[\w.+=-]*(/\w[\w.+=-]*)*", str(config[key])):
            raise ConfigError(f"{key}={config[key]!r}: a name begins with a letter or digit, and has . _ + = - besides")
    for known in BOUNDED:
        known.check(OmegaConf.select(config, known.name))
    if config.devices != "auto" and not (fits(config.devices, int) and config.devices >= 1):
        raise ConfigError(f"devices={config.devices!r}: give auto, or a whole number of at least 1")
    if config.compile and config.executor == "parallel":
        raise ConfigError("compile=true and executor=parallel: each lane would compile its own; choose one of them")
    training, longest = config.training, config.training.max_epochs
    if longest is not None and training.steps is None and (training.drop_last or longest < training.epochs):
        raise ConfigError(
            f"training.max_epochs={longest}: give at least training.epochs={training.epochs}, and no training.drop_last"
        )
    _validate_schedule(config)


def _validate_schedule(config: DictConfig) -> None:
    """Refuse schedules that contradict themselves."""
    schedule, rounds = config.schedule, config.federation.rounds
    if schedule.name == "cosine_twice" and schedule.per == "step":
        raise ConfigError("schedule.name=cosine_twice: its rate is that of a round: leave schedule.per=round")
    if schedule.per == "round" and 0 < schedule.warmup * rounds < 1:
        raise ConfigError(
            f"schedule.warmup={schedule.warmup} ends within the first round, which has one rate: give at least "
            f"{1 / rounds:.3g}, or set schedule.per=step"
        )
    if schedule.warmup and schedule.name == "cosine_twice":
        raise ConfigError("schedule.name=cosine_twice: it has no warm-up: leave schedule.warmup out, or choose cosine")
    if late := [progress for progress in schedule.milestones if not 0 <= progress <= 1]:
        raise ConfigError(f"schedule.milestones: {late[0]} is no progress in [0, 1]; half-way through the run is 0.5")
