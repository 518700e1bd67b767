"""Schema of a run's config: keys, types, units, defaults, and what is possible.

A new key is a field here, and a use of it; the words of `within` are its bounds (`keys.within`). The classes `...Keys`
have the keys that a section has whatever class it names; `class_` is the key `class`.
"""

from dataclasses import dataclass, fields
from typing import Any

from benchmark.configuration.keys import EVALUATION, EXECUTION, IMAGES, NAME, ROW, SCENARIO, SEED, key, keys, section


@dataclass
class DataConfig:
    """Where images come from."""

    name: str = key("digits", hashed_at_default=True)
    """digits | synthetic | cifar10 | cifar100 | svhn | fashion_mnist | stl10 | a folder, table or array file under
    `root`, see docs/reference/data.md. `data.class`, an import path, is a torch Dataset in its place."""
    root: str = key("data", part=EXECUTION)
    """Folder of archives and image folders."""
    cache: str = key("~/.cache/fulcrum", part=EXECUTION)
    """Folder of the decoded, memory-mapped arrays."""
    verify: bool = key(False, part=EXECUTION)
    """Compare all decoded arrays with their hashes at the start, not only 256 MiB of each file."""
    download: bool = key(False, part=EXECUTION)
    """Let torchvision download a missing archive."""
    image_size: int | None = key(None, minimum=1, hashed_at_default=True)
    """Side in pixels images are resized to; None: as they are, all of one size."""
    resize: str | None = key(None, choices=("shorter_side_crop", "squash", "pad"), older="squash")
    """How an image that is not square becomes one: shorter_side_crop | squash | pad; None: it is refused."""
    channels: int | None = None
    """1: grey | 3: colour | None: as the images are, 3 for image files."""
    levels: Any = None
    """White of 16-bit images, e.g. 4095 for 12 bits | max: the largest of the training images | None: by the depth."""
    labels: bool = True
    """Whether folders of images name classes, or the column of a table; false: images have no labels."""
    limit: float | None = None
    """For a quick look: a share of each class, in (0, 1), or a number of training images; None: all."""
    probe: str | None = None
    """Another data set whose labelled images the protocols use; None: those in the folder's probe/, else its own."""
    hold_out: bool = key(False, part=IMAGES, older=True)
    """Hold a fifth of unlabelled images out as test even where labelled ones (probe/, `probe`) are scored."""
    order: str = key("canonical", choices=("canonical", "source"), part=IMAGES, older="source")
    """canonical: images by class and name, without names by class and pixels | source: as the files have them."""
    options: dict[str, Any] = key({})
    """Further arguments of a source, e.g. examples and classes of `synthetic`, or those of `class`."""


@dataclass
class FederationConfig:
    """Rounds, participation, BatchNorm and architectures."""

    rounds: int = key(10, minimum=0, hashed_at_default=True)
    """Rounds R."""
    participation: float = key(1.0, within="a share in (0, 1]", hashed_at_default=True)
    """Share of the clients drawn for a round, in (0, 1]."""
    availability: float = key(1.0, within="a probability in (0, 1]")
    """Probability, in (0, 1], that a client is there when a round's clients are drawn."""
    dropout: float = key(0.0, within="a probability in [0, 1)")
    """Probability, in [0, 1), that a drawn client never replies."""
    deadline: float | None = key(None, within="a number above 0; 1 is the median client's visit")
    """Longest visit of a client that replies, over the median's; a client's speed is drawn once. None: no limit."""
    batch_norm: str = key("average", choices=("average", "local", "recalibrate"), hashed_at_default=True)
    """Running statistics: average | local | recalibrate."""
    encoders: dict[str, Any] = key({})
    """Other architectures, by a name: {class: ..., its arguments, clients: [ids]}; all other clients run `encoder`."""


@dataclass
class CompressionConfig:
    """Compression of clients' updates: of what is averaged or summed after training."""

    name: str = key("none", choices=("none", "float16", "int8", "int4", "top-k"))
    """float16 | int8 | int4: fewer bits a number | top-k: the largest numbers alone | none."""
    share: float = key(0.01, within="a share in (0, 1]")
    """top-k: share of an entry's numbers that is sent, in (0, 1]."""


