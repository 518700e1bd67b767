"""A client's step as the server sees it: the gradient that follows from the reply is that of the step."""

import shlex
from dataclasses import replace

import pytest
import torch

from benchmark.errors import ConfigError
from benchmark.evaluation.inversion import observe_step
from eval.features import EvalError
from tests import run_helpers

EVERYONE = "federation.participation=1"
RATE = ("optimizer.lr=0.1", "schedule.name=constant")


def observed(method, *overrides):
    """The step that the server sees of a client's reply, after a run that others may share."""
    run = run_helpers.trained(method, EVERYONE, *RATE, *overrides)
    return observe_step(run.loop, run.data, images=3)()


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def cosine(step):
    return torch.cosine_similarity(flat(step.observed), flat(step.gradients(step.views)), dim=0).item()


@pytest.mark.parametrize(
    "case",
    [
        "fedavg",
        "fedavg optimizer.weight_decay=0.1",
        "fedavg optimizer.nesterov=true optimizer.weight_decay=0.1",
        "fedavg objective=byol",
        "fedavg method.stays=[projector]",
        "fedavg federation.batch_norm=local",
        *("fedprox", "scaffold", "fedx", "fedema", "fedu2", "ssd"),
        "progfedssl training.precision=64-true",  # float32 rounds the weights by more than a step moves some
    ],
)
def test_what_the_reply_shows_is_the_gradient_of_the_step(case):
    step = observed(*case.split())
    shown, made = flat(step.observed), flat(step.gradients(step.views))
    assert len(step.views) % 3 == 0
    assert made.norm() > 0
    torch.testing.assert_close(shown, made, atol=1e-4 * made.abs().max().item(), rtol=1e-2)


def test_other_images_have_another_gradient_and_coarse_numbers_show_less():
    step = observed("fedavg")
    assert cosine(step._replace(views=step.views.flip(-1))) < 0.99 < cosine(step)
    directions = [cosine(observed("fedavg", f"compression.name={name}")) for name in ("int8", "int4")]
    assert directions[0] > 0.99 > directions[1]


def test_a_clip_changes_the_length_and_noise_the_direction():
    words = ("federation.batch_norm=local", "privacy.clip=0.01", "privacy.noise_multiplier=1")
    central = "privacy.mechanism=central"
    plain, clipped = observed("fedavg", words[0]), observed("fedavg", *words, central)
    both = observed("fedavg", *words, "optimizer.weight_decay=0.1", central)
    assert flat(clipped.observed).norm() < flat(plain.observed).norm()
    assert min(cosine(clipped), cosine(both)) > 0.99
    assert cosine(observed("fedavg", *words, "privacy.mechanism=local")) < 0.3


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        *((name, "send no weights of a global encoder") for name in ("flesd", "calibre", "fedca", "local")),
        ("fedavg privacy.secure_aggregation=true", "sees no reply of a single client"),
        ("fedavg optimizer='{class: torch.optim.AdamW, lr: 0.001}'", "do not train by torch.optim.SGD"),
    ],
)
def test_what_shows_no_gradient_is_refused_before_the_run(case, reason, tmp_path):
    with pytest.raises(ConfigError, match=f"inversion/v1: .*{reason}"):
        run_helpers.build_run(tmp_path, *shlex.split(case), "evaluation.protocols=[inversion/v1]")


def test_a_run_without_rounds_or_whose_last_drew_nobody_has_no_step(tmp_path):
    run = run_helpers.build_run(tmp_path, "fedavg", EVERYONE)
    run.loop.restore()
    with pytest.raises(ConfigError, match="no round is done"):
        observe_step(run.loop, run.data, images=3)
    run.loop.fit()
    run.loop.participation = replace(run.loop.participation, share=1e-9, poisson=True)
    with pytest.raises(EvalError, match="no client of the last round's cohort trains"):  # for the protocol alone
        observe_step(run.loop, run.data, images=3)()


def test_it_is_the_client_of_the_lowest_id_whatever_ran_before(tmp_path):
    """Clients that miss the deadline in the run miss it here, and measured seconds of visits do not count."""
    words = ("partition.alpha=0.3", "federation.deadline=1", "federation.rounds=2")
    run = run_helpers.train_run(tmp_path, "fedavg", EVERYONE, *words)
    resumed = run_helpers.build_run(tmp_path, "fedavg", EVERYONE, *words)
    resumed.loop.restore()
    first, again = (observe_step(each.loop, each.data, images=3)() for each in (run, resumed))
    assert torch.equal(first.views, again.views)
    assert torch.equal(flat(first.observed), flat(again.observed))
