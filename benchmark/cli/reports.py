"""The commands that leave no run: board, publish, regress, privacy, list."""

from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.table import Table

from benchmark.cli.session import Session
from benchmark.configuration.files import available, summary
from benchmark.configuration.overrides import only_keys, split
from benchmark.configuration.typecheck import nearest
from benchmark.errors import ConfigError

GROUPS = ("suite", "campaign", "scenario", "method", "objective")
"""Of shipped configs, as `list` shows them."""


def board(words: list[str], session: Session) -> None:
    """Print the committed results, write them into pages and site; collect=RUNS takes finished runs in first."""
    from leaderboards import generate, rank, store
    from leaderboards.pages import board

    given = only_keys(words, "board takes collect=RUNS and folder=BOARD", "collect", "folder")
    folder = Path(given.get("folder", "leaderboards"))
    if "collect" in given:
        found = store.collect(Path(given["collect"]))
        board.markdown(store.merged(folder / "results", found))  # refuses them now where the board would
        for record in found:
            store.add_record(folder / "results" / f"{store.name(record)}.json", record)
        early = sum(not rank.finished(record) for record in found)
        told = f"{len(found)} runs in {given['collect']} taken into {folder / 'results'}"
        session.console.print(f"{told}, {early} of them not over" if early else told, highlight=False)
    results = store.collect(folder / "results")
    docs = None if "folder" in given else Path("docs")  # another folder is none of this checkout's pages' business
    generate.write(results, folder, docs=docs)
    show(results, session.console)
    made = [
        str(folder / "README.md"),
        str(folder / "site" / "index.html"),
        *([f"the tables in {docs}"] if docs else []),
    ]
    session.console.print(f"{len(results)} records, written into {', '.join(made)}", highlight=False)


def privacy(words: list[str], session: Session) -> None:
    """Ask methods what leaves a client; without a name all of them, for the board and docs/privacy.md."""
    from benchmark.audit import privacy_sheet as asking
    from benchmark.runtime import enable_garbage_collection
    from leaderboards import generate, store
    from leaderboards.pages import privacy

    names, overrides = split(words)
    folder, guide = Path("leaderboards"), Path("docs") / "privacy.md"
    if overrides and not names:
        raise ConfigError(f"of which method? usage: python -m benchmark privacy METHOD {' '.join(overrides)}")
    if not names and not guide.is_file():
        raise ConfigError(f"no {guide} to write the sheet into: run this from a checkout, or name a method")
    enable_garbage_collection()
    found = []
    with session.display() as display:
        display.begin("privacy sheet")
        for name in names or available("method"):
            with display.during(name):
                found.append(asking.asked(name, overrides))
    if names:
        for method in found:
            session.console.print(privacy.table(method))
        return
    privacy.write(folder / privacy.SHEET, asking.sheet(found))
    generate.write(store.collect(folder / "results"), folder, guide.parent)
    session.console.print(
        f"{len(found)} methods in {folder / privacy.SHEET}, {folder / 'README.md'} and {guide}", highlight=False
    )


def publish(words: list[str], session: Session) -> None:
    """Make a dashboard of the records for Weights & Biases, offline first; upload it where somebody is logged in."""
    from benchmark.tracking import wandb_dashboard
    from leaderboards import generate, store

    own = only_keys(words, "publish takes project=, entity=, output=, folder=", "project", "entity", "output", "folder")
    given = {key: str(value) for key, value in own.items()}
    folder, output = Path(given.get("folder", "leaderboards")), Path(given.get("output", "runs-wandb"))
    records = store.collect(folder / "results")
    with session.display() as display:
        display.begin("publish")
        found = generate.judged(records, folder)
        runs = wandb_dashboard.written(records, found, output, display)
        display.print(f"{runs} runs and the leaderboard are in {output}; look at them by: wandb leet {output}/wandb")
        display.print(wandb_dashboard.uploaded(records, output, given.get("project", "fulcrum"), given.get("entity")))


def regress(words: list[str], session: Session) -> None:
    """Fail where a number moved: golden runs, verdicts, committed tables; capture=true takes the golden ones anew."""
    from benchmark.audit import regression

    takes = "regress takes capture=true or table=FILE"
    given = only_keys(words, takes, "capture", "table")
    if given.get("capture", True) is not True:
        raise ConfigError(f"{takes}, not capture={given['capture']}")
    with session.display() as display:
        display.begin("regress")
        if "capture" in given:
            regression.capture(display)
            return
        lines = regression.regress(display)
    session.console.print(regression.shown(lines))
    if "table" in given:
        Path(str(given["table"])).write_text(regression.table(lines), encoding="utf-8")
    if lines:
        raise ConfigError(f"{len(lines)} numbers moved, the first {lines[0].what}: {lines[0].old}, now {lines[0].new}")


def listing(words: list[str], session: Session) -> None:
    """All that can be named, one line each, or one group of it."""
    from eval.protocol import PROTOCOLS, find
    from methods import server

    groups = {f"{group}s": [(name, summary(group, name)) for name in available(group)] for group in GROUPS}
    optimizers = {f"methods.server.{one.__name__}": one.__doc__ or "" for one in get_args(server.ServerOptimizer)}
    groups["server_optimizers"] = [(path, doc.splitlines()[0]) for path, doc in optimizers.items()]
    long = {name: " (of `papers`, not of `all`)" for name, protocol in PROTOCOLS.items() if protocol.long}
    groups["protocols"] = [(name, protocol.summary + long.get(name, "")) for name, protocol in PROTOCOLS.items()]
    groups["protocols"].append(("transfer-<data set>/v1", find("transfer-other/v1").summary.replace("other", "it", 1)))
    for word in words:
        if word not in groups:
            raise ConfigError(f"there is no group {word!r}{nearest(word, groups)}: choose {', '.join(groups)}")
    for title in words or groups:
        table = Table(title=title, title_justify="left", box=None, show_header=False)
        for row in groups[title]:
            table.add_row(*row)
        session.console.print(table)


def show(results: list[dict[str, Any]], console: Console) -> None:
    """Prints the board of each scenario among the records."""
    from leaderboards import rank
    from leaderboards.pages import board

    for scenario in board.scenarios(results):
        console.print(board.table(rank.board(results, scenario), scenario))
