import math
from statistics import NormalDist

import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution

from methods.maths import gaussian_mechanism, gaussian_sigma


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_released_matrix_is_clipped_and_has_the_noise_asked_for_of_its_stream():
    matrix, zeros = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.zeros(2, 2)
    for given, clip, expected in ((matrix, 1.0, matrix / 5), (matrix, 5.0, matrix), (zeros, 1.0, zeros)):
        torch.testing.assert_close(gaussian_mechanism(given, clip, 0.0, stream()), expected)
    for matrix in (torch.zeros(200, 200), torch.ones(200, 200) / 200):
        noise, again, other = (gaussian_mechanism(matrix, 1.0, 0.7, stream(seed)) - matrix for seed in (0, 0, 1))
        assert float(noise.std()) == pytest.approx(0.7, rel=0.02)
        assert abs(float(noise.mean())) < 0.02
        assert torch.equal(noise, again)
        assert not torch.equal(noise, other)


class TestGaussianSigma:
    @pytest.mark.parametrize("delta", [1e-3, 1e-5])
    @pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.8, 1.0, 10.0])
    def test_it_meets_the_condition_and_no_less_noise_does(self, epsilon, delta):
        def spent(sigma):
            phi, shift = NormalDist().cdf, epsilon * sigma
            return phi(1 / (2 * sigma) - shift) - math.exp(epsilon) * phi(-1 / (2 * sigma) - shift)

        sigma = gaussian_sigma(epsilon, delta)
        assert spent(sigma) == pytest.approx(delta, rel=1e-6)
        assert spent(0.999 * sigma) > delta

    def test_an_accountant_finds_that_epsilon_and_a_huge_one_has_next_to_no_noise(self):
        for epsilon in (0.8, 10.0):
            loss = privacy_loss_distribution.from_gaussian_mechanism(gaussian_sigma(epsilon, 1e-3))
            assert loss.get_epsilon_for_delta(1e-3) == pytest.approx(epsilon, rel=1e-3)
        assert gaussian_sigma(1e12, 1e-3) == pytest.approx(1 / math.sqrt(2e12), rel=1e-3)
