"""What the suite writes by hand although a library has it: seconds and lines of code of both.

A library's lines are those of the function here that would take the place of ours. Inputs have the sizes of runs.
"""

import ast
import inspect
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

from benchmark.configuration import written
from benchmark.experiment import lock
from benchmark.speed import views as images_of
from benchmark.speed.timing import Line, Log, Spread, interleaved, ratio, seconds
from datamodules import ops, views
from datamodules.recipe import Recipe
from eval import knn, linear, logistic_regression
from methods import maths

REPEATED = 0.2
"""Seconds that a contender runs for at least; shorter ones are called again."""


class Alternative(NamedTuple):
    """Ours and theirs.

    subject: what they do. code: ours, the functions, classes or modules that would go. theirs: the library's name.
    make: returns both as functions without arguments; of the second, the source is counted.
    """

    subject: str
    code: Sequence[Any]
    theirs: str
    make: Callable[[], tuple[Callable[[], Any], Callable[[], Any]]]


def batch_views() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """SimCLR's views of 512 images, each with its own parameters: v2 draws one set for a whole batch."""
    from torchvision.transforms import v2

    images = images_of.make_images(images_of.BATCH)

    def theirs() -> Tensor:
        jitter = v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8)
        crop = v2.RandomResizedCrop(images_of.SIZE, (0.2, 1.0), antialias=False)
        scale = v2.ToDtype(torch.float32, scale=True)
        view = v2.Compose([crop, v2.RandomHorizontalFlip(), jitter, v2.RandomGrayscale(0.2), scale])
        return torch.stack([view(image) for image in images])

    stream = torch.Generator().manual_seed(0)
    return partial(views.augment, images, Recipe(images_of.SIZE), stream), theirs


def k_means() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """K-means from given starts, 20 iterations at most."""
    from sklearn.cluster import KMeans

    x, starts = _rows(2000, 64), torch.arange(10)

    def theirs() -> Tensor:
        fitted = KMeans(10, init=x[starts].numpy(), n_init=1, max_iter=20, tol=0).fit(x.numpy())
        return torch.from_numpy(fitted.cluster_centers_)

    return lambda: maths.k_means(x, 10, starts=starts)[0], theirs


def sinkhorn() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """100 scalings."""
    import ot

    scores = _rows(1000, 16).tanh()

    def theirs() -> Tensor:
        n, g = scores.shape
        even = [torch.full((size,), 1 / size, dtype=torch.float64) for size in (n, g)]
        return n * ot.sinkhorn(*even, -scores.double(), 0.2, numItermax=100, stopThr=0, warn=False)

    return partial(maths.sinkhorn, scores, 0.2, 100), theirs


def weighted_knn() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """200 neighbours of 5,000 rows."""
    from sklearn.neighbors import KNeighborsClassifier

    (bank, labels), (queries, _) = _labelled(5000), _labelled(1000)

    def theirs() -> Tensor:
        fitted = KNeighborsClassifier(200, metric="cosine", weights=lambda d: np.exp((1 - d) / 0.1))
        return torch.from_numpy(fitted.fit(bank.numpy(), labels.numpy()).predict(queries.numpy()))

    return partial(knn.knn_predict, bank, labels, queries, 10, 200, 0.1), theirs


def linear_probe() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Two epochs of Adam over 5,000 rows."""
    x, y = _labelled(5000)
    probe = linear.Probe("adam", lr=1e-3, epochs=2, batch_size=512, shuffle=False)

    def theirs() -> list[Tensor]:
        torch.manual_seed(0)
        head = nn.Linear(x.shape[1], 10)
        optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
        for _ in range(2):
            for rows in torch.arange(len(x)).split(512):
                optimizer.zero_grad()
                F.cross_entropy(head(x[rows]), y[rows]).backward()
                optimizer.step()
        return list(head.parameters())

    return lambda: linear.fit_linear(x, y, 10, probe, torch.Generator().manual_seed(0)), theirs


def logistic() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """5,000 rows at one strength."""
    from sklearn.linear_model import LogisticRegression

    x, y = _labelled(5000)

    def theirs() -> Tensor:
        fitted = LogisticRegression(C=1 / (len(x) * 1e-3), tol=3e-5, max_iter=500).fit(x.numpy(), y.numpy())
        return torch.from_numpy(fitted.coef_)

    return lambda: logistic_regression.split(logistic_regression.fit_lbfgs(x, y, 10, 1e-3), 10)[0], theirs


def file_locks() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A folder is taken and given back."""
    import filelock

    file = Path(tempfile.mkdtemp()) / "lock"

    def ours() -> bool:
        with file.open("w") as held:
            return lock.try_lock(held)

    def theirs() -> bool:
        try:
            with filelock.FileLock(file, timeout=0.5):
                return True
        except filelock.Timeout:
            return False

    return ours, theirs


