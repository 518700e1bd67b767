"""Batched operations and draws against torchvision's, and properties of the views as a whole."""

import re
from collections import Counter
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from datamodules import ops, views
from datamodules.errors import ViewError
from datamodules.recipe import Recipe
from tests.datamodules.own_data import bytes_of, refused, seeded

STILL = Recipe(size=8, crop_scale=None, flip=0, jitter_p=0, grayscale=0)
SHAPES = pytest.mark.parametrize("shape", [(24, 3, 12, 17), (24, 1, 16, 9)], ids=str)
P_VALUE = 1e-3  # the rate of false alarms of a check with a new seed; the seeds are fixed


def pictures(shape, seed=0):
    """Float images with gray, black, white and two-channel ties among the pixels."""
    x = torch.rand(shape, generator=seeded(seed))
    x[0], x[1], x[2] = 0, 1, 0.5
    x[3, -1] = x[3, 0]
    return x


def uniform(n, low, high, seed=1):
    return low + (high - low) * torch.rand(n, generator=seeded(seed))


def one_by_one(op, images, *parameters):
    return torch.stack([op(image, *(p[i].item() for p in parameters)) for i, image in enumerate(images)])


def close(ours, expected, atol=1e-5):
    torch.testing.assert_close(ours, expected, atol=atol, rtol=0)


# --- ops -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [5, 14, 32])
@SHAPES
def test_resized_crop(shape, size, interpolation):
    x, mode = pictures(shape), tv.InterpolationMode(interpolation)
    crops = views.draw_crops(len(x), *shape[2:], Recipe(size, crop_scale=(0.05, 1)), seeded(2))
    expected = one_by_one(
        lambda image, *crop: tv.resized_crop(image, *map(int, crop), [size, size], mode, antialias=True), x, *crops
    ).clamp(0, 1)
    close(ops.resized_crop(x, *crops, size, None, interpolation), expected)
    flipped = torch.rand(len(x), generator=seeded(3)) < 0.5
    mirrored = torch.where(flipped[:, None, None, None], expected.flip(3), expected)
    close(ops.resized_crop(x, *crops, size, flipped, interpolation), mirrored)


def test_large_crops_are_antialiased_a_whole_image_is_itself_and_autocast_rounds_no_pixel():
    x = pictures((4, 3, 96, 130))
    crops = torch.tensor([[0, 3, 40, 10], [0, 5, 1, 60], [96, 90, 50, 33], [130, 64, 100, 70]])
    expected, jagged = (
        one_by_one(lambda image, *crop: tv.resized_crop(image, *crop, [8, 8], antialias=smooth), x, *crops)  # noqa: B023
        for smooth in (True, False)
    )
    close(ops.resized_crop(x, *crops, 8), expected)
    assert (expected - jagged)[3].abs().max() > 0.1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = ops.resized_crop(x, *crops, 8)
    assert torch.equal(inside, ops.resized_crop(x, *crops, 8))
    close(ops.resized_crop(x[..., :96], *views._whole(4, 96, 96), 96), x[..., :96], atol=0)


def sequentially(x, order, factors):
    """Colours changed image by image, operation by operation."""
    operations, images = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue), []
    for image, sequence, factor in zip(x, order.tolist(), factors.tolist(), strict=True):
        for op in sequence:
            image = operations[op](image, factor[op])
        images.append(image)
    return torch.stack(images)


@SHAPES
@pytest.mark.parametrize("op", range(4))
def test_each_colour_operation_equals_torchvisions(op, shape):
    x, (low, high) = pictures(shape), (-0.5, 0.5) if op == ops.HUE else (0, 2)
    factors, order = torch.tensor([1.0, 1, 1, 0]).repeat(len(x), 1), torch.arange(4).repeat(len(x), 1)
    factors[:, op] = uniform(len(x), low, high)
    factors[4:7, op] = torch.tensor([low, (low + high) / 2, high])  # both ends, and the neutral factor
    expected = sequentially(x, order[:, op : op + 1], factors)
    close(ops.color_jitter(x, order, factors), expected)
    assert shape[1] == 1 or (expected - x).abs().max() > 0.2


