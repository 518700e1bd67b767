"""The suite's protocols on cached features against the same probes written with loaders and modules.

Features are 50,000 for training and 10,000 for testing, 512 wide, of ten classes of three clusters each, mixed so that
a linear probe has much to solve and something to miss. An author's probe feeds `nn.Linear` and `torch.optim.Adam` from
a DataLoader over a TensorDataset; one of its epochs is timed and multiplied by their number. scikit-learn's logistic
regression sees the features standardised as `linear-lbfgs/v1` does it, at the strength that probe chose.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmark.speed.timing import Line, Say, interleaved, ratio, seconds, spread
from benchmark.speed.views import pictures
from datamodules.recipe import Recipe
from datamodules.views import augment, plain
from eval.features import Features, accuracy, extract
from eval.knn import knn_predict
from eval.linear import Probe, fit_linear, lbfgs_probe, standardised
from eval.logistic_regression import fit_lbfgs, split
from eval.protocol import PROTOCOLS, Subject, evaluate
from methods.networks import convnet

TITLE = "Evaluation: probes and neighbours on cached features, beside loaders and scikit-learn"

TRAIN, TEST, WIDTH, CLASSES = 50_000, 10_000, 512, 10
IMAGES = 5_000
"""Training images from which features are extracted once, or once a protocol; a fifth as many are tested."""
SHARING = ("linear/v1", "linear-lbfgs/v1", "knn/v1", "geometry/v1", "label-free/v1")
LINEAR, SOLVED, NEIGHBOURS = "linear/v1", "linear-lbfgs/v1", "knn/v1"
LOADER, FEDX, SKLEARN = "loader, batch 512", "loader, batch 64", "scikit-learn"
HALF, PRODUCT = "bfloat16 similarities", "similarities alone"
ONCE, EACH, EXTRACTION = "one extraction", "an extraction a protocol", "extraction"


def measure(repetitions: int, say: Say) -> list[Line]:
    """Probes by the suite and by loaders, their agreement with scikit-learn, kNN, and sharing one extraction."""
    small, features = structured(600, 200), structured(TRAIN, TEST)
    for warm_up in _probes(small, 1e-3).values():
        warm_up()
    strength = lbfgs_probe(features, torch.Generator().manual_seed(0))["strength"]
    say(f"{TRAIN} x {WIDTH} features, {torch.get_num_threads()} threads, strength {strength:g}")
    figures = interleaved(_probes(features, strength), repetitions, say)
    lines = [
        Line("loader at batch 64, 100 epochs (from 1) / linear-lbfgs/v1", ratio(figures, FEDX, SOLVED), goal=">= 10"),
        Line("loader at batch 512, 200 epochs (from 1) / linear/v1", ratio(figures, LOADER, LINEAR)),
        Line("scikit-learn, one strength / linear-lbfgs/v1, five and a last", ratio(figures, SKLEARN, SOLVED)),
        *(Line(name, spread(figures[name]), "s") for name in (SOLVED, LINEAR, FEDX, LOADER, SKLEARN)),
        *_agreement(features, strength),
    ]
    return lines + _neighbours(features, repetitions, say) + _sharing(repetitions, say)


def structured(train: int, test: int) -> Features:
    """Features of ten classes of three clusters in 32 dimensions, squashed, mixed into WIDTH, blurred and rectified."""
    generator = torch.Generator().manual_seed(0)
    noise = partial(torch.randn, generator=generator)
    clusters, squash, mix = 0.75 * noise(CLASSES, 3, 32), noise(32, WIDTH) / 32**0.5, noise(WIDTH, WIDTH) / WIDTH**0.5
    n = train + test
    y, cluster = (torch.randint(high, (n,), generator=generator) for high in (CLASSES, 3))
    x = ((clusters[y, cluster] + noise(n, 32)) @ squash).tanh() @ mix + 0.3 * noise(n, WIDTH)
    x = x.relu()
    return _features(x[:train], y[:train], x[train:], y[train:])


def _features(train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, *views: Tensor) -> Features:
    a, b = views or (None, None)
    clients = torch.arange(len(train_y)) % 10
    return Features(
        train_x=train_x,
        train_y=train_y,
        train_clients=clients,
        test_x=test_x,
        test_y=test_y,
        view_a=a,
        view_b=b,
        view_clients=clients if views else None,
        num_classes=CLASSES,
    )


def _probes(features: Features, strength: float) -> dict[str, Callable[[], float]]:
    """Seconds of each probe, those of loaders for all their epochs."""
    return {
        SOLVED: partial(seconds, partial(_run, SOLVED, features)),
        LINEAR: partial(seconds, partial(_run, LINEAR, features)),
        FEDX: lambda: 100 * seconds(partial(by_loader, features, 64, 1e-3, 1e-6)),
        LOADER: lambda: 200 * seconds(partial(by_loader, features, 512, 3e-3, 0.0)),
        SKLEARN: partial(seconds, partial(by_scikit_learn, features, strength)),
    }


def _run(protocol: str, features: Features) -> dict[str, float]:
    return PROTOCOLS[protocol].run(Subject(features=features), torch.Generator().manual_seed(0))


def by_loader(features: Features, batch_size: int, lr: float, weight_decay: float) -> nn.Module:
    """One epoch of a linear probe, as it is commonly written."""
    loader = DataLoader(TensorDataset(features.train_x, features.train_y), batch_size, shuffle=True)
    layer = nn.Linear(WIDTH, CLASSES)
    optimizer = torch.optim.Adam(layer.parameters(), lr, weight_decay=weight_decay)
    for x, y in loader:
        loss = F.cross_entropy(layer(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return layer


def by_scikit_learn(features: Features, strength: float) -> Tensor:
    """Predictions of scikit-learn's logistic regression of the same objective, which it divides by the strength."""
    x, test_x, _ = standardised(features)
    model = LogisticRegression(C=1 / (strength * len(x)), max_iter=1000)
    model.fit(x.numpy(), features.train_y.numpy())
    return torch.from_numpy(model.predict(test_x.numpy()))


