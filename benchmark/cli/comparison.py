"""The command that compares runs: it reads their folders, and builds and trains nothing."""

from pathlib import Path

from rich.text import Text

from benchmark.cli.session import Session
from benchmark.configuration.compose import split, take_keys
from benchmark.errors import ConfigError

USAGE = "RUN_DIR RUN_DIR ... [output=FOLDER]"


def compare(words: list[str], session: Session) -> None:
    """Print scores, curves, costs and differing settings of runs side by side, and draw a figure of them."""
    from benchmark.tracking import comparison, comparison_figure

    paths, overrides = split(words)
    options, rest = take_keys(overrides, "output")
    if rest or len(paths) < 2:
        given = " ".join(words) or "no run"
        raise ConfigError(f"usage: python -m benchmark compare {USAGE}, with two run folders or more; got {given}")
    folders = [Path(path) for path in paths]
    if repeated := [
        str(folder) for folder in folders if [each.resolve() for each in folders].count(folder.resolve()) > 1
    ]:
        raise ConfigError(f"{repeated[0]} is named twice: name each run once")
    runs = [comparison.read_run(folder) for folder in folders]
    labels = comparison.names(runs)
    for table in comparison.tables(runs, labels):
        session.console.print(table)
    file = Path(str(options.get("output", comparison.common_folder(runs)))) / "compare.png"
    comparison_figure.draw(runs, labels, file)
    session.console.print(Text(f"figure: {file}"), soft_wrap=True)
