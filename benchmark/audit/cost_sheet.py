"""Cost sheet: what a client pays under every method, at its paper's settings, counted without training."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmark.configuration.compose import compose
from benchmark.configuration.files import available, facts
from benchmark.experiment.costs import costs
from benchmark.tracking.progress import Display
from leaderboards import store
from leaderboards.pages.costs import SHEET, Line, Sheet
from methods.base import MethodError

ENCODERS = {"ResNet-18": "methods.networks.resnet18", "ViT-Tiny": "methods.networks.vit_tiny"}
FILE = Path("leaderboards") / SHEET
IDLE = {"untrained"}
"""Shipped methods whose clients do no work."""
IMAGES = 50_000
"""Images of CIFAR-10, of which the clients of a scenario have equal shares."""


def lines_of(name: str, overrides: Sequence[str] = ()) -> list[Line]:
    """What a client pays under a shipped method, or one by the path of its config, over each encoder that it takes.

    overrides: with an encoder among them, over that one alone.
    """
    given = [word for word in overrides if word.startswith("encoder.class=")]
    own = {word.rpartition(".")[2]: word for word in given}
    lines, refused = list[Line](), list[MethodError]()
    for encoder, word in (own or {key: f"encoder.class={cls}" for key, cls in ENCODERS.items()}).items():
        others = [each for each in overrides if each not in given]
        try:
            lines.append(line(name, encoder, [word, *others]))
        except MethodError as error:  # some take a vision transformer alone
            refused.append(error)
    if not lines:
        raise refused[0]
    return lines


def line(name: str, encoder: str, overrides: Sequence[str]) -> Line:
    """What a client pays under a method over one encoder. encoder: its name in the sheet."""
    known = Path(name).stem in available("method")
    scenario = facts("method", Path(name).stem).get("networks", "reference") if known else "reference"
    config = compose(scenario, name, overrides)
    images = IMAGES // config.partition.clients
    counted = costs(config, images)
    fields = {key: counted[key] for key in ("flops", "flops_max", "memory", "kept", "up", "down")} | counted["parts"]
    single = {"up": 0, "down": 0} if config.partition.clients == 1 else {}  # it exchanges nothing
    where = {"scenario": scenario, "images": images, "batch": config.training.batch_size}
    return Line(config.row, encoder, **where, **fields | single)


def record(names: Iterable[str], display: Display, overrides: Sequence[str] = ()) -> list[Line]:
    """The lines of several methods."""
    display.begin("cost sheet")
    lines = list[Line]()
    for name in names:
        if name in IDLE:
            continue
        with display.during(name):
            lines += lines_of(name, overrides)
    return lines


def write(lines: Sequence[Line]) -> None:
    """Writes the sheet of docs/reference/cost-sheet.md."""
    store.write_table(FILE, Sheet(tuple(lines)))
