"""Every scenario of a paper composes to its authors' settings, value by value; its YAML names the source of each.

The values are those of the papers and their released codes, written out by hand. A paper's table has the settings of
all its scenarios, what each scenario changes, what each row (method and objective) changes, and what a row changes in
one scenario only; a later one replaces an earlier one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from benchmark.configuration.compose import compose
from benchmark.configuration.files import CONFIGS, available
from benchmark.configuration.instantiate import arguments, locate
from datamodules.recipe import Recipe

Settings = dict[str, dict[str, Any]]
"""Section -> key -> value."""


@dataclass(frozen=True)
class Paper:
    """The authors' settings of one paper."""

    shared: Settings
    scenarios: dict[str, Settings]
    rows: dict[str, Settings]
    both: dict[tuple[str, str], Settings] = field(default_factory=dict)
    """Scenario and row -> settings that neither has alone."""


def also(*layers: Settings) -> Settings:
    """The layers merged key by key; a later one replaces values of an earlier one."""
    merged: Settings = {}
    for layer in layers:
        for section, values in layer.items():
            merged[section] = {**merged.get(section, {}), **values}
    return merged


def encoder(name: str, init: str, stem: str = "cifar") -> dict[str, Any]:
    return {"class": f"methods.networks.{name}", "init": init, "stem": stem, "norm": "batch"}


def sgd(lr: float, weight_decay: float) -> dict[str, Any]:
    return {"class": "torch.optim.SGD", "lr": lr, "momentum": 0.9, "weight_decay": weight_decay, "nesterov": False}


def method(name: str, **values: Any) -> dict[str, Any]:
    return {"class": f"methods.{name}", **values}


def objective(name: str, **values: Any) -> dict[str, Any]:
    return {"class": f"methods.objectives.{name}", **values}


def average(weighting: str) -> dict[str, Any]:
    return method("fedavg.FedAvg", weighting=weighting)


CONSTANT = {"name": "constant"}
HALF = [0.5, 0.5, 0.5]
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
PLAIN = {"pad": 0, "blur": 0.0, "solarize": 0.0, "rotation": 0.0, "mean": None, "std": None}
"""Views without these stages."""
STRONG = {**PLAIN, "flip": 0.5, "jitter": [0.8, 0.8, 0.8, 0.2], "jitter_p": 0.8, "grayscale": 0.2}
MODERATE = {**PLAIN, "flip": 0.5, "jitter": [0.4, 0.4, 0.4, 0.1], "jitter_p": 0.8, "grayscale": 0.2}
SIMCLR, BYOL, MOCO = "simclr.SimCLR", "byol.BYOL", "moco.MoCo"

# --- FedX ---

