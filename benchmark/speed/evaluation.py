"""Probes on cached features: beside loaders and scikit-learn, and with their steps on one thread and on all.

An author's probe feeds `nn.Linear` and `torch.optim.Adam` from a DataLoader over a TensorDataset; one of its epochs is
timed and multiplied by their number. scikit-learn's logistic regression sees the features standardised as
`linear-lbfgs/v1` does it, at the strength that probe chose. Threads are compared once on the machine as it is, and once
beside a busy process for each core, as where several runs share a machine.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmark.speed.timing import Line, Log, interleaved, ratio, seconds, spread, values_of
from eval import linear
from eval.features import Features
from eval.protocol import PROTOCOLS, Subject

TRAIN, TEST, WIDTH, CLASSES = 50_000, 10_000, 512, 10
LINEAR, SOLVED, NEIGHBOURS = "linear/v1", "linear-lbfgs/v1", "knn/v1"
LOADER, FEDX, SKLEARN = "loader, batch 512", "loader, batch 64", "scikit-learn"

HUNDRED, NARROW, EPOCHS = 100, 256, 4
"""Of `threads`: CIFAR-100 through the encoder of `cifar10-micro`; EPOCHS of the probe's are timed."""
ONE, ALL, BUSY = "one thread", "all threads", ", beside busy processes"


def evaluation(repetitions: int, log: Log) -> list[Line]:
    """Probes by the suite, by loaders and by scikit-learn, and kNN."""
    small, features = make_features(600, 200), make_features(TRAIN, TEST)
    for warm_up in _probes(small, 1e-3).values():
        warm_up()
    strength = linear.lbfgs_probe(features, torch.Generator().manual_seed(0))["strength"]
    log(f"{TRAIN} x {WIDTH} features, {torch.get_num_threads()} threads, strength {strength:g}")
    values = interleaved(_probes(features, strength), repetitions, log)
    return [
        Line("loader at batch 64, 100 epochs (from 1) / linear-lbfgs/v1", ratio(values, FEDX, SOLVED), goal=">= 10"),
        Line("loader at batch 512, 200 epochs (from 1) / linear/v1", ratio(values, LOADER, LINEAR)),
        Line("scikit-learn, one strength / linear-lbfgs/v1, five and a last", ratio(values, SKLEARN, SOLVED)),
        *values_of({name: values[name] for name in (SOLVED, LINEAR, FEDX, LOADER, SKLEARN)}, "s"),
        Line("knn/v1: 200 neighbours", spread(values[NEIGHBOURS]), "s"),
    ]


def make_features(train: int, test: int) -> Features:
    """Features of ten classes of three clusters in 32 dimensions, squashed, mixed into WIDTH, blurred and rectified."""
    generator = torch.Generator().manual_seed(0)
    noise = partial(torch.randn, generator=generator)
    clusters, squash, mix = 0.75 * noise(CLASSES, 3, 32), noise(32, WIDTH) / 32**0.5, noise(WIDTH, WIDTH) / WIDTH**0.5
    n = train + test
    y, cluster = (torch.randint(high, (n,), generator=generator) for high in (CLASSES, 3))
    x = ((clusters[y, cluster] + noise(n, 32)) @ squash).tanh() @ mix + 0.3 * noise(n, WIDTH)
    x = x.relu()
    return Features(train_x=x[:train], train_y=y[:train], test_x=x[train:], test_y=y[train:], num_classes=CLASSES)


def _probes(features: Features, strength: float) -> dict[str, Callable[[], float]]:
    """Functions that return the seconds of each probe, those of loaders for all their epochs."""

    def run(protocol: str) -> None:
        features.computed.clear()
        PROTOCOLS[protocol].run(Subject(features=features), torch.Generator().manual_seed(0))

    return {
        **{name: partial(seconds, partial(run, name)) for name in (SOLVED, LINEAR, NEIGHBOURS)},
        FEDX: lambda: 100 * seconds(partial(_loader_epoch, features, 64, 1e-3, 1e-6)),
        LOADER: lambda: 200 * seconds(partial(_loader_epoch, features, 512, 3e-3, 0.0)),
        SKLEARN: partial(seconds, partial(_scikit_learn_probe, features, strength)),
    }


def _loader_epoch(features: Features, batch_size: int, lr: float, weight_decay: float) -> None:
    """One epoch of a linear probe, as it is commonly written."""
    loader = DataLoader(TensorDataset(features.train_x, features.train_y), batch_size, shuffle=True)
    layer = nn.Linear(WIDTH, CLASSES)
    optimizer = torch.optim.Adam(layer.parameters(), lr, weight_decay=weight_decay)
    for x, y in loader:
        loss = F.cross_entropy(layer(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _scikit_learn_probe(features: Features, strength: float) -> None:
    """scikit-learn's logistic regression of the same objective, which it divides by the strength."""
    x, test_x, _ = linear.standardised(features)
    model = LogisticRegression(C=1 / (strength * len(x)), max_iter=1000)
    model.fit(x.numpy(), features.train_y.numpy())
    model.predict(test_x.numpy())


def threads(repetitions: int, log: Log) -> list[Line]:
    """Ratios of a probe of 100 classes on all threads to one on one thread, and seconds of all its epochs."""
    values = interleaved(_thread_contenders(), repetitions, log)
    what = "100 classes: linear/v1, steps on all threads / on one, as shipped"
    return [
        Line(what, ratio(values, ALL, ONE)),
        Line(f"the same{BUSY}", ratio(values, ALL + BUSY, ONE + BUSY), goal=">= 2"),
        *values_of(values, "s", f"100 classes: linear/v1 on {{}} (from {EPOCHS})"),
    ]


def _thread_contenders() -> dict[str, Callable[[], float]]:
    """Seconds of the probe's epochs with steps on one thread and on all, on an idle and on a busy machine."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(HUNDRED, (TRAIN,), generator=generator)
    x = (torch.randn(HUNDRED, NARROW, generator=generator)[y] + torch.randn(TRAIN, NARROW, generator=generator)).relu()
    features = Features(train_x=x, train_y=y, test_x=x[:1], test_y=y[:1], num_classes=HUNDRED)
    probe = PROTOCOLS["linear/v1"].arguments["probe"]
    short = replace(probe, epochs=EPOCHS)

    def run(shared_step: float, busy: bool) -> float:
        """shared_step: see `eval.linear.SHARED_STEP`."""
        features.computed.clear()
        before, linear.SHARED_STEP = linear.SHARED_STEP, shared_step
        try:
            with busy_cores() if busy else nullcontext():
                taken = seconds(lambda: linear.linear_probe(features, short, torch.Generator().manual_seed(0)))
        finally:
            linear.SHARED_STEP = before
        return taken * probe.epochs / EPOCHS

    steps = {ONE: linear.SHARED_STEP, ALL: 0.0}
    return {name + (BUSY if busy else ""): partial(run, steps[name], busy) for busy in (False, True) for name in steps}


@contextmanager
def busy_cores() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keeps as many processes as there are cores computing until the block is left; yields them."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
