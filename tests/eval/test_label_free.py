"""alpha-ReQ, LiDAR and the attentive probe: against NumPy and SciPy written out, and by what they are for."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
import torch.nn.functional as F
from sklearn.linear_model import LinearRegression
from torch import nn
from torchvision import models

from eval.attentive import Attention, AttentiveProbe, attentive
from eval.features import EvalError, Features
from eval.inputs import EncoderInputs
from eval.label_free import alpha_req, decay_exponent, lda_rank, lidar
from eval.linear import Probe, linear_probe
from eval.tokens import tokens_of
from tests.eval.conftest import seeded


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed))


class TestAlpha:
    @pytest.mark.parametrize("width", [12, 150])
    def test_it_is_a_weighted_regression_of_scikit_learn_on_the_covariances_eigenvalues(self, width):
        x = normal(400, width) * torch.arange(1.0, width + 1) ** -0.7
        values = np.linalg.eigvalsh(np.cov(x.double().numpy().T, bias=True))[::-1]
        ranks = np.arange(4, min(width, 100) + 1)
        fit = LinearRegression().fit(np.log(ranks)[:, None], np.log(values[ranks - 1]), sample_weight=1 / ranks)
        assert alpha_req(x)["alpha"] == pytest.approx(-fit.coef_[0], rel=1e-9)

    def test_ranks_outside_of_the_fit_do_not_count_and_a_collapsed_encoder_has_a_number(self):
        values = torch.arange(1.0, 121.0).double() ** -0.8
        assert decay_exponent(values * torch.where(torch.arange(120) < 3, 50.0, 1.0)) == pytest.approx(0.8)
        assert decay_exponent(torch.cat([values[:100], values[100:] / 1e3])) == pytest.approx(0.8)
        assert alpha_req(torch.ones(30, 8)) == {"alpha": 0}
        assert math.isfinite(alpha_req(normal(30, 1) @ normal(1, 8))["alpha"])
        with pytest.raises(EvalError, match="from the 4th on, and there are 4"):
            alpha_req(normal(30, 4))


class TestLidar:
    def test_it_is_the_entropy_of_scipys_generalised_eigenvalues(self):
        views = (normal(20, 1, 6) + 0.3 * normal(20, 5, 6, seed=1) * torch.arange(1.0, 7.0)).double().numpy()
        between, within = np.zeros((6, 6)), 1e-4 * np.eye(6)
        for image in views:
            difference = image.mean(axis=0) - views.mean(axis=(0, 1))
            between += np.outer(difference, difference) / 20
            for view in image:
                within += np.outer(view - image.mean(axis=0), view - image.mean(axis=0)) / 100
        p = scipy.linalg.eigh(between, within, eigvals_only=True)
        p = p / p.sum()
        assert lda_rank(torch.from_numpy(views), 1e-4) == pytest.approx(math.exp(-(p * np.log(p)).sum()), rel=1e-9)

    def test_directions_in_which_views_differ_count_less(self):
        images, noise = normal(500, 1, 4), normal(500, 8, 4, seed=1)
        loud = torch.tensor([10.0, 10.0, 0.1, 0.1])
        assert 3.8 < lda_rank(images + 0.1 * noise, 1e-4) <= 4
        assert 1.9 < lda_rank(images + loud * noise, 1e-4) < 2.2

    def test_it_draws_as_many_images_and_views_as_it_is_told(self):
        seen, train = [], normal(9, 1, 2, 2).mul(40).to(torch.uint8).numpy()

        def view(images, generator):
            seen.append(len(images))
            return images.float() + torch.rand(images.shape, generator=generator)

        given = {"prepare": lambda x: x.float(), "augment": None, "test": train}
        inputs = EncoderInputs(encoder=nn.Flatten().eval(), train=train, view=view, **given)
        score = lidar(inputs, seeded(), images=6, views=3, delta=1e-4)
        assert seen == [6, 6, 6]
        assert 1 <= score["lidar"] <= 4
        for broken, why in (({"images": 1, "views": 3}, "two of both"), ({"images": 6, "views": 1}, "two of both")):
            with pytest.raises(EvalError, match=why):
                lidar(inputs, seeded(), delta=1e-4, **broken)


class TestAttention:
    def test_it_is_torchs_attention_with_one_query(self):
        model, tokens = Attention(8, 2, 3, seeded()).double(), normal(5, 7, 8).double()
        rows = F.layer_norm(tokens, (8,))
        theirs = nn.MultiheadAttention(8, 2, bias=False, batch_first=True).double()
        with torch.no_grad():
            theirs.in_proj_weight.copy_(torch.cat([torch.eye(8), model.key.weight, model.value.weight]))
            theirs.out_proj.weight.copy_(torch.eye(8))
        seen, _ = theirs(model.query.expand(5, 1, 8), rows, rows)
        torch.testing.assert_close(model(tokens), model.classifier(seen[:, 0]))

    def test_it_finds_what_a_mean_of_tokens_hides(self):
        """One token of sixteen says the class, and a mark which one it is; the others are noise."""
        n, y = 600, torch.arange(600) % 2
        x = torch.randint(60, 200, (n, 3, 4, 4), generator=seeded())
        at = torch.randint(16, (n,), generator=seeded(1))
        rows = torch.arange(n)
        x.view(n, 3, 16)[rows, 0, at] = 255
        x.view(n, 3, 16)[rows, 1, at] = 80 + 90 * y
        x.view(n, 3, 16)[:, 0] = torch.where(x.view(n, 3, 16)[:, 0] == 255, 255, 0)
        images = x.to(torch.uint8).numpy()

        class Lifted(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.lift, self.pool = nn.Conv2d(3, 32, 1), nn.AdaptiveAvgPool2d(1)

            def forward(self, images):
                return self.pool(self.lift(images)).flatten(1)

        def prepare(images):
            return images.float() / 100 - 1

        encoder = Lifted().eval()
        with torch.no_grad():
            h = encoder(prepare(torch.from_numpy(images)))
        features = Features(train_x=h[:400], train_y=y[:400], test_x=h[400:], test_y=y[400:], num_classes=2)
        given = {"prepare": prepare, "augment": None, "train": images[:400], "test": images[400:]}
        probe = AttentiveProbe(heads=4, lr=0.01, weight_decay=0.01, epochs=25, batch_size=64)
        ours = attentive(features, EncoderInputs(encoder=encoder, **given), probe, seeded())["accuracy"]
        linear = linear_probe(features, Probe("adam", 0.003, 200, 64), seeded())["accuracy"]
        assert ours > 95
        assert linear < 80


def test_tokens_are_what_features_are_pooled_from():
    images = normal(2, 3, 32, 32)
    vit = models.VisionTransformer(32, 16, 2, 2, 8, 16, num_classes=5).eval()
    vit.heads = nn.Identity()
    resnet = models.resnet18(weights=None).eval()
    resnet.fc = nn.Identity()
    with torch.no_grad():
        assert tokens_of(vit)(images).shape == (2, 5, 8)
        torch.testing.assert_close(tokens_of(vit)(images)[:, 0], vit(images))
        torch.testing.assert_close(tokens_of(resnet)(images).mean(1), resnet(images))
    assert tokens_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 4))) is None
