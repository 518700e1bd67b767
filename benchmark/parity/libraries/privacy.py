"""Accountants, and noise and clipping of updates, beside Opacus', dp-accounting's, pfl-research's and Flower's."""

import math
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmark.federation import accountant
from benchmark.federation.accountant import Release
from benchmark.federation.clipping import Clipping
from benchmark.parity.libraries.federated import by_flower, replies
from benchmark.parity.libraries.objectives import rows
from benchmark.parity.libraries.registry import case
from methods import maths

NOISE, SAMPLING, ROUNDS, DELTA = 1.1, 0.05, 200, 1e-5


def spent(by: str = "rdp") -> float:
    """Epsilon of a run by the suite."""
    accountant.epsilon.cache_clear()  # a planted fault changes what it would remember
    return accountant.epsilon(((Release(NOISE, SAMPLING), ROUNDS),), DELTA, by)


@case(
    "opacus.accountants.RDPAccountant",
    accountant.epsilon,
    "(_event(release), count)",
    "(_event(release), count - 1)",
    note="at whole orders. At a fractional order α dp-accounting adds the absolute values |binom(α, i)| of its series, "
    "an upper bound, and Opacus adds them with their signs: about 10⁻⁴ less",
)
def renyi_of_opacus(RDPAccountant: Any) -> tuple[Any, Any]:
    """Epsilon by Renyi divergences of a subsampled Gaussian mechanism."""
    orders = [order for order in accountant.ORDERS if float(order).is_integer()]
    theirs = RDPAccountant()
    theirs.history.append((NOISE, SAMPLING, ROUNDS))
    with patch.object(accountant, "ORDERS", orders):
        return spent(), theirs.get_epsilon(DELTA, alphas=orders)


@case("pfl.privacy.RDPPrivacyAccountant", accountant.epsilon, "for release, count in", "for release, count in 2 *")
def renyi_of_pfl(RDPPrivacyAccountant: Any) -> tuple[Any, Any]:
    """Epsilon by Renyi divergences, another library's."""
    return spent(), RDPPrivacyAccountant(ROUNDS, SAMPLING, "gaussian", delta=DELTA, noise_parameter=NOISE).epsilon


@case(
    "pfl.privacy.PLDPrivacyAccountant",
    accountant.epsilon,
    "GaussianDpEvent(release.multiplier)",
    "GaussianDpEvent(2 * release.multiplier)",
    within=accountant._event,
)
def loss_distributions_of_pfl(PLDPrivacyAccountant: Any) -> tuple[Any, Any]:
    """Epsilon by privacy loss distributions."""
    theirs = PLDPrivacyAccountant(ROUNDS, SAMPLING, "gaussian", delta=DELTA, noise_parameter=NOISE)
    return spent("pld"), theirs.epsilon


@case(
    "opacus.accountants.PRVAccountant",
    accountant.epsilon,
    "PoissonSampledDpEvent(release.sampling, gaussian)",
    "PoissonSampledDpEvent(release.sampling**2, gaussian)",
    within=accountant._event,
    tolerance=0.01,
    note="two numerical approximations of one number: theirs is an upper bound to which 0.01 has been added as its "
    "error; 0.01 is subtracted",
)
def loss_distributions_of_opacus(PRVAccountant: Any) -> tuple[Any, Any]:
    """Epsilon by privacy loss distributions, beside privacy random variables."""
    theirs = PRVAccountant()
    theirs.history.append((NOISE, SAMPLING, ROUNDS))
    return spent("pld"), theirs.get_epsilon(DELTA, eps_error=0.01, delta_error=1e-9) - 0.01


@case(
    "opacus.accountants.utils.get_noise_multiplier",
    accountant.noise_multiplier,
    "_event(release(multiplier)), count",
    "_event(release(multiplier)), count + 1",
)
def least_noise(get_noise_multiplier: Any) -> tuple[Any, Any]:
    """The least noise for an epsilon."""
    theirs = get_noise_multiplier(
        target_epsilon=3.0, target_delta=DELTA, sample_rate=1.0, steps=ROUNDS, accountant="rdp", epsilon_tolerance=1e-9
    )
    return accountant.noise_multiplier(3.0, DELTA, Release, ROUNDS, "rdp"), theirs


@case("dp_accounting.get_smallest_gaussian_noise", maths.gaussian_sigma, "[0.5, -0.5]", "[0.6, -0.6]")
def gaussian_noise() -> tuple[Any, Any]:
    """The least noise of one Gaussian mechanism."""
    from dp_accounting.pld.accountant import get_smallest_gaussian_noise
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    return maths.gaussian_sigma(1.5, DELTA), get_smallest_gaussian_noise(
        DifferentialPrivacyParameters(1.5, DELTA), 1, 1
    )


@case(
    "flwr.serverapp.strategy.DifferentialPrivacyServerSideFixedClipping",
    Clipping,
    "bound / norm",
    "norm / bound",
    within=Clipping.clipped,
)
def clipping() -> tuple[Any, Any]:
    """Clipping of an update to a norm."""
    from flwr.supercore.differential_privacy import clip_inputs_inplace

    first, second = (each.detach() for each in rows(2))
    theirs = [first.numpy().copy(), second.numpy().copy()]
    clip_inputs_inplace(theirs, 0.7)
    (ours, _) = Clipping("flat", 0.7).clipped({"weights": {"a": first, "b": second}})
    return [ours["weights"]["a"], ours["weights"]["b"]], theirs


@case(
    "flwr.serverapp.strategy.DifferentialPrivacyServerSideAdaptiveClipping",
    Clipping,
    "+ 0.5",
    "+ 0.25",
    within=Clipping.update_norm,
    note="of three updates one is clipped. With u the share within the bound C and q the quantile, ours is C exp(-0.2 "
    "(u - q)) as in Andrew et al., and theirs C exp(-0.2 (1 - u - q)), which moves away from the quantile: it is "
    "multiplied by exp(-0.2 (2 u - 1))",
)
def adaptive_clipping(DifferentialPrivacyServerSideAdaptiveClipping: Any) -> tuple[Any, Any]:
    """An adaptive clip: the mean update, the next bound, and the noise left for the updates."""
    from flwr.serverapp.strategy import FedAvg

    sent, ours, mean, within = replies(1), Clipping("adaptive", 2.5, quantile=0.4, cohort=20), [], 0
    for update, size in sent:
        clipped, unclipped = ours.clipped({"weights": update})
        within += unclipped
        mean.append(torch.stack(list(clipped["weights"].values())) * size / sum(size for _, size in sent))
    ours.update_norm(within - len(sent) / 2, len(sent), 0.0)
    theirs = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.0, len(sent), 2.5, 0.4, 0.2)
    weights = by_flower(theirs, rounds=1)
    bound = theirs.clipping_norm * math.exp(-0.2 * (2 * within / len(sent) - 1))
    noise = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.3, 20).noise_multiplier
    return [sum(mean), ours.norm, ours.noise_multiplier(0.3)], [np.stack(weights), bound, noise]