@SHAPES
@pytest.mark.parametrize("hue", [0.0, 0.3])
def test_colour_jitter_keeps_the_order_of_each_sample(shape, hue):
    x = pictures(shape)
    order = torch.tensor(list(permutations(range(4))))[torch.randperm(24, generator=seeded(4))]
    factors = torch.stack([*(uniform(24, 0.2, 1.8, seed) for seed in range(3)), uniform(24, -hue, hue)], 1)
    before, expected, rank = x.clone(), sequentially(x, order, factors), ops.hue_last_first(order)
    ours = ops.color_jitter(x, order, factors)
    close(ours, expected)
    assert torch.equal(x, before)
    assert (expected - sequentially(x, order.flip(1), factors)).abs().max() > 0.05
    # the same for images sorted by their hue
    assert (order[rank] == ops.HUE).int().argmax(1).diff().max() == 0
    assert torch.equal(ours[rank], ops.color_jitter(x[rank], order[rank], factors[rank]))


@SHAPES
def test_other_operations(shape):
    x, mask, degrees = pictures(shape), uniform(shape[0], 0, 1) < 0.5, uniform(shape[0], -180, 180)
    sigma = uniform(shape[0], 0.1, 3)
    for kernel in (1, 3, 7, 17):
        blurred = one_by_one(lambda image, s: tv.gaussian_blur(image, [kernel, kernel], [s, s]), x, sigma)  # noqa: B023
        close(ops.gaussian_blur(x, sigma, kernel), blurred)
    close(ops.grayscale(x), one_by_one(lambda image: tv.rgb_to_grayscale(image, shape[1]), x), atol=1e-6)
    for threshold in (0.0, 0.4, 1.0):
        assert torch.equal(ops.solarize(x, threshold), one_by_one(lambda image: tv.solarize(image, threshold), x))  # noqa: B023
    flipped = one_by_one(lambda image, flip: tv.horizontal_flip(image) if flip else image, x, mask)
    assert torch.equal(ops.horizontal_flip(x, mask), flipped)
    degrees[4:9] = torch.tensor([0.0, 15, -15, 180, 45])
    turns, square = torch.arange(len(x)) % 4, x[..., :9, :9]
    turned = one_by_one(lambda image, k: torch.from_numpy(np.rot90(image.numpy(), k, (1, 2)).copy()), square, turns)
    assert torch.equal(ops.quarter_turns(square, turns), turned)
    assert torch.equal(ops.rotate(x, degrees), one_by_one(tv.rotate, x, degrees))


@pytest.mark.parametrize(("fill", "mode"), [("reflect", "reflect"), ("zero", "constant")])
@given(
    offsets=st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=1, max_size=12),
    sides=st.tuples(st.integers(5, 17), st.integers(5, 17)), channels=st.sampled_from([1, 3]),
)  # fmt: skip
def test_shift_is_a_crop_out_of_the_padded_image(fill, mode, offsets, sides, channels):
    x, offsets = bytes_of((len(offsets), channels, *sides)), torch.tensor(offsets)
    padded = tv.pad(x, [4], padding_mode=mode)
    expected = one_by_one(lambda image, dy, dx: tv.crop(image, 4 + dy, 4 + dx, *sides), padded, *offsets.T)
    assert torch.equal(ops.shift(x, offsets, fill), expected)


# --- draws -----------------------------------------------------------------------------------------------------------


def p_value_of_equality(ours, theirs):
    """Chi-square test over ten deciles that two samples of integers have the same distribution."""
    both = np.concatenate([ours, theirs])
    edges = np.unique(np.quantile(both, np.linspace(0, 1, 11)[1:-1]))
    table = np.stack([np.bincount(np.searchsorted(edges, drawn), minlength=len(edges) + 1) for drawn in (ours, theirs)])
    return stats.chi2_contingency(table[:, table.sum(0) > 0]).pvalue