FEDX_HEADS = {"projector": [256, 256], "head_norm": False}
FEDX_SIMCLR = {"objective": objective(SIMCLR, **FEDX_HEADS, temperature=0.1, form="full")}
FEDX_MOCO = {"objective": objective(MOCO, **FEDX_HEADS, temperature=0.1)}
FEDX_BYOL = {"objective": objective(BYOL, **FEDX_HEADS, predictor=256, symmetric=False)}
FEDX_PROTOCL = {"objective": objective("protocl.ProtoCL", **FEDX_HEADS, temperature=0.1)}
FEDX_TERMS = {
    "training": {"batch_size": 64},  # the code's 128, split between two loaders
    "method": method(
        "fedx.FedX", weighting="examples", temperature=0.1, variant="code",
        local_relation=1.0, global_contrast=1.0, global_relation=1.0,
    ),
}  # fmt: skip
LOCAL_TERMS = [{"class": "methods.fedx.CrossDistillation", "global_contrast": 0.0, "global_relation": 0.0}]
FEDX = Paper(
    shared={
        "data": {"name": "cifar10"},
        "partition": {"name": "dirichlet_min", "clients": 10, "alpha": 0.5, "min_size": 10, "share": 1.0},
        "views": {
            **PLAIN, "pad": 4, "pad_mode": "reflect", "crop_scale": None, "flip": 0.5, "jitter_p": 0.0,
            "grayscale": 0.0,
            "mean": [0.491373, 0.482353, 0.446667], "std": [0.247059, 0.243529, 0.261569],
        },
        "encoder": encoder("resnet18", "torchvision"),
        "federation": {"rounds": 100, "participation": 1.0, "batch_norm": "average"},
        "training": {"epochs": 10, "batch_size": 128, "drop_last": True, "views": "joint", "clip_norm": None},
        "optimizer": sgd(0.01, 1e-5),
        "schedule": CONSTANT,
    },
    scenarios={
        "cifar10": {},
        "cifar10-data10": {"partition": {"share": 0.1}},
        "cifar10-data25": {"partition": {"share": 0.25}},
        "cifar10-data50": {"partition": {"share": 0.5}},
        "cifar10-k5": {"partition": {"clients": 5}},
        "cifar10-k15": {"partition": {"clients": 15}},
        "cifar10-k20": {"partition": {"clients": 20}},
        "cifar10-r20": {"federation": {"rounds": 20}, "training": {"epochs": 50}},
        "cifar10-r50": {"federation": {"rounds": 50}, "training": {"epochs": 20}},
        "cifar10-r200": {"federation": {"rounds": 200}, "training": {"epochs": 5}},
        "fmnist": {"data": {"name": "fashion_mnist"}, "views": {"mean": [0.286], "std": [0.353]}},
        "svhn": {
            "data": {"name": "svhn"},
            "views": {
                "pad_mode": "zero", "flip": 0.0, "jitter": [0.4, 0.4, 0.4, 0.4], "jitter_p": 1.0, "rotation": 15.0,
                "mean": [0.4376821, 0.4437697, 0.47280442], "std": [0.19803012, 0.20101562, 0.19703614],
            },
        },
    },
    rows={
        "fedavg objective=simclr": {**FEDX_SIMCLR, "method": average("examples")},
        "fedavg objective=moco": {**FEDX_MOCO, "method": average("examples")},
        "fedavg objective=byol": {**FEDX_BYOL, "method": average("examples")},
        "fedavg objective=protocl": {**FEDX_PROTOCL, "method": average("examples")},
        "fedu": {**FEDX_BYOL, "method": method("fedu.FedU", weighting="examples")},
        "fedx": also(FEDX_SIMCLR, FEDX_TERMS),
        "fedx objective=moco": also(FEDX_MOCO, FEDX_TERMS),
        "fedx objective=byol": also(FEDX_BYOL, FEDX_TERMS),
        "fedx objective=protocl": also(FEDX_PROTOCL, FEDX_TERMS),
        "fedu-fedx": {
            **FEDX_BYOL,
            "training": {"batch_size": 64},
            "method": method("fedu.FedU", addons=[{"class": "methods.fedx.CrossDistillation"}]),
        },
        "fedprox-fedx": {
            **FEDX_SIMCLR,
            "training": {"batch_size": 64},
            "method": method("fedprox.FedProx", addons=LOCAL_TERMS),
        },
        "scaffold-fedx": {
            **FEDX_SIMCLR,
            "training": {"batch_size": 64},
            "method": method("scaffold.Scaffold", addons=LOCAL_TERMS),
        },
    },
)  # fmt: skip

# --- FedU and FedEMA: EasyFL ---

