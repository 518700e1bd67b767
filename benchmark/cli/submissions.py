"""The commands submit and verify: rows for a board that others keep."""

from dataclasses import asdict
from pathlib import Path

from rich.text import Text

from benchmark import PROGRAM
from benchmark.cli.session import Session
from benchmark.configuration.keys import fits
from benchmark.configuration.words import config_of_run, exactly, is_true, split, take_keys
from benchmark.disk import write_json
from benchmark.errors import ConfigError, count

SUBMIT = 'RUN_DIR [RUN_DIR ...] chosen="BY WHAT" [output=FILE.zip]'
VERIFY = "BUNDLE [replay=SEED [rounds=N]] [data.root=IMAGES] [trust=true]"
CHOSEN = "chosen="


def submit(words: list[str], session: Session) -> None:
    """Make a bundle of the runs of a row, for somebody else's board."""
    chosen = [word.removeprefix(CHOSEN).strip() for word in words if word.startswith(CHOSEN)]
    names, overrides = split([word for word in words if not word.startswith(CHOSEN)])
    options, rest = take_keys(overrides, "output")
    if not names or rest:
        raise ConfigError(f"usage: {PROGRAM} submit {SUBMIT}; got {' '.join(words) or 'no run'}")
    if len(chosen) != 1 or not chosen[0]:
        raise ConfigError('by what were the settings chosen? add chosen="...", such as "the paper\'s values"')
    folders = [Path(name) for name in names]
    row = "-".join(folders[0].resolve().parts[-3:-1])
    file = Path(str(options.get("output", f"{row}.zip")))
    if file.suffix != ".zip":
        raise ConfigError(f"output={file}: the name of a bundle ends in .zip")
    for folder in folders:
        config_of_run(folder)
    from benchmark.submission.bundle import make  # after what a misspelt word needs

    manifest = make(folders, chosen[0], file)
    size = file.stat().st_size / 1e6
    session.console.print(Text(f"{file}: {count(len(manifest.runs), 'run')}, {size:.1f} MB"), soft_wrap=True)
    trust = " trust=true" if any(code.wheel for code in manifest.code.values()) else ""
    seed = manifest.runs[0].rpartition("seed")[2]
    session.console.print(Text(f"next: {PROGRAM} verify {file} replay={seed}{trust}"), soft_wrap=True)


def verify(words: list[str], session: Session) -> None:
    """Check a bundle: files, config, code, and that scores follow from the encoder; replay=SEED trains it again."""
    from leaderboards import bundles

    names, overrides = split(words)
    (name,) = exactly(names, f"verify {VERIFY}", 1)
    options, rest = take_keys(overrides, "replay", "rounds", "trust")
    for key in ("replay", "rounds"):
        if key in options and not (fits(options[key], int) and options[key] >= (key == "rounds")):
            raise ConfigError(f"{key}={options[key]}: give a whole number")
    if "rounds" in options and "replay" not in options:
        raise ConfigError("rounds= is how many rounds of replay=SEED are trained again: give both")
    file = Path(name)
    bundles.archive(file).close()
    if not any(word.startswith("devices=") for word in rest):
        rest = [*rest, "devices=1"]
    from benchmark.submission.verification import verify as verified  # after what a misspelt word needs

    with session.display() as display:
        found = verified(
            file,
            display,
            rest,
            replay=options.get("replay"),
            rounds=options.get("rounds"),
            trust=is_true(options, "trust"),
        )
    write_json(bundles.receipt(file), asdict(found))
    far = "the same scores" if not found.difference else f"scores differ by {100 * found.difference:.2g} % at most"
    session.console.print(Text(f"{file}: {found.mark}, {far}; receipt: {bundles.receipt(file)}"), soft_wrap=True)
