"""Schema of a run's config: keys, types, units and defaults."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class DataConfig:
    """Where images come from."""

    name: str = "digits"
    """digits | synthetic | cifar10 | cifar100 | svhn | fashion_mnist | stl10 | a folder, table or array file under
    `root`, see docs/data.md. `data.class`, an import path, is a torch Dataset in its place."""
    root: str = "data"
    """Folder of archives and image folders."""
    cache: str = "~/.cache/fulcrum"
    """Folder of the decoded, memory-mapped arrays."""
    verify: bool = False
    """Compare all decoded arrays with their hashes at the start, not only 256 MiB of each file."""
    download: bool = False
    """Let torchvision download a missing archive."""
    image_size: int | None = None
    """Side in pixels images are resized to; None: as they are, all of one size."""
    resize: str | None = None
    """How an image that is not square becomes one: shorter_side_crop | squash | pad; None: it is refused."""
    channels: int | None = None
    """1: grey | 3: colour | None: as the images are, 3 for image files."""
    levels: Any = None
    """The grey level of 16-bit images that is white, e.g. 4095 for 12 bits | max: the largest of the training images |
    None: the largest of the file's depth."""
    labels: bool = True
    """Whether folders of images name classes, or the column of a table; false: images have no labels."""
    limit: float | None = None
    """For a quick look: a share of each class, in (0, 1), or a number of training images; None: all."""
    probe: str | None = None
    """Another data set whose labelled images the protocols use; None: those in the folder's probe/, else its own."""
    hold_out: bool = False
    """Hold a fifth of unlabelled images out as test though labelled ones, of probe/ or `probe`, are scored; false: all
    train. Without such a fifth is always held out where there is no test."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of a source, e.g. examples and classes of `synthetic`, or those of `class`."""


@dataclass
class FederationConfig:
    """Rounds, participation, BatchNorm and architectures."""

    rounds: int = 10
    """Rounds R."""
    participation: float = 1.0
    """Share of the clients drawn for a round, in (0, 1]."""
    availability: float = 1.0
    """Probability, in (0, 1], that a client is there when a round's clients are drawn."""
    dropout: float = 0.0
    """Probability, in [0, 1), that a drawn client never replies."""
    deadline: float | None = None
    """Longest visit of a client that replies, over the median client's; each client has a speed of its own, drawn once.
    None: the server waits for all."""
    batch_norm: str = "average"
    """Running statistics: average | local | recalibrate."""
    encoders: dict[str, Any] = field(default_factory=dict)
    """Other architectures, by a name: {class: ..., its arguments, clients: [ids]}; all other clients run `encoder`."""


@dataclass
class CompressionConfig:
    """Compression of clients' updates: of what is averaged or summed after training."""

    name: str = "none"
    """float16 | int8 | int4: fewer bits a number | top-k: the largest numbers alone | none."""
    share: float = 0.01
    """top-k: share of an entry's numbers that is sent, in (0, 1]."""


@dataclass
class PrivacyConfig:
    """Noise on clients' updates, budget of all noise, and secure sums, see docs/privacy.md."""

    mechanism: str = "none"
    """Who adds noise to the clipped updates of clients: central: the server | local: each client | none."""
    clip: float | None = None
    """The largest norm of a client's update, above 0."""
    clipping: str = "flat"
    """What clip bounds: flat: the norm of an update | layers: those of its tensors together | adaptive: it follows the
    clients."""
    quantile: float = 0.5
    """Share, in (0, 1), of the clients whose updates an adaptive clip leaves as they are."""
    noise_multiplier: float | None = None
    """The noise's standard deviation over clip; None: solved for epsilon."""
    sampling: str = "fixed"
    """fixed: rounds of one size | poisson: each client is drawn by itself, which makes central noise protect better."""
    epsilon: float | None = None
    """Budget of a client; the run ends before the round that would exceed it. None: no limit."""
    delta: float = 1e-5
    """Of (epsilon, delta), in (0, 1)."""
    accountant: str = "rdp"
    """How releases add up: rdp: by Renyi divergences | pld: by privacy loss distributions, tighter."""
    secure_sums: bool = False
    """Masks on what is averaged or summed."""
    range: float = 64.0
    """The largest number, times its client's weight, that a client sends under masks; at least 1."""


@dataclass
class TrainingConfig:
    """The local work of a visit."""

    epochs: int = 1
    """Local epochs E."""
    steps: int | None = None
    """Optimiser steps of a visit instead of epochs."""
    most_epochs: int | None = None
    """Clients with fewer batches train more epochs, at most this number: for B images a step and n images of the
    largest client, (floor(n / B) + 1) * epochs over the client's batches, rounded down. None: all train `epochs`."""
    batch_size: int = 64
    """Images a step."""
    clip_norm: float | None = None
    """Largest gradient norm; None: no clipping."""
    drop_last: bool = False
    """Leave out an epoch's last batch where it is short; a client with less than a batch keeps its one."""
    smallest_batch: int | None = None
    """Fewest images of a short last batch that is trained on, without drop_last; None: 2, or 1 for one-view losses."""
    views: str = "joint"
    """joint: all views of a batch pass the networks together | separate: one after the other, so that BatchNorm
    normalises each by itself."""
    precision: str = "32-true"
    """32-true, on a GPU too | tf32: the same with a GPU's shorter products in matrices and convolutions | bf16-mixed |
    64-true."""
    channels_last: bool = False
    """Memory format of images and weights."""