EASYFL_HEADS = {"projector": [4096, 2048], "head_norm": True}
EASYFL_BYOL: Settings = {
    "objective": objective(BYOL, **EASYFL_HEADS, predictor=4096, momentum=0.99, symmetric=True, first_target="online")
}
FEDEMA = Paper(
    shared={
        "data": {"name": "cifar10"},
        "partition": {"name": "classes", "clients": 5, "classes_per_client": 2},
        "views": {**STRONG, "crop_scale": [0.08, 1.0]},
        "encoder": encoder("resnet18", "default"),
        "federation": {"rounds": 100, "participation": 1.0, "batch_norm": "average"},
        "training": {"epochs": 5, "batch_size": 128, "drop_last": True, "views": "separate", "clip_norm": None},
        "optimizer": sgd(0.032, 5e-4),
        "schedule": {"name": "cosine", "per": "round"},
    },
    scenarios={
        "cifar10": {},
        "cifar100": {"data": {"name": "cifar100"}, "partition": {"classes_per_client": 20}},
    },
    rows={
        "fedu": {
            **EASYFL_BYOL,
            "method": method("fedu.FedU", weighting="examples", threshold=0.4, variant="code"),
        },
        "fedema": {
            **EASYFL_BYOL,
            "method": method(
                "fedema.FedEMA", weighting="examples", tau=0.7, scale=None, variant="code", keep_statistics=True
            ),
        },
        "fedavg objective=byol": also(EASYFL_BYOL, {"objective": {"stateful": True}, "method": average("examples")}),
        "fedavg objective=simclr": {"objective": objective(SIMCLR, **EASYFL_HEADS, temperature=0.07, form="full")},
        "fedavg objective=moco": {
            "views": {"jitter": [0.4, 0.4, 0.4, 0.1]},
            "objective": objective(
                MOCO, projector=[512, 128], temperature=0.2, queue_size=4096, momentum=0.99, symmetric=True
            ),
        },
    },
)

# --- FedU2 and SSD, which share heads, encoder and partition ---

WIDE_HEADS = {"projector": [2048, 512], "head_norm": True}
SILO: Settings = {
    "data": {"name": "cifar10"},
    "partition": {"name": "dirichlet", "clients": 10, "alpha": 0.1},
    "views": {**STRONG, "crop_scale": [0.08, 1.0]},
    "encoder": encoder("resnet18", "default"),
    "federation": {"rounds": 100, "participation": 1.0, "batch_norm": "average"},
    "training": {"epochs": 5, "batch_size": 128, "drop_last": True, "views": "separate", "clip_norm": None},
    "optimizer": sgd(0.1, 1e-4),
    "schedule": CONSTANT,
}
EUA: Settings = {
    "method": method(
        "fedu2.FedU2", weight=0.01, variant="code", length="unit", server_rate=8.0, draws="view", solver="descent",
        weighting="batches",
    )
}  # fmt: skip
FEDU2_SIMCLR = {"objective": objective(SIMCLR, **WIDE_HEADS, temperature=0.07, form="zeroed")}
FEDU2 = Paper(
    shared=also(
        SILO,
        {
            "views": {"crop_scale": [0.2, 1.0]},
            "training": {"drop_last": False, "most_epochs": 10},
            "optimizer": {"lr": 0.048},
        },
    ),
    scenarios={"cifar10": {}},
    rows={
        "fedu2": also(FEDU2_SIMCLR, EUA),
        "fedu2 objective=byol": {"objective": objective(BYOL, **WIDE_HEADS, predictor=2048), **EUA},
        "fedu2 objective=simsiam": {"objective": {"projector": [2048, 512], "predictor": 2048}, **EUA},
        "fedavg": {**FEDU2_SIMCLR, "method": average("batches")},
    },
)
ALIGN_UNIFORM = {"objective": objective("align_uniform.AlignUniform", **WIDE_HEADS, uniform_weight=1.0)}
SSD = Paper(
    shared=also(SILO, ALIGN_UNIFORM),
    scenarios={
        "cifar10-cross-silo": {},
        "cifar100-cross-silo": {"data": {"name": "cifar100"}},
        "tiny-imagenet-cross-silo": {"data": {"name": "tiny-imagenet", "image_size": 32}},
        "cifar10-cross-device": {
            "partition": {"clients": 50},
            "federation": {"participation": 0.2},
            "training": {"drop_last": False},
        },
        "cifar100-cross-device": {
            "data": {"name": "cifar100"},
            "partition": {"clients": 50},
            "federation": {"participation": 0.2},
            "training": {"drop_last": False},
        },
    },
    rows={
        "fedavg objective=align_uniform": {"method": average("batches")},
        "ssd": {
            "method": method(
                "ssd.SSD", weighting="batches", alpha=10.0, dsr_weight=1.0, pd_weight=0.1, variant="code", basis="qr",
                separation="soft",
            )
        },
        "fedx objective=align_uniform": {"method": method("fedx.FedX", weighting="batches")},
        "ldawa objective=align_uniform": {"method": method("ldawa.LDAWA", weighting="batches")},
        "feddecorr objective=align_uniform": {
            "method": method("feddecorr.FedDecorr", weighting="batches", weight=0.01, variant="code")
        },
        "fedu2 objective=align_uniform": {"method": method("fedu2.FedU2", weight=0.01, variant="code")},
    },
)  # fmt: skip

