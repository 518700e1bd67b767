"""Scores of a run's encoders: features once for each exported encoder, then every protocol on them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

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
from eval.features import Features, extract, ignore, recalibrate
from eval.inputs import Crop, EncoderInputs, Subject
from eval.protocol import PROTOCOLS, evaluate, find
from methods.base import FederatedMethod, Tree
from methods.core.freezing import keeps_statistics
from methods.core.recalibration import has_batch_norm

VIEWS = 10_000
"""Largest number of training images whose two views are compared for alignment."""


class Evaluator:
    """Scores of exported encoders on one dataset.

    Args:
        method: the resident model the weights are loaded into; reset before its next visit anyway.
        data: images and the clients that hold them.
        streams: random generators of the run.
        other: returns another data set by its name, at the run's image size.
        batch_size: images a forward pass. device: of the features.
        recalibrated: whether BatchNorm's statistics, which do not travel, are measured on the pooled training images.
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
        recalibrated: bool,
    ) -> None:
        self.method, self.data, self.streams, self.other = method, data, streams, other
        self.batch_size, self.device, self.recalibrated = batch_size, device, recalibrated

    @cached_property
    def holders(self) -> np.ndarray:
        """The client of each training image, `[N]` int64, -1 for none."""
        holders = np.full(len(self.data.source.train.labels), -1, dtype=np.int64)
        holders[self.data.parts.indices] = self.data.parts.holders
        return holders

    @property
    def images(self) -> Source:
        """What is evaluated on: the run's data set, or the labelled one beside it, which nobody trains on."""
        return self.data.source.probe or self.data.source

    def encoder(self, weights: Tree, name: str = "global", *, recalibrated: bool | None = None) -> nn.Module:
        """The encoder of an exported weights Tree, in eval mode; name: the name it was exported by.

        recalibrated: False for weights that have statistics of their own; None: as the evaluator's.
        """
        method = self.method.others.get(name, self.method)
        method.load(weights)
        network: nn.Module = method.part("encoder")
        if method.dtype == torch.float64:  # images are float32
            network = deepcopy(network).float()
        if self.recalibrated if recalibrated is None else recalibrated:
            kept = [layer for layer in network.modules() if keeps_statistics(layer)]
            recalibrate(network, self._shuffled, self.plain, self.batch_size, self.device, kept)
        return network.eval()

    def encoders(self, exported: Mapping[str, Tree]) -> Iterator[tuple[str, nn.Module]]:
        """Names and encoders of what a loop exports, each valid until the next: they may share the resident model."""
        for name, weights in exported.items():
            yield name, self.encoder(weights, name)

    def has_projector(self, name: str = "global") -> bool:
        """Whether a projector is exported that can be evaluated: with statistics, if it has BatchNorm."""
        method = self.method.others.get(name, self.method)
        exported = (*method.travelling, *method.staying) if method.has_personal_encoders else method.travelling
        if "projector" not in exported or not method.tensors("projector"):
            return False
        return not (self.recalibrated and has_batch_norm(method.part("projector")))

    def projector(self, weights: Tree, name: str = "global") -> nn.Module | None:
        """A copy of the projector of an exported weights Tree, in eval mode; None where `has_projector` is false."""
        if not self.has_projector(name):
            return None
        method = self.method.others.get(name, self.method)
        method.load({"projector": weights["projector"]})
        return deepcopy(method.part("projector")).float().eval()

    @property
    def holds_out(self) -> bool:
        """Whether each class has enough images that nobody trained on for every protocol that labels only those."""
        if self.method.uses_public_images or self.images is not self.data.source:  # it trains on the public ones
            return False
        share = max(max(each.arguments["tuning"].shares) for each in PROTOCOLS.values() if each.requires == "held_out")
        labels = self.images.train.labels
        sizes, free = (np.bincount(each, minlength=labels.max() + 1) for each in (labels, labels[~self._held()]))
        return bool((free >= np.floor(share * sizes).clip(min=1))[sizes > 0].all())

    def scores(
        self,
        encoder: nn.Module,
        protocols: Sequence[str],
        on_start: Callable[[str], None] = ignore,
        on_progress: Callable[[float], None] = ignore,
        arrays: dict[str, Mapping[str, Tensor]] | None = None,
        failed: dict[str, str] | None = None,
        on_note: Callable[[str], None] = ignore,
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
        subject = Subject(
            features=self._all_features(encoder, any(find(name).uses_views for name in protocols), on_progress),
            encoder_inputs=EncoderInputs(
                encoder=encoder,
                train=source.train.images,
                test=source.test.images,
                prepare=self.plain,
                augment=self._cropped,
                on_device=self.data.resident(source.train.images, self.device),
                view=self._augmented,
            ),
            targets={name: partial(self.features, encoder, self.other(name)) for name in transfer_targets(protocols)},
            trained=self.trained,
            client_names=() if source.test.clients is None else np.unique(source.test.clients).tolist(),
            **inputs,
            save_arrays=({} if arrays is None else arrays).__setitem__,
            on_progress=on_progress,
            on_note=on_note,
        )
        results: Scores = {}
        for score in evaluate(
            subject, protocols, lambda protocol: self.streams.generator(f"evaluation/{protocol}"), on_start, failed
        ):
            results.setdefault(score.protocol, {})[score.metric] = score.value
        return results

    def _all_features(self, encoder: nn.Module, views: bool, on_progress: Callable[[float], None]) -> Features:
        """Features of the run's own data set with their clients, and, if a protocol uses them, of two views of some
        training images."""
        source = self.images
        chosen = self.sample(len(self.holders), VIEWS if views else 0, "alignment")
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
        first, second = (self.view(encoder, chosen, name, on_batch) for name in ("view_a", "view_b"))
        clients = torch.from_numpy(self.holders[chosen]).to(self.device)
        return replace(features, view_a=first, view_b=second, view_clients=clients)

    def features(self, encoder: nn.Module, source: Source, on_batch: Callable[[int], None] = ignore) -> Features:
        """Features of a whole data set, its images converted to the encoder's number of channels."""
        channels = self.data.source.train.images.shape[1]
        train_x, test_x = (
            self.extract(encoder, split.images, lambda images: self.plain(with_channels(images, channels)), on_batch)
            for split in (source.train, source.test)
        )
        train_y, test_y = (torch.from_numpy(split.labels).to(self.device) for split in (source.train, source.test))
        return Features(
            train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y, num_classes=max(1, len(source.classes))
        )

    @property
    def trained(self) -> Collection[str] | None:
        """Names of the clients that take part, drawn so far or not; None: the test images name none."""
        names, train, test = self.data.parts.names, self.data.source.train, self.images.test
        if not names and train.clients is not None:
            names = tuple(np.unique(train.clients[self._held()]).tolist())
        return None if test.clients is None or set(names).isdisjoint(test.clients.tolist()) else set(names)

    def members(self, client: int | None) -> Tensor | None:
        """Rows of the training images of a client, or of all clients; None if they are not the images evaluated on."""
        if self.images is not self.data.source:
            return None
        return torch.from_numpy(np.flatnonzero(self._held()) if client is None else np.array(self.data.parts[client]))

    def _held(self) -> np.ndarray:
        """Which training images a client holds, `[N]` bool: an eighth of `holders`, which few runs need."""
        held = np.zeros(len(self.data.source.train.labels), dtype=bool)
        held[self.data.parts.indices] = True
        return held

    def _augmented(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return augment(images, self.data.recipe, generator).contiguous(memory_format=self.data.layout)

    def _cropped(self, images: Tensor, crop: Crop, generator: torch.Generator) -> Tensor:
        size, mean, std = self.data.recipe.size, self.data.recipe.mean, self.data.recipe.std
        crops = Recipe(size, crop.scale, crop.ratio, crop.interpolation, flip=crop.flip)
        recipe = replace(crops, jitter=(0, 0, 0, 0), grayscale=0, mean=mean, std=std)
        return augment(images, recipe, generator).contiguous(memory_format=self.data.layout)

    def _shuffled(self) -> Iterator[np.ndarray]:
        """Training images in batches of mixed classes, as an image folder is ordered by class; none held out."""
        images = self.data.source.train.images
        pooled = np.delete(np.arange(len(images)), self.data.held_out)
        order = pooled[torch.randperm(len(pooled), generator=self.streams.generator("recalibrate")).numpy()]
        for rows in np.array_split(order, -(-len(order) // self.batch_size)):
            yield images[rows]

    def sample(self, total: int, limit: int, purpose: str) -> np.ndarray:
        """At most `limit` of `total` rows, in order, drawn by the stream of this purpose."""
        order = torch.randperm(total, generator=self.streams.generator(purpose))
        return np.sort(order[:limit].numpy())

    def view(
        self, encoder: nn.Module, chosen: np.ndarray, name: str, on_batch: Callable[[int], None] = ignore
    ) -> Tensor:
        """Features `[n, d]` of chosen training images, augmented by the stream of this name."""
        drawn = partial(self._augmented, generator=self.streams.generator(name))
        return self.extract(encoder, self.data.source.train.images[chosen], drawn, on_batch)

    def extract(
        self,
        encoder: nn.Module,
        images: np.ndarray,
        prepare: Callable[[Tensor], Tensor] | None = None,
        on_batch: Callable[[int], None] = ignore,
    ) -> Tensor:
        """Features `[N, d]` of images; prepare: turns them into the encoder's input, None: as they are."""

        def prepared(batch: Tensor) -> Tensor:
            return (prepare or self.plain)(batch).contiguous(memory_format=self.data.layout)

        return extract(encoder, images, prepared, self.batch_size, self.device, on_batch)

    def plain(self, images: Tensor) -> Tensor:
        """The encoder's input of images as they are."""
        return plain(images, self.data.recipe)


def with_channels(images: Tensor, channels: int) -> Tensor:
    """uint8 images `[B, C, H, W]` with so many channels: grey ones repeated, colours weighted (ITU-R BT.601)."""
    if images.shape[1] == channels:
        return images
    if images.shape[1] == 1:
        return images.expand(-1, channels, -1, -1)
    return luma(images.float().split(1, 1)).round().to(torch.uint8)
