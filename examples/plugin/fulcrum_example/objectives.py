"""Two views of an image together, different images apart."""

from torch import Tensor
from torch.nn.functional import normalize

from methods.base import Batch, Outputs, Projected


class Agree(Projected):
    """The distance of two views, and the squared cosines of different images."""

    contrastive = True
    needs_two = True

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The mean over the images of a batch, and over its pairs of images."""
        a, b = (normalize(z, dim=1) for z in out.embeddings)  # [B, d], a tensor each view
        cosines = a @ b.T
        others = cosines.square().sum() - cosines.diagonal().square().sum()
        return (1 - cosines.diagonal()).mean() + others / (len(a) * (len(a) - 1))
