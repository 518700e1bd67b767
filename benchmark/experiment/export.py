"""Export of a finished run's encoder: a file of weights or an ONNX graph, and a JSON file that describes it.

The names of the weights are those of the encoder's backbone: where the encoder is a model of torchvision or timm, they
are that library's own. docs/how-to/export.md has the format, and the lines that load it.
"""

import json
import logging
import warnings
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn

from benchmark.configuration.identity import identity
from benchmark.configuration.instantiate import arguments, locate
from benchmark.configuration.keys import nearest
from benchmark.disk import replacing, sha256
from benchmark.errors import ConfigError
from benchmark.experiment import adapters
from benchmark.experiment.encoder import OF_ENCODERS
from benchmark.experiment.run import Run
from leaderboards.schema import Record
from methods.networks import Encoder

FORMATS = ("torch", "safetensors", "onnx", "peft")
RECORDED = ("scenario", "row", "seed", "method", "objective", "rounds", "provenance", "deviations")
"""Fields of the run's record that the description repeats."""
LEFT_OUT = ("class", "clients", *OF_ENCODERS)
"""Keys of an encoder's section that are no arguments of its class."""


def export_encoder(run: Run, record: Record, file: Path, *, format: str | None = None, name: str | None = None) -> str:
    """Writes an encoder of a finished run to `file`, and its description to `file`.json; both replace older files.

    Args:
        run: restored. record: its own.
        format: one of FORMATS; None: by the file's ending, torch for any other than .safetensors and .onnx. peft: of
            the adapter alone, into `file` as a folder; all others are of weights with which it is merged.
        name: as `record["encoders"]` has it; None: the global one, or the only one.

    Returns the name of the encoder. Raises ConfigError: no such format or encoder, or a package is missing.
    """
    format = format or {".onnx": "onnx", ".safetensors": "safetensors"}.get(file.suffix, "torch")
    if format not in FORMATS:
        raise ConfigError(f"format={format}: choose {', '.join(FORMATS)}{nearest(str(format), FORMATS)}")
    if file.is_dir() and format != "peft":
        raise ConfigError(f"{file} is a folder: give the name of a file in it, e.g. {file / 'encoder.pt'}")
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}: make it first")
    name, encoder = run.scoring.exported_encoder(name)
    recipe, channels = run.data.recipe, run.data.source.train.images.shape[1]
    beside_file = file.with_name(f"{file.name}.json")
    if format == "peft":
        file = file / "adapter_model.safetensors"
    with replacing(beside_file) as card, replacing(file) as beside:
        _write(encoder, beside, format, torch.zeros(2, channels, recipe.size, recipe.size))
        description = {
            "format": format,
            "sha256": sha256(beside),
            "encoder": name,
            "architecture": architecture(run, encoder, name),
            "input": {"channels": channels, "size": recipe.size, "mean": recipe.mean, "std": recipe.std},
            "features": encoder.dim,
            "run": {
                "identity": identity(run.config),
                **{key: record[key] for key in RECORDED},
                "scores": record["encoders"].get(name, record["scores"]),
            },
        }
        card.write_text(json.dumps(description, indent=1, default=list) + "\n", encoding="utf-8")
    return name


def architecture(run: Run, encoder: nn.Module, name: str) -> dict[str, Any]:
    """What builds the encoder: its class and arguments, and its library's model where it is one."""
    architectures = run.config.federation.encoders
    section: Any = OmegaConf.to_container(architectures.get(name, run.config.encoder), resolve=True)
    given = {key: value for key, value in section.items() if key not in LEFT_OUT}
    filled_in = {"in_channels": run.data.source.train.images.shape[1], "image_size": run.data.recipe.size}
    takes = arguments(locate(section, "encoder"))
    given = {**{key: value for key, value in filled_in.items() if key in takes}, **given}
    model = encoder.model if isinstance(encoder, Encoder) else None
    return {"class": section["class"], "arguments": given, "model": model and model._asdict()}


def _write(encoder: nn.Module, file: Path, format: str, images: torch.Tensor) -> None:
    """Writes the weights, or the graph. images: `[2, C, H, W]`, of which a graph takes the shape but for the batch."""
    if format == "peft":
        adapters.write(encoder, file.parent, file)
        return
    adapters.merge(encoder)
    state = (encoder.backbone if isinstance(encoder, Encoder) else encoder).state_dict()
    # a view would be written with all of the tensor that it is a part of
    state = {key: value.detach().clone(memory_format=torch.contiguous_format) for key, value in state.items()}
    try:
        if format == "torch":
            with file.open("wb") as stream:  # an error of a write names the file
                torch.save(state, stream)
        elif format == "safetensors":
            from safetensors.torch import save

            file.write_bytes(save(state))
        else:
            _write_onnx(encoder, file, images)
    except ImportError as error:
        raise ConfigError(
            f"format={format} needs the package {error.name}: install this suite with its extra: "
            "pip install 'fulcrum-ful[export]'"
        ) from error


def _write_onnx(encoder: nn.Module, file: Path, images: torch.Tensor) -> None:
    """Writes an ONNX graph from `images` `[batch, C, H, W]` to `features` `[batch, dim]`, by torch's exporter."""
    import onnxscript  # noqa: F401  # torch's exporter needs it; the error names it

    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")  # of the exporter, about itself
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.onnx.export(
            encoder,
            (images,),
            file,
            dynamo=True,
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,
            verbose=False,
        )
