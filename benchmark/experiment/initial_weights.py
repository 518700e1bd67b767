"""Loads the weights that an encoder starts from: a file of a state dict, or torchvision's weights of a name.

Decision: of the entries that the encoder lacks, only those of the classifier that was removed from its library's model
are left out (`fc.weight` and `fc.bias` of a ResNet). Any other difference is an error.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from benchmark.configuration.partitions import changed_content, encoder_sections, sha256, weights_file
from benchmark.errors import ConfigError
from methods.networks import Encoder
from methods.networks.libraries import hub_file, torchvision_weights

SHOWN = 3
"""Most keys that an error names."""


def start_from_weights(encoder: nn.Module, section: Mapping[str, Any], where: str, views: Mapping[str, Any]) -> None:
    """Loads an encoder's `weights` into it, if its section has some.

    Args:
        section: of the encoder, resolved. where: its dotted key.
        views: the run's; it has to say how images are normalised for these weights.

    Raises ConfigError: a file is missing, changed, or of another network; or the normalisation is not set.
    """
    if section.get("weights") is None:
        return
    file = weights_file(section, where)
    _require_normalisation(section, where, views, file)
    if file is None:
        entry = torchvision_weights(section["name"], section["weights"])
        state = entry.get_state_dict(progress=False, check_hash=True, weights_only=True)
    else:
        if sha256(file, f"{where}.weights") != section.get("weights_sha256"):
            raise changed_content(where, file)
        state = read_state(file, f"{where}.weights={file}")
    load_state(encoder, state, f"{where}.weights={section['weights']}")


def fetch_weights(config: DictConfig) -> None:
    """Lets torchvision fetch the weights that encoders start from by name, where they are not there.

    Raises ConfigError: the normalisation is not set, they cannot be fetched, or their hash is not that in their name.
    """
    for where, section, entry in _named_weights(config):
        key = f"{where}.weights={section.weights}"
        _require_normalisation(section, where, config.views, None)
        file = hub_file(entry)
        try:
            torch.hub.load_state_dict_from_url(entry.url, progress=False, check_hash=True, weights_only=True)
        except (OSError, RuntimeError) as error:
            raise ConfigError(
                f"{key}: torchvision cannot fetch {entry.url} ({error}): put that file into {file.parent}"
            ) from error
        prefix = re.search(r"-([0-9a-f]{8,})[.]", file.name)
        if prefix and not sha256(file, key).startswith(prefix[1]):  # torch compares it only after it fetched the file
            raise ConfigError(f"{key}: {file} is damaged, its hash is not that in its name: delete it")


def refuse_download(config: DictConfig, source: str) -> None:
    """ConfigError where a config that somebody else may have written would let torchvision fetch weights.

    source: of the config, for the message.
    """
    for where, section, entry in _named_weights(config):
        if not (file := hub_file(entry)).is_file():
            raise ConfigError(
                f"{source}: {where}.weights={section.weights} would fetch {file.name}, which is not in {file.parent}: "
                "add trust=true if you want that"
            )


def _named_weights(config: DictConfig) -> Iterator[tuple[str, DictConfig, Any]]:
    """(dotted key, section, torchvision's entry) of the encoders whose weights have a name instead of a file."""
    for where, section in encoder_sections(config):
        if section.get("weights") is not None and weights_file(section, where) is None:
            yield where, section, torchvision_weights(section.get("name"), section.weights)


def read_state(file: Path, label: str) -> dict[str, Tensor]:
    """The state dict in a file, read without running code; ConfigError where there is none. label: for messages."""
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except ImportError as error:
        raise ConfigError(f"{label}: reading it needs the package safetensors: pip install safetensors") from error
    except Exception as error:  # unreadable files end in errors of many types
        raise ConfigError(
            f"{label}: it cannot be read as a state dict without running code ({type(error).__name__}): give a file by "
            "torch.save(model.state_dict(), FILE), or a .safetensors file"
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        held = f"a mapping with {_some(list(state))}" if isinstance(state, Mapping) else f"a {type(state).__name__}"
        raise ConfigError(f"{label}: it holds {held}: save the encoder's state dict alone, names and tensors")
    return dict(state)


def load_state(encoder: nn.Module, state: Mapping[str, Tensor], label: str) -> None:
    """Copies a state dict into an encoder; its names are the encoder's own, or those of its backbone.

    Raises ConfigError: names are missing or unexpected, or a tensor has another shape, type or a value that is not
    finite.
    """
    network = encoder.backbone if isinstance(encoder, Encoder) else encoder
    if network is not encoder and state and all(name.startswith("backbone.") for name in state):
        network = encoder
    own = network.state_dict()
    unexpected = [name for name in state if name not in own and name not in _classifier(encoder)]
    missing = [name for name in own if name not in state and not name.endswith("num_batches_tracked")]
    shapes = [
        f"{name} {list(value.shape)} instead of {list(own[name].shape)}"
        for name, value in state.items()
        if name in own
        and (value.shape != own[name].shape or value.is_floating_point() != own[name].is_floating_point())
    ]
    problems = {"missing": missing, "unexpected": unexpected, "of another shape or type": shapes}
    if lines := [f"{what}: {_some(names)}" for what, names in problems.items() if names]:
        prefix = "; all its names begin with 'module.': save the state dict of the network inside" * (
            bool(state) and all(name.startswith("module.") for name in state)
        )
        raise ConfigError(f"{label}: these weights are of another network; {'; '.join(lines)}{prefix}")
    if broken := [name for name, value in state.items() if not value.isfinite().all()]:
        raise ConfigError(f"{label}: values are not finite: {_some(broken)}")
    network.load_state_dict({name: value for name, value in state.items() if name in own}, strict=False)


def _classifier(encoder: nn.Module) -> tuple[str, ...]:
    """Names of the tensors of the classifier that was removed from a library's model."""
    removed = encoder.model.classifier if isinstance(encoder, Encoder) and encoder.model is not None else ""
    return (f"{removed}.weight", f"{removed}.bias") if removed else ()


def _require_normalisation(section: Mapping[str, Any], where: str, views: Mapping[str, Any], file: Path | None) -> None:
    """ConfigError where the config does not say how images are normalised for these weights."""
    lacking = [f"views.{name}" for name in ("mean", "std") if name not in views]
    if not lacking:
        return
    known = None
    if file is None:
        known = torchvision_weights(section["name"], section["weights"]).transforms()
        known = {"mean": known.mean, "std": known.std}
    elif (card := Path(f"{file}.json")).is_file():
        try:
            known = json.loads(card.read_text(encoding="utf-8"))["input"]
            known = {name: known[name] for name in ("mean", "std")}
        except (ValueError, KeyError, TypeError, OSError):
            known = None  # another program's file
    advice = "those that the weights were trained with, or null for none"
    if known is not None:
        texts = {name: "null" if value is None else str(list(value)).replace(" ", "") for name, value in known.items()}
        advice = " ".join(f"views.{name}={text}" for name, text in texts.items())
    raise ConfigError(
        f"{where}.weights={section['weights']}: weights expect images normalised as in their training, and "
        f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not set: set {advice}"
    )


def _some(names: Sequence[Any]) -> str:
    """The first names, and how many there are besides."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(str, names[:SHOWN])) + more
