"""The authors' codes: a case for each repository."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmark.errors import ConfigError
from benchmark.parity.case import Case, set_hooks
from benchmark.parity.files import ParityFile
from benchmark.parity.inputs import CLASSES, DRAWS, GivenViews, ViewKey, initial, name_key, normal
from methods import trees
from methods.base import FederatedMethod, Phase
from methods.fedu2 import DIRECTIONS
from methods.maths import equal_clusters


class FedX(Case):
    """FedX, its ablations, and FedAvg over its SimCLR."""

    scenario = "fedx/cifar10"
    default: Mapping[str, Any] = {"training.drop_last": False}
    aliases: Mapping[str, Any] = {"fedx": "predictor"}
    terms: Mapping[str, Any] = {
        "relation_local": "local_relation", "contrast_global": "global_contrast", "relation_global": "global_relation"
    }  # fmt: skip

    def __init__(self, file: ParityFile) -> None:
        super().__init__(file)
        self.method = "fedx" if set(file.get("terms")) & set(self.terms) else "fedavg"

    def overrides(self) -> dict[str, Any]:
        """The file's settings; FedX weighs each term that is on by 1, others by 0. ConfigError: two temperatures."""
        temperatures = set(self.file.get("temperature").values())
        if len(temperatures) > 1:
            raise ConfigError(f"{self.file.path}: FedX has one temperature for all its terms, not {temperatures}")
        settings = super().overrides() | {"objective.temperature": temperatures.pop()}
        if self.method == "fedx":
            settings["method.temperature"] = settings["objective.temperature"]
            for term, weight in self.terms.items():
                settings[f"method.{weight}"] = float(term in self.file.get("terms"))
        return settings


class FedDecorr(Case):
    """FedDecorr, supervised: the local step of its repository is cross-entropy of one view."""

    scenario = "reference"
    method = "feddecorr"
    default: Mapping[str, Any] = {"objective.num_views": 2}
    fixed: Mapping[str, Any] = {"objective": "supervised"}
    settings: Mapping[str, Any] = {
        "objective.num_views": "views_per_step", "method.weight": "term_weights.decorrelation"
    }  # fmt: skip

    def labels(self) -> list[Tensor]:
        """Random labels, the same in all rounds."""
        return [torch.from_numpy(self.draws(k).integers(0, CLASSES, n)) for k, n in enumerate(self.file.sizes)]


class SSD(Case):
    """SSD, and FedAvg over its alignment and uniformity."""

    default: Mapping[str, Any] = {
        "training.views": "joint",
        "training.drop_last": False,
        "method.weighting": "examples",
    }
    fixed: Mapping[str, Any] = {"objective": "align_uniform"}
    settings: Mapping[str, Any] = {"objective.uniform_weight": lambda get: get("loss.uniform") / get("loss.align")}
    stretch: Mapping[str, Any] = {
        "method.alpha": "ssd.alpha", "method.variant": "ssd.variant",
        "method.dsr_weight": "loss.dsr", "method.pd_weight": "loss.pd",
    }  # fmt: skip

    def __init__(self, file: ParityFile) -> None:
        super().__init__(file)
        if file.get("loss.dsr") or file.get("loss.pd"):
            self.method, self.settings = "ssd", {**self.settings, **self.stretch}
        self.scenario = f"ssd/cifar10-cross-{'silo' if file.get('drop_last') else 'device'}"  # the code's rule

    def prepare(self, method: FederatedMethod, data: GivenViews) -> None:
        """The basis and the clients' dimensions."""
        if self.method != "ssd":
            return
        ssd, start = self.file.get("ssd"), method.init_server
        width, per_client = ssd["width"], ssd["own_dimensions"]

        def init_server(round_context: Any) -> Any:
            server = start(round_context)
            order = torch.from_numpy(self.draws(1).permutation(width))
            for client, scale in server["scales"].items():
                scale.fill_(1.0)[order[client * per_client : (client + 1) * per_client]] = ssd["alpha"]
            random = normal(self.file.seed, DRAWS, 0, shape=(width, width))
            return {**server, "basis": {"Q": torch.linalg.qr(random).Q}}

        set_hooks(method, init_server=init_server)


