"""The command `data`: builds a data set that is not downloaded as such, from packages of npm."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.cli.session import Session
from benchmark.configuration.keys import nearest
from benchmark.configuration.partitions import expanded
from benchmark.configuration.words import exactly, split, take_keys
from benchmark.disk import replacing, write_json
from benchmark.errors import BusyError, ConfigError, names_full_disk

if TYPE_CHECKING:
    from datamodules.gathered import Gathered

DATA = "typefaces|icons [data.root=IMAGES]"


def data(words: list[str], session: Session) -> None:
    """Fetch the packages of a federation, draw its images, and list the packages' licences."""
    from benchmark.experiment.lock import try_lock
    from datamodules import rebuilt

    names, overrides = split(words)
    (name,) = exactly(names, f"data {DATA}", 1)
    given, rest = take_keys(overrides, "data.root")
    if rest or name not in rebuilt.FEDERATIONS:
        known = ", ".join(rebuilt.FEDERATIONS)
        other = f"there is no set {name!r} to build{nearest(name, rebuilt.FEDERATIONS)}: choose {known}"
        raise ConfigError(f"data takes data.root only, and not {rest[0]}" if rest else other)
    root = expanded(str(given.get("data", {}).get("root") or "data"), "data.root")
    with session.display() as display, names_full_disk(root):
        if rebuilt.is_built(name, root):
            display.print(f"{root / name}.npz is there, with the listed content")
            return
        display.begin(name)
        root.mkdir(parents=True, exist_ok=True)
        with (root / f".{name}.lock").open("w") as lock:
            if not try_lock(lock):
                raise BusyError(f"another process builds {name} in {root}: wait for it, or stop it")
            with display.counting("built of", rebuilt.STEPS) as steps:
                made, facts = rebuilt.build(name, root, steps, steps.progress)
            with display.during("writing"):
                write(name, root, made, facts)
        display.print(f"{root / name}.npz: {facts['clients']} clients, {facts['classes']} classes; {name}.md: licences")
        listed = rebuilt.listed(name)
        same = all(facts[key] == listed[key] for key in ("sha256", "arrays"))
        other = f"not the listed one, which {rebuilt.drawn_by(listed)} has drawn; this is {rebuilt.drawn_by(facts)}"
        display.print(f"content hash {facts['sha256']}: {'as listed' if same else other}")


def write(name: str, root: Path, made: "Gathered", facts: dict[str, Any]) -> None:
    """Writes a built set: its arrays, the licences of its packages and, last, its facts."""
    import numpy as np

    from datamodules import rebuilt

    with replacing(root / f"{name}.npz") as beside, beside.open("wb") as stream:
        np.savez_compressed(stream, **made.arrays)  # type: ignore[arg-type]
    with replacing(root / f"{name}.md") as beside:
        beside.write_text(rebuilt.page(name, root, facts), encoding="utf-8")
    write_json(root / f"{name}.json", facts)
