"""Optimisers and schedules, beside lightly's and torch's."""

from collections.abc import Callable
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn

from benchmark.experiment import factory
from benchmark.parity.libraries.objectives import rows
from benchmark.parity.libraries.registry import case
from methods.core import objective
from methods.optimizers import LARS

RATE, DECAY, TRUST, STEPS = 0.5, 0.1, 0.02, 20


@case(
    "lightly.utils.lars.LARS",
    LARS,
    "> 0), group",
    "> 0), 2 * group",
    within=LARS._update,
    note="a layer's step is divided by ‖g + βw‖ here, as in the codes of SimCLR and BYOL, and by ‖g‖ + β‖w‖ + 10⁻⁸ "
    "there; theirs is multiplied by the ratio of the two. Without weight decay theirs scales no layer at all",
)
def lars() -> tuple[Any, Any]:
    """LARS over three steps with momentum."""
    from lightly.utils import lars as theirs_of

    start, *gradients = (each.detach() for each in rows(4))
    ours, theirs = (nn.Parameter(start.clone()) for _ in range(2))
    first = LARS([ours], lr=RATE, momentum=0.9, weight_decay=DECAY, trust=TRUST)
    second = theirs_of.LARS([theirs], lr=RATE, momentum=0.9, weight_decay=DECAY, trust_coefficient=TRUST)
    for gradient in gradients:
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        decayed, apart = (gradient + DECAY * theirs).norm(), gradient.norm() + DECAY * theirs.norm() + 1e-8
        second.param_groups[0]["trust_coefficient"] = float(TRUST * apart / decayed)
        first.step()
        second.step()
    return ours, theirs


def _factors(**schedule: Any) -> list[float]:
    config = OmegaConf.create(
        {
            "federation": {"rounds": STEPS},
            "schedule": {"warmup": 0.0, "milestones": [], "gamma": 0.1, "per": "step", **schedule},
        }
    )
    return [factory.schedule(config)(step / STEPS) for step in range(STEPS)]


def _lightly(warm_up: int) -> Callable[[int], float]:
    """Step -> factor of the rate by lightly, after so many steps of warm-up."""
    from lightly.utils.scheduler import CosineWarmupScheduler

    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    return CosineWarmupScheduler(optimizer, warmup_epochs=warm_up, max_epochs=STEPS + 1, end_value=0.0).scale_lr


@case(
    "lightly.utils.scheduler.CosineWarmupScheduler",
    factory.schedule,
    "(1 + math.cos(math.pi * progress)) / 2",
    "math.cos(math.pi * progress / 2)",
    note="of K steps our k-th, from 0, has cos(πk / K) and theirs cos(πk / (K - 1)), so that the last one has the rate "
    "0; theirs is asked for K + 1 steps",
)
def cosine_schedule() -> tuple[Any, Any]:
    """Cosine schedule of the learning rate."""
    return torch.tensor(_factors(name="cosine")), torch.tensor(list(map(_lightly(0), range(STEPS))))


@case(
    "lightly.utils.scheduler.CosineWarmupScheduler",
    factory.schedule,
    "(progress - warmup) / (1 - warmup)",
    "progress",
    note="during a warm-up of W steps our k-th, from 0, has k / W of the rate and theirs (k + 1) / W; theirs is read "
    "one step earlier there, and asked for K + 1 steps as above",
)
def warm_up() -> tuple[Any, Any]:
    """Linear warm-up before the cosine."""
    theirs = [0.0, *map(_lightly(5), [*range(4), *range(5, STEPS)])]
    return torch.tensor(_factors(name="cosine", warmup=5 / STEPS)), torch.tensor(theirs)


@case("torch.optim.lr_scheduler.MultiStepLR", factory.schedule, "progress >= milestone", "progress > milestone")
def steps_schedule() -> tuple[Any, Any]:
    """Schedule in steps."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [10, 15], gamma=0.2)
    theirs = []
    for _ in range(STEPS):
        theirs.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return torch.tensor(_factors(name="step", milestones=[0.5, 0.75], gamma=0.2)), torch.tensor(theirs)


@case("lightly.utils.scheduler.cosine_schedule", objective.cosine, "1 + math.cos", "1 - math.cos")
def momentum_schedule(cosine_schedule: Any) -> tuple[Any, Any]:
    """Rising momentum of BYOL's target."""
    ours = [objective.cosine(0.99, 1.0, step / STEPS) for step in range(STEPS + 1)]
    theirs = [cosine_schedule(step, STEPS + 1, 0.99, 1.0) for step in range(STEPS + 1)]
    return 1 - torch.tensor(ours), 1 - torch.tensor(theirs)
