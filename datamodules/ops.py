"""Image operations on a whole batch with explicit parameters per sample; torchvision does them image by image.

Images are float `[B, C, H, W]` in [0, 1] with one or three channels; results equal torchvision's functional operations.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)  # the colour operations, in the order of `Recipe.jitter`


def resized_crop(
    images: Tensor,
    top: Tensor,
    left: Tensor,
    height: Tensor,
    width: Tensor,
    size: int,
    mirror: Tensor | None = None,
    interpolation: str = "bilinear",
) -> Tensor:
    """Crop, resize to `[B, C, size, size]` (antialiased), and mirror where `mirror`, bool `[B]`, is set.

    `top`, `left`, `height` and `width` are `[B]` pixels; the crop lies inside the image. interpolation: "bilinear", or
    "bicubic", whose overshoot beyond [0, 1] is cut off.
    """
    box = [top, left, height, width]
    y, x, h, w, *mirrored = send(torch.stack([*box, mirror] if mirror is not None else box).to(images.dtype), images)
    mirror = mirrored[0] > 0 if mirrored else None
    rows = resampling(y, h, images.shape[2], size, interpolation=interpolation)
    columns = resampling(x, w, images.shape[3], size, mirror, interpolation)
    resized = separable(images, rows, columns)
    return resized.clamp_(0, 1) if interpolation == "bicubic" else resized


def shift(images: Tensor, offset: Tensor, fill: str) -> Tensor:
    """Shift images of any dtype by whole pixels: pixel (y, x) becomes the one at (y + dy, x + dx) of the source.

    offset: int64 `[B, 2]`, dy and dx, smaller than the image. fill: beyond the edge, "reflect" or "zero".
    """
    for dim, distance in ((2, offset[:, 0]), (3, offset[:, 1])):
        last = images.shape[dim] - 1
        unbounded = torch.arange(last + 1, device=images.device) + send(distance, images)[:, None]
        source = last - (last - unbounded.abs()).abs()  # reflected at both edges, unchanged inside
        shape = (len(images), 1, last + 1, 1) if dim == 2 else (len(images), 1, 1, last + 1)
        moved = images.gather(dim, source.view(shape).expand(images.shape))
        images = moved * (unbounded == source).view(shape).to(moved.dtype) if fill == "zero" else moved
    return images


def resampling(
    start: Tensor,
    length: Tensor,
    extent: int,
    size: int,
    mirror: Tensor | None = None,
    interpolation: str = "bilinear",
) -> Tensor:
    """Resampling matrix `[B, size, extent]`: weights of each output pixel over the source, zero outside the crop.

    A kernel around the output pixel's centre, cut at the crop's edges and scaled to sum to one. Its unit of length is
    the larger of a source and an output pixel: "bilinear", a triangle of half-width 1; "bicubic", Keys' kernel of
    half-width 2 with a = -0.5 (Keys 1981, eq. 15), as in Pillow.
    """
    start, length = start[:, None, None], length[:, None, None]
    scale = length / size
    centre = (torch.arange(size, device=start.device) + 0.5)[:, None] * scale
    if mirror is not None:
        centre = torch.where(mirror[:, None, None], length - centre, centre)
    source = torch.arange(extent, device=start.device) + 0.5 - start
    distance = (source - centre).abs_().div_(scale.clamp(min=1))
    weight = keys(distance) if interpolation == "bicubic" else distance.neg_().add_(1).clamp_(min=0)
    weight *= (source > 0) & (source < length)
    return weight.div_(weight.sum(2, keepdim=True))


def keys(distance: Tensor) -> Tensor:
    """Keys' cubic kernel with a = -0.5, of distances >= 0."""
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))


