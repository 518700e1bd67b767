"""The authors' codes: a case for each repository."""

from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmark.errors import ConfigError
from benchmark.parity.case import Case, set_hooks
from benchmark.parity.files import ParityFile
from benchmark.parity.inputs import CLASSES, DRAWS, GivenViews, ViewKey, generator, initial, name_key, normal
from methods import trees
from methods.base import FederatedMethod, Phase
from methods.fedu2 import DIRECTIONS
from methods.maths import equal_clusters


class FedX(Case):
    """FedX, its ablations, and FedAvg over its SimCLR."""

    scenario = "fedx/cifar10"
    default = MappingProxyType({"training.drop_last": False})
    aliases: ClassVar = {"fedx": "predictor"}
    terms: ClassVar = {
        "relation_local": "local_relation", "contrast_global": "global_contrast", "relation_global": "global_relation"
    }  # fmt: skip

    def __init__(self, file: ParityFile) -> None:
        super().__init__(file)
        self.method = "fedx" if set(file.get("terms")) & set(self.terms) else "fedavg"

    def overrides(self) -> dict[str, Any]:
        """With a weight of 1 for the terms that are on; one temperature for all."""
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
    """FedDecorr, supervised."""

    scenario = "reference"
    method = "feddecorr"
    default = MappingProxyType({"objective.num_views": 2})

    def overrides(self) -> dict[str, Any]:
        """With the local step of its repository: cross-entropy of one view."""
        return super().overrides() | {
            "objective": "supervised",
            "objective.num_views": self.file.get("views_per_step"),
            "method.weight": self.file.get("term_weights")["decorrelation"],
        }

    def labels(self) -> list[Tensor]:
        """Random labels, the same in all rounds."""
        seed, sizes = self.file.seed, self.file.sizes
        return [torch.from_numpy(generator(seed, DRAWS, k).integers(0, CLASSES, n)) for k, n in enumerate(sizes)]


class SSD(Case):
    """SSD, and FedAvg over its alignment and uniformity."""

    default = MappingProxyType({"training.views": "joint", "training.drop_last": False, "method.weighting": "examples"})

    def __init__(self, file: ParityFile) -> None:
        super().__init__(file)
        loss = file.get("loss")
        self.method = "ssd" if loss["dsr"] or loss["pd"] else "fedavg"
        self.scenario = f"ssd/cifar10-cross-{'silo' if file.get('drop_last') else 'device'}"  # the code's rule

    def overrides(self) -> dict[str, Any]:
        """With the weights of the terms, and SSD's stretch."""
        loss = self.file.get("loss")
        settings = super().overrides() | {
            "objective": "align_uniform",
            "objective.uniform_weight": loss["uniform"] / loss["align"],
        }
        if self.method == "ssd":
            ssd = self.file.get("ssd")
            settings |= {
                "method.alpha": ssd["alpha"],
                "method.dsr_weight": loss["dsr"],
                "method.pd_weight": loss["pd"],
                "method.variant": ssd["variant"],
            }
        return settings

    def prepare(self, method: FederatedMethod, data: GivenViews) -> None:
        """The basis and the clients' dimensions."""
        if self.method != "ssd":
            return
        seed, ssd, start = self.file.seed, self.file.get("ssd"), method.init_server
        width, per_client = ssd["width"], ssd["own_dimensions"]

        def init_server(round_context: Any) -> Any:
            server = start(round_context)
            order = torch.from_numpy(generator(seed, DRAWS, 1).permutation(width))
            for client, scale in server["scales"].items():
                scale.fill_(1.0)[order[client * per_client : (client + 1) * per_client]] = ssd["alpha"]
            random = torch.from_numpy(generator(seed, DRAWS, 0).standard_normal((width, width), dtype="float32"))
            return {**server, "basis": {"Q": torch.linalg.qr(random).Q}}

        set_hooks(method, init_server=init_server)