# --- FedSC ---

FEDSC_HEADS = {"projector": [1024, 512], "head_norm": False}
FEDSC_BYOL = {
    "objective": objective(BYOL, **FEDSC_HEADS, predictor=1024, momentum=0.99),
    "training": {"clip_norm": 1.0},
    "optimizer": {"lr": 0.1},
}
SPECTRAL = {"objective": objective("spectral.Spectral", **FEDSC_HEADS, negatives="correlation", mu=4.0)}
FEDSC = Paper(
    shared={
        "data": {"name": "cifar10"},
        "partition": {"name": "blocks", "clients": 5},
        "views": {
            **MODERATE, "crop_scale": [0.2, 1.0],
            "mean": [0.4914, 0.4822, 0.4465], "std": [0.2470, 0.2435, 0.2616],
        },
        "encoder": {"class": "methods.networks.fixup_resnet20", "width": 8},
        "federation": {"rounds": 200, "participation": 1.0},
        "training": {"epochs": 5, "batch_size": 512, "drop_last": False, "smallest_batch": 1, "clip_norm": 3.0},
        "optimizer": sgd(0.03, 5e-4),
        "schedule": {"name": "cosine_twice", "per": "round"},
    },
    scenarios={
        "cifar10": {},
        "cifar100": {
            "data": {"name": "cifar100"},
            "partition": {"clients": 20},
            "views": {"mean": [0.5071, 0.4865, 0.4409], "std": [0.2673, 0.2564, 0.2762]},
        },
        "svhn": {
            "data": {"name": "svhn"},
            "views": {"mean": [0.4377, 0.4438, 0.4728], "std": [0.198, 0.201, 0.197]},
        },
    },
    rows={
        "fedsc": {
            **SPECTRAL,
            "method": method("fedsc.FedSC", alpha_start=1.0, alpha_end=0.2, passes=5, sigma=0.00104),
        },
        "fedavg objective=spectral": {**SPECTRAL, "method": average("clients")},
        "fedavg objective=simclr": {
            "objective": objective(SIMCLR, **FEDSC_HEADS, temperature=0.1, form="one-way"),
            "method": average("clients"),
        },
        "fedavg objective=byol": {**FEDSC_BYOL, "method": average("clients")},
        "fedema": {**FEDSC_BYOL, "method": method("fedema.FedEMA", weighting="clients")},
        "fedu": {**FEDSC_BYOL, "optimizer": {"lr": 0.03}, "method": method("fedu.FedU", weighting="clients")},
        "fedx": {
            "objective": objective(SIMCLR, **FEDSC_HEADS, temperature=0.1, form="full"),
            "method": method("fedx.FedX", weighting="clients", variant="code"),
        },
    },
)  # fmt: skip

# --- FLESD ---