@dataclass
class ScheduleConfig:
    """The learning rate over the run: a factor in [0, 1] of progress."""

    name: str = "constant"
    """constant | cosine | cosine_twice (each round's step of the cosine counts twice, as in FedSC's code) | step."""
    per: str = "round"
    """round: one rate a round | step: it moves within a visit."""
    warmup: float = 0.0
    """Share of the run, in [0, 1), in which the rate first rises linearly from 0; not under cosine_twice."""
    milestones: list[float] = field(default_factory=lambda: [0.6, 0.8])
    """step: progress in [0, 1] after which the rate drops."""
    gamma: float = 0.1
    """step: factor of each drop."""


@dataclass
class EvaluationConfig:
    """Protocols that score the encoder."""

    protocols: list[str] = field(default_factory=lambda: ["linear/v1", "knn/v1", "geometry/v1"])
    """Protocol ids, run on the last round's encoder."""
    every: int = 0
    """Rounds between two measurements of the monitor (kNN on a held-out slice of train); 0: no monitor."""
    batch_size: int = 500
    """Images a forward pass of feature extraction."""
    best_on_test: str | None = None
    """One of the protocols, run on the test images after every round too. Its best round is recorded beside the last
    one, as accuracy_best_on_test: for papers that report it; not comparable with other scores."""


@dataclass
class Config:
    """One run. Sections without a fixed schema name a `class` by import path; their other keys are its arguments."""

    scenario: str = ""
    """Name of the scenario."""
    row: str = ""
    """Name of the row on the board; empty: made from the method and the changed keys."""
    seed: int = 0
    """Seed of partition, initial weights, order, views and all other random numbers."""
    data: DataConfig = field(default_factory=DataConfig)
    partition: dict[str, Any] = field(
        default_factory=lambda: {"name": "dirichlet_balanced", "clients": 10, "alpha": 0.1}
    )
    """How the training images are divided among clients; docs/data.md has each rule with its parameters. name: a rule,
    iid | dirichlet | dirichlet_min | dirichlet_balanced | classes | blocks | folders | file. clients: the number of
    clients. alpha: of the Dirichlet rules; the smaller, the fewer classes dominate a client. share: the part of its
    images that each client has. min_size: the fewest images of a client; natural ones of fewer are left out. class: in
    place of a rule, an import path of a function of labels, and its arguments."""
    public: dict[str, Any] = field(default_factory=dict)
    """Public images, for methods that need some; empty: none. name: the data set that they are of, as in data.name, or
    client. client: the client whose images they are; it does not train. share: the part of each class of the data set's
    training images. keep: whether clients keep the public images of data.name itself. absent: the client that does not
    train where a data set is public."""
    views: dict[str, Any] = field(default_factory=dict)
    """Fields of `datamodules.recipe.Recipe`."""
    encoder: dict[str, Any] = field(default_factory=lambda: {"class": "methods.networks.convnet"})
    """A network and its arguments. weights: what it starts from, a file or, for methods.networks.torchvision, a name
    such as IMAGENET1K_V1; weights_sha256: the file's content, set by the run."""
    heads: dict[str, Any] = field(default_factory=dict)
    """Heads of every objective that has them. projector: the widths of its layers. predictor: its hidden layer's width.
    head_norm: whether BatchNorm is before every ReLU. last_norm: whether BatchNorm is on the embeddings."""
    objective: dict[str, Any] = field(default_factory=dict)
    """The local loss: class, a class of `methods.objectives`, and its arguments. objective=NAME takes a shipped one."""
    method: dict[str, Any] = field(default_factory=dict)
    """The method: class, a class of `methods`, and its arguments."""
    optimizer: dict[str, Any] = field(default_factory=lambda: {"class": "torch.optim.SGD", "lr": 0.03, "momentum": 0.9})
    """An optimiser and its arguments. decay_norms_and_biases: false takes parameters of fewer than two dimensions (of
    normalisation layers, and biases) out of its weight decay; true by default."""
    server_optimizer: dict[str, Any] = field(default_factory=dict)
    """Server's optimiser on the clients' mean, a class of `methods.server`; empty: the mean replaces the weights."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    federation: FederationConfig = field(default_factory=FederationConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    compression: CompressionConfig = field(default_factory=CompressionConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    authors: dict[str, Any] = field(default_factory=dict)
    """Key -> value of a paper's authors, where its scenario chooses another; the record names those that differ."""
    output: str = "runs"
    """Folder of the run folders."""
    logger: str = "wandb"
    """wandb (offline unless logged in) | csv."""
    devices: Any = "auto"
    """Ranks on a machine, one a GPU or a CPU core or several; auto: as docs/clusters.md says."""
    nodes: int | None = None
    """Machines; None: as many as the launcher has started ranks on."""
    accelerator: str = "auto"
    """auto | cpu | cuda."""
    threads: int | None = None
    """CPU threads a rank; None: torch's choice for one rank, a fair part of the cores for several."""
    executor: str = "auto"
    """one-by-one: the reference | side-by-side: several clients at once | auto: on a GPU the faster, tried first."""
    lanes: int = 4
    """Clients at once, side by side."""
    deterministic: bool = False
    """The same bits in every run on one kind of GPU, by slower operations, and one by one unless executor is given; on
    a CPU they always are."""
    minutes: float | None = None
    """Time for the command: no round begins that would not end by then, by the slowest so far; the same command
    resumes the run. None: no limit."""
    compile: bool = False
    """Compile networks and views by torch.compile: seconds at the start, another rounding; prints its speed-up."""
