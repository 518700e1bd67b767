"""Figures of a run."""

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchvision.utils import make_grid

from benchmark.errors import count
from benchmark.tracking.axes import GREY, whole_numbers
from benchmark.tracking.curve import curve
from datamodules.federated import FederatedDataModule
from datamodules.heterogeneity import bubble_chart
from leaderboards.labels import drawable, short
from leaderboards.rank import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE, LEGEND = 4, 12
"""Most lines of a title, and names of a legend."""
BLUE, RUST, GREEN = "#2f6f9f", "#b5562b", "#5b9e6f"
X_AXES = {
    "round": ("round", 1, "not monitored"),
    "bytes": ("MB up and down, all clients", 1e6, "nothing is sent"),
    "seconds": ("seconds of training", 1, "nothing is trained"),
}
"""Key of a point -> label, unit, and the text of a panel without points."""
Y_AXES = {
    "loss": ("mean local loss", BLUE),
    "monitor": ("monitor (kNN, %)", RUST),
    "effective_rank": ("effective rank (dimensions)", BLUE),
    "alignment": ("alignment (lower is closer)", RUST),
    "uniformity": ("uniformity (nats, lower is wider)", GREEN),
}
"""Key of a point -> label and colour."""
PANELS = {
    "curves": (("round", "loss"), ("round", "monitor")),
    "costs": (("bytes", "monitor"), ("seconds", "monitor")),
    "geometry": (("round", "effective_rank"), ("round", "alignment"), ("round", "uniformity")),
}
"""Figure -> the axes of its panels, x and y."""


def of_run(
    history: Sequence[dict[str, Any]],
    data: FederatedDataModule,
    arrays: Mapping[str, Mapping[str, Mapping[str, Any]]],
    title: str,
    clients: Mapping[str, Cell] | None = None,
) -> dict[str, Callable[..., None]]:
    """Name -> function that draws the figure into a `path`, for all figures of a run.

    arrays: by encoder and protocol, the tensors that its evaluation saved. clients: their accuracies, see `by_client`.
    """
    source, points = data.source, curve(history)
    figures: dict[str, Callable[..., None]] = {
        "partition": partial(
            bubble_chart, source.train.labels, data.parts, classes=source.classes, names=data.parts.names, spelt=short
        ),
        "curves": partial(lines, "curves", history, title=title),
    }
    if points:
        figures["costs"] = partial(lines, "costs", points, title=title)
    if any("alignment" in point and "uniformity" in point for point in points):
        figures["geometry"] = partial(lines, "geometry", points, title=title)
        figures["plane"] = partial(plane, points, title=title)
    if clients:
        figures["clients"] = partial(accuracies, clients, title=title)
    of_clients = [saved["by-client"] for saved in arrays.values() if "by-client" in saved]
    if len(of_clients) == 1 and (named := (source.probe or source).test.clients) is not None:
        figures["by-client"] = partial(served, **of_clients[0], names=sorted(set(named.tolist())), title=title)
    for protocol, draw in (("spectrum", spectra), ("membership", membership)):
        if of_encoders := {name: saved[protocol] for name, saved in arrays.items() if protocol in saved}:
            figures[protocol] = partial(draw, of_encoders, title=title)
    for name, saved in arrays.items():
        for protocol, draw_one in (("inversion", inversion), ("shares", class_shares)):
            if protocol in saved:
                figures[protocol] = partial(draw_one, **saved[protocol], title=title)
        if (drawn := saved.get("embed")) is not None:
            file, subject = ("tsne", title) if name == "global" else (f"tsne-{name}", f"{title}: {name}")
            classes = (source.probe or source).classes
            figures[file] = partial(embedding, **drawn, classes=classes, title=f"t-SNE of test images, {subject}")
    return figures


def save(figures: Mapping[str, Callable[..., None]], folder: Path) -> dict[str, Path]:
    """Draws each figure into <folder>/<name>.png; returns the files by name."""
    from matplotlib import rc_context

    folder.mkdir(exist_ok=True)
    files = {name: folder / f"{name}.png" for name in figures}
    with rc_context({"text.parse_math": False}):  # a class may be called $x^2$
        for name, draw in figures.items():
            draw(path=files[name])
    return files


def lines(panels: str, points: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """The figure of PANELS by this name, from rows of the history or points of the monitor's curve."""
    rounds = [point["round"] for point in points]
    measured = {key for point in points for key in point}
    with _figure(path, title, len(PANELS[panels])) as all_axes:
        for axes, (x, y) in zip(all_axes, PANELS[panels], strict=True):
            if y == "monitor" and y not in measured and "effective_rank" in measured:  # images without labels
                y = "effective_rank"
            (xlabel, unit, empty), (ylabel, colour) = X_AXES[x], Y_AXES[y]
            drawn = [point for point in points if y in point] if any(point[x] for point in points) else []
            values = [float("nan") if point[y] is None else point[y] for point in drawn]
            axes.plot([point[x] / unit for point in drawn], values, "o-", markersize=3, color=colour)
            axes.set(xlabel=xlabel, ylabel=ylabel)
            low, high = axes.get_ylim()
            if y == "monitor" and high - low < 5:  # a change of half a point has to look small
                axes.set_ylim((low + high - 5) / 2, (low + high + 5) / 2)
            if x == "round":
                axes.set_xlim(min(rounds, default=1) - 0.5, max(rounds, default=1) + 0.5)
                whole_numbers(axes.xaxis)
            else:
                axes.set_xlim(left=0)
            if not drawn:
                axes.set(xticks=[], yticks=[])
                text = empty if points else "no round was played"
                axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color=GREY)


