"""Pure functions of tensors: losses, the terms of federated methods, solvers.

Embeddings are `[B, d]`, one row for each image; a second argument holds the other view of the same images, row by row.
No function normalises, detaches or averages unless its docstring says so. All logarithms are natural.
"""

from methods.maths.distillation import attended, dino
from methods.maths.federated import (
    correlation,
    decorrelation,
    dimension_scaling,
    global_contrastive,
    projector_distillation,
    relational,
    scaled,
    sliced_wasserstein,
)
from methods.maths.losses import (
    alignment,
    byol_regression,
    clip_rows,
    info_nce,
    negative_cosine,
    nt_xent,
    prototype_nce,
    spectral_contrastive,
    swav,
    uniformity,
)
from methods.maths.precision import upcast
from methods.maths.privacy import gaussian_mechanism, gaussian_sigma
from methods.maths.prototypes import cluster_divergence, prototype_classification, prototype_contrast
from methods.maths.reconstruction import latent_prediction, masked_reconstruction
from methods.maths.redundancy import barlow_twins, sketched_gaussianity, vicreg
from methods.maths.similarity import dense, ensemble_similarity, similarity, similarity_distillation, top_similarities
from methods.maths.solvers import cluster_means, k_means, min_norm, min_norm_descent, one_hot
from methods.maths.transport import cluster_sums, cosines, equal_clusters, global_clusters, sinkhorn