@pytest.mark.parametrize(
    ("sides", "scale", "ratio"),
    [
        ((32, 32), (0.2, 1.0), (3 / 4, 4 / 3)),
        ((96, 80), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((40, 64), (0.6, 1.0), (3 / 4, 4 / 3)),  # most first tries do not fit
        ((24, 64), (0.45, 0.7), (1.0, 1.5)),  # only wide crops fit; a third of the draws falls back to the central crop
    ],
)
def test_crops_are_drawn_as_torchvision_draws_them(sides, scale, ratio):
    n, recipe = 4000, Recipe(32, crop_scale=scale, crop_ratio=ratio)
    ours = torch.stack(views.draw_crops(n, *sides, recipe, seeded(0))).double().numpy()
    torch.manual_seed(1)
    crop, image = v2.RandomResizedCrop(32, scale, ratio), torch.empty(3, *sides)
    drawn = [crop.make_params([image]) for _ in range(n)]
    theirs = np.array([[d[key] for d in drawn] for key in ("top", "left", "height", "width")], dtype=float)

    def numbers(crops):
        top, left, h, w = crops
        place = (top + 0.5) / (sides[0] - h + 1) - (left + 0.5) / (sides[1] - w + 1)
        return [*crops, h * w, w / h, place]

    for k, (a, b) in enumerate(zip(numbers(ours), numbers(theirs), strict=True)):
        assert stats.ks_2samp(a, b, method="asymp").pvalue > P_VALUE, k
        assert p_value_of_equality(a, b) > P_VALUE, k


@given(
    sides=st.tuples(st.integers(1, 80), st.integers(1, 80)), seed=st.integers(0, 2**31),
    scale=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted),
    ratio=st.tuples(st.floats(0.2, 5), st.floats(0.2, 5)).map(sorted),
)  # fmt: skip
def test_crops_are_whole_pixels_inside_the_image(sides, scale, ratio, seed):
    crops = torch.stack(views.draw_crops(50, *sides, Recipe(8, crop_scale=scale, crop_ratio=ratio), seeded(seed)))
    assert torch.equal(crops, crops.round())
    assert crops[:2].min() >= 0
    assert ((crops[:2] + crops[2:]).amax(1) <= torch.tensor(sides)).all()


def test_crops_that_never_fit_are_central():
    scale, ratio = (1.0, 1.0), (1.0, 1.5)
    for sides, expected in (((20, 64), [0, 17, 20, 30]), ((64, 20), [22, 0, 20, 20])):
        drawn = [int(d[0]) for d in views.draw_crops(1, *sides, Recipe(32, scale, ratio), seeded(0))]
        params = v2.RandomResizedCrop(32, scale, ratio).make_params([torch.empty(3, *sides)])
        assert drawn == [params[key] for key in ("top", "left", "height", "width")] == expected


@pytest.mark.parametrize("jitter", [(0.4, 0.4, 0.2, 0.1), (0.8, 1.5, 0.0, 0.5)])
def test_jitter_is_drawn_as_torchvision_draws_it(jitter):
    order, factors = views.draw_jitter(4000, Recipe(32, jitter=jitter), seeded(0))
    torch.manual_seed(1)
    theirs = [v2.ColorJitter(*jitter).make_params([]) for _ in range(4000)]
    for op, name in enumerate(("brightness", "contrast", "saturation", "hue")):
        if jitter[op] == 0:
            assert (factors[:, op] == (0 if name == "hue" else 1)).all()
        else:
            drawn = [d[f"{name}_factor"] for d in theirs]
            assert stats.ks_2samp(factors[:, op].numpy(), drawn, method="asymp").pvalue > P_VALUE, name
    orders = (map(tuple, order.tolist()), (tuple(d["fn_idx"].tolist()) for d in theirs))
    counts = [[counted[each] for each in permutations(range(4))] for counted in map(Counter, orders)]
    assert stats.chisquare(counts[0]).pvalue > P_VALUE
    assert stats.chi2_contingency(counts).pvalue > P_VALUE


GRADIENT = torch.arange(3 * 64, dtype=torch.uint8).view(1, 3, 8, 8)