@dataclass
class PrivacyConfig:
    """Noise on clients' updates, budget of all noise, and secure aggregation, see docs/how-to/privacy.md."""

    mechanism: str = key("none", choices=("none", "central", "local"))
    """Who adds noise to the clipped updates of clients: central: the server | local: each client | none."""
    clip: float | None = key(None, within="the largest norm of a client's update, a number above 0")
    """The largest norm of a client's update, above 0."""
    clipping: str = key("flat", choices=("flat", "layers", "adaptive"))
    """What clip bounds: flat: an update's norm | layers: those of its tensors together | adaptive: follows clients."""
    quantile: float = key(0.5, within="a number in (0, 1)")
    """Share, in (0, 1), of the clients whose updates an adaptive clip leaves as they are."""
    noise_multiplier: float | None = key(None, within="the noise's deviation over privacy.clip, at least 0")
    """The noise's standard deviation over clip; None: solved for epsilon."""
    sampling: str = key("fixed", choices=("fixed", "poisson"))
    """fixed: rounds of one size | poisson: each client is drawn by itself, which makes central noise protect better."""
    epsilon: float | None = key(None, within="a number above 0, or leave it out for no budget")
    """Budget of a client; the run ends before the round that would exceed it. None: no limit."""
    delta: float = key(1e-5, within="a number in (0, 1)")
    """Of (epsilon, delta), in (0, 1)."""
    accountant: str = key("rdp", choices=("rdp", "pld"))
    """How releases add up: rdp: by Renyi divergences | pld: by privacy loss distributions, tighter."""
    secure_aggregation: bool = key(False, formerly="secure_sums")
    """Masks on what is averaged or summed."""
    range: float = key(64.0, within="the largest number that a client sends, at least 1")
    """The largest number, times its client's weight, that a client sends under masks; at least 1."""


@dataclass
class TrainingConfig:
    """The local work of a visit."""

    epochs: int = key(1, minimum=1, hashed_at_default=True)
    """Local epochs E."""
    steps: int | None = key(None, minimum=1, hashed_at_default=True)
    """Optimiser steps of a visit instead of epochs."""
    max_epochs: int | None = key(None, minimum=1, formerly="most_epochs")
    """Clients with fewer batches train more epochs, at most this number: for B images a step and n images of the
    largest client, (floor(n / B) + 1) * epochs over the client's batches, rounded down. None: all train `epochs`."""
    batch_size: int = key(64, minimum=2, hashed_at_default=True)
    """Images a step; a client with fewer uses all it has, and a phase of a method may have its own number."""
    clip_norm: float | None = key(None, within="a number above 0, or null for none", hashed_at_default=True)
    """Largest gradient norm; None: no clipping."""
    drop_last: bool = False
    """Leave out an epoch's last batch where it is short; a client with less than a batch keeps its one."""
    min_batch_size: int | None = key(None, minimum=1, formerly="smallest_batch")
    """Fewest images of a short last batch that is trained on, without drop_last; None: 2, or 1 for one-view losses."""
    views: str = key("joint", choices=("joint", "separate"))
    """joint: all views of a batch pass the networks together | separate: one by one, each normalised by itself."""
    precision: str = key("32-true", choices=("32-true", "tf32", "bf16-mixed", "64-true"), hashed_at_default=True)
    """32-true, on a GPU too | tf32: a GPU's shorter products in matrices and convolutions | bf16-mixed | 64-true."""
    channels_last: bool = key(False, hashed_at_default=True)
    """Memory format of images and weights."""


@dataclass
class ScheduleConfig:
    """The learning rate over the run: a factor in [0, 1] of progress."""

    name: str = key("constant", choices=("constant", "cosine", "cosine_twice", "step"), hashed_at_default=True)
    """constant | cosine | cosine_twice (each round's step of the cosine counts twice, as in FedSC's code) | step."""
    per: str = key("round", choices=("round", "step"), hashed_at_default=True)
    """round: one rate a round | step: it moves within a visit."""
    warmup: float = key(0.0, within="a share of the run in [0, 1), such as 0.1")
    """Share of the run, in [0, 1), in which the rate first rises linearly from 0; not under cosine_twice."""
    milestones: list[float] = key([0.6, 0.8], hashed_at_default=True)
    """step: progress in [0, 1] after which the rate drops."""
    gamma: float = key(0.1, minimum=0, hashed_at_default=True)
    """step: factor of each drop."""


