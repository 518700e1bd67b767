"""Linear probes against `nn.Linear` with `torch.optim`, and softmax regression against autograd and scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, MultiStepLR

from eval import logistic_regression
from eval.features import EvalError, Features, holdout, seed_of
from eval.inputs import Crop, EncoderInputs
from eval.linear import (
    STRENGTHS,
    Probe,
    augmented_probe,
    fit_linear,
    lbfgs_probe,
    linear_probe,
    slice_probe,
    standardised,
    swept_probe,
)
from eval.logistic_regression import BLOCK, fit_lbfgs, gradient_of, split
from eval.protocol import PROTOCOLS
from tests.eval.conftest import seeded


def draw(n=96, d=6, classes=4, dtype=torch.float32):
    generator = seeded(5)
    y = torch.randint(classes, (n,), generator=generator)
    return (torch.randn(classes, d, generator=generator)[y] + torch.randn(n, d, generator=generator)).to(dtype), y


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    x, y = torch.from_numpy(data.data).float(), torch.from_numpy(data.target)
    order = torch.randperm(len(x), generator=seeded())
    x, y = x[order], y[order]
    return Features(train_x=x[:1200], train_y=y[:1200], test_x=x[1200:], test_y=y[1200:], num_classes=10)


def reference(x, y, classes, probe, seed):
    """The probe written with modules: global generator, `nn.Linear`, `torch.optim`, autograd."""
    torch.manual_seed(seed)
    layer = nn.Linear(x.shape[1], classes)
    decay = probe.weight_decay
    if probe.optimizer == "adam":
        optimizer = torch.optim.Adam(layer.parameters(), lr=probe.lr, weight_decay=decay)
    else:
        momentum = {"momentum": probe.momentum, "nesterov": probe.nesterov}
        optimizer = torch.optim.SGD(layer.parameters(), lr=probe.lr, weight_decay=decay, **momentum)
    steps = -(-len(x) // probe.batch_size)
    scheduler = {
        "constant": lambda: LambdaLR(optimizer, lambda step: 1.0),
        "cosine": lambda: CosineAnnealingLR(optimizer, probe.epochs * steps),
        "step": lambda: MultiStepLR(optimizer, [m * steps for m in probe.milestones], probe.gamma),
    }[probe.schedule]()
    for _ in range(probe.epochs):
        order = torch.randperm(len(x)) if probe.shuffle else torch.arange(len(x))
        for rows in order.split(probe.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(layer(x[rows]), y[rows]).backward()
            optimizer.step()
            scheduler.step()
    return layer.weight.detach(), layer.bias.detach()


ADAM = Probe("adam", lr=3e-3, epochs=6, batch_size=40)
SGD = Probe("sgd", lr=0.1, epochs=6, batch_size=40, momentum=0.9)


@pytest.mark.parametrize(
    "probe",
    [
        ADAM,
        replace(ADAM, lr=1e-3, batch_size=16, weight_decay=0.05),
        replace(SGD, lr=0.3, batch_size=16, schedule="cosine"),
        replace(SGD, schedule="step", milestones=(2, 4)),
        replace(SGD, momentum=0.0, weight_decay=0.01, shuffle=False),
        replace(SGD, nesterov=True),
    ],
    ids=["adam", "adam-decay", "sgd-cosine", "sgd-step", "sgd-unshuffled", "sgd-nesterov"],
)
def test_equals_torch_optim_from_the_same_seed(probe):
    """Features of inference mode are accepted; the fraction of epochs done is reported."""
    (x, y), done = draw(), []
    with torch.inference_mode():
        inside = x * 1
    found = fit_linear(inside, y, 4, probe, seeded(7), on_progress=done.append)
    torch.testing.assert_close(found, reference(x, y, 4, probe, 7), rtol=0, atol=1e-5)
    assert done == [epoch / 6 for epoch in range(1, 7)]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_several_rates_at_once_equal_each_rate_alone(optimizer):
    x, y = draw()
    rates = (1e-3, 3e-2, 0.3)
    shared = {"optimizer": optimizer, "epochs": 4, "batch_size": 40, "weight_decay": 0.01, "schedule": "cosine"}
    weight, bias = fit_linear(x, y, 4, Probe(lr=0.1, **shared), seeded(7), rates=rates)
    for rate, *found in zip(rates, weight.split(4), bias.split(4), strict=True):
        alone = fit_linear(x, y, 4, Probe(lr=rate, **shared), seeded(7))
        torch.testing.assert_close(tuple(found), alone, rtol=1e-4, atol=1e-5)


def test_the_rate_is_the_smallest_of_the_best_on_held_out_training_rows_and_not_on_test(digits):
    probe, rates = replace(ADAM, lr=1e-3, epochs=20, batch_size=128), (1e-7, 1e-6, 3e-2)
    scores = swept_probe(digits, probe, seeded(), rates)
    assert scores["rate"] == 3e-2
    assert scores["accuracy"] > 90
    mislabelled = replace(digits, test_y=torch.zeros_like(digits.test_y))
    assert swept_probe(mislabelled, probe, seeded(), rates)["rate"] == 3e-2
    noise = torch.randint(10, (1200,), generator=seeded())
    assert swept_probe(replace(digits, train_y=noise), probe, seeded(), rates)["accuracy"] < 30
    x, y = torch.eye(2).repeat(20, 1), torch.arange(40) % 2
    equal = Features(train_x=x, train_y=y, test_x=x, test_y=y, num_classes=2)
    assert swept_probe(equal, replace(ADAM, epochs=50), seeded(), (0.3, 0.1, 0.2)) == {"accuracy": 100, "rate": 0.1}


def test_the_probe_of_a_slice_is_trained_on_one_half_of_it_and_scored_on_the_other(digits):
    x, y, probe = digits.train_x, digits.train_y, replace(ADAM, epochs=20, batch_size=128)
    generator = seeded()
    chosen = torch.randperm(1200, generator=generator)[:500].sort().values
    fit, held_out = holdout(y[chosen], 0.5, seed_of(generator))
    halves = {"train_x": x[chosen[fit]], "train_y": y[chosen[fit]], "test_x": x[chosen[held_out]]}
    expected = linear_probe(Features(**halves, test_y=y[chosen[held_out]], num_classes=10), probe, generator)
    assert slice_probe(x, y, 10, probe, seeded(), limit=500) == expected
    assert abs(len(fit) - len(held_out)) <= 10
    noise = torch.randint(10, (1200,), generator=seeded(1))
    assert slice_probe(x, noise, 10, probe, seeded(), limit=10_000)["accuracy"] < 20


def test_an_identity_augmentation_equals_the_cached_probe(digits):
    """Every batch is embedded anew from the images of its rows."""
    encoder = nn.Flatten()
    encoder.register_parameter("anywhere", nn.Parameter(torch.zeros(())))
    images, crops = digits.train_x.to(torch.uint8).view(-1, 1, 8, 8).numpy(), []
    given = {"encoder": encoder.eval(), "train": images, "test": images, "prepare": torch.Tensor.float}
    inputs = EncoderInputs(**given, augment=lambda x, crop, generator: crops.append(crop) or x.float())
    probe, crop = replace(ADAM, epochs=3, batch_size=128), Crop((0.5, 1.0))
    assert augmented_probe(digits, inputs, probe, crop, seeded()) == linear_probe(digits, probe, seeded())
    assert crops == [crop] * 3 * 10


def test_linear_probe_is_percent_of_the_whole_test_set(digits):
    probe = replace(ADAM, epochs=100, batch_size=512)
    weight, bias = fit_linear(digits.train_x, digits.train_y, 10, probe, seeded())
    hits = (digits.test_x.numpy() @ weight.numpy().T + bias.numpy()).argmax(axis=1) == digits.test_y.numpy()
    score = linear_probe(digits, probe, seeded())
    assert score == {"accuracy": pytest.approx(100 * hits.mean())}
    assert score["accuracy"] > 90


def test_lbfgs_probe_scores_as_scikit_learn_on_standardised_features(digits):
    """They have no mean, and one mean variance."""
    x, test_x, gram = standardised(digits)
    centre, scale = digits.train_x.mean(dim=0), digits.train_x.var(dim=0, correction=0).mean().sqrt()
    torch.testing.assert_close(x, (digits.train_x - centre) / scale, rtol=0, atol=1e-5)
    torch.testing.assert_close(test_x, (digits.test_x - centre) / scale, rtol=0, atol=1e-5)
    torch.testing.assert_close(gram, x.T @ x / len(x), rtol=0, atol=1e-5)
    assert gram.diagonal().mean() == pytest.approx(1)
    scores = lbfgs_probe(digits, seeded())
    assert scores["strength"] in STRENGTHS == PROTOCOLS["linear-lbfgs/v1"].arguments["strengths"]
    model = LogisticRegression(C=1 / (scores["strength"] * 1200), tol=1e-6, max_iter=5000)
    model.fit(x.numpy(), digits.train_y.numpy())
    assert abs(scores["accuracy"] - 100 * model.score(test_x.numpy(), digits.test_y.numpy())) <= 0.2


def test_lbfgs_probe_is_independent_of_scale_and_test_labels_and_prefers_the_largest_strength(digits):
    small = replace(digits, train_x=digits.train_x[:300], train_y=digits.train_y[:300], train_clients=torch.empty(0))
    scores = lbfgs_probe(small, seeded())
    small.train_x, small.test_x = small.train_x * 1024 + 3, small.test_x * 1024 + 3
    assert lbfgs_probe(small, seeded()) == pytest.approx(scores, abs=1e-9)
    small.test_y = (small.test_y + 1) % 10
    assert lbfgs_probe(small, seeded())["strength"] == scores["strength"]
    y = torch.arange(60) % 3
    x = F.one_hot(y, 3).float() + 0.01 * torch.randn(60, 3, generator=seeded())
    separable = Features(train_x=x, train_y=y, test_x=x, test_y=y, num_classes=3)
    assert lbfgs_probe(separable, seeded(), strengths=(1e-3, 1e-2, 1e-1)) == {"accuracy": 100.0, "strength": 1e-1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "lars"}, "unknown optimizer 'lars' for a linear probe: give one of adam, sgd"),
        ({"schedule": "linear"}, "unknown schedule 'linear' for a linear probe: give one of constant, cosine, step"),
        ({"lr": 0.0}, "give lr, epochs and batch_size above 0"),
        ({"optimizer": "adam", "nesterov": True}, "Nesterov momentum is SGD's"),
        ({"momentum": 0.0, "nesterov": True}, "give optimizer sgd and a momentum above 0"),
    ],
)
def test_impossible_probes_are_errors(settings, message):
    with pytest.raises(EvalError, match=message):
        replace(SGD, **settings)


@pytest.mark.parametrize(
    ("shared_step", "rates", "embeds", "threads"),
    [(3073, (), 0, 1), (3072, (), 0, 2), (6145, (1, 2), 0, 1), (6144, (1, 2), 0, 2), (1e12, (), 1, 2)],
)
def test_a_small_step_is_made_on_one_thread_and_a_large_one_on_all(monkeypatch, shared_step, rates, embeds, threads):
    """4 operations for each of 4 classes, 6 features, 32 rows, and rates; a probe that encodes keeps all threads."""
    used, (x, y) = set(), draw()
    monkeypatch.setattr("eval.linear.SHARED_STEP", shared_step)
    monkeypatch.setattr("eval.linear.gradient_of", lambda *_: used.add(torch.get_num_threads()))
    probe = replace(SGD, epochs=1, batch_size=32)
    torch.set_num_threads(2)
    try:
        fit_linear(x, y, 4, probe, seeded(), rates=rates, embed=x.__getitem__ if embeds else None)
        assert (used, torch.get_num_threads()) == ({threads}, 2)
    finally:
        torch.set_num_threads(1)


def correlated(n=900, d=40, classes=5):
    """Centred float32 features whose variances span ten orders of magnitude, with overlapping classes."""
    x, y = draw(n, d, classes, torch.float64)
    turn = torch.linalg.qr(torch.randn(d, d, generator=seeded(1)).double()).Q
    x = (x - x.mean(dim=0)) * torch.logspace(-4, 1, d, dtype=torch.float64) @ turn
    return (x / x.square().mean().sqrt()).float(), y


@pytest.fixture
def passes(monkeypatch):
    """A list that grows with each pass over the features."""
    calls, original = [], logistic_regression._blockwise_gradient
    counted = lambda *arguments: calls.append(1) or original(*arguments)  # noqa: E731
    monkeypatch.setattr(logistic_regression, "_blockwise_gradient", counted)
    return calls


def assert_close(x, parameters, expected, atol):
    """Whether two classifiers of five classes give the rows about the same probabilities; returns these."""
    ours, theirs = (F.linear(x.double(), *split(p.double(), 5)).softmax(dim=1) for p in (parameters, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)
    return ours, theirs


@pytest.mark.parametrize("n", [1, 37, BLOCK, 2 * BLOCK + 37])
def test_gradients_are_those_of_autograd(n):
    x, y = draw(n, dtype=torch.float64)
    buffer = torch.randn(4 * 7, generator=seeded()).double().requires_grad_()
    weight, bias = split(buffer, 4)
    loss = F.cross_entropy(F.linear(x, weight, bias), y)
    loss.backward()
    out = torch.full_like(buffer, torch.nan)
    gradient_of(x, y, weight.detach(), bias.detach(), out)
    torch.testing.assert_close(out, buffer.grad)
    out.fill_(7.0)
    blocks = logistic_regression._blocks(x, y)
    blockwise = logistic_regression._blockwise_gradient(blocks, weight.detach(), bias.detach(), out)
    torch.testing.assert_close((out, blockwise), (buffer.grad, loss.detach()))


@pytest.mark.parametrize("strength", [1e-1, 1e-3])
def test_finds_scikit_learns_optimum(strength):
    x, y = (torch.from_numpy(each[:500]) for each in load_digits(return_X_y=True))
    x = x / 16
    theirs = LogisticRegression(C=1 / (strength * 500), tol=1e-8, solver="newton-cholesky").fit(x.numpy(), y.numpy())
    parameters = fit_lbfgs(x, y, 10, strength, tolerance=1e-8, max_iter=5000)
    weight, bias = parameters[:-10].view(10, -1), parameters[-10:]
    np.testing.assert_allclose(weight.numpy(), theirs.coef_, atol=1e-3)
    # adding one number to every bias changes no probability
    np.testing.assert_allclose(bias - bias.mean(), theirs.intercept_ - theirs.intercept_.mean(), atol=1e-3)
    start = fit_lbfgs(x, y, 10, strength, start=torch.randn(10 * 65, generator=seeded()).double(), tolerance=1e-8)
    torch.testing.assert_close(start[:-10], parameters[:-10], rtol=0, atol=1e-3)


@pytest.mark.parametrize(("strength", "most"), [(1e-1, 25), (1e-5, 100)])
def test_correlated_features_and_small_strengths_cost_few_passes(passes, strength, most):
    """Without preconditioning these take 32 and 274 passes; the reference is solved in double precision."""
    x, y = correlated()
    parameters = fit_lbfgs(x, y, 5, strength)
    assert len(passes) <= most
    exact = fit_lbfgs(x.double(), y, 5, strength, tolerance=1e-9, max_iter=5000)
    ours, theirs = assert_close(x, parameters, exact, 5e-3)
    assert (ours.argmax(dim=1) == theirs.argmax(dim=1)).float().mean() >= 0.995


def test_the_gram_changes_the_time_and_not_the_solution():
    x, y = draw(300, dtype=torch.float64)
    expected = fit_lbfgs(x, y, 4, 1e-2, tolerance=1e-9)
    for gram in (torch.eye(6).double(), torch.diag(torch.logspace(-2, 2, 6, dtype=torch.float64))):
        # a wrong gram takes hundreds of iterations, on some CPUs more than the default's 500
        parameters = fit_lbfgs(x, y, 4, 1e-2, tolerance=1e-9, max_iter=5000, gram=gram)
        torch.testing.assert_close(parameters[:-4], expected[:-4], rtol=0, atol=1e-6)
    x, y = correlated()
    gram = x.T @ x / len(x)
    rounded = gram - 2e-6 * gram.trace() * torch.eye(len(gram))  # it may be made indefinite by rounding
    assert torch.linalg.eigvalsh(rounded.double())[0] / 5 < -1.2e-5  # below minus the strength
    assert_close(x, *(fit_lbfgs(x, y, 5, 1e-5, gram=matrix) for matrix in (rounded, gram)), 1e-2)


def test_the_solver_stops_where_the_precision_ends_and_accepts_features_of_inference_mode(passes):
    x, y = correlated()
    with torch.inference_mode():
        inside = x * 1
    parameters = fit_lbfgs(inside, y, 5, 1e-4, tolerance=0.0, max_iter=5000)
    assert len(passes) < 200
    assert_close(x, parameters, fit_lbfgs(x.double(), y, 5, 1e-4, tolerance=1e-9, max_iter=5000), 1e-3)
