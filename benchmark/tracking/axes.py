"""What figures of a run and of several runs share."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axis import Axis

GREY = "#777777"
"""Of frames and texts."""


def whole_numbers(axis: "Axis") -> None:
    """Puts an axis's ticks at whole numbers: it shows rounds."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