LARGE = {
    **IMAGENET, "jitter": [0.8, 0.8, 0.8, 0.4], "grayscale": 0.5, "blur": 0.5, "blur_kernel": 13,
    "blur_sigma": [0.1, 2.0],
}  # fmt: skip
TINY: Settings = {"data": {"name": "tiny-imagenet"}, "partition": {"min_size": 42}, "views": LARGE}
IMAGENET_100: Settings = {
    "data": {"name": "imagenet-100", "image_size": 224},
    "partition": {"min_size": 108},
    "views": LARGE,
    "encoder": encoder("resnet50", "torchvision", "imagenet"),
    "objective": {"projector": [2048, 128]},
    "training": {"batch_size": 256},
}
CIFAR_100: Settings = {"data": {"name": "cifar100"}, "partition": {"min_size": 42}}
DISTILLATION = method(
    "flesd.FLESD", teacher_temperature=0.1, student_temperature=0.1, kept=1.0, anchors=2048, momentum=0.999,
    distil_epochs=200, distil_batch_size=128, distil_lr=1e-3, distil_weight_decay=1e-6, drop_last=True,
    fill_anchors=True,
)  # fmt: skip
FLESD = Paper(
    shared={
        "data": {"name": "cifar10"},
        "partition": {"name": "dirichlet", "clients": 6, "alpha": 1.0, "min_size": 417},
        "public": {"name": "client", "client": 0},
        "views": {**STRONG, "crop_scale": [0.2, 1.0], "mean": HALF, "std": HALF},
        "encoder": encoder("resnet18", "torchvision"),
        "objective": objective(SIMCLR, projector=[512, 128], head_norm=False, temperature=0.4, form="one-way"),
        "federation": {"rounds": 10, "participation": 1.0, "batch_norm": "average"},
        "training": {
            "epochs": 20,
            "batch_size": 1024,
            "drop_last": False,
            "smallest_batch": 1,
            "views": "separate",
            "clip_norm": None,
        },
        "optimizer": {"class": "torch.optim.Adam", "lr": 1e-3, "weight_decay": 1e-6},
        "schedule": CONSTANT,
    },
    scenarios={
        f"{name}-a{alpha:g}": also(differences, {"partition": {"alpha": alpha}})
        for name, differences in (
            ("cifar10", {}),
            ("cifar100", CIFAR_100),
            ("tiny-imagenet", TINY),
            ("imagenet-100", IMAGENET_100),
        )
        for alpha in (100.0, 1.0, 0.01)
    },
    rows={
        "fedavg": {"method": average("clients")},
        "fedprox": {"method": method("fedprox.FedProx", weighting="clients", mu=0.02)},  # the code has no factor 1/2
        "flesd": {"federation": {"rounds": 2}, "training": {"epochs": 100}, "method": DISTILLATION},
        "flesd-cc": {"federation": {"rounds": 1}, "training": {"epochs": 200}, "method": DISTILLATION},
        "local": {"method": method("local.Local")},
        "centralized": {"partition": {"name": "iid", "clients": 1, "alpha": None, "min_size": None}},
    },
    both={("cifar100-a100", "flesd"): {"federation": {"rounds": 4}, "training": {"epochs": 50}}},
)

# --- L-DAWA ---

LDAWA = Paper(
    shared={
        "data": {"name": "cifar100"},
        "partition": {"name": "dirichlet", "clients": 10, "alpha": 0.1},
        "views": {
            **MODERATE, "crop_scale": [0.2, 1.0], "blur": 0.5, "blur_kernel": 13, "blur_sigma": [0.1, 2.0],
            "mean": [0.491, 0.482, 0.446], "std": [0.247, 0.243, 0.261],
        },
        "encoder": encoder("resnet34", "default"),
        "objective": objective(SIMCLR, projector=[128], temperature=0.07, form="itself"),
        "federation": {"rounds": 200, "participation": 1.0, "batch_norm": "average"},
        "training": {"epochs": 1, "batch_size": 256, "drop_last": False, "clip_norm": None},
        "optimizer": sgd(0.03, 1e-4),
        "schedule": CONSTANT,
    },
    scenarios={
        **{f"cifar100-e{epochs}": {"training": {"epochs": epochs}} for epochs in (1, 5, 10)},
        **{
            f"cifar100-resnet50-e{epochs}": {
                "training": {"epochs": epochs},
                "encoder": encoder("resnet50", "default"),
            }
            for epochs in (1, 5, 10)
        },
        "tiny-imagenet-e1": {"data": {"name": "tiny-imagenet"}},
        "tiny-imagenet-resnet50-e1": {
            "data": {"name": "tiny-imagenet"},
            "encoder": encoder("resnet50", "default"),
        },
    },
    rows={
        "fedavg": {"method": average("examples")},
        "ldawa": {"method": method("ldawa.LDAWA", weighting="examples", start=3, statistics="scaled")},
    },
)  # fmt: skip

