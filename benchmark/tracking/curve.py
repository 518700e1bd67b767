"""What the rounds of a run have cost so far, and its curve, from the lines of its rounds alone."""

from collections.abc import Mapping, Sequence
from typing import Any

MONITORED = ("monitor", "effective_rank", "alignment", "uniformity", "uniformity_within", "uniformity_between")


def is_monitored(row: Mapping[str, Any]) -> bool:
    """Whether a round was monitored; without labels there is no accuracy among its numbers."""
    return "monitor" in row or "effective_rank" in row


class Totals:
    """What the rounds have cost so far."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {
            "bytes": 0,
            "bytes_up": 0,
            "bytes_down": 0,
            "seconds": 0.0,
            "client_seconds": 0.0,
        }

    def after(self, row: Mapping[str, Any]) -> dict[str, float]:
        """The totals up to the next round, whose line is `row`; `epsilon`, where noise was sent, is the largest."""
        sent = {way: sum(row[way].values()) for way in ("bytes_up", "bytes_down")}
        costs = {**sent, "bytes": sum(sent.values()), **{key: row[key] for key in ("seconds", "client_seconds")}}
        for key, cost in costs.items():
            self.sums[key] += cost
        if "epsilon" in row:  # of the round's clients
            self.sums["epsilon"] = max([self.sums.get("epsilon", 0.0), *row["epsilon"].values()])
        return dict(self.sums)


def curve(history: Sequence[dict[str, Any]], of: str = "monitor") -> list[dict[str, float]]:
    """The monitor's numbers and the mean loss by round, each with the seconds of training and the bytes up to then.

    of: "monitor": the monitored rounds | "loss": those with a loss, for a run without a monitor.
    """
    totals, points = Totals(), []
    for row in history:
        so_far = totals.after(row)
        numbers = {name: row[name] for name in ("loss", *MONITORED) if row.get(name) is not None}
        if is_monitored(row) if of == "monitor" else of in numbers:
            points.append({"round": row["round"], "bytes": so_far["bytes"], "seconds": so_far["seconds"], **numbers})
    return points