class EasyFL(Case):
    """FedU, FedEMA, and FedAvg over BYOL."""

    scenario = "fedema/cifar10"
    author_bugs = "a client's first target is the online network itself"
    default: Mapping[str, Any] = {
        "training.views": "joint", "training.drop_last": False, "objective.first_target": "copy",
    }  # fmt: skip
    fixed: Mapping[str, Any] = {"objective": "byol"}
    settings: Mapping[str, Any] = {
        "objective.momentum": "target_momentum",
        "heads.projector": lambda get: get("projector")[1:],
        "heads.predictor": lambda get: get("predictor")[1],
    }
    methods: Mapping[str, Any] = {"global": "fedavg", "dapu": "fedu", "dynamic_dapu": "fedema"}

    def __init__(self, file: ParityFile) -> None:
        super().__init__(file)
        update = file.get("options.update_predictor")
        if update not in self.methods:
            raise ConfigError(f"{file.path}: update_predictor={update} is none of {', '.join(self.methods)}")
        self.method = self.methods[update]
        if self.method == "fedu":
            self.settings = {**self.settings, "method.threshold": "options.dapu_threshold"}
        if self.method == "fedema":
            self.settings = {**self.settings, "method.tau": "options.auto_scaler_target"}
            self.author_bugs += "; above mu = 0.5 the predictor's running statistics are the client's"
            self.default = {**self.default, "method.keep_statistics": False}


class FedU2(Case):
    """FedU2 over SimCLR."""

    scenario = "fedu2/cifar10"
    method = "fedu2"
    exact = 1e-5  # the authors' solver stops before it is at the minimum
    author_bugs = "the solver ends before the minimum, for two clients at its start; updates of any length count as 2"
    default: Mapping[str, Any] = {
        "training.views": "joint", "training.max_epochs": None, "method.draws": "batch", "method.solver": "exact",
        "method.length": "mean", "method.weighting": "examples", "objective.form": "full",
    }  # fmt: skip
    settings: Mapping[str, Any] = {
        "heads.projector": lambda get: get("projector")[1:],
        "objective.temperature": "temperature",
        "method.weight": "fur.weight",
        "method.server_rate": "server.rate",
    }
    kinds: Mapping[str, Any] = {"tangents": (0,), "samples": (1,), "directions": (2, DIRECTIONS)}

    def prepare(self, method: FederatedMethod, data: GivenViews) -> None:
        """Points and directions of each view."""
        seed, width = self.file.seed, method.objective.width

        def draw(batch: Any, stream: torch.Generator) -> dict[str, Tensor]:
            rows, views = len(batch.index), range(len(batch.views))
            return {
                name: torch.stack([
                    normal(seed, DRAWS, *data.position, view, kind, shape=(rows, *more, width)) for view in views
                ]).to(batch.index.device)
                for name, (kind, *more) in self.kinds.items()
            }  # fmt: skip

        set_hooks(method.addons["fedu2"], draw=draw)


class FedSC(Case):
    """FedSC without noise."""

    scenario = "fedsc/cifar10"
    method = "fedsc"
    author_bugs = "the rate is asked for outside the scheduler's step, so that each round's decay counts twice"
    default: Mapping[str, Any] = {"schedule.name": "cosine"}
    settings: Mapping[str, Any] = {
        "encoder.width": "network.width",
        "training.clip_norm": "clip_norm",
        "objective.mu": "fedsc.mu",
        "method.passes": "fedsc.passes",
        "method.sigma": "fedsc.sigma",  # the files have no noise, the code always some
    }

    def view_key(self, phase: Phase, round: int) -> ViewKey:
        """The passes that measure come after all epochs."""
        return ViewKey(round, epoch=100 if phase.name == "correlate" else 0)


class LDAWA(Case):
    """L-DAWA's aggregation of given weights."""

    scenario = "ldawa/cifar100-e1"
    method = "ldawa"
    author_bugs = "running statistics are scaled by their cosines"
    default: Mapping[str, Any] = {"method.statistics": "mean"}

    def overrides(self) -> dict[str, Any]:
        """The first rounds of the method's mean; nothing is trained."""
        encoder = {"encoder.class": "methods.networks.resnet18"}
        return encoder | {"federation.rounds": self.file.get("rounds"), "method.start": self.file.get("start")}

    def prepare(self, method: FederatedMethod, data: GivenViews) -> None:
        """No training; clients reply with the given weights."""
        plan = method.plan

        def given_weights(client: int, round: int, name: str, like: Tensor) -> Tensor:
            z = torch.from_numpy(self.draws(client, round, name_key(name)).standard_normal(like.shape))
            if name.endswith("running_mean"):
                value = 0.1 * (client + 1) + z
            elif name.endswith("running_var"):
                value = 0.5 + z.square()
            elif name == "projector.0.bias" and client == 0:
                value = torch.zeros_like(z)
            else:
                base = initial(self.file.seed, name, like.shape).double()
                value = base + 0.4 * (client + 1) * (round + 1) * base.square().mean().sqrt() * z
            return value.float().to(like)

        def reply(visit: Any) -> Any:
            weights: Any = {}
            for path, leaf in trees.leaves(method.weights()):
                trees.put(weights, path, given_weights(visit.client.id, visit.round, ".".join(path), leaf))
            return {"weights": weights}, visit.memory

        set_hooks(method, reply=reply, plan=lambda number: tuple(replace(each, work="none") for each in plan(number)))


