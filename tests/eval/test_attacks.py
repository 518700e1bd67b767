"""Attacks: images and class shares that a server reads from replies, and members that an encoder gives away."""

import itertools
import math
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
from eval.inversion import ObservedStep, psnr, reconstruct, similarity, ssim, total_variation
from eval.membership import attack_scores, matched, view_similarity
from eval.protocol import evaluate
from eval.shares import FOLDED, ObservedReplies, distance, folded, read_shares, shares
from tests.eval.conftest import seeded


def smooth(n, seed):
    coarse = torch.rand(n, 3, 3, 3, generator=seeded(seed))
    return torch.nn.functional.interpolate(coarse, 12, mode="bilinear")


def step(truth, observed=None, mean=0.0, std=1.0):
    """A step whose gradient shows its inputs, beside a constant that sets their scale."""
    low, high = (torch.full((1, 3, 1, 1), (end - mean) / std) for end in (0.0, 1.0))

    def gradients(inputs):
        return [inputs.flatten() * std + mean, torch.full((1,), 20.0)]

    views = low + truth * (high - low)
    blind = torch.full((1, 3, *truth.shape[2:]), (0.5 - mean) / std)
    return ObservedStep(views, low, high, blind, observed or [g.detach() for g in gradients(views)], gradients)


@pytest.mark.parametrize("scale", [{}, {"mean": 0.4, "std": 0.2}], ids=["plain", "normalised"])
def test_images_are_reconstructed_where_the_gradient_shows_them(scale):
    truth = smooth(4, seed=1)
    shown = step(truth, **scale)
    guesses, cosine = reconstruct(shown, seeded(2), steps=300, lr=0.02, variation=0.0)
    scores, nearest = similarity(shown.pixels(guesses), truth, shown.pixels(shown.blind))
    assert cosine > 0.9999
    assert nearest.tolist() == [0, 1, 2, 3]
    assert scores["ssim"] > 0.95
    assert scores["psnr"] > 25 > scores["psnr_blind"]
    assert scores["ssim_blind"] < 0.5


def test_another_gradient_gives_no_image_and_one_that_says_nothing_is_refused():
    truth = smooth(4, seed=1)
    noise = step(truth, [torch.randn(truth.numel(), generator=seeded(3)), torch.zeros(1)])
    guesses, _ = reconstruct(noise, seeded(2), steps=100, lr=0.02, variation=0.1)
    scores, _ = similarity(noise.pixels(guesses), truth, noise.pixels(noise.blind))
    assert scores["psnr"] < scores["psnr_blind"]
    for value in (0.0, math.nan):
        with pytest.raises(EvalError, match="nothing to invert"):
            reconstruct(step(smooth(2, 1), [torch.full((864,), value)]), seeded(), steps=2, lr=0.1, variation=0.0)


def test_each_image_is_shown_by_the_guess_that_is_most_like_it():
    truth, blind = smooth(4, seed=1), torch.full((1, 3, 12, 12), 0.5)
    scores, nearest = similarity(truth[[2, 0]], truth, blind)
    assert nearest[[0, 2]].tolist() == [1, 0]
    assert scores["ssim_best"] == pytest.approx(1)
    assert scores["ssim"] < 1
    by_hand = -10 * torch.log10((truth - blind).square().mean(dim=(1, 2, 3)))
    assert scores["psnr_blind"] == pytest.approx(by_hand.mean().item(), rel=1e-5)


def test_pairs_are_measured_by_themselves_and_total_variation_by_hand():
    first, second = smooth(3, seed=1), smooth(3, seed=2)
    for measure in (ssim, psnr):
        alone = torch.cat([measure(first[k : k + 1], second[k : k + 1]) for k in range(3)])
        torch.testing.assert_close(measure(first, second), alone)
    assert psnr(first, first).tolist() == [100] * 3
    small = torch.rand(2, 1, 8, 8, generator=seeded())
    torch.testing.assert_close(ssim(small, small), torch.ones(2))
    ramp = torch.arange(3.0).view(1, 1, 1, 3).expand(1, 1, 2, 3)
    assert [total_variation(image).item() for image in (ramp, ramp.mT, torch.ones(1, 1, 4, 4))] == [1, 1, 0]