@dataclass
class EvaluationConfig:
    """Protocols that score the encoder."""

    protocols: list[str] = key(["linear/v1", "knn/v1", "geometry/v1"])
    """Protocol ids, run on the last round's encoder."""
    every: int = key(0, minimum=0)
    """Rounds between two measurements of the monitor (kNN on a held-out slice of train); 0: no monitor."""
    batch_size: int = key(500, minimum=1)
    """Images a forward pass of feature extraction."""
    best_on_test: str | None = None
    """A protocol of the test images after every round too; accuracy_best_on_test is its best, as some papers report."""


@dataclass(kw_only=True)
class PartitionKeys:
    """How the training images are divided among clients."""

    name: str | None = key()
    """A rule, such as iid or dirichlet, folders or file: docs/reference/clients.md has them all."""
    clients: Any = key()
    """The number of clients."""
    alpha: Any = key()
    """Of the Dirichlet rules; the smaller, the fewer classes dominate a client."""
    share: Any = key()
    """The part of its images that each client has."""
    min_size: Any = key()
    """The fewest images of a client; natural ones of fewer are left out."""
    held_out: Any = key()
    """Clients of the data that nobody trains on: a share of them, drawn, or a list of names."""
    shift: Any = key()
    """Transforms of images by group of clients, in turn: none | invert | rotate-DEGREES | blur-PIXELS."""
    class_: str | None = key()
    """In place of a rule, an import path of a function of labels, and its arguments."""
    path: str | None = key()
    """file: the table that names the client of each image; its content, not its place, defines the run."""
    path_sha256: str | None = key()
    """The content of `path`, set by the run."""


@dataclass(kw_only=True)
class PublicKeys:
    """Public images."""

    name: str | None = key()
    """The data set that they are of, as in data.name, or client."""
    client: Any = key()
    """The client whose images they are; it does not train."""
    share: Any = key()
    """The part of each class of the data set's training images."""
    keep: Any = key()
    """Whether clients keep the public images of data.name itself."""
    absent: Any = key()
    """The client that does not train where a data set is public."""


@dataclass(kw_only=True)
class ViewsKeys:
    """The augmentation of training, with the fields of `datamodules.recipe.Recipe`."""

    class_: str | None = key(None)
    """Import path of a function of views and a generator, a last stage of your own, see docs/how-to/recipes.md."""
    options: dict[str, Any] = key({})
    """Arguments of `views.class`."""


@dataclass(kw_only=True)
class EncoderKeys:
    """A network."""

    weights: str | None = key(None)
    """What it starts from: a file or, for methods.networks.torchvision, a name such as IMAGENET1K_V1."""
    weights_sha256: str | None = key()
    """The file's content, set by the run."""
    freeze: Any = key(None, part=ROW)
    """What nobody trains, sent once: all | names or globs of tensors, e.g. [conv_proj, blocks.0-7]."""
    adapter: dict[str, Any] | None = key(None, part=ROW)
    """What trains in its place, e.g. {name: lora, rank: 8, targets: [qkv, proj]}, see docs/how-to/encoders.md."""


@dataclass(kw_only=True)
class HeadsKeys:
    """Heads of objectives."""

    projector: Any = key()
    """The widths of its layers."""
    predictor: Any = key()
    """Its hidden layer's width."""
    head_norm: Any = key()
    """Whether BatchNorm is before every ReLU."""
    last_norm: Any = key()
    """Whether BatchNorm is on the embeddings."""


@dataclass(kw_only=True)
class ObjectiveKeys:
    """The local loss."""

    name: str | None = key()
    """Of the shipped file, set by objective=NAME."""


@dataclass(kw_only=True)
class MethodKeys:
    """The method."""

    name: str | None = key()
    """Of its file, set by the run."""


@dataclass(kw_only=True)
class OptimizerKeys:
    """An optimiser."""

    decay_norms_and_biases: Any = key(True)
    """Whether its weight decay also shrinks parameters below two dimensions: biases and those of normalisation."""