def plane(curve: Sequence[Mapping[str, float]], path: Path, title: str) -> None:
    """Uniformity against alignment, round after round: both fall where features get better (Wang & Isola 2020)."""
    points = [point for point in curve if "alignment" in point and "uniformity" in point]
    x, y = [point["uniformity"] for point in points], [point["alignment"] for point in points]
    with _figure(path, title) as (axes,):
        axes.plot(x, y, "-", color=GREY, linewidth=1)
        dots = axes.scatter(x, y, c=[point["round"] for point in points], cmap="viridis", s=18, zorder=2)
        ends = (points[0], points[-1]) if (x[0], y[0]) != (x[-1], y[-1]) else points[-1:]
        for point in ends:
            at = (point["uniformity"], point["alignment"])
            axes.annotate(f"round {point['round']:.0f}", at, xytext=(4, 4), textcoords="offset points", fontsize=8)
        axes.set(xlabel="uniformity (nats, lower spreads more)", ylabel="alignment (lower is closer)")
        bar = axes.figure.colorbar(dots, ax=axes, label="round")
        whole_numbers(bar.ax.yaxis)


def spectra(encoders: Mapping[str, Mapping[str, Tensor]], path: Path, title: str) -> None:
    """Singular values `[r]` of each encoder's centred test features, over their largest. encoders: name -> values."""
    from matplotlib.ticker import NullFormatter

    with _figure(path, title) as (axes,):
        for name, saved in encoders.items():
            relative = (saved["values"] / saved["values"][0].clamp(min=1e-300)).clamp(min=1e-12)
            axes.semilogy(range(1, len(relative) + 1), relative.tolist(), linewidth=1.4, label=_named(name))
        axes.yaxis.set_major_formatter("{x:g}")  # matplotlib's own is a formula, which is not parsed
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="singular value, by size", ylabel="relative to the largest")
        if 1 < len(encoders) <= LEGEND:
            axes.legend(frameon=False, fontsize=8)


def accuracies(clients: Mapping[str, Cell], path: Path, title: str) -> None:
    """The accuracy of each client of a protocol in percent, the worst at the top, and a line at their mean."""
    values = [cell.mean for cell in clients.values()]
    with _figure(path, f"{title}: accuracy by client", height=1.4 + 0.22 * len(values)) as (axes,):
        mean = sum(values) / len(values)
        axes.axvline(mean, color=GREY, linewidth=1)
        axes.hlines(range(len(values)), mean, values, color=BLUE, linewidth=1.4)
        axes.plot(values, range(len(values)), "o", markersize=4, color=BLUE)
        axes.set_yticks(range(len(values)), [_named(client) for client in clients])
        axes.set(xlabel="accuracy on the client's test images (%); grey: mean", ylim=(len(values) - 0.5, -0.5))


def served(
    clients: Tensor, accuracy: Tensor, unseen: Tensor, images: Tensor, names: Sequence[str], path: Path, title: str
) -> None:
    """The accuracy of all clients in percent, the worst at the left, by its name and size; the never trained apart.

    clients, accuracy, unseen, images: `[K]`, as `eval.clients.served` saves them. names: of which `clients` are
    positions.
    """
    with _figure(path, f"{title}: what each client gets") as (axes,):
        kinds = ((~unseen, BLUE, "trains"), (unseen, RUST, "never trained"))
        for chosen, colour, word in (kind for kind in kinds if kind[0].any()):
            values, order = accuracy[chosen].sort()
            worst, size = short(names[int(clients[chosen][order[0]])]), images[chosen][order[0]]
            label = f"{word} ({len(values):,}), worst: {worst}, {count(int(size), 'test image')}"
            places = torch.linspace(0, 100, len(values)).tolist()
            axes.plot(places, values.tolist(), "o-", markersize=3, linewidth=1, color=colour, label=label)
        axes.set(xlabel="clients, the worst first (%)", ylabel="test accuracy by client (%)")
        axes.legend(frameon=False, fontsize=8)