@pytest.mark.parametrize("probability", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("stage", ["flip", "jitter_p", "grayscale", "blur", "solarize"])
def test_a_stage_changes_a_sample_with_its_probability(stage, probability):
    n = 2000
    recipe = replace(STILL, **{stage: probability}, solarize_threshold=0.1, blur_sigma=(1, 2))
    x = GRADIENT.expand(n, -1, -1, -1)
    changed = (views.augment(x, recipe, seeded(0)) != x.float() / 255).flatten(1).any(1).sum().item()
    assert stats.binomtest(changed, n, probability).pvalue > P_VALUE
    for certain in (0.0, 1.0):
        view = views.augment(x[:50], replace(recipe, **{stage: certain}), seeded(0))
        assert ((view != x[:50].float() / 255).flatten(1).any(1) == bool(certain)).all()


@pytest.mark.parametrize(
    ("op", "changes", "low", "high"),
    [("rotate", {"rotation": 20}, -20, 20), ("gaussian_blur", {"blur": 1, "blur_sigma": (0.1, 2)}, 0.1, 2)],
)
def test_angles_and_widths_are_uniform(monkeypatch, op, changes, low, high):
    drawn = []
    monkeypatch.setattr(ops, op, lambda images, parameter, *_: drawn.append(parameter) or images)
    views.augment(GRADIENT.expand(2000, -1, -1, -1), replace(STILL, **changes), seeded(0))
    assert stats.kstest(drawn[0].numpy(), stats.uniform(low, high - low).cdf).pvalue > P_VALUE


# --- views -----------------------------------------------------------------------------------------------------------


def test_augment_agrees_with_torchvision_in_mean_and_spread():
    n, mean, std = 1200, (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
    recipe = Recipe(12, blur=0.5, solarize=0.2, solarize_threshold=0.6, rotation=15, mean=mean, std=std)
    image = bytes_of((1, 3, 4, 4), seed=5).float()
    image = torch.nn.functional.interpolate(image, (16, 20), mode="bilinear").byte()
    jitter, blur = v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.GaussianBlur(3, (0.1, 2.0))
    geometric = [v2.RandomResizedCrop(12, (0.2, 1.0)), v2.RandomHorizontalFlip(), v2.RandomRotation(15)]
    colours = [v2.RandomApply([jitter], 0.8), v2.RandomGrayscale(0.2), v2.RandomApply([blur], 0.5)]
    last = [v2.RandomSolarize(0.6, 0.2), v2.Normalize(mean, std)]
    pipeline = v2.Compose([v2.ToDtype(torch.float32, scale=True), *geometric, *colours, *last])
    torch.manual_seed(1)
    theirs = torch.stack([pipeline(image[0]) for _ in range(n)]).flatten(1)
    ours = views.augment(image.expand(n, -1, -1, -1), recipe, seeded(0)).flatten(1)

    def channels(x):
        """The mean of the next channel, for each pixel."""
        return x.view(n, 3, -1).mean(2, keepdim=True).roll(1, 1).expand(-1, -1, x.shape[1] // 3).flatten(1)

    for moment in (lambda x: x, lambda x: (x - theirs.mean(0)) ** 2, lambda x: x * channels(x)):
        a, b = moment(ours), moment(theirs)
        z = (a.mean(0) - b.mean(0)) / ((a.var(0) + b.var(0)) / n).sqrt()
        assert z.abs().max() < 4.5
        assert z.square().mean() < 3
    assert channels(ours).std() > 0.1


def test_the_stages_come_in_the_order_of_the_recipe(monkeypatch):
    called = []
    stages = ["resized_crop", "rotate", "color_jitter", "grayscale", "gaussian_blur", "solarize"]
    for stage in stages:
        monkeypatch.setattr(ops, stage, lambda images, *_, stage=stage: called.append(stage) or images)
    recipe = Recipe(8, jitter_p=1, grayscale=1, blur=1, solarize=1, rotation=10, mean=(0.5,), std=(0.25,))
    x = bytes_of((2, 3, 8, 8))
    assert torch.equal(views.augment(x, recipe, seeded(0)), (x.float() / 255 - 0.5) / 0.25)
    assert called == stages


@given(
    shape=st.tuples(st.integers(0, 7), st.sampled_from([1, 3]), st.integers(10, 20), st.integers(10, 20)),
    cropped=st.booleans(), layout=st.sampled_from([torch.contiguous_format, torch.channels_last]),
    seed=st.integers(0, 2**31),
)  # fmt: skip
def test_views_are_contiguous_floats_that_depend_on_the_generator_alone(shape, cropped, layout, seed):
    recipe = Recipe(10, blur=0.5, solarize=0.5, rotation=10, mean=[0.5], std=[0.5])
    recipe = recipe if cropped else replace(recipe, crop_scale=None)
    x = bytes_of(shape).to(memory_format=layout)
    before, names = x.clone(), ("augment", "plain", "rotate", "other")
    first, turns = views.make_views(x, names, recipe, seeded(seed))
    for view in first:
        assert (view.shape, view.dtype) == ((*shape[:2], 10, 10), torch.float32)
        assert view.is_contiguous()
        assert view.isfinite().all()
    assert torch.equal(x, before)
    torch.rand(3)  # the global generator does not matter
    second, same_turns = views.make_views(x, names, recipe, seeded(seed))
    assert all(map(torch.equal, (*first, turns), (*second, same_turns)))


GOLDEN = [
    ((10, 12), {}, 754966710, [0.219896, 0.153728, 0.325319, 0.158353, 0.156922, 0.219267]),
    ((8, 8), {"crop_scale": None, "jitter_p": 0.5, "jitter": (0.8, 0.4, 0.0, 0.5), "blur": 0.5, "solarize": 0.5,
              "rotation": 30, "mean": (0.5,), "std": (0.25,)},
     1944945571, [-0.420572, -0.686038, 0.392865, 0.258117, -0.13261, 0.179123]),
    ((10, 12), {"flip": 0, "jitter": (0, 0, 0, 0), "grayscale": 0, "blur": 1},
     1728245397, [0.219896, 0.244411, 0.237573, 0.242748, 0.243443, 0.237508]),
]  # fmt: skip


@pytest.mark.parametrize(("sides", "changes", "following", "means"), GOLDEN, ids=["default", "all", "few"])
def test_the_results_of_a_seed_are_pinned(sides, changes, following, means):
    """Committed results depend on them: the pixels, weighted by their position, and the next random number."""
    generator = seeded(7)
    view = views.augment(bytes_of((6, 3, *sides)), Recipe(8, **changes), generator)
    ramp = torch.linspace(0, 1, 3 * 8 * 8).view(3, 8, 8)
    assert (view * ramp).mean((1, 2, 3)).tolist() == pytest.approx(means, abs=2e-6)
    assert int(torch.randint(2**31, (), generator=generator)) == following


def test_augment_is_draw_and_apply():
    x, recipe = bytes_of((40, 3, 14, 11)), Recipe(10, blur=0.5, solarize=0.5, rotation=10, mean=[0.5], std=[0.5])
    generator = seeded(3)
    first, second = views.augment(x, recipe, generator), views.augment(x, recipe, generator)
    assert not torch.equal(first, second)  # another state, another view
    drawn = views.draw(40, 14, 11, recipe, seeded(3))
    state = torch.random.get_rng_state()
    for _ in range(2):  # pure
        assert torch.equal(first, views.apply(x, drawn, recipe))
    assert torch.equal(torch.random.get_rng_state(), state)
    for changes, left_out in (
        ({"crop_scale": None}, set()),  # another size: the crop is the whole image
        ({"jitter_p": 0}, {"jitter"}),
        ({"jitter": (0, 0, 0, 0)}, {"jitter"}),
        ({"grayscale": 0, "blur": 0, "solarize": 0, "rotation": 0}, {"gray", "blur", "solarize", "degrees"}),
    ):
        drawn = views.draw(40, 14, 11, replace(recipe, **changes), seeded(3))
        assert {name for name, value in drawn._asdict().items() if value is None} == left_out | {"offset"}
    offset = views.draw(500, 14, 11, replace(recipe, pad=2), seeded(3)).offset
    assert sorted(set(offset.flatten().tolist())) == [-2, -1, 0, 1, 2]
    assert views.draw(40, 10, 10, replace(recipe, crop_scale=None), seeded(3)).crops is None


def test_plain_resizes_and_normalises():
    x, recipe = bytes_of((6, 3, 12, 17)), Recipe(9, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    expected = tv.normalize(tv.resize(x.float() / 255, [9, 9], antialias=True), recipe.mean, recipe.std)
    close(views.plain(x, recipe), expected, atol=2e-5)
    assert torch.equal(views.plain(x[..., :8, :8], STILL), x[..., :8, :8].float() / 255)


def test_make_views_by_name():
    x, recipe, names = bytes_of((5, 3, 12, 12)), Recipe(12), ["augment", "augment", "plain", "rotate"]
    made, turns = views.make_views(x, names, recipe, seeded(0))
    generator = seeded(0)
    augmented = [views.augment(x, recipe, generator) for _ in range(3)]
    quarters = torch.randint(4, (5,), generator=generator)
    expected = (*augmented[:2], views.plain(x, recipe), ops.quarter_turns(augmented[2], quarters))
    assert all(map(torch.equal, (*made, turns), (*expected, quarters)))
    assert views.make_views(x, ("plain",), recipe, generator)[1] is None
    assert views.make_views(x, (), recipe, generator) == ((), None)
    halves = views.make_views(x, names, recipe, seeded(0), lambda *given: views.apply(*given) / 2)[0]
    assert all(map(torch.equal, halves, (made[0] / 2, made[1] / 2, made[2], made[3] / 2)))
    turns = views.make_views(bytes_of((800, 3, 8, 8)), ("rotate",), STILL, seeded(0))[1]
    assert stats.chisquare(turns.bincount(minlength=4).numpy()).pvalue > P_VALUE


def test_the_other_view_shows_other_images():
    x, others, still = bytes_of((9, 3, 12, 12)), bytes_of((9, 3, 12, 12), seed=1), replace(STILL, size=12)
    made, _ = views.make_views(x, ("augment", "other"), still, seeded(0), None, others)
    assert all(map(torch.equal, made, (views.plain(x, still), views.plain(others, still))))
    ((permuted,), _) = views.make_views(x, ("other",), still, seeded(0))
    images = views.plain(x, still)
    positions = [next(i for i in range(9) if torch.equal(images[i], image)) for image in permuted]
    assert sorted(positions) == list(range(9)) != positions


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda x: views.make_views(x, ("plain", "augmented"), STILL, seeded(0)),
         "unknown view 'augmented'; known views: augment, crop, local, plain, rotate, other"),
        (lambda x: views.make_views(x, ("rotate", "rotate"), STILL, seeded(0)), "contain 'rotate' twice; give it once"),
        (lambda x: views.augment(x.float(), STILL, seeded(0)),
         "images are torch.float32 [2, 3, 8, 8]; give uint8 [B, C, H, W]"),
        (lambda x: views.plain(x.mT[:, :2], STILL), "images are torch.uint8 [2, 2, 8, 8]; give uint8 [B, C, H, W]"),
        (lambda x: views.plain(x[:, :1], replace(STILL, mean=(0.1, 0.2, 0.3), std=(1, 1, 1))),
         "views.mean is (0.1, 0.2, 0.3), the images have 1 channels; give 1 or as many"),
    ],
)  # fmt: skip
def test_wrong_images_and_unknown_views_are_errors(make, line):
    with refused(re.escape(line), ViewError):
        make(bytes_of((2, 3, 8, 8)))


def test_a_view_of_crop_keeps_the_colours_of_the_image():
    """It is the view of a recipe without the stages of colour and blur."""
    recipe = Recipe(8, jitter_p=1.0, grayscale=0.5, blur=0.5, solarize=0.5)
    plain = Recipe(8, jitter_p=0.0, grayscale=0.0)
    images = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8, generator=seeded(3))
    (crop,), _ = views.make_views(images, ("crop",), recipe, seeded(0))
    torch.testing.assert_close(crop, views.augment(images, plain, seeded(0)))
    assert not torch.equal(crop, views.augment(images, recipe, seeded(0)))