def separable(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """`rows[b] @ images[b, c] @ columns[b].T`, in full precision even under autocast: half would change the pixels."""
    with torch.autocast(images.device.type, enabled=False):
        wide = torch.bmm(images.flatten(1, 2), columns.mT).unflatten(1, images.shape[1:3])
        # channel by channel, because a broadcast product would copy the rows for each
        return torch.stack([torch.bmm(rows, channel) for channel in wide.unbind(1)], 1)


def horizontal_flip(images: Tensor, mask: Tensor) -> Tensor:
    """Mirror the images whose bool `mask` `[B]` is set."""
    return torch.where(per_sample(mask), images.flip(3), images)


def adjust_hue(images: Tensor, factor: Tensor) -> Tensor:
    """Shift the hue by `factor` `[B]` turns, in [-0.5, 0.5], at the same HSV value and saturation.

    One channel has no hue and stays as it is.
    """
    if images.shape[1] == 1:
        return images
    low, chroma, fractions = turn_hue(images.split(1, 1), per_sample(factor))
    fraction = torch.cat(fractions, 1).clamp_(0, 1)
    return torch.addcmul(low, chroma, fraction, out=fraction)


def turn_hue(channels: Sequence[Tensor], turns: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Red, green, blue and turns -> low and chroma, which a hue shift keeps, and a fraction for each shifted channel.

    A shifted channel is low + chroma x its fraction, the fraction clamped to [0, 1].
    """
    red, green, blue = channels
    high, low = red.maximum(green).maximum(blue), red.minimum(green).minimum(blue)
    chroma = high - low
    # distance from red, 0 to 3, along the hexagon of hues with side 1; its sign is the side: green's or blue's
    from_red = (green + blue).sub_(red).add_(high).sub_(low, alpha=2).div_(chroma.clamp(min=1e-12))
    h = from_red.copysign_(green - blue).add_(6 * turns)
    h.sub_((h / 6).floor_(), alpha=6)
    return low, chroma, [(h - 3).abs_().sub_(1), 2 - (h - 2).abs_(), 2 - (h - 4).abs_()]


def color_jitter(images: Tensor, order: Tensor, factors: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue, in an order given per image.

    Factor f blends the image with a target, f x image + (1 - f) x target, clamped to [0, 1]: black for brightness, the
    mean luma for contrast, the luma for saturation. The k-th blend runs on many images at once: when the images are
    sorted by the position of the hue in their order, last first, those with the k-th blend before the hue are a slice,
    and so are the others. Images already sorted by `hue_last_first` are not copied.

    Args:
        images: `[B, C, H, W]`.
        order: int64 `[B, 4]` on the CPU, a permutation of BRIGHTNESS, CONTRAST, SATURATION and HUE a row.
        factors: `[B, 4]` on the CPU; column i belongs to operation i, whatever its position.
    """
    hue_position = (order == HUE).int().argmax(1)
    if (hue_position.diff() > 0).any():
        rank = hue_last_first(order)
        sorted_images = color_jitter(images[send(rank, images)], order[rank], factors[rank])
        return sorted_images[send(rank.argsort(), images)]
    ops = order[order != HUE].view(-1, 3)
    cuts = [int((hue_position > k).sum()) for k in range(3)]
    # in one copy to the device
    table = torch.cat([ops, factors.gather(1, ops), factors[:, HUE:]], 1).T.to(images.dtype)
    kinds, strengths, (hue,) = send(table, images).split([3, 3, 1])
    blends = list(zip(cuts, kinds, strengths, strict=True))
    x = torch.empty_like(images)
    x[cuts[0] :] = images[cuts[0] :]
    for k, (cut, op, factor) in enumerate(blends):
        _blend_by_op(x[:cut] if k else images[:cut], op[:cut], factor[:cut], out=x[:cut])
    if factors[:, HUE].any():
        x = adjust_hue(x, hue)
    for cut, op, factor in blends:
        _blend_by_op(x[cut:], op[cut:], factor[cut:], out=x[cut:])
    return x


def hue_last_first(order: Tensor) -> Tensor:
    """Permutation `[B]` that sorts the rows of `color_jitter`'s `order` by the position of the hue, last first."""
    return (order == HUE).int().argmax(1).argsort(descending=True)


def _blend_by_op(images: Tensor, op: Tensor, factor: Tensor, out: Tensor) -> Tensor:
    gray = luma(images.split(1, 1))
    contrast = gray.mean((2, 3), keepdim=True) * per_sample(op == CONTRAST)
    target = torch.addcmul(contrast, gray, per_sample(op == SATURATION).to(gray.dtype))
    return torch.lerp(target, images, per_sample(factor), out=out).clamp_(0, 1)


def luma(channels: Sequence[Tensor]) -> Tensor:
    """ITU-R BT.601 luma of red, green and blue, rounded as in torchvision; a single channel is returned as it is."""
    if len(channels) == 1:
        return channels[0]
    red, green, blue = channels
    return (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def grayscale(images: Tensor) -> Tensor:
    """Images with the luma in every channel."""
    return luma(images.split(1, 1)).expand_as(images)


def gaussian_blur(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Blur by a `kernel` x `kernel` Gaussian of `sigma` `[B]` pixels, reflecting at the border.

    `kernel` is odd and below twice the image's sides.
    """
    weight = send(blur_weights(sigma.to(images.dtype), kernel), images)
    rows, columns = (blurring(weight, extent) for extent in images.shape[2:])
    return separable(images, rows, columns)


def blur_weights(sigma: Tensor, kernel: int) -> Tensor:
    """The `kernel` taps of a Gaussian of `sigma` `[B]` pixels, `[B, kernel]`, summing to one."""
    offset = torch.arange(kernel) - kernel // 2
    return torch.softmax(-0.5 * (offset / sigma[:, None]) ** 2, 1)


def blurring(weight: Tensor, extent: int) -> Tensor:
    """Matrix `[B, extent, extent]` of the convolution of `extent` pixels with `weight` `[B, kernel]`."""
    pixel, tap = (torch.arange(n, device=weight.device) for n in (extent, weight.shape[1]))
    source = (pixel[:, None] + tap - weight.shape[1] // 2).abs()
    source = extent - 1 - (extent - 1 - source).abs()
    return torch.einsum("bk,ikj->bij", weight, (source[:, :, None] == pixel).to(weight.dtype))


def solarize(images: Tensor, threshold: float) -> Tensor:
    """Invert the pixels of intensity `threshold` and above."""
    return torch.where(images >= threshold, 1 - images, images)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate counterclockwise about the centre by `degrees` `[B]`: nearest pixel, zeros outside."""
    height, width = images.shape[2:]
    angle = degrees.double().deg2rad()
    cos, sin = send(torch.stack([angle.cos(), angle.sin()]).to(images.dtype), images)[..., None, None]
    x = torch.arange(width, device=images.device) - (width - 1) / 2
    y = (torch.arange(height, device=images.device) - (height - 1) / 2)[:, None]
    grid = torch.stack([(x * cos - y * sin) * (2 / width), (x * sin + y * cos) * (2 / height)], 3)
    return F.grid_sample(images, grid, mode="nearest", align_corners=False)


def quarter_turns(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate square images by `turns` quarters counterclockwise, int64 `[B]` in {0, 1, 2, 3}; exact."""
    rotations = torch.stack([images.rot90(quarter, (2, 3)) for quarter in range(4)])
    return rotations[turns, torch.arange(len(images), device=images.device)]


def send(parameters: Tensor, images: Tensor) -> Tensor:
    """Copy parameters to the images' device, without waiting for it."""
    return parameters.to(images.device, non_blocking=True)


def per_sample(values: Tensor) -> Tensor:
    """Reshape `[B]` to `[B, 1, 1, 1]`."""
    return values.view(-1, 1, 1, 1)
