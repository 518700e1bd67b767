"""The scores beside the headline: what other protocols say of the same encoders."""

from collections.abc import Sequence

from leaderboards.markdown import line, with_spread
from leaderboards.rank import Row

COLUMNS = {  # protocol and metric: heading, decimals
    "linear-lbfgs/v1 accuracy": ("solved probe (%)", 1),
    "linear-sweep/v1 accuracy": ("probe, best rate (%)", 1),
    "knn-by-k/v1 accuracy_k20": ("20-NN (%)", 1),
    "semi/v1 accuracy_1pct": ("1 % labels (%)", 1),
    "semi/v1 accuracy_5pct": ("5 % labels (%)", 1),
    "semi/v1 accuracy_10pct": ("10 % labels (%)", 1),
    "transfer-digits/v1 accuracy": ("to digits (%)", 1),
    "clusters/v1 nmi": ("NMI of k-means", 3),
    "spectrum/v1 dimensions_90": ("dimensions for 90 %", 1),
    "drift/v1 local_global_angle": ("drift (degrees)", 1),
    "drift/v1 cka": ("CKA to clients", 3),
}


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of a Markdown table of those columns that some row has, rows in the board's order; none without any."""
    columns = {key: told for key, told in COLUMNS.items() if any(key in row.cells for row in rows)}
    held = [row for row in rows if any(key in row.cells for key in columns)]
    if not held:
        return []
    seeds = sorted({row.cells[key].n for row in held for key in columns if key in row.cells})
    told = f"Over {seeds[0]}{f' to {seeds[-1]}' if len(seeds) > 1 else ''} seed{'s' * (seeds[-1] > 1)} a row."
    lines = [line(["row", *(heading for heading, _ in columns.values())]), "|---|" + "---:|" * len(columns)]
    for row in held:
        lines.append(
            line([row.row, *(with_spread(row.cells.get(key), digits) for key, (_, digits) in columns.items())])
        )
    return ["### What other protocols say", "", told, "", *lines]
