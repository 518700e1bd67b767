import pytest
import torch

from methods.maths import gaussian_mechanism


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


class TestGaussianMechanism:
    def test_without_noise_it_clips_only(self):
        matrix = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
        torch.testing.assert_close(gaussian_mechanism(matrix, 1.0, 0.0, stream()), matrix / 5)
        torch.testing.assert_close(gaussian_mechanism(matrix, 5.0, 0.0, stream()), matrix)
        torch.testing.assert_close(gaussian_mechanism(torch.zeros(2, 2), 1.0, 0.0, stream()), torch.zeros(2, 2))

    def test_the_noise_has_the_deviation_asked_for_whatever_the_matrix(self):
        for matrix in (torch.zeros(200, 200), torch.ones(200, 200) / 200):
            noise = gaussian_mechanism(matrix, 1.0, 0.7, stream()) - matrix
            assert float(noise.std()) == pytest.approx(0.7, rel=0.02)
            assert abs(float(noise.mean())) < 0.02

    def test_one_stream_gives_one_noise(self):
        matrix = torch.ones(3, 3) / 3
        drawn = [gaussian_mechanism(matrix, 1.0, 0.7, stream(seed)) for seed in (0, 0, 1)]
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])