# --- Orchestra ---

NORMED = {"projector": [512, 512], "head_norm": True, "last_norm": True}
BATCHES = {"method": average("batches")}
QUARTER = {  # the code's loss is a quarter of ours: its rate is 0.01, its weight decay 1e-4
    "views": {"blur": 0.55, "solarize": 0.1},
    "objective": objective(BYOL, projector=[1024, 512], predictor=1024, momentum=0.996),
    "optimizer": sgd(0.0025, 4e-4),
}
UNCHANGED = {"jitter_p": 0.0, "grayscale": 0.0, "blur": 0.0}
SILO_10: Settings = {
    "partition": {"clients": 10},
    "federation": {"participation": 1.0},
    "training": {"batch_size": 256},
    "optimizer": {"lr": 0.03},
}
SILO_ROWS: dict[str, Settings] = {
    "orchestra": {"objective": {"bank": 256, "momentum": 0.99}, "optimizer": {"lr": 0.01}},
    "fedavg objective=simsiam": {"optimizer": {"lr": 0.03}},
    "fedavg objective=byol": {"objective": {"momentum": 0.99}, "optimizer": {"lr": 0.0075}},
    "fedu": {"objective": {"momentum": 0.99}, "optimizer": {"lr": 0.0075}},
}
MORE_CLUSTERS: Settings = {"objective": {"clusters": 256}, "method": {"local_clusters": 16}}
ORCHESTRA = Paper(
    shared={
        "data": {"name": "cifar10"},
        "partition": {"name": "dirichlet_balanced", "clients": 100, "alpha": 0.1},
        "views": {
            **PLAIN, "crop_scale": [0.5, 1.0], "interpolation": "bicubic", "flip": 0.5,
            "jitter": [0.4, 0.4, 0.2, 0.1], "jitter_p": 0.8,
            "grayscale": 0.2, "blur": 0.5, "blur_kernel": 3, "blur_sigma": [0.1, 2.0], "mean": HALF, "std": HALF,
        },
        "encoder": encoder("resnet18", "default"),
        "federation": {"rounds": 100, "participation": 0.5, "batch_norm": "average"},
        "training": {"epochs": 10, "batch_size": 16, "drop_last": True, "views": "separate", "clip_norm": None},
        "optimizer": sgd(0.003, 1e-4),
        "schedule": CONSTANT,
    },
    scenarios={
        "cifar10-cross-device": {},
        "cifar10-cross-device-alpha0.001": {"partition": {"alpha": 0.001}},
        "cifar10-cross-device-alpha100000": {"partition": {"alpha": 1e5}},
        "cifar10-cross-silo": SILO_10,
        "cifar100-cross-device": {"data": {"name": "cifar100"}},
        "cifar100-cross-silo": also(SILO_10, {"data": {"name": "cifar100"}}),
    },
    rows={
        "orchestra": {
            "views": {"blur": 0.37, "solarize": 0.07},
            "objective": objective(
                "clustering.Clustering", **NORMED, clusters=32, bank=128, temperature=0.1, momentum=0.996,
                rotation_weight=1.0, target=True, target_view="augment",
                target_first=True,
            ),
            "method": method(
                "orchestra.Orchestra", weighting="batches", local_clusters=8, least=0, server_steps=500, server_lr=0.01,
                start_rows="first",
            ),
        },
        "fedavg objective=simclr": {**BATCHES, "objective": objective(SIMCLR, **NORMED, temperature=0.1, form="full")},
        "fedavg objective=simsiam": {
            **BATCHES,
            "objective": objective("simsiam.SimSiam", projector=[256, 256, 512], predictor=512),
            "optimizer": {"lr": 0.01},
        },
        "fedavg objective=spectral": {
            **BATCHES,
            "views": {
                "crop_scale": [0.2, 1.0], "jitter": [0.4, 0.4, 0.4, 0.1], "jitter_p": 0.4, "grayscale": 0.1,
                "blur": 0.25,
            },
            "objective": objective("spectral.Spectral", **NORMED, mu=1.0, negatives="pairs"),
        },
        "fedavg objective=byol": {**BATCHES, **QUARTER},
        "fedu": {**QUARTER, "method": method("fedu.FedU", weighting="batches")},
        "fedavg objective=rotation": {
            **BATCHES,
            "views": {**UNCHANGED, "crop_scale": None, "flip": 0.0},
            "objective": objective("rotation.Rotation", **NORMED),
        },
        "fedavg objective=supervised": {
            **BATCHES, "views": UNCHANGED, "objective": objective("supervised.Supervised"),
        },
    },
    both={
        **{(f"{data}-cross-silo", row): rows for data in ("cifar10", "cifar100") for row, rows in SILO_ROWS.items()},
        ("cifar100-cross-device", "orchestra"): MORE_CLUSTERS,
        ("cifar100-cross-silo", "orchestra"): also(SILO_ROWS["orchestra"], MORE_CLUSTERS),
    },
)  # fmt: skip

