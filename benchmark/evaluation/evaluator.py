"""Scores of a run's encoders: features once for each exported encoder, then every protocol on them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

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
from eval.protocol import PROTOCOLS, evaluate, find
from methods.base import FederatedMethod, Tree
from methods.core.recalibration import has_batch_norm
from methods.maths import alignment

VIEWS = 10_000
"""Largest number of training images whose two views are compared for alignment."""

MONITOR = 5_000
"""Largest number of training images that the monitor uses; a fifth of them are the queries."""

SPREAD = 2_000
"""About how many of them it measures uniformity on."""

ALIGNED = 500
"""About how many of them it measures alignment on."""


class LocalModels(NamedTuple):
    """Weights of clients' models after one more visit, and of the global model that the server made of them."""

    local: Sequence[Tree]
    global_model: Tree


class Evaluator:
    """Scores of exported encoders on one dataset.

    Args:
        method: the resident model the weights are loaded into; reset before its next visit anyway.
        data: images and the clients that hold them.
        streams: random generators of the run.
        other: returns another data set by its name, at the run's image size.
        batch_size: images a forward pass. device: of the features.
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

    @property
    def images(self) -> Source:
        """What is evaluated on: the run's data set, or the labelled one beside it, which nobody trains on."""
        return self.data.source.probe or self.data.source

    def encoder(self, weights: Tree, *, recalibrated: bool, kind: str = "global") -> nn.Module:
        """The encoder of an exported weights Tree, in eval mode; kind: the name it was exported by.

        recalibrated: whether its BatchNorm statistics are measured on the pooled training images first, for encoders
        whose statistics did not travel.
        """
        method = self.method.others.get(kind, self.method)
        method.load(weights)
        network: nn.Module = method.part("encoder")
        if method.dtype == torch.float64:  # images are float32
            network = deepcopy(network).float()
        if recalibrated:
            recalibrate(network, self._shuffled, self._plain, self.batch_size, self.device)
        return network.eval()

    def projector(self, weights: Tree, *, recalibrated: bool, kind: str = "global") -> nn.Module | None:
        """A copy of the projector of an exported weights Tree, in eval mode; None where `has_projector` is false."""
        method = self.method.others.get(kind, self.method)
        if not has_projector(method, recalibrated):
            return None
        method.load({"projector": weights["projector"]})
        return deepcopy(method.part("projector")).float().eval()

    @property
    def holds_out(self) -> bool:
        """Whether each class has enough images that nobody trained on for every protocol that labels only those."""
        if self.method.uses_public_images:  # it trains on them
            return False
        share = max(max(each.settings["tuning"].shares) for each in PROTOCOLS.values() if each.requires == "held_out")
        if self.images is not self.data.source:
            return False
        labels = self.images.train.labels
        sizes, free = (np.bincount(each, minlength=labels.max() + 1) for each in (labels, labels[self.holders < 0]))
        return bool((free >= np.floor(share * sizes).clip(min=1))[sizes > 0].all())

    def scores(
        self,
        encoder: nn.Module,
        protocols: Sequence[str],
        on_start: Callable[[str], None] = lambda _: None,
        on_progress: Callable[[float], None] = lambda _: None,
        arrays: dict[str, Mapping[str, Tensor]] | None = None,
        failed: dict[str, str] | None = None,
        on_note: Callable[[str], None] = lambda _: None,
        **inputs: Any,
    ) -> Scores:
        """Every protocol's metrics on this encoder.

        on_start: called with the name of each step as it begins.
        on_progress: called with the fraction of a long step that is done.
        arrays: is filled with those that figures are drawn from.
        failed: is filled with the errors of protocols, see `eval.protocol.evaluate`.
        on_note: called with what a reader of the scores has to know, in a line.
        inputs: further fields of `Subject`, those that protocols require.
        """
        if not protocols:
            return {}
        on_start("features")
        source, encoder = self.images, deepcopy(encoder)  # a client's weights would change the resident model's
        targets = {name: self.other(name) for name in transfer_targets(protocols)}
        subject = Subject(
            features=self._all_features(encoder, any(find(name).uses_views for name in protocols), on_progress),
            encoder_inputs=EncoderInputs(
                encoder=encoder,
                train=source.train.images,
                test=source.test.images,
                prepare=self._plain,
                augment=self._cropped,
                on_device=self.data.resident(source.train.images, self.device),
                view=self._augmented,
            ),
            targets={name: partial(self.features, encoder, target) for name, target in targets.items()},
            client_names=() if source.test.clients is None else np.unique(source.test.clients).tolist(),
            **inputs,
            save_arrays=({} if arrays is None else arrays).__setitem__,
            on_progress=on_progress,
            on_note=on_note,
        )
        scored = evaluate(
            subject, protocols, lambda protocol: self.streams.generator(f"evaluation/{protocol}"), on_start, failed
        )
        results: Scores = {}
        for score in scored:
            results.setdefault(score.protocol, {})[score.metric] = score.value
        return results

    def monitor(self, encoder: nn.Module) -> dict[str, float]:
        """Measurements that are cheap enough to take while training, never on test images.

        "monitor": kNN accuracy in percent on a held-out slice of train, or of the labelled images beside it; missing
        without labels. "effective_rank" of the slice; "uniformity", and of it "uniformity_within" and
        "uniformity_between" clients, of some training images (see `eval.geometry.uniformity_parts`); "alignment" of two
        views of a few of them.
        """
        train = self.data.source.train
        chosen = self._sample(len(train.labels), MONITOR, "monitor")
        x = self._monitored(encoder, train.images[chosen])
        bank, queries = holdout(torch.from_numpy(train.labels[chosen]), fraction=0.2, seed=0)
        numbers = {"effective_rank": effective_rank(x[queries.to(self.device)])}
        if self.images is not self.data.source:
            numbers |= self._knn(*self._labelled_slice(encoder))
        elif self.images.labelled:
            y = torch.from_numpy(train.labels[chosen])
            numbers = self._knn(x, y, bank, queries) | numbers
        holders = torch.from_numpy(self.holders[chosen]).to(self.device)
        rows = (holders >= 0).nonzero()[:: max(1, len(x) // SPREAD), 0]
        uniformity = uniformity_parts(x[rows], holders[rows]) if len(rows) > 1 else {}
        views = (
            self._view(encoder, chosen[:: max(1, len(chosen) // ALIGNED)], f"monitor/{name}")
            for name in ("view_a", "view_b")
        )
        return {
            **numbers,
            "alignment": float(alignment(*views)),
        } | {
            "uniformity" if name == "total" else f"uniformity_{name}": value
            for name, value in uniformity.items()
            if not math.isnan(value)
        }

    def _labelled_slice(self, encoder: nn.Module) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Arguments of `_knn` for some labelled images that nobody trains on."""
        train = self.images.train
        chosen = self._sample(len(train.labels), MONITOR, "monitor/labelled")
        labels = torch.from_numpy(train.labels[chosen])
        return self._monitored(encoder, train.images[chosen]), labels, *holdout(labels, fraction=0.2, seed=0)

    def _knn(self, x: Tensor, labels: Tensor, bank: Tensor, queries: Tensor) -> dict[str, float]:
        """The monitor's kNN accuracy in percent. x: features; bank, queries: their rows."""
        y, bank, queries = (each.to(self.device) for each in (labels, bank, queries))
        k = min(200, len(bank))
        predicted = knn_predict(x[bank], y[bank], x[queries], len(self.images.classes), k=k, temperature=0.1)
        return {"monitor": accuracy(predicted, y[queries])}

    def _monitored(self, encoder: nn.Module, images: np.ndarray) -> Tensor:
        """Features of some images. Raises EvalError: not finite."""
        x = self._extract(encoder, images, self._plain)
        if not x.isfinite().all():
            raise EvalError("the monitor met features that are not finite: lower optimizer.lr")
        return x

    def _all_features(self, encoder: nn.Module, views: bool, on_progress: Callable[[float], None]) -> Features:
        """Features of the run's own data set with their clients, and, if a protocol uses them, of two views of some
        training images."""
        source = self.images
        chosen = self._sample(len(self.holders), VIEWS if views else 0, "alignment")
        total, done = len(source.train.labels) + len(source.test.labels) + 2 * len(chosen), 0

        def on_batch(images: int) -> None:
            nonlocal done
            done += images
            on_progress(done / total)

        features = self.features(encoder, source, on_batch)
        if source is self.data.source:
            features.train_clients = torch.from_numpy(self.holders).to(self.device)
        if source.test.clients is not None:
            numbers = np.unique(source.test.clients, return_inverse=True)[1]
            features.test_clients = torch.from_numpy(numbers).to(self.device)
        if not views:
            return features
        first, second = (self._view(encoder, chosen, name, on_batch) for name in ("view_a", "view_b"))
        clients = torch.from_numpy(self.holders[chosen]).to(self.device)
        return replace(features, view_a=first, view_b=second, view_clients=clients)

    def features(
        self, encoder: nn.Module, source: Source, on_batch: Callable[[int], None] = lambda _: None
    ) -> Features:
        """Features of a whole data set, its images converted to the encoder's number of channels."""
        channels = self.data.source.train.images.shape[1]

        def prepare(images: Tensor) -> Tensor:
            return self._plain(with_channels(images, channels))

        return Features(
            train_x=self._extract(encoder, source.train.images, prepare, on_batch),
            train_y=torch.from_numpy(source.train.labels).to(self.device),
            test_x=self._extract(encoder, source.test.images, prepare, on_batch),
            test_y=torch.from_numpy(source.test.labels).to(self.device),
            num_classes=max(1, len(source.classes)),
        )

    def compare(self, models: LocalModels, images: int) -> ModelComparison:
        """Features of some test images by clients' models and by the global model."""
        test = self.images.test
        chosen = self._sample(len(test.labels), images, "drift")

        def features(weights: Tree) -> Tensor:
            return self._extract(self.encoder(weights, recalibrated=False), test.images[chosen], self._plain)

        return ModelComparison(
            [features(weights) for weights in models.local], features(models.global_model),
            torch.from_numpy(test.labels[chosen]).to(self.device),
        )  # fmt: skip

    def members(self, client: int | None) -> Tensor | None:
        """Rows of the training images of a client, or of all clients; None if they are not the images evaluated on."""
        if self.images is not self.data.source:
            return None
        return torch.from_numpy(np.flatnonzero(self.holders >= 0 if client is None else self.holders == client))

    def _augmented(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return augment(images, self.data.recipe, generator).contiguous(memory_format=self.data.layout)

    def _cropped(self, images: Tensor, crop: Crop, generator: torch.Generator) -> Tensor:
        size, mean, std = self.data.recipe.size, self.data.recipe.mean, self.data.recipe.std
        crops = Recipe(size, crop.scale, crop.ratio, crop.interpolation, flip=crop.flip)
        recipe = replace(crops, jitter=(0, 0, 0, 0), grayscale=0, mean=mean, std=std)
        return augment(images, recipe, generator).contiguous(memory_format=self.data.layout)

    def _shuffled(self) -> Iterator[np.ndarray]:
        """Training images in batches of mixed classes: an image folder is ordered by class."""
        images = self.data.source.train.images
        order = torch.randperm(len(images), generator=self.streams.generator("recalibrate")).numpy()
        for rows in np.array_split(order, -(-len(images) // self.batch_size)):
            yield images[rows]

    def _sample(self, total: int, limit: int, purpose: str) -> np.ndarray:
        order = torch.randperm(total, generator=self.streams.generator(purpose))
        return np.sort(order[:limit].numpy())

    def _view(
        self, encoder: nn.Module, chosen: np.ndarray, name: str, on_batch: Callable[[int], None] = lambda _: None
    ) -> Tensor:
        drawn = partial(self._augmented, generator=self.streams.generator(name))
        return self._extract(encoder, self.data.source.train.images[chosen], drawn, on_batch)

    def _extract(
        self,
        encoder: nn.Module,
        images: np.ndarray,
        prepare: Callable[[Tensor], Tensor],
        on_batch: Callable[[int], None] = lambda _: None,
    ) -> Tensor:
        def prepared(batch: Tensor) -> Tensor:
            return prepare(batch).contiguous(memory_format=self.data.layout)

        return extract(encoder, images, prepared, self.batch_size, self.device, on_batch)

    def _plain(self, images: Tensor) -> Tensor:
        return plain(images, self.data.recipe)


def has_projector(method: FederatedMethod, recalibrated: bool) -> bool:
    """Whether a method exports a projector that can be evaluated: with statistics, if it has BatchNorm.

    recalibrated: whether BatchNorm's statistics do not travel; those of an encoder are then measured, no others.
    """
    exported = (*method.travelling, *method.staying) if method.has_personal_encoders else method.travelling
    if "projector" not in exported or not method.tensors("projector"):
        return False
    return not (recalibrated and has_batch_norm(method.part("projector")))


def with_channels(images: Tensor, channels: int) -> Tensor:
    """uint8 images `[B, C, H, W]` with so many channels: grey ones repeated, colours weighted (ITU-R BT.601)."""
    if images.shape[1] == channels:
        return images
    if images.shape[1] == 1:
        return images.expand(-1, channels, -1, -1)
    return luma(images.float().split(1, 1)).round().to(torch.uint8)
