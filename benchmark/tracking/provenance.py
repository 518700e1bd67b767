"""Origin of a record: commit, data, libraries and hardware."""

import datetime
import hashlib
import inspect
import linecache
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from benchmark import disk
from benchmark.configuration.identity import identity
from benchmark.configuration.instantiate import locate, named_classes
from benchmark.configuration.partitions import encoder_sections, sha256, weights_file
from benchmark.federation.loop import FederatedLoop
from benchmark.tracking.checkout import PACKAGES, ROOT
from datamodules.federated import FederatedDataModule
from datamodules.parts import Parts
from leaderboards.machines import SEVERAL, kinds
from methods.networks.libraries import hub_file, torchvision_weights

METHODS = ("method", "method.addons", "objective")
LIBRARIES = ("lightning", "numpy", "omegaconf", "scikit-learn", "torch", "torchmetrics", "torchvision", "wandb")


def provenance(config: DictConfig, data: FederatedDataModule, loop: FederatedLoop) -> dict[str, Any]:
    """Commit, config, data, libraries and hardware: what is needed to reproduce the number."""
    environments, libraries = loop.environments, list(LIBRARIES)
    # of the rounds: the scores may be computed elsewhere
    machine = environments[-1]["hardware"] if environments else hardware(loop.fabric.device)
    if any(section["class"] == "methods.networks.timm" for _, section in encoder_sections(config)):
        libraries.append("timm")
    versions = {}
    for name in libraries:
        with suppress(metadata.PackageNotFoundError):  # a run with logger=csv needs no wandb
            versions[name] = metadata.version(name)
    return {
        **origin([env["commit"] for env in environments if env["commit"] is not None], machine),
        "config": identity(config),
        "dataset": data.source.sha256,
        "in_order": data.source.in_order,
        "partition": partition_hash(data.parts),
        **({"public": images_hash(data.public_images, data.public)} if data.public is not None else {}),
        **({"weights": hashes} if (hashes := weights_hashes(config)) else {}),
        "libraries": versions,
        "python": platform.python_version(),
    }


def weights_hashes(config: DictConfig) -> dict[str, str]:
    """Dotted key -> sha256 of the file of weights that an encoder started from; none for random initial weights."""
    hashes = {}
    for where, section in encoder_sections(config):
        if section.get("weights") is not None:
            key = f"{where}.weights"
            is_file = weights_file(section, where) is not None
            named = None if is_file else hub_file(torchvision_weights(section.name, section.weights))
            hashes[key] = section.weights_sha256 if named is None else sha256(named, key)
    return hashes


def numerical_deviations(environments: Sequence[Mapping[str, Any]]) -> list[str]:
    """How the environments of a run's rounds differ from the reference's, and from each other."""
    lines = list(dict.fromkeys(line for env in environments for line in env["numerical_deviations"]))
    for key, what in {"commit": "commits", "hardware": "kinds of device", "ranks": "numbers of ranks"}.items():
        values = dict.fromkeys(str(env[key]) for env in environments if env[key] is not None)
        if len(apart := kinds(values) if key == "hardware" else list(values)) > 1:
            lines.append(f"{SEVERAL} {what}: {', '.join(apart)}")
    return lines


def author_deviations(config: DictConfig) -> list[str]:
    """Settings that are not those of the paper's authors, as the scenario's `authors` names them."""
    return [
        f"{key}={ours}, the authors have {theirs}"
        for key, theirs in config.authors.items()
        if (ours := OmegaConf.select(config, key)) != theirs
    ]