class Orchestra(Case):
    """Orchestra, whose round 0 only clusters."""

    scenario = "orchestra/cifar10-cross-device"
    method = "orchestra"
    first = 1e-5  # clusterings precede it, and round too
    first_round = 1
    author_bugs = "the online networks pass over the first view too, whose result is not used"
    default: Mapping[str, Any] = {
        "training.views": "joint", "training.drop_last": False, "objective.target_first": False,
        "method.start_rows": "random", "method.weighting": "examples",
    }  # fmt: skip
    settings: Mapping[str, Any] = {
        "objective.temperature": "temperature",
        "objective.momentum": "ema",
        "objective.clusters": "global_clusters",
        "objective.bank": "memory",
        "method.local_clusters": "local_clusters",
        "method.server_steps": "server.steps",
        "method.server_lr": "server.lr",
    }

    def __init__(self, file: ParityFile) -> None:
        super().__init__(file)
        memory, size = file.get("memory"), file.get("batch_size")
        fewest = min(file.sizes) // size * size * file.get("epochs")
        if memory % size or fewest < memory:
            raise ConfigError(
                f"{file.path}: a memory of {memory} rows, batches of {size} and {fewest} rows of the smallest client: "
                "whole batches have to fill it"
            )

    def view_key(self, phase: Phase, round: int) -> ViewKey:
        """The first clustering is in round 0."""
        return ViewKey(0 if phase.name == "initialise" else round + 1)

    def prepare(self, method: FederatedMethod, data: GivenViews) -> None:
        """The first global centroids, and where local clusters start; the file's memory begins with the oldest row."""
        size, start = self.file.get("batch_size"), method.init_server

        def init_server(round_context: Any) -> Any:
            server = start(round_context)
            mu = torch.from_numpy(self.draws(100).standard_normal(server["centroids"]["mu"].shape))
            return {**server, "centroids": {"mu": normalize(mu, dim=1).float() * self.file.get("mu_length")}}

        def cluster(visit: Any, rows: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
            place = visit.client.id, data.key.round
            starts = torch.from_numpy(self.draws(*place, 101).permutation(len(rows))[:clusters])
            spare = torch.from_numpy(self.draws(*place, 102).integers(0, len(rows), (5, clusters)))
            if data.key.round:  # the bank begins with its latest batch
                oldest_first = torch.cat(torch.arange(len(rows)).split(size)[::-1])
                starts, spare = oldest_first[starts], oldest_first[spare]
            return equal_clusters(rows, clusters, visit.stream, draws=(starts, spare))

        set_hooks(method, init_server=init_server, cluster=cluster)


class FLESD(Case):
    """FLESD; client 0 has the public images."""

    scenario = "flesd/cifar10-a1"
    method = "flesd"
    absent = 0
    author_bugs = "the first batches of each epoch of the distillation make no step, though the anchors are full"
    default: Mapping[str, Any] = {
        "training.views": "joint", "objective.form": "full", "method.fill_anchors": False, "method.drop_last": False,
    }  # fmt: skip
    settings: Mapping[str, Any] = {
        "objective.temperature": "temperature",
        "method.kept": lambda get: get("percent") / 100,
        "method.teacher_temperature": "distil_temperature",
        "method.student_temperature": "distil_temperature",
        "method.distil_weight_decay": "distillation_optimizer.weight_decay",
        **{f"method.{k}": k for k in ("anchors", "momentum", "distil_epochs", "distil_batch_size", "distil_lr")},
    }

    def view_key(self, phase: Phase, round: int) -> ViewKey:
        """Public images are as they are in `infer`; the views of the distillation are numbered from 1."""
        return {"infer": ViewKey(0), "distil": ViewKey(round, first=1)}.get(phase.name, ViewKey(round))


CASES: dict[str, type[Case]] = {
    "Sungwon-Han/FEDX": FedX,
    "bytedance/FedDecorr": FedDecorr,
    "hc-fang/ssd": SSD,
    "EasyFL-AI/EasyFL": EasyFL,
    "XeniaLLL/FedU2": FedU2,
    "ShusenJing/FedSC_ICML2024": FedSC,
    "yasar-rehman/L-DAWA": LDAWA,
    "akhilmathurs/orchestra": Orchestra,
    "WOWNICE/FLESD": FLESD,
}
"""Repository -> its case."""


def case(file: ParityFile) -> Case:
    """The case of a file's repository; ConfigError where its setting cannot be run."""
    repository = file.repository
    if repository not in CASES:
        raise ConfigError(f"{file.path} is of {repository or 'no repository'}: known are {', '.join(CASES)}")
    if file.setting.get("participation", 1.0) != 1.0:
        raise ConfigError(f"{file.path}: a cohort is not drawn again from numbers, so all clients train in every round")
    try:
        made = CASES[repository](file)
        made.overrides(), made.labels(), file.sizes  # reads the setting now
    except ConfigError:
        raise
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{file.path}: its setting cannot be read: {type(error).__name__} {error}") from error
    return made
