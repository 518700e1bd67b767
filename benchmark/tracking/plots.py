"""Figures of a run."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from benchmark.tracking.record import curve
from datamodules.federated import FederatedDataModule
from datamodules.heterogeneity import bubble_chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, RUST, GREEN, GREY = "#2f6f9f", "#b5562b", "#5b9e6f", "#777777"
Point = Mapping[str, float]


def of_run(
    history: Sequence[dict[str, Any]],
    data: FederatedDataModule,
    arrays: Mapping[str, Mapping[str, Mapping[str, Tensor]]],
    title: str,
) -> dict[str, Callable[..., None]]:
    """Name -> function that draws the figure into a `path`, for all figures of a run.

    arrays: by encoder and protocol, those that its evaluation saved.
    """
    source, points = data.source, curve(history)
    figures: dict[str, Callable[..., None]] = {
        "partition": partial(bubble_chart, source.train.labels, data.parts, classes=source.classes),
        "curves": partial(curves, history, title=title),
    }
    if points:
        figures["costs"] = partial(costs, points, title=title)
    if any("alignment" in point for point in points):
        figures["geometry"] = partial(geometry, points, title=title)
    if any("alignment" in point and "uniformity" in point for point in points):
        figures["plane"] = partial(plane, points, title=title)
    if values := {name: saved["spectrum"]["values"] for name, saved in arrays.items() if "spectrum" in saved}:
        figures["spectrum"] = partial(spectra, values, title=title)
    for name, saved in arrays.items():
        if (points_2d := saved.get("embed")) is not None:
            file, subject = ("tsne", title) if name == "global" else (f"tsne-{name}", f"{title}: {name}")
            drawn = (points_2d["places"], points_2d["labels"], source.classes)
            figures[file] = partial(embedding, *drawn, title=f"t-SNE of test images, {subject}")
    return figures


def save(figures: Mapping[str, Callable[..., None]], folder: Path) -> dict[str, Path]:
    """Draws each figure into <folder>/<name>.png; returns the files by name."""
    folder.mkdir(exist_ok=True)
    files = {name: folder / f"{name}.png" for name in figures}
    for name, draw in figures.items():
        draw(path=files[name])
    return files


def curves(history: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Loss and the monitor over rounds."""
    figure, (left, right) = _figure(title, 2)
    rounds = [row["round"] for row in history]
    losses = [row["loss"] if row["loss"] is not None else float("nan") for row in history]
    _plot(left, rounds, losses, BLUE, xlabel="round", ylabel="mean local loss")
    monitored = [row for row in history if "monitor" in row]
    scores = [row["monitor"] for row in monitored]
    _plot(right, [row["round"] for row in monitored], scores, RUST, xlabel="round", ylabel="monitor (kNN, %)")
    _at_least(right, 5)  # a change of half a point has to look small
    for axes in (left, right):
        _over_rounds(axes, rounds)
    if not monitored:
        _write(right, "not monitored" if history else "no round was played")
    if not history:
        _write(left, "no round was played")
    figure.savefig(path, dpi=120)


def geometry(curve: Sequence[Point], path: Path, title: str) -> None:
    """The monitor's effective rank, alignment and uniformity over rounds."""
    figure, panels = _figure(title, 3)
    rounds = [point["round"] for point in curve]
    quantities = (
        ("effective_rank", "effective rank (dimensions)", BLUE),
        ("alignment", "alignment (lower is closer)", RUST),
        ("uniformity", "uniformity (nats, lower is wider)", GREEN),
    )
    for axes, (key, label, colour) in zip(panels, quantities, strict=True):
        points = [point for point in curve if key in point]
        values = [point[key] for point in points]
        _plot(axes, [point["round"] for point in points], values, colour, xlabel="round", ylabel=label)
        _over_rounds(axes, rounds)
        if not points:
            _write(axes, "not monitored")
    figure.savefig(path, dpi=120)