def origin(commits: list[str], machine: str) -> dict[str, Any]:
    """Code, machine and date of a computation. commits: in order, of `commit`. machine: of `hardware`."""
    return {
        "git": commits[-1].removesuffix("+") if commits else None,
        "dirty": not commits or any(commit.endswith("+") for commit in commits),
        "hardware": machine,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def partition_hash(parts: Sequence[np.ndarray]) -> str:
    """sha256 of sizes and indices, client by client."""
    digest = hashlib.sha256()
    for few in Parts(parts).blocks():
        sized = np.insert(few.indices, few.ends - few.sizes, few.sizes)  # a client's size before its indices
        digest.update(sized.astype("<i8", copy=False).data)
    return digest.hexdigest()


def images_hash(images: np.ndarray, held: np.ndarray) -> str:
    """sha256 of the shape of an image and the bytes of the held images, a few at a time."""
    digest = hashlib.sha256(repr(images.shape[1:]).encode())
    for few in np.array_split(held, max(1, len(held) // 256)):
        digest.update(np.ascontiguousarray(images[few]).tobytes())
    return digest.hexdigest()


def external_classes(config: DictConfig) -> list[str]:
    """A line, with its file's hash, for each class of a config from outside the packages and installed libraries.

    An installed package's method or objective counts as outside.
    """
    lines = []
    for where, section in named_classes(config):
        target, external = locate(section, where), f"{section['class']} is code from outside the packages"
        try:
            file = Path(inspect.getfile(target)).resolve()
        except (OSError, TypeError):
            cell = _cell(target)
            digest = f"sha256 {hashlib.sha256(cell.encode()).hexdigest()}" if cell else "its source cannot be read"
            lines.append(f"{external}: {digest}")
            continue
        is_ours = any(file.is_relative_to(ROOT / package) for package in PACKAGES)
        is_library = where not in METHODS and {"site-packages", "dist-packages"} & set(file.parts)
        if not is_ours and not is_library:
            lines.append(f"{external}: sha256 {disk.sha256(file)}")
    return lines


def _cell(target: Any) -> str:
    """Source of the notebook's cell that defines a class or a function; without functions, the attributes."""
    parts = (inspect.unwrap(each) for each in (target, *vars(target).values()) if inspect.isroutine(each))
    own = [each for each in parts if inspect.isfunction(each) and each.__module__ == target.__module__]
    if own:
        return "".join(linecache.getlines(own[0].__code__.co_filename))
    return repr(sorted((name, repr(value)) for name, value in vars(target).items() if not name.startswith("__")))


def hardware(device: torch.device) -> str:
    """The accelerator; or the processor's name, the threads of each rank, and `arithmetic`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{processor()}, {torch.get_num_threads()} threads; {arithmetic()}"


def emulated(precision: str, device: torch.device) -> str:
    """A line where a precision of training is slower than 32-true for want of instructions, else ""."""
    x86 = device.type == "cpu" and platform.machine().lower() in ("x86_64", "amd64")
    if precision != "bf16-mixed" or not x86 or torch.cpu._is_avx512_bf16_supported():  # of others torch does not know
        return ""
    return "this processor emulates bf16, so training.precision=bf16-mixed takes longer than 32-true"


def processor() -> str:
    """The processor's name, as the system reports it."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


@cache
def arithmetic() -> str:
    """What the last bits depend on, of which a name such as AMD EPYC says nothing: `family 25 model 17 stepping 1,
    AVX512, MKL 2024.2`, the processor's model, the widest instruction set that torch uses, and its BLAS.
    """
    info, built = _cpuinfo(), torch.__config__.show()
    numbers = {"family": info.get("cpu family"), "model": info.get("model"), "stepping": info.get("stepping")}
    model = " ".join(f"{word} {number}" for word, number in numbers.items() if number)
    mkl = re.search(r"Math Kernel Library Version ([\d.]+)", built)
    blas = re.search(r"BLAS_INFO=(\w+)", built)
    library = f"MKL {mkl[1]}" if mkl else f"BLAS {blas[1]}" if blas else "BLAS unknown"
    return ", ".join(filter(None, (model, torch.backends.cpu.get_cpu_capability(), library)))


@cache
def _cpuinfo() -> dict[str, str]:
    """What Linux says of the first processor; empty on another system."""
    file = Path("/proc/cpuinfo")
    text = file.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0] if file.exists() else ""
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
