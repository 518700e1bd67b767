import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import norm
from sklearn.metrics import roc_auc_score, roc_curve
from torch import nn

from eval.features import EvalError, Features
from eval.inputs import EncoderInputs, Subject
from eval.membership import attack_scores, matched, view_similarity
from eval.protocol import evaluate
from methods.maths import nt_xent


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def images(n, seed):
    return torch.randint(256, (n, 3, 4, 4), generator=stream(seed), dtype=torch.uint8).numpy()


def noisy(batch, generator):
    """Views: the images with noise."""
    return batch.float() / 255 + 0.2 * torch.randn(batch.shape, generator=generator)


class Remembering(nn.Module):
    """Maps every view of the images that it remembers to one place, and others to their pixels."""

    def __init__(self, remembered):
        super().__init__()
        self.register_buffer("known", torch.from_numpy(remembered).float().flatten(1) / 255)

    def forward(self, x):
        rows = x.flatten(1)
        nearest = torch.cdist(rows, self.known).min(dim=1)
        return torch.where(nearest.values[:, None] < 2, self.known[nearest.indices], rows)


def subject(encoder, train, test, members=None):
    rows = {"train_x": torch.zeros(len(train), 2), "test_x": torch.zeros(len(test), 2)}
    labels = {"train_y": torch.zeros(len(train)).long(), "test_y": torch.zeros(len(test)).long()}
    inputs = {"encoder": encoder.eval(), "train": train, "test": test, "view": noisy}
    return Subject(
        features=Features(**rows, **labels, num_classes=1),
        encoder_inputs=EncoderInputs(**inputs, prepare=torch.Tensor.float, augment=None),
        members=torch.arange(len(train)) if members is None else members,
    )


def scores(given):
    return {score.metric: score.value for score in evaluate(given, ["membership/v1"])}


def test_an_encoder_that_remembers_its_images_is_found_out_and_one_that_does_not_is_not():
    """Only members are looked for."""
    train, test = images(200, seed=1), images(200, seed=2)
    encoder = Remembering(train[:100])
    remembered, others = (scores(subject(encoder, train, test, torch.arange(100) + k)) for k in (0, 100))
    assert remembered["auc"] > 0.95
    assert remembered["auc_low"] > 0.5
    assert remembered["tpr_1pct"] > 50
    for none in (others, scores(subject(nn.Flatten(), train, test))):
        assert none["auc_low"] < 0.5 < none["auc_high"]
        assert none["tpr_1pct"] < 5


def test_an_encoder_trained_on_a_hundred_images_for_long_is_found_out():
    """Contrastive training on noisy views of random images, which have nothing in common to be learned."""
    train, test = images(100, seed=1), images(400, seed=2)
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(48, 256), nn.ReLU(), nn.Linear(256, 64))
    head = nn.Sequential(nn.ReLU(), nn.Linear(64, 32))
    before = scores(subject(encoder, train, test))
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
    pictures, generator = torch.from_numpy(train), stream(7)
    for _ in range(600):
        z_a, z_b = (head(encoder(noisy(pictures, generator))) for _ in range(2))
        optimizer.zero_grad()
        nt_xent(z_a, z_b, 0.5, "full").backward()
        optimizer.step()
    after = scores(subject(encoder, train, test))
    assert before["auc_low"] < 0.5 < before["auc_high"]
    assert after["auc"] > 0.7
    assert after["auc_low"] > 0.5


def test_the_figure_has_the_similarities_and_the_images_found_most_surely():
    train, test = images(60, seed=1), images(50, seed=2)
    saved = {}
    given = subject(Remembering(train[:10]), train, test)
    evaluate(replace(given, save_arrays=saved.__setitem__), ["membership/v1"])
    arrays = saved["membership"]
    assert (len(arrays["members"]), len(arrays["others"]), len(arrays["surest"])) == (50, 50, 16)
    remembered = {image.tobytes() for image in train[:10]}
    assert {image.numpy().tobytes() for image in arrays["surest"][:5]} <= remembered


def test_similarity_is_the_mean_cosine_over_all_pairs_of_views():
    pictures, views = images(7, seed=3), 5
    inputs = subject(nn.Flatten(), pictures, pictures).inputs
    similarity = view_similarity(inputs, pictures, views, stream(4))
    generator = stream(4)
    drawn = [nn.Flatten()(noisy(torch.from_numpy(pictures), generator)) for _ in range(views)]
    pairs = [F.cosine_similarity(a.double(), b.double()) for a, b in itertools.combinations(drawn, 2)]
    torch.testing.assert_close(similarity, torch.stack(pairs).mean(0))


def test_scores_are_those_of_scikit_learn_ties_included():
    members = torch.randint(8, (300,), generator=stream(5)).double() + 1
    others = torch.randint(8, (250,), generator=stream(6)).double()
    labels = np.repeat([1, 0], [300, 250])
    values = torch.cat([members, others]).numpy()
    given = attack_scores(members, others)
    assert given["auc"] == pytest.approx(roc_auc_score(labels, values))
    false, found, _ = roc_curve(labels, values, drop_intermediate=False)
    assert given["tpr_1pct"] == pytest.approx(100 * found[false <= 0.01].max())


def test_the_interval_holds_the_true_value_as_often_as_it_says():
    truth, held = norm.cdf(0.7 / 2**0.5), 0
    for seed in range(400):
        members, others = torch.randn(140, generator=stream(seed)).split([60, 80])
        given = attack_scores(members + 0.7, others)
        held += given["auc_low"] <= truth <= given["auc_high"]
    assert 0.92 <= held / 400 <= 0.975


def test_features_that_are_all_the_same_tell_nothing():
    given = attack_scores(torch.ones(30), torch.ones(40))
    assert given == {"auc": 0.5, "auc_low": 0.5, "auc_high": 0.5, "tpr_1pct": 0.0}


def test_both_sides_have_as_many_images_of_each_class():
    labels, other_labels = torch.tensor([0] * 30 + [1] * 5), torch.tensor([1] * 30 + [0] * 10 + [2] * 9)
    rows = [torch.randperm(size, generator=stream()) for size in (35, 49)]
    ours, theirs = matched(*rows, labels, other_labels)
    assert labels[ours].bincount().tolist() == other_labels[theirs].bincount().tolist() == [10, 5]
    with pytest.raises(EvalError, match="share no class"):
        matched(torch.arange(3), torch.arange(3), torch.zeros(3).long(), torch.ones(3).long())


def test_what_is_missing_is_named():
    given = subject(nn.Flatten(), images(20, seed=1), images(20, seed=2))
    unseen = replace(given.encoder_inputs, view=None)
    for broken in ({"members": None}, {"encoder_inputs": None}, {"encoder_inputs": unseen}):
        with pytest.raises(EvalError, match="membership/v1 requires more than features: it looks for the images"):
            evaluate(replace(given, **broken), ["membership/v1"])
    with pytest.raises(EvalError, match="give two at least"):
        view_similarity(given.inputs, given.inputs.train, 1, stream())
