"""Class shares read from replies: known mixes are found, whatever the scale, and folding keeps what is linear."""

import pytest
import torch

from eval.features import EvalError, Features
from eval.inputs import Subject
from eval.protocol import evaluate
from eval.shares import FOLDED, ObservedReplies, distance, folded, read_shares, shares

TRUTH = torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]], dtype=torch.float64)


def replies(d: int, scale: float = 1.0, noise: float = 0.0, seed: int = 0):
    """Replies that are mixes of references, with noise, and the references."""
    generator = torch.Generator().manual_seed(seed)
    references = scale * torch.randn(3, d, generator=generator)
    return TRUTH.float() @ references + scale * noise * torch.randn(3, d, generator=generator), references


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
    assert read.min() >= 0
    torch.testing.assert_close(read.sum(dim=1), torch.ones(3, dtype=torch.float64))
    assert (read == 0).any()
    read = read_shares(torch.tensor([[-1.0, -1.0, 0.0], [0.0, 0.0, 0.0]]), torch.eye(3))
    torch.testing.assert_close(read, torch.full((2, 3), 1 / 3, dtype=torch.float64))


def test_distances_by_hand():
    scores, read = shares(observed(R=replies(40)))
    assert scores == {
        "distance": pytest.approx(0, abs=1e-6),
        "distance_blind": pytest.approx((0.3 + (0.4 + 0.7 / 3) + (0.1 + 0.8 / 3)) / 3),
        "main_class": 100,
        "main_class_blind": pytest.approx(200 / 3),
    }
    torch.testing.assert_close(read, TRUTH, atol=1e-5, rtol=0)


def test_entries_count_alike_in_any_unit_but_zeros_and_each_is_read_alone():
    clear, noisy = replies(40), replies(40, noise=3.0, seed=1)
    scores, _ = shares(observed(R=clear, weights=noisy))
    again, _ = shares(observed(R=clear, weights=[1e6 * side for side in noisy]))
    assert scores["distance_R"] < 1e-5 < scores["distance"] < scores["distance_weights"]
    assert again == pytest.approx(scores)
    assert shares(observed(R=clear, c=torch.zeros(2, 3, 5)))[0] == shares(observed(R=clear))[0]


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ((torch.full((3, 5), torch.nan), torch.ones(3, 5)), "entry R is not finite"),
        ((torch.ones(3, 5), torch.zeros(3, 5)), "nothing but zeros"),
    ],
)
def test_what_cannot_be_read_is_one_line(pair, reason):
    with pytest.raises(EvalError, match=f"shares: .*{reason}"):
        shares(observed(R=pair))


def test_folding_is_linear_and_keeps_inner_products():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 5 * FOLDED, generator=generator)
    assert folded(x).shape == (FOLDED,)
    torch.testing.assert_close(folded(x + 2 * y), folded(x) + 2 * folded(y), atol=1e-4, rtol=0)
    assert (folded(x) @ folded(x) / (x @ x)).item() == pytest.approx(1, abs=0.02)
    assert abs((folded(x) @ folded(y)).item()) < 0.02 * (x @ x).item()
    assert torch.equal(folded(x[:FOLDED]), x[:FOLDED])


def test_the_protocol_saves_both_for_the_figure_and_requires_replies():
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    features = Features(train_x=x, train_y=y, test_x=x, test_y=y, num_classes=3)
    saved = {}
    subject = Subject(features=features, client_replies=lambda: observed(R=replies(40)), save_arrays=saved.__setitem__)
    scores = {score.metric: (score.value, score.unit) for score in evaluate(subject, ["shares/v1"])}
    assert scores["main_class"] == (100, "%")
    assert scores["distance"][1] == "1"
    assert torch.equal(saved["shares"]["truth"], TRUTH)
    assert distance(saved["shares"]["read"], TRUTH) == scores["distance"][0]
    with pytest.raises(EvalError, match="shares/v1 requires more than features: it reads class shares from replies"):
        evaluate(features, ["shares/v1"])