def membership(attacks: Mapping[str, Mapping[str, Tensor]], path: Path, title: str) -> None:
    """Training images found against others taken for them, by encoder; beside it those that the attack is surest of.

    attacks: encoder -> the arrays of `eval.membership.membership`; the images are the first encoder's.
    """
    with _figure(path, f"{title}: training images found by their views", 2) as (axes, pictures):
        for name, saved in attacks.items():
            members, others = saved["members"], saved["others"]
            thresholds = torch.cat([members, others]).unique().flip(0)
            found, false = (100 * (side[:, None] >= thresholds).double().mean(0) for side in (members, others))
            axes.plot([0, *false.tolist()], [0, *found.tolist()], linewidth=1.4, label=_named(name))
        axes.plot([0, 100], [0, 100], "--", linewidth=1, color=GREY)
        axes.set(xlabel="test images taken for them (%)", ylabel="training images found (%)", aspect="equal")
        if 1 < len(attacks) <= LEGEND:
            axes.legend(frameon=False, fontsize=8)
        images = next(iter(attacks.values()))["surest"]
        _pictures(pictures, images, math.ceil(math.sqrt(len(images))), 255)
        pictures.set(xlabel="found most surely")


def inversion(truth: Tensor, guesses: Tensor, path: Path, title: str) -> None:
    """A client's views `[n, C, H, W]` in [0, 1], and below each what was reconstructed of it."""
    with _figure(path, f"{title}: a client's views, and what its reply tells of them") as (axes,):
        _pictures(axes, torch.cat([truth, guesses]), len(truth), 1)


def class_shares(truth: Tensor, read: Tensor, path: Path, title: str) -> None:
    """Class shares of clients `[K, C]`, true ones and those read from their replies; a row a client."""
    with _figure(path, f"{title}: classes of clients, and what their replies tell of them", 2) as panels:
        for axes, values, name in zip(panels, (truth, read), ("true", "read"), strict=True):
            axes.imshow(values.numpy(), vmin=0, vmax=1, cmap="Blues", aspect="auto", interpolation="nearest")
            axes.set(xlabel=f"class, {name} shares", ylabel="client" if name == "true" else "", yticks=[])
            axes.spines[["left", "bottom"]].set_visible(False)


def embedding(places: Tensor, labels: Tensor, classes: Sequence[str], path: Path, title: str) -> None:
    """Test features in the plane `[n, 2]`, coloured by class."""
    with _figure(path, title, height=4.4) as (axes,):
        for label in labels.unique().tolist():
            x, y = places[labels == label].T
            axes.plot(x, y, ".", markersize=3, color=_colour(label, len(classes)), label=_named(classes[label]))
        axes.set(xticks=[], yticks=[], aspect="equal")
        axes.spines[["left", "bottom"]].set_visible(False)  # coordinates mean nothing, only distances to near points
        if len(classes) <= 20:
            axes.legend(frameon=False, fontsize=7, markerscale=3, loc="center left", bbox_to_anchor=(1, 0.5))


def scatter(points: Sequence[tuple[float, float]], path: Path, title: str) -> str:
    """The label-free score of each point of a grid against its kNN accuracy (Orchestra, Figure 4).

    Returns the correlations as one line: Pearson's of the values and Spearman's of their ranks.
    """
    from scipy.stats import pearsonr, spearmanr

    x, y = ([point[index] for point in points] for index in (0, 1))
    correlation = "too few points to correlate"
    if len(points) > 2 and len(set(x)) > 1 and len(set(y)) > 1:  # two points are always in line
        values, ranks = pearsonr(x, y)[0], spearmanr(x, y)[0]
        correlation = f"score and kNN accuracy correlate by {values:.2f}, their ranks by {ranks:.2f}"
    with _figure(path, f"{title}: {correlation}") as (axes,):
        axes.plot(x, y, "o", markersize=4, color=BLUE)
        axes.set(xlabel="label-free score (alignment + 0.2 uniformity)", ylabel="kNN accuracy (%)")
        axes.locator_params(axis="x", nbins=5)
    return correlation


def _pictures(axes: "Axes", images: Tensor, columns: int, white: int) -> None:
    """Draws images `[n, C, H, W]` in rows; white: the value of the lines between them."""
    axes.imshow(make_grid(images, nrow=columns, padding=1, pad_value=white).permute(1, 2, 0).numpy())
    axes.set(xticks=[], yticks=[])
    axes.spines[["left", "bottom"]].set_visible(False)


def _named(name: str) -> str:
    """A name in a legend, which would leave out one that begins with an underscore."""
    return f" {short(name)}" if name.startswith("_") else short(name)


def _colour(label: int, classes: int) -> Any:
    from matplotlib import colormaps

    size = 10 if classes <= 10 else 20
    return colormaps[f"tab{size}"](label % size)


@contextmanager
def _figure(path: Path, title: str, panels: int = 1, height: float = 3) -> "Iterator[list[Axes]]":
    """The panels of a figure, which is written when they are drawn."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(5, 3.5 * panels), height), layout="constrained")
    lines = textwrap.wrap(drawable(title), int(13 * figure.get_figwidth()), max_lines=TITLE, placeholder="\u2026")
    text = figure.suptitle("\n".join(lines), fontsize=10)
    text.set_fontsize(10 * min(1.0, 0.98 * figure.bbox.width / max(1.0, text.get_window_extent().width)))
    all_axes = list(figure.subplots(1, panels, squeeze=False)[0])
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
    yield all_axes
    figure.savefig(path, dpi=120)
