"""What a run's encoders are worth: features once for each exported encoder, then every protocol on them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.evaluation.protocols import Scores, transfer_targets
from benchmark.rng import Streams
from datamodules.federated import FederatedDataModule
from datamodules.ops import luma
from datamodules.recipe import Recipe
from datamodules.sources import Source
from datamodules.views import augment, plain
from eval.features import EvalError, Features, accuracy, extract, holdout, recalibrate
from eval.geometry import effective_rank, uniformity_parts
from eval.inputs import Crop, EncoderInputs, ModelComparison, Subject
from eval.knn import knn_predict
from eval.protocol import evaluate
from methods.base import FederatedMethod, Tree
from methods.maths import alignment

VIEWS = 10_000
"""Training images whose two views are compared for alignment, at most."""

MONITOR = 5_000
"""Training images the monitor looks at, at most; a fifth of them are the queries."""

SPREAD = 2_000
"""Of them, those whose uniformity it measures, about."""

ALIGNED = 500
"""Of them, those whose two views it holds against each other, about."""

NOTHING = Recipe(1, crop_scale=None, flip=0, jitter=(0, 0, 0, 0), grayscale=0, blur_kernel=1)


class LocalModels(NamedTuple):
    """Weights of the networks of clients that were visited once more, and of the one the server made of them."""

    local: Sequence[Tree]
    made: Tree


class Evaluator:
    """Scores of exported encoders on one dataset.

    Args:
        method: the resident model the weights are loaded into; reset before its next visit anyway.
        data: images and who holds them.
        streams: generators of the run.
        other: another data set by its name, at the run's image size; it opens each once.
        batch_size: images a forward pass. device: where features are made.
    """

    def __init__(
        self,
        method: FederatedMethod,
        data: FederatedDataModule,
        streams: Streams,
        other: Callable[[str], Source],
        *,
        batch_size: int,
        device: torch.device,
    ) -> None:
        self.method, self.data, self.streams, self.other = method, data, streams, other
        self.batch_size, self.device = batch_size, device
        self.holders = np.full(len(data.source.train.labels), -1, dtype=np.int64)
        self.holders[data.parts.indices] = data.parts.holders

    def encoder(self, weights: Tree, *, recalibrated: bool, kind: str = "global") -> nn.Module:
        """The encoder of an exported weights Tree, in eval mode; kind: the name it was exported by.

        recalibrated: its BatchNorm statistics are measured on the pooled training images first, for encoders whose
        statistics never travelled.
        """
        method = self.method.others.get(kind, self.method)
        method.load(weights)
        network: nn.Module = method.part("encoder")
        if recalibrated:
            recalibrate(network, self._shuffled, self._plain, self.batch_size, self.device)
        return network.eval()

    def scores(
        self,
        encoder: nn.Module,
        protocols: Sequence[str],
        visited: LocalModels | None = None,
        tell: Callable[[str], None] = lambda _: None,
        kept: dict[str, Mapping[str, Tensor]] | None = None,
        failed: dict[str, str] | None = None,
    ) -> Scores:
        """Every protocol's metrics on this encoder.

        visited: clients' networks and the one made of them, where drift is asked for. tell: is told what is being done.
        kept: takes what figures can be drawn of. failed: takes what protocols raise, see `eval.protocol.evaluate`.
        """
        results: Scores = {}
        if not protocols:  # then features are not worth their time
            return results
        tell("features")
        subject = self.subject(encoder, protocols, visited)
        if kept is not None:
            subject = replace(subject, save_arrays=kept.__setitem__)
        for score in evaluate(subject, protocols, self._stream, tell, failed):
            results.setdefault(score.protocol, {})[score.metric] = score.value
        return results

    def subject(self, encoder: nn.Module, protocols: Sequence[str], visited: LocalModels | None = None) -> Subject:
        """What these protocols may ask of an encoder; other data sets are opened now, and shown to it when asked."""
        source = self.data.source
        encoder = deepcopy(encoder)  # the resident model's is lent: loading a client's weights would change it
        targets = {name: self.other(name) for name in transfer_targets(protocols)}
        return Subject(
            features=self.features(encoder),
            encoder_inputs=EncoderInputs(
                encoder=encoder,
                train=source.train.images,
                test=source.test.images,
                prepare=self._plain,
                augment=self._cropped,
            ),
            targets={name: partial(self._elsewhere, encoder, target) for name, target in targets.items()},
            local_models=None if visited is None else partial(self._locals, visited),
        )

    def features(self, encoder: nn.Module) -> Features:
        """Representations of the whole training and test sets, and of two views of some training images."""
        train, test = self.data.source.train, self.data.source.test
        chosen = self._some(len(train.labels), VIEWS, "alignment")
        first, second = (self._view(encoder, chosen, name) for name in ("view_a", "view_b"))
        return Features(
            train_x=self._extract(encoder, train.images, self._plain),
            train_y=torch.from_numpy(train.labels).to(self.device),
            train_clients=torch.from_numpy(self.holders).to(self.device),
            test_x=self._extract(encoder, test.images, self._plain),
            test_y=torch.from_numpy(test.labels).to(self.device),
            view_a=first,
            view_b=second,
            view_clients=torch.from_numpy(self.holders[chosen]).to(self.device),
            num_classes=len(self.data.source.classes),
        )

    def monitor(self, encoder: nn.Module) -> dict[str, float]:
        """What is cheap enough to look at while training, never on test.

        "monitor": kNN accuracy in percent on a held-out slice of train; "effective_rank" of the slice; "uniformity",
        and of it "uniformity_within" and "uniformity_between" clients, of some training images (see
        `eval.geometry.uniformity_parts`); "alignment" of two views of a few of them.
        """
        train = self.data.source.train
        chosen = self._some(len(train.labels), MONITOR, "monitor")
        labels = torch.from_numpy(train.labels[chosen])
        x = self._extract(encoder, train.images[chosen], self._plain)
        if not x.isfinite().all():
            raise EvalError("the monitor met features that are not finite: lower optimizer.lr")
        bank, held = holdout(labels, fraction=0.2, seed=0)
        y = labels.to(self.device)
        bank, held = bank.to(self.device), held.to(self.device)
        k = min(200, len(bank))
        predicted = knn_predict(x[bank], y[bank], x[held], len(self.data.source.classes), k=k, temperature=0.1)
        holders = torch.from_numpy(self.holders[chosen]).to(self.device)
        some = (holders >= 0).nonzero()[:: max(1, len(x) // SPREAD), 0]
        parts = uniformity_parts(x[some], holders[some]) if len(some) > 1 else {}
        views = (
            self._view(encoder, chosen[:: max(1, len(chosen) // ALIGNED)], f"monitor/{name}")
            for name in ("view_a", "view_b")
        )
        return {
            "monitor": accuracy(predicted, y[held]),
            "effective_rank": effective_rank(x[held]),
            "alignment": float(alignment(*views)),
        } | {
            "uniformity" if name == "total" else f"uniformity_{name}": value
            for name, value in parts.items()
            if not math.isnan(value)
        }

    def _elsewhere(self, encoder: nn.Module, target: Source) -> Features:
        """Features of another data set, whose images are given as many channels as the encoder takes."""
        channels = self.data.source.train.images.shape[1]

        def prepare(images: Tensor) -> Tensor:
            return self._plain(with_channels(images, channels))

        return Features(
            train_x=self._extract(encoder, target.train.images, prepare),
            train_y=torch.from_numpy(target.train.labels).to(self.device),
            test_x=self._extract(encoder, target.test.images, prepare),
            test_y=torch.from_numpy(target.test.labels).to(self.device),
            num_classes=len(target.classes),
        )

    def _locals(self, visited: LocalModels, images: int) -> ModelComparison:
        """What clients' networks and the one made of them make of some test images."""
        test = self.data.source.test
        chosen = self._some(len(test.labels), images, "drift")

        def seen(weights: Tree) -> Tensor:
            return self._extract(self.encoder(weights, recalibrated=False), test.images[chosen], self._plain)

        return ModelComparison(
            [seen(weights) for weights in visited.local], seen(visited.made),
            torch.from_numpy(test.labels[chosen]).to(self.device),
        )  # fmt: skip

    def _cropped(self, images: Tensor, crop: Crop, generator: torch.Generator) -> Tensor:
        recipe = replace(
            NOTHING, size=self.data.recipe.size, mean=self.data.recipe.mean, std=self.data.recipe.std,
            crop_scale=crop.scale, crop_ratio=crop.ratio, flip=crop.flip,
        )  # fmt: skip
        return augment(images, recipe, generator).contiguous(memory_format=self.data.layout)

    def _shuffled(self) -> Iterator[np.ndarray]:
        """Training images in batches of all classes: an image folder comes class by class."""
        images = self.data.source.train.images
        order = torch.randperm(len(images), generator=self.streams.generator("recalibrate")).numpy()
        for rows in np.array_split(order, -(-len(images) // self.batch_size)):
            yield images[rows]

    def _some(self, total: int, most: int, purpose: str) -> np.ndarray:
        order = torch.randperm(total, generator=self.streams.generator(purpose))
        return np.sort(order[:most].numpy())

    def _view(self, encoder: nn.Module, chosen: np.ndarray, name: str) -> Tensor:
        drawn = partial(augment, recipe=self.data.recipe, generator=self.streams.generator(name))
        return self._extract(encoder, self.data.source.train.images[chosen], drawn)

    def _extract(self, encoder: nn.Module, images: np.ndarray, prepare: Callable[[Tensor], Tensor]) -> Tensor:
        layout = self.data.layout
        return extract(
            encoder, images, lambda x: prepare(x).contiguous(memory_format=layout), self.batch_size, self.device
        )

    def _plain(self, images: Tensor) -> Tensor:
        return plain(images, self.data.recipe)

    def _stream(self, protocol: str) -> torch.Generator:
        return self.streams.generator(f"evaluation/{protocol}")


def with_channels(images: Tensor, channels: int) -> Tensor:
    """uint8 images `[B, C, H, W]` with so many channels: grey ones repeated, coloured ones weighed (ITU-R BT.601)."""
    if images.shape[1] == channels:
        return images
    if images.shape[1] == 1:
        return images.expand(-1, channels, -1, -1)
    return luma(images.float().split(1, 1)).round().to(torch.uint8)
