"""SimSiam. Chen, He: Exploring Simple Siamese Representation Learning (CVPR 2021).

| symbol | name | equation |
|---|---|---|
| f | `encoder`, `projector` | section 3 |
| h | `predictor` | section 3 |
| D(p, z) | `methods.maths.negative_cosine` | eq. 1 |
| L | the mean of both directions, z without gradient | eqs. 2 and 4 |
"""

from collections.abc import Sequence

from torch import Tensor

from methods.base import Batch, Outputs, Projected
from methods.maths import negative_cosine
from methods.networks import Encoder, mlp


class SimSiam(Projected):
    """Cosine similarity of each view's prediction with the other view's embedding, whose gradient is stopped.

    Args:
        encoder: images -> `[B, encoder.dim]`.
        projector: widths after the encoder's, the last being the embedding's; BatchNorm without affine on the output.
        predictor: hidden width of the predictor; the paper's bottleneck is a quarter of the embedding.
    """

    travels = ("encoder", "projector", "predictor")

    def __init__(self, encoder: Encoder, *, projector: Sequence[int] = (512, 256), predictor: int = 64) -> None:
        super().__init__(encoder, projector=projector, last_norm=True)
        self.predictor = mlp((self.width, predictor, self.width))

    def forward(self, *views: Tensor, extra: Sequence[Tensor] = ()) -> Outputs:
        """The online pass with predictions; the targets are the embeddings without gradient."""
        out = super().forward(*views, extra=extra)
        predictions = self.each_view(self.predictor, out.embeddings)
        return out._replace(predictions=predictions, targets=tuple(z.detach() for z in out.embeddings))

    def loss(self, out: Outputs, batch: Batch) -> Tensor:
        """The mean of both directions, in [-1, 1]."""
        (p_a, p_b), (t_a, t_b) = out.predictions, out.targets
        return (negative_cosine(p_a, t_b) + negative_cosine(p_b, t_a)) / 2
