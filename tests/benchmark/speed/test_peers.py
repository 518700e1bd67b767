import time

import numpy as np
import pytest
import torch

from benchmark.configuration.compose import compose
from benchmark.experiment import data, factory
from benchmark.speed import peers
from benchmark.speed.peer import workload
from benchmark.speed.peers import FLOWER, OURS, PFL
from benchmark.speed.timing import Process, line_times
from datamodules.sources import Source, Split
from datamodules.views import make_views


class TestResults:
    def test_a_round_is_the_median_without_the_first(self):
        run = peers.check_rounds((9.0, 9.5, 10.5, 10.75, 11.25, 11.75), Process("", 7.0))
        assert run == {"round": 0.5, "first": 9.0, "peak_mib": 7.0}

    def test_ratios_are_taken_within_a_repetition(self):
        def runs(*seconds):
            return [{"round": s, "first": 4 * s, "peak_mib": 100 * s} for s in seconds]

        lines = peers.compare("simclr", 16, {OURS: runs(1, 4), FLOWER: runs(2, 16), PFL: runs(4, 8)})
        by_name = {(line.what.partition(",")[0], line.what.rpartition(": ")[2]): line for line in lines}
        round = by_name["a round", f"{OURS} / {FLOWER}"]
        assert (round.value.low, round.value.high, round.goal, round.met) == (1 / 4, 1 / 2, "<= 0.40", True)
        assert by_name["a round", f"{OURS} / {PFL}"].met is False
        assert by_name["start until the first round is done", OURS].value.median == 10
        assert by_name["peak memory (PSS)", FLOWER].unit == "MiB"
        assert len(lines) == len(by_name) == 3 * (2 + 3)

    def test_a_run_that_lost_a_round_is_refused(self):
        run = Process("round 2: 7 of 10 clients replied", 0.0)
        with pytest.raises(RuntimeError, match=r"3 of 6 rounds were seen; .*7 of 10 clients replied"):
            peers.check_rounds([1.0, 2.0, 3.0], run)

    def test_each_line_of_a_run_has_the_time_it_came(self, tmp_path):
        file, until = tmp_path / "rounds.jsonl", time.monotonic() + 60
        with line_times(file) as ends:
            file.write_text("")
            time.sleep(0.1)
            with file.open("a") as stream:
                stream.write("{}\n")
                stream.flush()
                while not ends and time.monotonic() < until:
                    time.sleep(0.01)
                time.sleep(0.3)
                stream.write("{}\n{}\n")
        first, second, third = ends
        assert first >= 0.1
        assert second == third >= first + 0.3


class TestWorkload:
    """Our workload and the one of the other frameworks are the same."""

    @pytest.fixture
    def images(self):
        drawn = np.random.default_rng(0).integers(0, 256, (5000, 3, 32, 32), dtype=np.uint8)
        split = Split(drawn, np.arange(5000) % 10)
        return Source("synthetic", split, split, tuple("0123456789"), "")

    @staticmethod
    def config(views):
        return compose(str(peers.PEER / "scenario.yaml"), "fedavg", [*peers.SETTINGS, *peers.VIEWS[views]])

    @pytest.mark.parametrize("views", peers.VIEWS)
    def test_network_and_loss(self, views, images):
        method, theirs = factory.method(self.config(views), images), workload.Network()
        ours = method.objective
        theirs.load_state_dict(ours.state_dict())
        view_a, view_b = torch.rand(2, 8, 3, 32, 32)
        torch.testing.assert_close(ours.loss(ours(view_a, view_b), None), theirs.loss(view_a, view_b))

    def test_optimiser_and_clients(self, images):
        config = self.config("mirrored")
        assert {key: config.optimizer[key] for key in workload.SGD} == workload.SGD
        sizes = list(map(len, data.clients_of(config, images).parts))
        assert sizes == [100] * workload.CLIENTS
        assert config.federation.rounds == workload.ROUNDS

    def test_mirrored_views(self, images, monkeypatch):
        monkeypatch.setattr(workload, "images", lambda client: images.train.images[:16])
        config = self.config("mirrored")
        names, recipe = factory.method(config, images).objective.views, factory.recipe(config, images)
        (view_a, view_b), _ = make_views(torch.from_numpy(images.train.images[:16]), names, recipe, torch.Generator())
        theirs = torch.stack(workload.mirrored(0))  # the same images in another order
        ours = torch.stack([view_a, view_b])
        first = [int((theirs[0] == image).flatten(1).all(1).nonzero()) for image in view_a]
        torch.testing.assert_close(ours, theirs[:, first], rtol=0, atol=0)

    def test_simclr_views(self, images):
        recipe = factory.recipe(self.config("simclr"), images)
        crop, flip, jitter, gray, _ = workload.SIMCLR.transforms
        assert (crop.scale, crop.ratio, flip.p) == (recipe.crop_scale, recipe.crop_ratio, recipe.flip)
        assert (jitter.p, gray.p) == (recipe.jitter_p, recipe.grayscale)
        color = jitter.transforms[0]
        spans = [(1 - strength, 1 + strength) for strength in recipe.jitter[:3]]
        assert [color.brightness, color.contrast, color.saturation] == spans
        assert color.hue == (-recipe.jitter[3], recipe.jitter[3])
        assert (recipe.blur, recipe.solarize, recipe.rotation, recipe.mean) == (0, 0, 0, None)

    def test_batches_are_an_epoch(self, images, monkeypatch):
        monkeypatch.setattr(workload, "images", lambda client: images.train.images[:40])
        for name in peers.VIEWS:
            views = [view for pair in workload.batches(0, name, 16) for view in pair]
            assert [tuple(view.shape) for view in views] == [(size, 3, 32, 32) for size in (16, 16, 16, 16, 8, 8)]
            assert all(0 <= view.min() < view.max() <= 1 for view in views)