def test_a_local_view_is_a_smaller_crop():
    """A horizontal ramp: a view of a small crop spans a small part of its values."""
    ramp = torch.arange(0, 256, 4, dtype=torch.uint8).expand(40, 3, 64, 64).contiguous()
    recipe = Recipe(64, crop_scale=(0.9, 1.0), jitter_p=0.0, grayscale=0.0, local_scale=(0.05, 0.1))
    (whole, local), _ = views.make_views(ramp, ("augment", "local"), recipe, seeded(0))
    spans = [(view.amax((1, 2, 3)) - view.amin((1, 2, 3))) for view in (whole, local)]
    assert spans[1].max() < 0.45 < 0.75 < spans[0].min()
    assert local.shape == whole.shape


# --- recipes ----------------------------------------------------------------------------------------------------------


def test_a_recipe_accepts_lists_for_tuples():
    listed = Recipe(32, crop_scale=[0.2, 1], jitter=[0.4, 0.4, 0.4, 0.1], mean=[0.5], std=[0.5])
    assert listed == Recipe(32, crop_scale=(0.2, 1), mean=(0.5,), std=(0.5,))
    assert hash(listed)


PROBABILITY, RANGE = "a probability in [0, 1]", "(low, high) with 0 < low <= high"
STRENGTHS, KERNEL = "four strengths >= 0, the last (hue) <= 0.5", "odd, >= 1 and below twice the size"
PIXELS, PAD = "a whole number of pixels, at least 1", "a whole number of pixels below the size"
BOUNDS = {
    "size": (PIXELS, 0, 8.5),
    "flip": (PROBABILITY, 1.5),
    "jitter_p": (PROBABILITY, -0.1),
    "grayscale": (PROBABILITY, "often"),
    "blur": (PROBABILITY, float("nan")),
    "solarize": (PROBABILITY, 2),
    "solarize_threshold": ("an intensity in [0, 1]", 128),
    "crop_scale": (f"{RANGE} <= 1, or null", (0, 1), (0.9, 0.2), (0.2, 1.1), 0.5),
    "local_scale": (f"{RANGE} <= 1", (0.2, 1.1), None),
    "crop_ratio": (RANGE, (4 / 3, 0.75)),
    "blur_sigma": (RANGE, (0.0, 2.0)),
    "interpolation": ("bilinear or bicubic", "nearest"),
    "jitter": (STRENGTHS, (0.4, 0.4, 0.4, 0.6), (0.4, 0.4, 0.4), (0.4, -1, 0.4, 0.1), (float("inf"), 0, 0, 0)),
    "pad": (PAD, -1, 32),
    "pad_mode": ("reflect or zero", "edge"),
    "blur_kernel": (KERNEL, 4, 65),
    "rotation": ("an angle in [0, 180] degrees", -15),
    "mean": ("one number a channel, or null", 0.5),
    "std": ("one number > 0 a channel, or null", (0.0,)),
}
"""Key of a recipe -> what it must be, and values that it cannot be."""


@pytest.mark.parametrize("key", BOUNDS)
def test_impossible_recipes_are_errors_of_one_line(key):
    bounds, *values = BOUNDS[key]
    for value in values:
        with refused(f"^{re.escape(f'views.{key} is {value!r}; it must be {bounds}')}$", ViewError):
            Recipe(**{"size": 32, key: value})


def test_mean_and_std_come_together():
    for mean, std in (((0.5,), None), (None, (0.5,)), ((0.5,), (0.5, 0.5))):
        line = f"views.mean is {mean}, views.std {std}; give both, of one length, or neither"
        with refused(re.escape(line), ViewError):
            Recipe(32, mean=mean, std=std)