PAPERS = {
    "fedx": FEDX, "fedema": FEDEMA, "fedu2": FEDU2, "ssd": SSD, "fedsc": FEDSC, "flesd": FLESD, "ldawa": LDAWA,
    "orchestra": ORCHESTRA,
}  # fmt: skip


def flat(settings: Settings) -> dict[str, Any]:
    """Dotted key -> value."""
    return {f"{section}.{key}": value for section, values in settings.items() for key, value in values.items()}


DEFAULTS = {"partition.share": 1.0, "public.client": 0}
"""Values of keys that a section without a class or schema leaves out."""


def found(config: DictConfig, dotted: str) -> Any:
    """A setting as a run has it: the config's value, that of the heads, or the default of what takes it."""
    section, key = dotted.split(".")
    values: Mapping[str, Any] = OmegaConf.to_container(config)[section]
    if key in values:
        return values[key]
    if section == "objective" and key in config.heads:
        return OmegaConf.to_container(config.heads)[key]
    if section == "views":
        default = {stage.name: stage.default for stage in fields(Recipe)}[key]
        return list(default) if isinstance(default, tuple) else default
    if "class" in values:
        return arguments(locate(values, section))[key].default
    return DEFAULTS.get(dotted)


def cases() -> Iterator[Any]:
    """Every scenario of every paper with every row."""
    for name, paper in PAPERS.items():
        for scenario, differences in paper.scenarios.items():
            for row, changes in paper.rows.items():
                expected = also(paper.shared, differences, changes, paper.both.get((scenario, row), {}))
                yield pytest.param(f"{name}/{scenario}", row, flat(expected), id=f"{name}/{scenario} {row}")


@pytest.mark.parametrize(("scenario", "row", "expected"), list(cases()))
def test_a_row_has_its_authors_settings(scenario, row, expected):
    name, *overrides = row.split()
    config = compose(scenario, name, overrides)
    assert {key: found(config, key) for key in expected} == expected


def test_every_scenario_of_a_paper_is_in_its_table():
    tables = [f"{name}/{scenario}" for name, paper in PAPERS.items() for scenario in paper.scenarios]
    assert sorted(tables) == sorted(name for name in available("scenario") if "/" in name)


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


@pytest.mark.parametrize("name", [name for name in available("scenario") if "/" in name])
def test_every_setting_of_a_paper_names_its_source(name):
    text = (CONFIGS / "scenario" / f"{name}.yaml").read_text()
    assert unsourced(text) == []


def test_a_setting_without_a_source_is_found():
    assert unsourced("a:  # section 1\n  b: 1\nc:\n  d: 2\n  e: 3  # code\n  f:\n    g: 4\n") == ["d: 2", "g: 4"]
