"""Attentive probe: one learned query looks at the tokens of a frozen encoder, and a linear layer at what it saw.

For encoders that spread what they know over the tokens, as after masked image modelling, so that their mean or the
class token hides it (Chen et al. 2024, CAE; El-Nouby et al. 2024, AIM).

Decisions
- The block is AIM's: keys and values are linear in the tokens, without bias; the query is a parameter; there is neither
  an MLP nor a residual. Tokens are normalised by LayerNorm without parameters, for AIM's BatchNorm without any.
- Tokens are computed anew for every batch, as those of all images would not fit into memory; without augmentation.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from eval.features import EvalError, Features, Progress, accuracy, ignore, sample
from eval.inputs import EncoderInputs
from eval.linear import cosine_factor
from eval.tokens import tokens_of


@dataclass(frozen=True)
class AttentiveProbe:
    """Hyperparameters of the probe, trained by AdamW with a cosine to zero; scored after the last epoch.

    Args:
        heads: of the attention, or the largest number below that divides the width.
        lr: initial learning rate. weight_decay: of all parameters. epochs: passes. batch_size: images.
    """

    heads: int
    lr: float
    weight_decay: float
    epochs: int
    batch_size: int


class Attention(nn.Module):
    """Tokens `[B, n, d]` -> logits `[B, classes]`.

    Args:
        width: d. heads: of the attention, a divisor of d. generator: draws the parameters.
    """

    def __init__(self, width: int, heads: int, classes: int, generator: Generator) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Parameter(0.02 * torch.randn(width, generator=generator))
        self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.classifier = nn.Linear(width, classes)
        with torch.no_grad():
            for parameter in (self.key.weight, self.value.weight, *self.classifier.parameters()):
                parameter.uniform_(-1 / math.sqrt(width), 1 / math.sqrt(width), generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Of each head softmax(q k / sqrt(d / heads)) v, then the classifier."""
        rows = F.layer_norm(tokens, tokens.shape[-1:])
        k, v = (layer(rows).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.key, self.value))
        query = self.query.view(1, self.heads, 1, -1).expand(len(rows), -1, -1, -1)
        return self.classifier(F.scaled_dot_product_attention(query, k, v).flatten(1))


def attentive(
    features: Features,
    inputs: EncoderInputs,
    probe: AttentiveProbe,
    generator: Generator,
    on_progress: Progress = ignore,
) -> dict[str, float]:
    """ "accuracy": percent on the whole test set after the last epoch; nothing is selected.

    generator: draws the initial parameters and the orders; on the CPU.

    Raises EvalError: the encoder shows no tokens.
    """
    tokens = tokens_of(inputs.encoder)
    if tokens is None:
        raise EvalError("the encoder shows neither tokens nor a map before its pooling: choose another protocol")
    device, n = features.train_y.device, len(features.train_y)
    with torch.no_grad():
        width = tokens(inputs.batch(torch.arange(1), None, generator)).shape[2]
    heads = max(number for number in range(1, probe.heads + 1) if width % number == 0)
    model = Attention(width, heads, features.num_classes, generator).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=probe.lr, weight_decay=probe.weight_decay)
    steps = probe.epochs * -(-n // probe.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine_factor(step, steps))
    for epoch in range(probe.epochs):
        for rows in sample(n, n, generator, torch.device("cpu")).split(probe.batch_size):
            with torch.no_grad():
                seen = tokens(inputs.batch(rows, None, generator)).float()
            with torch.enable_grad():
                loss = F.cross_entropy(model(seen), features.train_y[rows.to(device)])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        on_progress((epoch + 1) / probe.epochs)
    predicted = []
    with torch.no_grad():
        for start in range(0, len(inputs.test), probe.batch_size):
            images = torch.from_numpy(inputs.test[start : start + probe.batch_size].copy()).to(device)
            predicted.append(model(tokens(inputs.prepare(images)).float()).argmax(dim=1))
    return {"accuracy": accuracy(torch.cat(predicted), features.test_y)}
