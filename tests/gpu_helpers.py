"""Runs on the simulated GPU, with what each local step costs there, and the settings they are tried with."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmark.configuration.files import available, facts
from benchmark.execution.sequential import SequentialExecutor
from benchmark.experiment.run import Run
from methods.base import Visit
from tests import run_helpers
from tests.device import Event, SimulatedGPU, mapped, on_cpu
from tests.methods.test_flesd import SHORT
from tests.methods.test_orchestra import SMALL

EVERYONE = ("federation.participation=1", "federation.rounds=2")
PROTOCL = ("objective=protocl", "objective.clusters=[2,4]", "objective.queue_size=32")
TINY = "encoder={class: methods.networks.vit_tiny}"
MASKED = (TINY, "objective=masked_reconstruction", "objective.decoder_width=12", "objective.decoder_depth=1")
IJEPA = (TINY, "objective=ijepa", "objective.blocks=2", "objective.predictor_width=12", "objective.predictor_depth=1")
MOCO = ("objective=moco", "objective.queue_size=32")
VIEWS = (
    *("views.jitter=[0.4,0.4,0.4,0.1]", "views.grayscale=0.2", "views.blur=0.5", "views.solarize=0.2"),
    *("views.rotation=10", "views.pad=1", "views.mean=[0.5]", "views.std=[0.5]"),
)
WIDE = ("heads.projector=[12,8]",)
TWO_LAYERS = "encoder={class: tests.methods.vits.small, depth: 2}"
"""A transformer that grows in the second of two rounds."""
Case = tuple[str, ...]
"""A method and overrides."""

SETTINGS: dict[str, Case] = {
    "ldawa": ("method.start=1",),
    "ssd": WIDE,
    "fedca": ("method.base_epochs=2",),
    "fedmkd": ("method.queue_size=32", "method.distil_epochs=2", "optimizer.lr=0.01"),
    "flesd": SHORT,
    "orchestra": SMALL,
    "lwfedssl": (TWO_LAYERS,),
    "progfedssl": (TWO_LAYERS,),
}
"""Method -> what makes it small; any other is tried as it is."""
TRAINED = [name for name in available("method") if "title" in facts("method", name)]
TRAINED = [name for name in TRAINED if name not in ("centralized", "untrained")]
"""Methods that have a class of their own and train."""
METHODS: dict[str, Case] = {name: (name, *SETTINGS.get(name, ())) for name in TRAINED}
"""Name -> a case of each method."""
DISTINCT = ("fedavg", "scaffold", "fedema", "fedx", "fedu2", "ssd", "fedsc", "flesd", "orchestra")
"""Those of `make test`: each uses the device in another way; `make rehearse` has all."""
FURTHER: dict[str, Case] = {
    **{name: (name,) for name in ("centralized", "fedprox-fedx", "fedu-fedx", "scaffold-fedx")},
    **{
        f"fedavg, {words[0].partition('.')[2]}": ("fedavg", *words)
        for words in (
            *(("federation.batch_norm=local",), ("federation.batch_norm=recalibrate",), ("training.drop_last=true",)),
            *(("training.precision=bf16-mixed",), ("training.channels_last=true",), ("training.clip_norm=0.1",)),
            ("optimizer={class: torch.optim.Adam, lr: 0.001}",),
            ("optimizer={class: methods.optimizers.LARS, lr: 1.0}",),
            *(("server_optimizer.class=methods.server.Yogi",), VIEWS),
        )
    },
    **{
        f"objective {name}": ("fedavg", f"objective={name}", *words)
        for name, words in {
            **dict.fromkeys(("align_uniform", "byol", "rotation", "simsiam", "spectral", "supervised"), ()),
            **dict.fromkeys(("barlow_twins", "lejepa", "vicreg"), ()),
            "swav": ("objective.prototypes=12", "objective.queue_size=32"),
            "dino": ("objective.outputs=16", "objective.local_views=1"),
            "moco": MOCO[1:],
            "protocl": PROTOCL[1:],
        }.items()
    },
    "objective masked_reconstruction": ("fedavg", *MASKED),
    "objective ijepa": ("fedavg", *IJEPA),
    "objective simclr, one-way": ("fedavg", "objective.form=one-way"),
    "feddecorr on z": ("feddecorr", "method.on=z", "objective=byol"),
    "fedca without alignment": ("fedca", "method.alignment=0", "method.dictionary=4"),
    "fedca without dictionary": ("fedca", "method.base_epochs=2", "method.dictionary=0"),
    "fedmkd, fixed predictions": ("fedmkd", "method.queue_size=32", "method.predictions=fixed", "optimizer.lr=0.01"),
    "fedema, paper": ("fedema", "method.variant=paper"),
    "fedema over moco": ("fedema", *MOCO),
    "fedprox over byol": ("fedprox", "objective=byol"),
    "fedsc with noise": ("fedsc", "method.sigma=0.05"),
    "fedu, paper": ("fedu", "method.variant=paper"),
    "fedu2, unit": ("fedu2", "method.length=unit", "method.variant=mean"),
    "fedx over byol": ("fedx", "objective=byol"),
    "fedx over moco": ("fedx", *MOCO),
    # in float64: in float32 a weight that differs by 1e-8 puts an image into another cluster, as recorded steps do
    "fedx over protocl": ("fedx", *PROTOCL, "training.precision=64-true"),
    "flesd, a tenth": ("flesd", *SHORT, "method.kept=0.1"),
    "flesd-cc": ("flesd-cc", *SHORT),
    "local over byol": ("local", "objective=byol"),
    "orchestra, stateful": ("orchestra", *SMALL, "method.stateful=true"),
    "orchestra, private": ("orchestra", *SMALL, "method.epsilon=1"),
    "orchestra without target": ("orchestra", *SMALL, "objective.target=false"),
    "orchestra, anonymous": ("orchestra", *SMALL, "method.least=2"),
    "scaffold over byol": ("scaffold", "objective=byol"),
    "ssd, paper": ("ssd", *WIDE, "method.variant=paper"),
    "ssd, hard": ("ssd", *WIDE, "method.separation=hard", "method.pd_weight=0"),
}
"""Name -> further cases, in `make rehearse`."""


@dataclass
class GPURun:
    """A finished run on the simulated GPU.

    state: as by `run_helpers.state`, on the CPU. steps: kernels by name of each local step that was not replayed.
    visits: round of each, all phases together, and the number of events before it.
    """

    run: Run
    gpu: SimulatedGPU
    state: dict[str, Any]
    steps: list[Counter[str]] = field(default_factory=list)
    visits: list[tuple[int, int]] = field(default_factory=list)

    def waits_in(self, *functions: str) -> list[Event]:
        """The waits of the host within any of these functions of the suite."""
        return [event for event in self.gpu.of("wait") if set(functions) & set(event.functions)]

    def of_a_visit(self, kind: str) -> int:
        """Events of a kind that a visit of the last round has, on average, rounded up."""
        last = [first for round, first in self.visits if round == self.visits[-1][0]]
        events = [event for event in self.gpu.events[last[0] :] if event.kind == kind]
        return -(-sum("begin" in event.functions or "finish" in event.functions for event in events) // len(last))


def train_on_gpu(folder: Path, case: Case, *overrides: str, streams: bool = True, tried: Any = EVERYONE) -> GPURun:
    """A run of two rounds with all clients on the simulated GPU. streams: see `SimulatedGPU`."""
    made = GPURun(None, SimulatedGPU(streams), {})  # type: ignore[arg-type] # the run is built on the device
    local_step, begin = SequentialExecutor._local_step, SequentialExecutor.begin

    def counted_step(executor: SequentialExecutor, visit: Visit, optimizer: Any) -> Callable[[Any], None]:
        step = local_step(executor, visit, optimizer)

        def counted(batch: Any) -> None:
            before = Counter(made.gpu.kernels)
            step(batch)
            made.steps.append(Counter(made.gpu.kernels) - before)

        return counted

    def counted_visit(executor: SequentialExecutor, inputs: Any, *arguments: Any) -> Any:
        made.visits.append((inputs.round, len(made.gpu.events)))
        return begin(executor, inputs, *arguments)

    with (
        made.gpu,
        mock.patch.object(SequentialExecutor, "_local_step", counted_step),
        mock.patch.object(SequentialExecutor, "begin", counted_visit),
    ):
        made.run = run_helpers.build_run(
            folder, case[0], "accelerator=cuda", "devices=1", *tried, *case[1:], *overrides
        )
        made.run.loop.fit()
        made.state = mapped(lambda x: on_cpu(x).clone(), run_helpers.state(made.run))
    return made


@contextmanager
def unfused_attention() -> Iterator[None]:
    """Context without torch's fused attention of eval mode, which the simulated GPU's tensors never take."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def train_on_cpu(folder: Path, case: Case) -> dict[str, Any]:
    """The state of the same run on the CPU."""
    with unfused_attention():
        run = run_helpers.train_run(folder, case[0], "accelerator=cpu", "devices=1", *EVERYONE, *case[1:])
    return run_helpers.state(run)