class EasyFL(Case):
    """FedU, FedEMA, and FedAvg over BYOL."""

    scenario = "fedema/cifar10"
    methods: ClassVar = {"global": "fedavg", "dapu": "fedu", "dynamic_dapu": "fedema"}

    def __init__(self, file: ParityFile) -> None:
        super().__init__(file)
        update = file.get("options")["update_predictor"]
        if update not in self.methods:
            raise ConfigError(f"{file.path}: update_predictor={update} is none of {', '.join(self.methods)}")
        self.method = self.methods[update]
        self.author_bugs = "a client's first target is the online network itself"
        extra = {"method.keep_statistics": False} if self.method == "fedema" else {}
        self.default = {
            "training.views": "joint",
            "training.drop_last": False,
            "objective.first_target": "copy",
        } | extra
        if self.method == "fedema":
            self.author_bugs += "; above mu = 0.5 the predictor's running statistics are the client's"

    def overrides(self) -> dict[str, Any]:
        """With the widths of the heads, and the options of the method."""
        options, get = self.file.get("options"), self.file.get
        settings = super().overrides() | {
            "objective": "byol",
            "objective.momentum": get("target_momentum"),
            "heads.projector": get("projector")[1:],
            "heads.predictor": get("predictor")[1],
        }
        if self.method == "fedu":
            settings["method.threshold"] = options["dapu_threshold"]
        if self.method == "fedema":
            settings["method.tau"] = options["auto_scaler_target"]
        return settings


class FedU2(Case):
    """FedU2 over SimCLR."""

    scenario = "fedu2/cifar10"
    method = "fedu2"
    exact = 1e-5  # the authors' solver stops before it is at the minimum
    author_bugs = "the solver ends before the minimum, for two clients at its start; updates of any length count as 2"
    default = MappingProxyType({
        "training.views": "joint", "training.max_epochs": None, "method.draws": "batch", "method.solver": "exact",
        "method.length": "mean", "method.weighting": "examples", "objective.form": "full",
    })  # fmt: skip
    kinds: ClassVar = {"tangents": (0,), "samples": (1,), "directions": (2, DIRECTIONS)}

    def overrides(self) -> dict[str, Any]:
        """With the regulariser's weight and the server's rate."""
        get = self.file.get
        return super().overrides() | {
            "heads.projector": get("projector")[1:],
            "objective.temperature": get("temperature"),
            "method.weight": get("fur")["weight"],
            "method.server_rate": get("server")["rate"],
        }

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
    default = MappingProxyType({"schedule.name": "cosine"})

    def overrides(self) -> dict[str, Any]:
        """With the width of its network and the settings of its matrices."""
        get, fedsc = self.file.get, self.file.get("fedsc")
        return super().overrides() | {
            "encoder.width": get("network")["width"],
            "training.clip_norm": get("clip_norm"),
            "objective.mu": fedsc["mu"],
            "method.passes": fedsc["passes"],
            "method.sigma": fedsc["sigma"],  # the files have no noise, the code always some
        }

    def view_key(self, phase: Phase, round: int) -> ViewKey:
        """The passes that measure come after all epochs."""
        return ViewKey(round, epoch=100 if phase.name == "correlate" else 0)


class LDAWA(Case):
    """L-DAWA's aggregation of given weights."""

    scenario = "ldawa/cifar100-e1"
    method = "ldawa"
    author_bugs = "running statistics are scaled by their cosines"
    default = MappingProxyType({"method.statistics": "mean"})

    def overrides(self) -> dict[str, Any]:
        """The first round of the method's mean."""
        return {
            "federation.rounds": self.file.get("rounds"),
            "encoder.class": "methods.networks.resnet18",
            "method.start": self.file.get("start"),
        }

    def prepare(self, method: FederatedMethod, data: GivenViews) -> None:
        """No training; clients reply with the given weights."""
        seed, plan = self.file.seed, method.plan

        def given_weights(client: int, round: int, name: str, like: Tensor) -> Tensor:
            z = torch.from_numpy(generator(seed, DRAWS, client, round, name_key(name)).standard_normal(like.shape))
            if name.endswith("running_mean"):
                value = 0.1 * (client + 1) + z
            elif name.endswith("running_var"):
                value = 0.5 + z.square()
            elif name == "projector.0.bias" and client == 0:
                value = torch.zeros_like(z)
            else:
                base = initial(seed, name, like.shape).double()
                value = base + 0.4 * (client + 1) * (round + 1) * base.square().mean().sqrt() * z
            return value.float().to(like)

        def reply(visit: Any) -> Any:
            weights: Any = {}
            for path, leaf in trees.leaves(method.weights()):
                trees.put(weights, path, given_weights(visit.client.id, visit.round, ".".join(path), leaf))
            return {"weights": weights}, visit.memory

        set_hooks(
            method,
            reply=reply,
            plan=lambda number: tuple(replace(each, work="none") for each in plan(number)),
        )