def images(n, seed):
    return torch.randint(256, (n, 3, 4, 4), generator=seeded(seed), dtype=torch.uint8).numpy()


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
    given_ = {"encoder": encoder.eval(), "train": train, "test": test, "view": noisy, "augment": None}
    return Subject(
        features=Features(**rows, **labels, num_classes=1),
        encoder_inputs=EncoderInputs(**given_, prepare=torch.Tensor.float),
        members=torch.arange(len(train)) if members is None else members,
    )


def test_an_encoder_that_remembers_its_images_is_found_out_and_one_that_does_not_is_not():
    """Only members are looked for; the figure has the similarities and the images found most surely."""
    train, test, saved = images(200, seed=1), images(200, seed=2), {}

    def scores(encoder, members=None):
        given_ = replace(subject(encoder, train, test, members), save_arrays=saved.__setitem__)
        return {score.metric: score.value for score in evaluate(given_, ["membership/v1"])}

    encoder = Remembering(train[:100])
    for none in (scores(encoder, torch.arange(100, 200)), scores(nn.Flatten())):
        assert none["auc_low"] < 0.5 < none["auc_high"]
        assert none["tpr_1pct"] < 5
    remembered, arrays = scores(encoder, torch.arange(100)), saved["membership"]
    assert remembered["auc"] > 0.95
    assert remembered["auc_low"] > 0.5
    assert remembered["tpr_1pct"] > 50
    assert (len(arrays["members"]), len(arrays["others"]), len(arrays["surest"])) == (100, 100, 16)
    known = {image.tobytes() for image in train[:100]}
    assert {image.numpy().tobytes() for image in arrays["surest"]} <= known


def test_similarity_is_the_mean_cosine_over_all_pairs_of_views():
    pictures, views = images(7, seed=3), 5
    inputs = subject(nn.Flatten(), pictures, pictures).encoder_inputs
    similarity = view_similarity(inputs, pictures, views, seeded(4))
    generator = seeded(4)
    drawn = [nn.Flatten()(noisy(torch.from_numpy(pictures), generator)) for _ in range(views)]
    pairs = [F.cosine_similarity(a.double(), b.double()) for a, b in itertools.combinations(drawn, 2)]
    torch.testing.assert_close(similarity, torch.stack(pairs).mean(0))


def test_scores_are_those_of_scikit_learn_ties_included():
    members = torch.randint(8, (300,), generator=seeded(5)).double() + 1
    others = torch.randint(8, (250,), generator=seeded(6)).double()
    labels = np.repeat([1, 0], [300, 250])
    values = torch.cat([members, others]).numpy()
    given = attack_scores(members, others)
    assert given["auc"] == pytest.approx(roc_auc_score(labels, values))
    false, found, _ = roc_curve(labels, values, drop_intermediate=False)
    assert given["tpr_1pct"] == pytest.approx(100 * found[false <= 0.01].max())
    equal = attack_scores(torch.ones(30), torch.ones(40))
    assert equal == {"auc": 0.5, "auc_low": 0.5, "auc_high": 0.5, "tpr_1pct": 0.0}


def test_the_interval_holds_the_true_value_as_often_as_it_says():
    truth, held = norm.cdf(0.7 / 2**0.5), 0
    for seed in range(400):
        members, others = torch.randn(140, generator=seeded(seed)).split([60, 80])
        given = attack_scores(members + 0.7, others)
        held += given["auc_low"] <= truth <= given["auc_high"]
    assert 0.92 <= held / 400 <= 0.975


def test_both_sides_have_as_many_images_of_each_class():
    labels, other_labels = torch.tensor([0] * 30 + [1] * 5), torch.tensor([1] * 30 + [0] * 10 + [2] * 9)
    rows = [torch.randperm(size, generator=seeded()) for size in (35, 49)]
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
        view_similarity(given.encoder_inputs, given.encoder_inputs.train, 1, seeded())


