"""Self-distillation without labels."""

from torch import Tensor

from methods.maths.losses import swav
from methods.maths.precision import full_precision, upcast


@full_precision
def dino(
    scores: Tensor, targets: Tensor, centre: Tensor, temperature: float = 0.1, target_temperature: float = 0.04
) -> Tensor:
    """Cross-entropy of the student with the centred, sharpened teacher (Caron et al. 2021, DINO, eqs. 2-3).

    The mean over images and over pairs of a teacher's view and another view of the student.

    Args:
        scores: `[V, B, K]`, the student's outputs for all views; V >= 2.
        targets: `[C, B, K]`, the teacher's for the first C <= V views; the caller detaches them.
        centre: `[K]`, subtracted from the teacher's outputs.
        temperature, target_temperature: divide the outputs of student and teacher; > 0.

    Returns:
        A scalar. Equal outputs of all images, with themselves as centre, give log K.

    >>> outputs = torch.randn(1, 1, 10).expand(2, 4, 10)
    >>> dino(outputs * 0, outputs, centre=outputs[0, 0])  # log 10
    tensor(2.3026)
    """
    sharpened = ((upcast(targets) - upcast(centre)) / target_temperature).softmax(dim=2)
    return swav(scores, sharpened, temperature)
