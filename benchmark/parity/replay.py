"""Makes a parity file's run again, by the suite's loop and executors."""

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment
from omegaconf import DictConfig

from benchmark.configuration.compose import compose
from benchmark.distributed.launch import accelerator
from benchmark.errors import ConfigError
from benchmark.execution.sequential import SequentialExecutor
from benchmark.experiment import factory
from benchmark.experiment.building import build_loop
from benchmark.experiment.data import Clients
from benchmark.federation.callbacks import Callback
from benchmark.federation.loop import FederatedLoop
from benchmark.parity.case import Case
from benchmark.parity.files import SERVER, Numbers
from benchmark.parity.inputs import GivenViews, fingerprint, initial
from benchmark.rng import Streams
from methods import trees
from methods.base import FederatedMethod, Phase
from methods.trees import Tree


def compose_case(case: Case, precision: str, device: str = "auto", **settings: Any) -> DictConfig:
    """The config of a case; settings: further ones, by key."""
    fixed: dict[str, Any] = {"training.precision": precision, "training.channels_last": False, "logger": "csv"}
    fixed |= {"accelerator": device, "executor": "sequential"}
    all_settings = case.overrides() | fixed | settings
    words = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in all_settings.items()]
    return compose(case.scenario, case.method, words)


def replay(case: Case, precision: str, device: str = "auto", **settings: Any) -> Numbers:
    """The numbers that the suite comes to, in the places where the file has some.

    precision: as `training.precision`. device: as `accelerator`. settings: other than the case's, by key.
    """
    seed, sections = case.file.seed, case.file.sections
    expected = sections.get(precision) or next(iter(sections.values()))
    config = compose_case(case, precision, device, **settings)
    views = partial(GivenViews, seed, case.file.sizes, labels=case.labels())
    method = factory.method(config, views().source)
    load_initial(case, method)
    data = views(
        dtype=method.dtype, drop_last=config.training.drop_last, smallest=factory.min_batch_size(config, method)
    )
    case.prepare(method, data)
    fabric = one_device(config)
    method.to(fabric.device)
    executor = SequentialExecutor(fabric, method, data, factory.local_training(config), Streams(seed))
    clients = Clients(data.parts, case.absent)
    recorder = Recorder(case, method, data, expected)
    factory.set_numerics(tf32=False, deterministic=False)  # float32 is float32 on a GPU too
    with tempfile.TemporaryDirectory() as folder:
        loop = build_loop(config, factory.executor(config, executor), clients, Path(folder))
        loop.callbacks = [recorder]
        loop.fit()
    return recorder.numbers


def one_device(config: DictConfig) -> Fabric:
    """Fabric on one device, whatever has launched this process; ConfigError where there is none of its kind."""
    kind = accelerator(config)
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError("accelerator=cuda, but no GPU is visible: use accelerator=cpu")
    factory.quieten_lightning()
    fabric = Fabric(accelerator=kind, devices=1, precision=config.training.precision, plugins=[LightningEnvironment()])
    fabric.launch()
    return fabric


def load_initial(case: Case, method: FederatedMethod) -> None:
    """Loads the file's initial weights; targets are copies of the online networks."""
    seed = case.file.seed
    for part in (*method.travelling, *method.staying):
        if part in method.objective.ema or part in method.objective.queues:
            continue
        for name, parameter in method.part(part).named_parameters():
            label = f"{case.aliases.get(part, part)}.{name}"
            parameter.data.copy_(initial(seed, label, parameter.shape))
    for target, source in method.objective.ema.items():
        method.part(target).load_state_dict(method.part(source).state_dict())


class Recorder(Callback):
    """Records losses and fingerprints, and sets the phase that the data are for."""

    def __init__(self, case: Case, method: FederatedMethod, data: GivenViews, expected: Numbers) -> None:
        self.case, self.method, self.data, self.expected = case, method, data, expected
        self.numbers = Numbers()
        self.round = 0
        for phase in {phase.name: phase for phase in method.plan(0)}.values():
            if phase.work == "train":
                self._record_losses(phase)

    def on_phase_start(self, loop: FederatedLoop, phase: Phase, visits: int) -> None:
        """Sets the keys of the views."""
        self.round = loop.round + self.case.first_round
        self.data.key = self.case.view_key(phase, loop.round)

    def on_visit_end(self, loop: FederatedLoop, result: Any) -> None:
        """Fingerprints of the weights that a client sends or keeps."""
        sent = self.method.local_weights(result.message, loop.server) or {}
        if result.visit.phase.where == "clients":
            self._fingerprint(result.visit.client.id, trees.overlay(result.client_state.get("stays", {}), sent))

    def on_round_trained(self, loop: FederatedLoop, line: dict[str, Any]) -> None:
        """Fingerprints of the server's weights."""
        self._fingerprint(SERVER, self.method.export(loop.server, {})["global"])

    def _fingerprint(self, client: int, weights: Tree) -> None:
        tensors = {}
        for (part, *name), leaf in trees.leaves(weights):
            tensors[".".join([self.case.aliases.get(part, part), *name])] = leaf
        wanted = self.expected.weights.get((self.round, client), {})
        self.numbers.weights[self.round, client] = {
            name: fingerprint(self.case.file.seed, name, tensors[name]) for name in wanted if name in tensors
        }

    def _record_losses(self, phase: Phase) -> None:
        """Wraps the hook at the end of a step, which is given the loss."""
        name = f"on_train_batch_end_{phase.name}"
        name = name if hasattr(self.method, name) else "on_train_batch_end"
        finish = getattr(self.method, name)

        def record(outputs: Any, batch: Any, batch_idx: int = 0) -> None:
            finish(outputs, batch, batch_idx)
            client = self.data.position[0] if phase.where == "clients" else SERVER
            if (loss := outputs["loss"]).requires_grad:  # a step was made
                self.numbers.losses.setdefault((self.round, client), []).append(float(loss.detach()))

        setattr(self.method, name, record)
