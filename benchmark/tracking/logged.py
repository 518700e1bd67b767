"""The names by which a run is logged, live and by `publish`: of a round's numbers, its summary, config and tags."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmark.tracking.curve import MONITORED
from leaderboards.encoders import count, shown
from leaderboards.schema import Record

if TYPE_CHECKING:
    import wandb

STEP = "round"
"""Name of the round, the x-axis of all metrics."""
EARLIER_STEP = "trainer/global_step"
"""Its name in runs of earlier versions."""
NAMES = {
    **{name: f"train/{name}" for name in ("loss", "server_loss")},
    **{name: f"eval/{name}" for name in MONITORED},
    **{name: f"comm/{name}" for name in ("bytes", "bytes_up", "bytes_down")},
    "epsilon": "privacy/epsilon",
    **{name: f"sys/{name}" for name in ("seconds", "client_seconds", "images_per_second")},
}
"""Number of a round -> the name it is logged by. Bytes, seconds and epsilon are of all rounds so far."""
CONFIG_KEYS = ("scenario", "row", "method", "objective", "seed", "world_size", "settings", "provenance")
"""Fields of a record in its run's config, to filter and group by."""


def named(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of a round by the names that they are logged by; those without a name or a value are left out."""
    return {NAMES[key]: value for key, value in numbers.items() if key in NAMES and value is not None}


def declare(run: "wandb.Run") -> None:
    """Tells W&B that the round is the x-axis."""
    run.define_metric(STEP)
    for group in sorted({name.partition("/")[0] for name in NAMES.values()}):
        run.define_metric(f"{group}/*", step_metric=STEP, step_sync=True)


def flat(result: Record) -> dict[str, float]:
    """A record's scores for W&B's summary, "protocol/metric" -> value, as they are shown; and the number of several
    encoders, over which an accuracy is the mean."""
    several = {"encoders": float(count(result))} if count(result) > 1 else {}
    return several | {
        f"{protocol}/{metric}": value
        for protocol, metrics in shown(result).items()
        for metric, value in metrics.items()
    }


def summary(result: Record) -> dict[str, Any]:
    """A finished run's last values: its scores, what all its rounds cost, and the record itself."""
    sent = {way: sum(result["bytes"][way].values()) for way in ("up", "down")}
    costs = {
        "bytes": sum(sent.values()),
        **{f"bytes_{way}": number for way, number in sent.items()},
        "epsilon": result["epsilon"],
        "seconds": result["seconds"]["wall"],
        "client_seconds": result["seconds"]["clients"],
    }
    return {**flat(result), **named(costs), "record": result}


def config_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a record's run; of those fields that there are."""
    return {key: result[key] for key in CONFIG_KEYS if key in result}


def tags(fields: Mapping[str, Any]) -> list[str]:
    """The tags of a run. fields: of its record, or those that are known at its start."""
    return [f"{key}:{fields[key]}" for key in ("scenario", "method", "objective")]