TRUTH = torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]], dtype=torch.float64)


def replies(d: int, noise: float = 0.0, seed: int = 0):
    """Replies that are mixes of references, with noise, and the references."""
    generator = seeded(seed)
    references = torch.randn(3, d, generator=generator)
    return TRUTH.float() @ references + noise * torch.randn(3, d, generator=generator), references


def observed(**entries):
    sides = ({name: pair[side] for name, pair in entries.items()} for side in (0, 1))
    return ObservedReplies(*sides, TRUTH, TRUTH.mean(dim=0))


@pytest.mark.parametrize("d", [3, 40])
@pytest.mark.parametrize("length", [1.0, 1e-4, 25.0])
def test_a_mix_is_found_whatever_its_length(d, length):
    mixes, references = replies(d)
    torch.testing.assert_close(read_shares(length * mixes, references), TRUTH, atol=1e-5, rtol=0)


def test_no_share_is_negative_and_all_sum_to_one():
    """Also of a reply that no mix is near, which tells nothing."""
    read = read_shares(*replies(40, noise=2.0))
    assert read.min() == 0
    torch.testing.assert_close(read.sum(dim=1), torch.ones(3, dtype=torch.float64))
    read = read_shares(torch.tensor([[-1.0, -1.0, 0.0], [0.0, 0.0, 0.0]]), torch.eye(3))
    torch.testing.assert_close(read, torch.full((2, 3), 1 / 3, dtype=torch.float64))


def test_entries_count_alike_in_any_unit_but_zeros_and_each_is_read_alone():
    clear, noisy = replies(40), replies(40, noise=3.0, seed=1)
    scores, _ = shares(observed(R=clear, weights=noisy))
    again, _ = shares(observed(R=clear, weights=[1e6 * side for side in noisy]))
    assert scores["distance_R"] < 1e-5 < scores["distance"] < scores["distance_weights"]
    assert again == pytest.approx(scores)
    assert shares(observed(R=clear, c=torch.zeros(2, 3, 5)))[0] == shares(observed(R=clear))[0]


def test_what_cannot_be_read_is_one_line():
    for reply, reference, reason in ((math.nan, 1.0, "entry R is not finite"), (1.0, 0.0, "nothing but zeros")):
        with pytest.raises(EvalError, match=f"shares: .*{reason}"):
            shares(observed(R=(torch.full((3, 5), reply), torch.full((3, 5), reference))))


def test_folding_is_linear_and_keeps_inner_products():
    generator = seeded()
    x, y = torch.randn(2, 5 * FOLDED, generator=generator)
    assert folded(x).shape == (FOLDED,)
    torch.testing.assert_close(folded(x + 2 * y), folded(x) + 2 * folded(y), atol=1e-4, rtol=0)
    assert (folded(x) @ folded(x) / (x @ x)).item() == pytest.approx(1, abs=0.02)
    assert abs((folded(x) @ folded(y)).item()) < 0.02 * (x @ x).item()
    assert torch.equal(folded(x[:FOLDED]), x[:FOLDED])


def test_the_protocol_has_distances_by_hand_saves_both_for_the_figure():
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    features, saved = Features(train_x=x, train_y=y, test_x=x, test_y=y, num_classes=3), {}
    subject = Subject(features=features, client_replies=lambda: observed(R=replies(40)), save_arrays=saved.__setitem__)
    assert {score.metric: (score.value, score.unit) for score in evaluate(subject, ["shares/v1"])} == {
        "distance": (distance(saved["shares"]["read"], TRUTH), "1"),
        "distance_blind": (pytest.approx((0.3 + (0.4 + 0.7 / 3) + (0.1 + 0.8 / 3)) / 3), "1"),
        "main_class": (100, "%"),
        "main_class_blind": (pytest.approx(200 / 3), "%"),
    }
    assert torch.equal(saved["shares"]["truth"], TRUTH)
    torch.testing.assert_close(saved["shares"]["read"], TRUTH, atol=1e-5, rtol=0)
