"""Fine-tuning on few labels: the labelled images, the trained parameters, and a reference in plain PyTorch."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from eval import finetune
from eval.features import EvalError, Features, accuracy, extract
from eval.finetune import FineTuning, fine_tuned, labelled, labelled_held_out, semi
from eval.inputs import Crop, EncoderInputs
from tests.eval.conftest import seeded

TUNING = FineTuning((0.1, 0.5), encoder_lr=0.1, classifier_lr=0.3, batch_size=32, steps=60)


def prepare(x):
    return x.float() / 16


@pytest.fixture(scope="module")
def inputs():
    torch.manual_seed(0)
    images = load_digits().images.astype("uint8")[:, None]
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU()).eval()

    def augment(x, crop, generator):
        return prepare(x) * (0.5 + torch.rand(len(x), 1, 1, 1, generator=generator))

    return EncoderInputs(encoder=encoder, train=images[:1200], test=images[1200:], prepare=prepare, augment=augment)


@pytest.fixture(scope="module")
def features(inputs):
    y = torch.from_numpy(load_digits().target)
    train, test = (extract(inputs.encoder, images, prepare) for images in (inputs.train, inputs.test))
    return Features(train_x=train, train_y=y[:1200], test_x=test, test_y=y[1200:], num_classes=10)


def test_labels_are_a_fraction_of_each_class_rounded_up_or_of_the_images_of_no_client():
    labels = torch.tensor([0] * 40 + [1] * 11 + [2])
    rows = labelled(labels, 0.1, seeded())
    assert torch.bincount(labels[rows]).tolist() == [4, 2, 1]
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert labelled(labels, 1, seeded()).tolist() == list(range(52))
    assert not torch.equal(rows, labelled(labels, 0.1, seeded(1)))
    labels, clients = torch.tensor([0] * 40 + [1] * 11 + [2] * 30), torch.zeros(81, dtype=torch.int64)
    clients[torch.cat([torch.arange(4, 8), torch.arange(40, 43), torch.arange(51, 54)])] = -1
    features = Features(**dict.fromkeys(("train_x", "test_x"), torch.zeros(81, 2)), train_y=labels, test_y=labels,
                        train_clients=clients, num_classes=3)  # fmt: skip
    chosen = labelled_held_out(features, 0.1, seeded())
    assert (clients[chosen] == -1).all()
    assert torch.bincount(labels[chosen]).tolist() == [4, 1, 3]
    assert chosen.tolist() == sorted(set(chosen.tolist()))


@pytest.mark.parametrize("held_out", [False, True])
def test_held_out_labels_alone_are_trained_on_where_asked_for(features, inputs, monkeypatch, held_out):
    clients = torch.arange(len(features.train_y)) % 4 - 1
    trained = []
    monkeypatch.setattr(finetune, "fine_tuned", lambda features, inputs, rows, *_: trained.append(rows) or 50.0)
    tuning = replace(TUNING, shares=(0.1, 0.15), held_out=held_out)
    semi(replace(features, train_clients=clients), inputs, tuning, seeded())
    assert [bool((clients[rows] == -1).all()) for rows in trained] == [held_out, held_out]


def test_equals_a_plain_training_loop(features, inputs):
    """Same classifier and batches, PyTorch written out; encoder and classifier at their own rates."""
    rows = labelled(features.train_y, 0.1, seeded())
    score = fine_tuned(features, inputs, rows, TUNING, seeded(3))
    generator, encoder, head = seeded(3), deepcopy(inputs.encoder).train(), nn.Linear(32, 10)
    for parameter in head.parameters():
        nn.init.uniform_(parameter, -(32**-0.5), 32**-0.5, generator=generator)
    ours, theirs = (torch.optim.SGD(net.parameters(), lr, 0.9) for net, lr in ((encoder, 0.1), (head, 0.3)))
    images, y, steps = prepare(torch.from_numpy(inputs.train)), features.train_y, 0
    while steps < 60:
        for batch in rows[torch.randperm(len(rows), generator=generator)].split(32):
            if steps < 60:
                loss = F.cross_entropy(head(encoder(images[batch])), y[batch])
                for optimizer in (ours, theirs):
                    optimizer.zero_grad()
                loss.backward()
                ours.step()
                theirs.step()
                steps += 1
    predicted = head(encoder.eval()(prepare(torch.from_numpy(inputs.test)))).argmax(dim=1)
    assert score == pytest.approx(accuracy(predicted, features.test_y))
    assert score > 70


def test_more_labels_score_higher_and_draws_have_a_spread(features, inputs):
    """The encoder itself does not change."""
    before = deepcopy(inputs.encoder.state_dict())
    scores = semi(features, inputs, replace(TUNING, shares=(0.01, 0.5), draws=3), seeded())
    assert set(scores) == {"accuracy_1pct", "accuracy_50pct", "spread_1pct", "spread_50pct"}
    assert scores["accuracy_50pct"] > scores["accuracy_1pct"] + 10
    assert scores["spread_1pct"] > 0
    assert not inputs.encoder.training
    assert all(map(torch.equal, before.values(), inputs.encoder.state_dict().values()))
    assert all(p.grad is None for p in inputs.encoder.parameters())


def test_a_last_batch_of_one_image_is_left_out_and_one_image_is_an_error(features, inputs):
    rows = labelled(features.train_y, 0.5, seeded())[:33]
    fine_tuned(features, inputs, rows, TUNING, seeded())  # BatchNorm cannot normalise a single row
    with pytest.raises(EvalError, match="fine-tuning on 1 labelled image"):
        fine_tuned(features, inputs, rows[:1], TUNING, seeded())
    with pytest.raises(EvalError, match="diverged: its loss became"):
        semi(features, inputs, replace(TUNING, encoder_lr=1e30, classifier_lr=1e30), seeded())


def test_crops_are_drawn_by_the_generator(features, inputs):
    tuning = replace(TUNING, shares=(0.1,), steps=None, epochs=2, crop=Crop((0.5, 1)))
    first, again, other = (semi(features, inputs, tuning, seeded(seed)) for seed in (0, 0, 1))
    assert first == again != other


def test_length_is_steps_or_passes_and_impossible_settings_are_errors():
    for length, rows, steps in (("steps", 100, 3), ("epochs", 66, 9), ("epochs", 65, 6), ("epochs", 1, 3)):
        assert replace(TUNING, **{"steps": None, length: 3}).length(rows) == steps
    for wrong in ({"epochs": 1}, {"steps": None}, {"shares": (0.0,)}):
        with pytest.raises(EvalError, match="shares" if "shares" in wrong else "give one of them"):
            replace(TUNING, **wrong)