def plane(curve: Sequence[Point], path: Path, title: str) -> None:
    """Uniformity against alignment, round after round: both fall where features get better (Wang & Isola 2020)."""
    from matplotlib.ticker import MaxNLocator

    figure, (axes,) = _figure(title, 1)
    points = [point for point in curve if "alignment" in point and "uniformity" in point]
    x, y = [point["uniformity"] for point in points], [point["alignment"] for point in points]
    axes.plot(x, y, "-", color=GREY, linewidth=1)
    dots = axes.scatter(x, y, c=[point["round"] for point in points], cmap="viridis", s=18, zorder=2)
    ends = (points[0], points[-1]) if (x[0], y[0]) != (x[-1], y[-1]) else points[-1:]
    for point in ends:
        at = (point["uniformity"], point["alignment"])
        axes.annotate(f"round {point['round']:.0f}", at, xytext=(4, 4), textcoords="offset points", fontsize=8)
    axes.set(xlabel="uniformity (nats, lower spreads more)", ylabel="alignment (lower is closer)")
    figure.colorbar(dots, ax=axes, label="round", ticks=MaxNLocator(integer=True, min_n_ticks=1))
    figure.savefig(path, dpi=120)


def costs(curve: Sequence[Point], path: Path, title: str) -> None:
    """The monitor over bytes both ways, and over seconds of training."""
    figure, (left, right) = _figure(title, 2)
    accuracies = [point["monitor"] for point in curve]
    panels = ((left, "bytes", 1e6, "MB up and down, all clients"), (right, "seconds", 1, "seconds of training"))
    for axes, key, unit, label in panels:
        if not any(point[key] for point in curve):
            axes.set(xticks=[], yticks=[])
            _write(axes, "nothing is sent" if axes is left else "nothing is trained")
            continue
        _plot(axes, [point[key] / unit for point in curve], accuracies, RUST, xlabel=label, ylabel="monitor (kNN, %)")
        _at_least(axes, 5)
        axes.set_xlim(left=0)
    figure.savefig(path, dpi=120)


def spectra(values: Mapping[str, Tensor], path: Path, title: str) -> None:
    """Singular values `[r]` of each encoder's centred test features, over their largest."""
    figure, (axes,) = _figure(title, 1)
    for name, singular_values in values.items():
        relative = singular_values / singular_values[0].clamp(min=1e-300)
        axes.semilogy(range(1, len(singular_values) + 1), relative.clamp(min=1e-12).tolist(), linewidth=1.4, label=name)
    axes.set(xlabel="singular value, by size", ylabel="relative to the largest")
    if 1 < len(values) <= 12:
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)


def embedding(places: Tensor, labels: Tensor, classes: Sequence[str], path: Path, title: str) -> None:
    """Test features in the plane `[n, 2]`, coloured by class."""
    figure, (axes,) = _figure(title, 1, height=4.4)
    for label in labels.unique().tolist():
        x, y = places[labels == label].T
        axes.plot(x, y, ".", markersize=3, color=_colour(label, len(classes)), label=classes[label])
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.spines[["left", "bottom"]].set_visible(False)  # coordinates mean nothing, only distances to near points
    if len(classes) <= 20:
        axes.legend(frameon=False, fontsize=7, markerscale=3, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=120)


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
    figure, (axes,) = _figure(f"{title}: {correlation}", 1)
    axes.plot(x, y, "o", markersize=4, color=BLUE)
    axes.set(xlabel="label-free score (alignment + 0.2 uniformity)", ylabel="kNN accuracy (%)")
    axes.locator_params(axis="x", nbins=5)
    figure.savefig(path, dpi=120)
    return correlation


def _colour(label: int, classes: int) -> Any:
    from matplotlib import colormaps

    size = 10 if classes <= 10 else 20
    return colormaps[f"tab{size}"](label % size)


def _figure(title: str, panels: int, height: float = 3) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(5, 3.5 * panels), height), layout="constrained")
    figure.suptitle("\n".join(textwrap.wrap(title, int(13 * figure.get_figwidth()))), fontsize=10)
    panel_axes = list(figure.subplots(1, panels, squeeze=False)[0])
    for axes in panel_axes:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panel_axes


def _plot(axes: "Axes", x: Sequence[float], y: Sequence[float], colour: str, **labels: str) -> None:
    """A line with a dot at each point."""
    axes.plot(x, y, "o-", markersize=3, color=colour)
    axes.set(**labels)


def _over_rounds(axes: "Axes", rounds: Sequence[float]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(min(rounds, default=1) - 0.5, max(rounds, default=1) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _at_least(axes: "Axes", span: float) -> None:
    low, high = axes.get_ylim()
    if (missing := span - (high - low)) > 0:
        axes.set_ylim(low - missing / 2, high + missing / 2)


def _write(axes: "Axes", text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color=GREY)
