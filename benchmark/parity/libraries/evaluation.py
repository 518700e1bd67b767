"""Probes, solvers and metrics, beside lightly's, scikit-learn's, POT's and torchmetrics'."""

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmark.parity.libraries.objectives import rows
from benchmark.parity.libraries.registry import case
from eval import clustering, drift, features, inversion, knn, linear, logistic_regression, membership
from methods import maths

CLASSES, WIDTH = 4, 6


def labelled(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features `[count, WIDTH]` of overlapping classes, and their labels."""
    stream = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=stream)
    noise = torch.randn(count, WIDTH, generator=stream)
    return noise + 0.7 * nn.functional.one_hot(labels, WIDTH), labels


@case("lightly.utils.benchmarking.knn.knn_predict", knn.vote, "cosine[:, :1]) / temperature", "cosine[:, :1])")
def knn_of_lightly(knn_predict: Any) -> tuple[Any, Any]:
    """Weighted kNN."""
    (bank, labels), (queries, _) = labelled(300), labelled(200, 1)
    unit = nn.functional.normalize
    theirs = knn_predict(unit(queries), unit(bank).T, labels, CLASSES, knn_k=20, knn_t=0.1)[:, 0]
    return knn.knn_predict(bank, labels, queries, CLASSES, 20, 0.1), theirs


@case(
    "sklearn.neighbors.KNeighborsClassifier", knn.neighbours, "normalize(train_x, dim=1)", "normalize(train_x, dim=0)"
)
def knn_of_scikit_learn(KNeighborsClassifier: Any) -> tuple[Any, Any]:
    """Weighted kNN by cosine distance."""
    import numpy as np

    (bank, labels), (queries, _) = labelled(300), labelled(200, 1)
    theirs = KNeighborsClassifier(20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.1))
    theirs.fit(bank.numpy(), labels.numpy())
    return knn.knn_predict(bank, labels, queries, CLASSES, 20, 0.1), theirs.predict(queries.numpy())


@case(
    "lightly.utils.benchmarking.linear_classifier.LinearClassifier",
    linear.fit_linear,
    "self.velocity.mul_(self.momentum)",
    "self.velocity.mul_(self.momentum**2)",
    within=linear._SGD.step,
    note="their cosine ends at a thousandth of the rate and one step earlier; their optimiser is given our rates",
)
def linear_probe(LinearClassifier: Any) -> tuple[Any, Any]:
    """Linear probe by SGD with momentum and a cosine, three epochs."""
    (x, y), size = labelled(96), 32
    probe = linear.Probe("sgd", lr=0.5, epochs=3, batch_size=size, momentum=0.9, schedule="cosine", shuffle=False)
    theirs = LinearClassifier(nn.Identity(), size, 0.5 * 256 / size, WIDTH, CLASSES, topk=(1,))
    theirs._trainer = SimpleNamespace(world_size=1, estimated_stepping_batches=9)
    bound, stream = 1 / math.sqrt(WIDTH), torch.Generator().manual_seed(0)
    initial = torch.empty(CLASSES * (WIDTH + 1)).uniform_(-bound, bound, generator=stream)
    weight, bias = logistic_regression.split(initial, CLASSES)
    theirs.classification_head.load_state_dict({"weight": weight, "bias": bias})
    (optimizer,), _ = theirs.configure_optimizers()
    for step in range(9):
        batch = slice(step % 3 * size, (step % 3 + 1) * size)
        optimizer.param_groups[0]["lr"] = probe.learning_rate(step / 3)
        optimizer.zero_grad()
        theirs.shared_step((x[batch], y[batch]), step)[0].backward()
        optimizer.step()
    ours = linear.fit_linear(x, y, CLASSES, probe, torch.Generator().manual_seed(0))
    return list(ours), list(theirs.classification_head.parameters())


@case(
    "sklearn.linear_model.LogisticRegression",
    logistic_regression.fit_lbfgs,
    "weight.flatten(), alpha=strength",
    "weight.flatten(), alpha=2 * strength",
)
def logistic(LogisticRegression: Any) -> tuple[Any, Any]:
    """Logistic regression with an L2 penalty."""
    (x, y), strength = labelled(200), 0.05
    theirs = LogisticRegression(C=1 / (len(x) * strength), tol=1e-12, max_iter=10_000).fit(x.numpy(), y.numpy())
    ours = logistic_regression.fit_lbfgs(x, y, CLASSES, strength, tolerance=1e-12, max_iter=10_000)
    weight, bias = logistic_regression.split(ours, CLASSES)
    return [weight, bias - bias.mean()], [theirs.coef_, theirs.intercept_ - theirs.intercept_.mean()]


@case("sklearn.cluster.KMeans", maths.k_means, "range(iterations)", "range(1)")
def k_means(KMeans: Any) -> tuple[Any, Any]:
    """K-means from given starts."""
    (x, _), starts = labelled(200), torch.arange(5)
    theirs = KMeans(5, init=x[starts].numpy(), n_init=1, max_iter=100, tol=0).fit(x.numpy())
    centres, nearest = maths.k_means(x, 5, iterations=100, starts=starts)
    return [centres, nearest], [theirs.cluster_centers_, theirs.labels_]


@case("ot.sinkhorn", maths.sinkhorn, "scores.double() / epsilon", "scores.double() / epsilon**2")
def transport() -> tuple[Any, Any]:
    """Plan of equal masses by Sinkhorn's scalings, converged."""
    import ot

    scores = rows(1, 20, 5)[0].detach().tanh()
    marginals = (torch.full((20,), 1 / 20), torch.full((5,), 1 / 5))
    theirs = ot.sinkhorn(*marginals, -scores, 0.3, numItermax=2000, stopThr=1e-14)
    return maths.sinkhorn(scores, 0.3, 2000), 20 * theirs


@case("torchmetrics.functional.classification.multiclass_accuracy", features.accuracy, "100 *", "99 *")
def accuracy(multiclass_accuracy: Any) -> tuple[Any, Any]:
    """Accuracy."""
    predicted, labels = labelled(150)[1], labelled(150, 1)[1]
    return features.accuracy(predicted, labels), 100 * multiclass_accuracy(predicted, labels, CLASSES, average="micro")


def _attacked() -> tuple[Tensor, Tensor]:
    """Values of members and of others, some of them equal."""
    members, others = ((10 * each.detach()).round() for each in rows(2, 400))
    return members + 5, others


@case("torchmetrics.functional.classification.binary_auroc", membership._share_below, "below + to", "2 * below")
def area_under_roc(binary_auroc: Any) -> tuple[Any, Any]:
    """Area under the ROC curve of a membership attack, with ties."""
    members, others = _attacked()
    values, truth = torch.cat([members, others]), torch.arange(800) < 400
    return membership.attack_scores(members, others)["auc"], binary_auroc(values.div(10).sigmoid(), truth.long())


@case(
    "torchmetrics.functional.classification.binary_sensitivity_at_specificity",
    membership.attack_scores,
    "members > threshold",
    "members >= threshold",
)
def rate_at_one_percent(binary_sensitivity_at_specificity: Any) -> tuple[Any, Any]:
    """Members that are found where 1 % of the others are taken for members."""
    members, others = _attacked()
    values, truth = torch.cat([members, others]), torch.arange(800) < 400
    theirs, _ = binary_sensitivity_at_specificity(values.div(10).sigmoid(), truth.long(), min_specificity=0.99)
    return membership.attack_scores(members, others)["tpr_1pct"], 100 * theirs


@case("torchmetrics.functional.pairwise_cosine_similarity", drift.angles, "rad2deg()", "rad2deg().floor()")
def angles(pairwise_cosine_similarity: Any) -> tuple[Any, Any]:
    """Angles between clients' features and the global model's."""
    a, b = rows(2)
    return drift.angles(a, b), pairwise_cosine_similarity(a, b).diagonal().arccos().rad2deg()


@case(
    "torchmetrics.functional.image.total_variation",
    inversion.total_variation,
    "images[..., 1:] - images[..., :-1]",
    "images[..., 2:] - images[..., :-2]",
    note="the sum of absolute differences there, two means of them here; of n square images of side s and C channels "
    "the sum is divided by n C s (s - 1)",
)
def total_variation(theirs: Any) -> tuple[Any, Any]:
    """Total variation of images."""
    (images,) = rows(1, 2, 3, 8, 8)
    return inversion.total_variation(images), theirs(images) / (2 * 3 * 8 * 7)


@case(
    "torchmetrics.functional.clustering.normalized_mutual_info_score",
    clustering.clusters,
    "dim=1)\n    fitted",
    "dim=0)\n    fitted",
)
def mutual_information(normalized_mutual_info_score: Any) -> tuple[Any, Any]:
    """Agreement of k-means clusters with the classes."""
    from sklearn.cluster import KMeans
    from torchmetrics.functional.clustering import adjusted_rand_score

    x, y = labelled(200)
    given = features.Features(train_x=x, train_y=y, test_x=x, test_y=y, num_classes=CLASSES)
    ours = clustering.clusters(given, torch.Generator().manual_seed(0))
    seed = features.seed_of(torch.Generator().manual_seed(0))
    found = KMeans(CLASSES, n_init=10, random_state=seed).fit(nn.functional.normalize(x).numpy()).labels_
    found = torch.from_numpy(found).long()
    return [ours["nmi"], ours["ari"]], [normalized_mutual_info_score(found, y), adjusted_rand_score(found, y)]