class Orchestra(Case):
    """Orchestra, whose round 0 only clusters."""

    scenario = "orchestra/cifar10-cross-device"
    method = "orchestra"
    first = 1e-5  # clusterings precede it, and round too
    first_round = 1
    author_bugs = "the online networks pass over the first view too, whose result is not used"
    default = MappingProxyType({
        "training.views": "joint", "training.drop_last": False, "objective.target_first": False,
        "method.start_rows": "random", "method.weighting": "examples",
    })  # fmt: skip

    def __init__(self, file: ParityFile) -> None:
        super().__init__(file)
        memory, size = file.get("memory"), file.get("batch_size")
        fewest = min(file.sizes) // size * size * file.get("epochs")
        if memory % size or fewest < memory:
            raise ConfigError(
                f"{file.path}: a memory of {memory} rows, batches of {size} and {fewest} rows of the smallest client: "
                "whole batches have to fill it"
            )

    def overrides(self) -> dict[str, Any]:
        """With its clusters, its memory and its target."""
        get = self.file.get
        return super().overrides() | {
            "objective.temperature": get("temperature"),
            "objective.momentum": get("ema"),
            "objective.clusters": get("global_clusters"),
            "objective.bank": get("memory"),
            "method.local_clusters": get("local_clusters"),
            "method.server_steps": get("server")["steps"],
            "method.server_lr": get("server")["lr"],
        }

    def view_key(self, phase: Phase, round: int) -> ViewKey:
        """The first clustering is in round 0."""
        return ViewKey(0 if phase.name == "initialise" else round + 1)

    def prepare(self, method: FederatedMethod, data: GivenViews) -> None:
        """The first global centroids, and where local clusters start; the file's memory begins with the oldest row."""
        seed, size, start = self.file.seed, self.file.get("batch_size"), method.init_server

        def init_server(round_context: Any) -> Any:
            server = start(round_context)
            shape = server["centroids"]["mu"].shape
            mu = torch.from_numpy(generator(seed, DRAWS, 100).standard_normal(shape))
            return {**server, "centroids": {"mu": normalize(mu, dim=1).float() * self.file.get("mu_length")}}

        def cluster(visit: Any, rows: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
            round = data.key.round
            prefix = (seed, DRAWS, visit.client.id, round)
            starts = torch.from_numpy(generator(*prefix, 101).permutation(len(rows))[:clusters])
            spare = torch.from_numpy(generator(*prefix, 102).integers(0, len(rows), (5, clusters)))
            if round:  # the bank begins with its latest batch
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
    default = MappingProxyType({
        "training.views": "joint", "objective.form": "full", "method.fill_anchors": False, "method.drop_last": False,
    })  # fmt: skip

    def overrides(self) -> dict[str, Any]:
        """With the settings of the distillation."""
        get = self.file.get
        return super().overrides() | {
            "objective.temperature": get("temperature"),
            "method.kept": get("percent") / 100,
            "method.teacher_temperature": get("distil_temperature"),
            "method.student_temperature": get("distil_temperature"),
            "method.anchors": get("anchors"),
            "method.momentum": get("momentum"),
            "method.distil_epochs": get("distil_epochs"),
            "method.distil_batch_size": get("distil_batch_size"),
            "method.distil_lr": get("distil_lr"),
            "method.distil_weight_decay": get("distillation_optimizer")["weight_decay"],
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
    repository = str(file.what.get("repository", "")).removeprefix("github.com/")
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