def yaml_files() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A scenario's file, whose numbers remember how they were written."""
    text = (Path(written.__file__).parents[1] / "configs" / "suite" / "digits.yaml").read_text(encoding="utf-8")

    def theirs() -> Any:
        return yaml.load(text, yaml.CSafeLoader)

    return lambda: written.settled(written.read_yaml_text(text)), theirs


ALTERNATIVES = (
    Alternative("views of a batch", (views, ops), "torchvision.transforms.v2", batch_views),
    Alternative("k-means", (maths.k_means,), "scikit-learn", k_means),
    Alternative("Sinkhorn", (maths.sinkhorn,), "POT", sinkhorn),
    Alternative("kNN", (knn.neighbours, knn.vote, knn.knn_predict), "scikit-learn", weighted_knn),
    Alternative(
        "linear probe",
        (linear.fit_linear, linear._Adam, linear._SGD, logistic_regression.gradient_of, linear._one_thread),
        "torch.optim",
        linear_probe,
    ),
    Alternative("logistic regression", (logistic_regression,), "scikit-learn", logistic),
    Alternative("file locks", (lock.try_lock, lock.is_locked, lock._flock), "filelock", file_locks),
    Alternative("YAML", (written._Loader, written.read_yaml_text, written.settled), "PyYAML", yaml_files),
)


def libraries(repetitions: int, log: Log) -> list[Line]:
    """Our seconds over theirs, and lines of code of ours and of what would take its place."""
    lines = []
    for subject, code, name, make in ALTERNATIVES:
        ours, theirs = make()
        contenders = {"ours": partial(_timed, ours), name: partial(_timed, theirs)}
        for warm_up in contenders.values():
            warm_up()
        log(f"{subject}, beside {name}")
        values = interleaved(contenders, repetitions, log)
        written_out, short = sum(map(code_lines, code)), code_lines(theirs)
        lines += [
            Line(f"{subject}: seconds, ours / {name}", ratio(values, "ours", name)),
            Line(f"{subject}: lines of code, ours ({written_out}) / {name} ({short})", _single(written_out / short)),
        ]
    return lines


def code_lines(of: Any) -> int:
    """Lines of a function, class or module that hold code: no blank ones, no comments, no docstrings.

    >>> code_lines(_single)
    2
    """
    source = textwrap.dedent(inspect.getsource(of))
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node)]
    told = {number for text in texts for number in range(text.lineno, (text.end_lineno or text.lineno) + 1)}
    rows = enumerate(source.splitlines(), start=1)
    return sum(1 for number, row in rows if number not in told and row.strip() and not row.strip().startswith("#"))


def _single(value: float) -> Spread:
    return Spread(value, value, value, 1)


def _timed(run: Callable[[], Any]) -> float:
    """Seconds of a call, the mean of as many as take REPEATED."""
    first = seconds(run)
    calls = int(REPEATED / max(first, 1e-6))
    return first if calls < 2 else seconds(lambda: [run() for _ in range(calls)]) / calls


def _rows(count: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def _labelled(count: int) -> tuple[Tensor, Tensor]:
    """Features `[count, 128]` of ten overlapping classes, and their labels."""
    y = torch.arange(count) % 10
    return _rows(count, 128, count) + 2 * F.one_hot(y, 128), y