def _agreement(features: Features, strength: float) -> list[Line]:
    """Percent of test rows to which each of ours gives scikit-learn's class; and all accuracies."""
    theirs = by_scikit_learn(features, strength)
    x, test_x, gram = standardised(features)
    solution = split(fit_lbfgs(x, features.train_y, CLASSES, strength, gram=gram), CLASSES)
    probe = Probe("adam", lr=3e-3, epochs=200, batch_size=512)
    trained = fit_linear(features.train_x, features.train_y, CLASSES, probe, torch.Generator().manual_seed(0))
    solved, stepped = F.linear(test_x, *solution).argmax(dim=1), F.linear(features.test_x, *trained).argmax(dim=1)
    lines = [
        Line(f"predictions equal to scikit-learn's, {SOLVED}", spread([accuracy(solved, theirs)]), "%", ">= 99.5"),
        Line(f"predictions equal to scikit-learn's, {LINEAR}", spread([accuracy(stepped, theirs)]), "%"),
    ]
    predictions = {SOLVED: solved, LINEAR: stepped, SKLEARN: theirs}
    return lines + [Line(f"accuracy, {n}", spread([accuracy(p, features.test_y)]), "%") for n, p in predictions.items()]


def _neighbours(features: Features, repetitions: int, say: Say) -> list[Line]:
    """Whether half precision would be worth its rounding: the time of kNN, of its product, and of both in bfloat16."""
    bank, queries = (F.normalize(x, dim=1) for x in (features.train_x, features.test_x))
    figures = interleaved(
        {
            NEIGHBOURS: partial(seconds, partial(_run, NEIGHBOURS, features)),
            HALF: partial(seconds, partial(_by_half, bank, queries, features.train_y)),
            PRODUCT: partial(seconds, partial(_similarities, bank, queries)),
        },
        repetitions,
        say,
    )
    full = knn_predict(features.train_x, features.train_y, features.test_x, CLASSES, 200, 0.1)
    half = _by_half(bank, queries, features.train_y)
    lost = accuracy(half, features.test_y) - accuracy(full, features.test_y)
    return [
        Line("knn/v1: 200 neighbours, float32", spread(figures[NEIGHBOURS]), "s"),
        Line("its similarities alone / knn/v1", ratio(figures, PRODUCT, NEIGHBOURS)),
        Line("the same with bfloat16 similarities / knn/v1", ratio(figures, HALF, NEIGHBOURS)),
        Line("predictions equal to knn/v1's, bfloat16", spread([accuracy(half, full)]), "%"),
        Line("accuracy, knn/v1", spread([accuracy(full, features.test_y)]), "%"),
        Line("accuracy, bfloat16 less knn/v1", spread([lost]), "points"),
    ]


def _similarities(bank: Tensor, queries: Tensor) -> None:
    for part in queries.split(1000):
        part @ bank.T


def _by_half(bank: Tensor, queries: Tensor, labels: Tensor) -> Tensor:
    """Votes as `knn_predict` counts them, over cosines that bfloat16 rounds to some three digits."""
    bank, predicted = bank.bfloat16().T, []
    for part in queries.bfloat16().split(1000):
        cosine, nearest = (part @ bank).float().topk(200, dim=1)
        weight = ((cosine - cosine[:, :1]) / 0.1).exp()
        predicted.append(torch.zeros(len(part), CLASSES).scatter_add_(1, labels[nearest], weight).argmax(dim=1))
    return torch.cat(predicted)


def _sharing(repetitions: int, say: Say) -> list[Line]:
    """Five protocols on a small convnet's features: extracted once, as the suite does, and once a protocol."""
    images, encoder = pictures(IMAGES + IMAGES // 5), convnet().eval()
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (len(images),), generator=generator)
    recipe = Recipe(images.shape[-1])

    def extracted() -> Features:
        prepare = partial(plain, recipe=recipe)
        train, test = (extract(encoder, part.numpy(), prepare) for part in (images[:IMAGES], images[IMAGES:]))
        augmented = partial(augment, recipe=recipe, generator=generator)
        views = (extract(encoder, images[:IMAGES].numpy(), augmented) for _ in range(2))
        return _features(train, labels[:IMAGES], test, labels[IMAGES:], *views)

    def scored(extractions: Sequence[Sequence[str]]) -> None:
        for protocols in extractions:
            evaluate(extracted(), protocols, lambda _: torch.Generator().manual_seed(0))

    figures = interleaved(
        {
            ONCE: partial(seconds, partial(scored, [SHARING])),
            EACH: partial(seconds, partial(scored, [[protocol] for protocol in SHARING])),
            EXTRACTION: partial(seconds, extracted),
        },
        repetitions,
        say,
    )
    return [
        Line(f"{len(SHARING)} protocols, an extraction each / one for all", ratio(figures, EACH, ONCE)),
        Line(f"{len(SHARING)} protocols, one extraction, {IMAGES} images", spread(figures[ONCE]), "s"),
        Line("of it the extraction", ratio(figures, EXTRACTION, ONCE)),
    ]