@dataclass
class Config:
    """One run. Sections without a fixed schema name a `class` by import path; their other keys are its arguments."""

    scenario: str = key("", part=NAME)
    """Name of the scenario."""
    row: str = key("", part=NAME)
    """Name of the row on the board; empty: made from the method and the changed keys."""
    seed: int = key(0, minimum=0, hashed_at_default=True, part=SEED)
    """Seed of partition, initial weights, order, views and all other random numbers."""
    data: DataConfig = section(DataConfig)
    partition: dict[str, Any] = section(PartitionKeys, {"name": "dirichlet_balanced", "clients": 10, "alpha": 0.1})
    """How the training images are divided among clients; docs/reference/clients.md has the rules and parameters."""
    public: dict[str, Any] = section(PublicKeys, {}, part=ROW, closed=True)
    """Public images, for methods that need some; empty: none."""
    views: dict[str, Any] = section(ViewsKeys, {})
    """Fields of `datamodules.recipe.Recipe`."""
    encoder: dict[str, Any] = section(EncoderKeys, {"class": "methods.networks.convnet"})
    """A network and its arguments."""
    heads: dict[str, Any] = section(HeadsKeys, {}, part=ROW, closed=True)
    """Heads of every objective that has them."""
    objective: dict[str, Any] = section(ObjectiveKeys, {}, part=ROW)
    """The local loss: class, a class of `methods.objectives`, and its arguments. objective=NAME takes a shipped one."""
    method: dict[str, Any] = section(MethodKeys, {}, part=ROW)
    """The method: class, a class of `methods`, and its arguments."""
    optimizer: dict[str, Any] = section(
        OptimizerKeys, {"class": "torch.optim.SGD", "lr": 0.03, "momentum": 0.9}, part=ROW
    )
    """An optimiser and its arguments."""
    server_optimizer: dict[str, Any] = key({}, part=ROW)
    """Server's optimiser on the clients' mean, a class of `methods.server`; empty: the mean replaces the weights."""
    schedule: ScheduleConfig = section(ScheduleConfig)
    federation: FederationConfig = section(FederationConfig)
    training: TrainingConfig = section(TrainingConfig)
    compression: CompressionConfig = section(CompressionConfig, part=ROW)
    privacy: PrivacyConfig = section(PrivacyConfig, part=ROW)
    evaluation: EvaluationConfig = section(EvaluationConfig, part=EVALUATION)
    authors: dict[str, Any] = key({}, part=EVALUATION)
    """Key -> value of a paper's authors, where its scenario chooses another; the record names those that differ."""
    output: str = key("runs", part=EXECUTION)
    """Folder of the run folders."""
    logger: str = key("wandb", choices=("wandb", "csv"), part=EXECUTION)
    """wandb (offline unless logged in) | csv."""
    log_clients: bool = key(False, part=EXECUTION)
    """Write `clients.jsonl`, a line for each visit of a client: loss, images, seconds, and norm of its update."""
    costs: bool = key(False, part=EXECUTION)
    """Count a client's operations and memory before the first round, as `make costs` does; some seconds."""
    devices: Any = key("auto", part=EXECUTION)
    """Ranks on a machine, one a GPU or a CPU core or several; auto: as docs/how-to/clusters.md says."""
    nodes: int | None = key(None, minimum=1, part=EXECUTION)
    """Machines; None: as many as the launcher has started ranks on."""
    accelerator: str = key("auto", choices=("auto", "cpu", "cuda"), part=EXECUTION)
    """auto | cpu | cuda."""
    threads: int | None = key(None, minimum=1, part=EXECUTION)
    """CPU threads a rank; None: torch's choice for one rank, a fair part of the cores for several."""
    executor: str = key(
        "auto",
        choices=("auto", "sequential", "parallel"),
        part=EXECUTION,
        formerly={"one-by-one": "sequential", "side-by-side": "parallel"},
    )
    """sequential: the reference | parallel: several clients at once | auto: on a GPU the faster, tried first."""
    lanes: int = key(4, minimum=1, part=EXECUTION)
    """Clients at once, side by side."""
    deterministic: bool = key(False, part=EXECUTION)
    """The same bits in every run on one kind of GPU, as on a CPU: slower, and one by one unless executor is given."""
    minutes: float | None = key(None, minimum=0, part=EXECUTION)
    """Time for the command: no round begins that may not end by then; the same command resumes. None: no limit."""
    compile: bool = key(False, part=EXECUTION)
    """Compile networks and views by torch.compile: seconds at the start, another rounding; prints its speed-up."""


KEYS = {each.name: each for each in keys(Config)}
"""Dotted name -> key, of all sections."""
RENAMED = {
    f"{each.name.rpartition('.')[0]}.{each.formerly}".lstrip("."): each
    for each in KEYS.values()
    if isinstance(each.formerly, str) and each.formerly
}
"""Earlier dotted name -> key."""
PARTS = {each.name: each.metadata.get("part") or SCENARIO for each in fields(Config)}
"""Section, or key without one -> what it is a part of; keys of it may differ."""
