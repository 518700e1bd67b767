"""Commands that make no run: board, compare, cite, privacy, costs, publish, regress, parity."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmark import ROOT
from benchmark.cli.session import Session
from benchmark.configuration.files import available, facts, is_import_path, papers, read
from benchmark.configuration.keys import nearest
from benchmark.configuration.suites import row_line
from benchmark.configuration.words import is_true, only_keys, split, take_keys
from benchmark.errors import ConfigError, DepartureError, count

REPOSITORY, INTO = Path("leaderboards"), "repository"
"""Folder of the committed board, and the value of `into` that stands for it."""
HERE = Path("fulcrum-board")
"""Folder of their board outside a checkout."""
PARITY = Path(ROOT) / "tests" / "parity"
"""Folder of the shipped parity files."""
BOARD = "[collect=RUNS [into=repository]] [folder=BOARD]"
COMPARE = "RUN_DIR RUN_DIR ... [clients=true] [format=latex|csv|markdown [metrics=all]] [output=FOLDER]"
CITE = "NAME [NAME ...]"
SERVER_OPTIMIZERS = {
    "methods.server.Momentum": "fedavgm",
    "methods.server.Adam": "fedopt",
    "methods.server.Yogi": "fedopt",
}
"""Import path -> the key of its paper."""


def board(words: list[str], session: Session) -> None:
    """Print the committed results and write their pages; collect=RUNS: a board of your runs, in RUNS-board."""
    from leaderboards import bundles, generate, rank, store

    options = only_keys(words, f"board takes {BOARD}", "collect", "folder", "into")
    options = {key: str(value) for key, value in options.items()}
    folder = _board_folder(options)
    docs = Path("docs") if folder == REPOSITORY else None  # the pages of this checkout are of its own board only
    if "collect" in options:
        runs = Path(options["collect"])
        records = [*store.collect(runs), *bundles.records(runs)]
        bundles.check_distinct(records, store.merged(folder / "results", {}))
        added = store.additions(folder / "results", records)
        generate.check(store.merged(folder / "results", added), folder, docs)  # before anything is written
        for file, record in added.items():
            store.write(file, record)
        early = sum(not rank.finished(record) for record in records)
        line = f"{count(len(records), 'run')} in {options['collect']} taken into {folder / 'results'}"
        session.console.print(Text(f"{line}, {early} of them not over" if early else line))
    results = store.committed() if folder == HERE else store.collect(folder / "results")
    folder.mkdir(parents=True, exist_ok=True)
    generate.write(results, folder, docs=docs)
    show(results, session.console)
    pages = f"{folder / 'README.md'}, {folder / 'site' / 'index.html'}{f', the tables in {docs}' if docs else ''}"
    session.console.print(Text(f"{count(len(results), 'record')}, written into {pages}"))


def _board_folder(options: Mapping[str, str]) -> Path:
    """The folder of a board: this checkout's, the user's own, one beside the collected runs, or `HERE`."""
    if options.get("into", INTO) != INTO:
        raise ConfigError(f"into={options['into']}: give into={INTO} for the pages of this checkout, or folder=BOARD")
    if {"into", "folder"} <= options.keys():
        raise ConfigError(f"into={INTO} and folder={options['folder']} both say where the board is: give one of them")
    if "folder" in options:
        return Path(options["folder"])
    if "collect" not in options:
        return REPOSITORY if (REPOSITORY / "results").is_dir() else HERE
    if "into" in options:
        if not (REPOSITORY / "results").is_dir():
            raise ConfigError(f"into={INTO}: there is no {REPOSITORY / 'results'} here: run this from a checkout")
        return REPOSITORY
    runs = Path(options["collect"])
    runs = runs if runs.name not in ("", "..") else runs.resolve()
    if not runs.name:
        raise ConfigError(f"collect={options['collect']}: there is no folder beside it: give folder=BOARD")
    return runs.with_name(f"{runs.name}-board")


def compare(words: list[str], session: Session) -> None:
    """Print scores, curves, costs and differing settings side by side, seeds of a row pooled, and draw a figure."""
    from benchmark.tracking import comparison, comparison_figure, comparison_paper, comparison_scores, comparison_tables

    paths, overrides = split(words)
    options, rest = take_keys(overrides, "output", "format", "clients", "metrics")
    if rest or len(paths) < 2:
        given = " ".join(words) or "no run"
        raise ConfigError(f"usage: python -m benchmark compare {COMPARE}, with two run folders or more; got {given}")
    if (form := str(options.get("format", ""))) not in ("", *comparison_paper.FORMS):
        known = comparison_paper.FORMS
        raise ConfigError(f"format={form}{nearest(form, known)}: choose {', '.join(known)}, or leave it out")
    if options.get("metrics", "all") != "all":
        raise ConfigError(f"metrics={options['metrics']}: give metrics=all, or leave it out for one of each protocol")
    if "metrics" in options and not form:
        raise ConfigError("metrics=all is of format=: without it the table has every metric")
    clients = is_true(options, "clients")
    folders = [Path(path) for path in paths]
    resolved = [folder.resolve() for folder in folders]
    if repeated := [folder for folder, place in zip(folders, resolved, strict=True) if resolved.count(place) > 1]:
        raise ConfigError(f"{repeated[0]} is named twice: name each run once")
    runs = [comparison.read_run(folder) for folder in folders]
    pools = comparison.pooled(runs)
    labels, lines = comparison.names(pools), comparison_scores.score_lines(pools, clients)
    if form and not lines:
        raise ConfigError(
            f"format={form} is the table of scores, and no run has a score: see `python -m benchmark evaluate`"
        )
    if form:
        text = comparison_paper.table(form, pools, lines, "metrics" in options)
        session.console.print(Text(text.rstrip("\n")), soft_wrap=True)
    else:
        for table in comparison_tables.tables(pools, labels, lines):
            session.console.print(table)
    if form and "output" not in options:
        return
    file = Path(str(options.get("output", comparison.common_folder(runs)))) / "compare.png"
    comparison_figure.draw(pools, labels, file)
    if not form:
        session.console.print(Text(f"figure: {file}, and as .pdf and .svg"), soft_wrap=True)


def cite(words: list[str], session: Session) -> None:
    """Print BibTeX of the papers of methods, objectives, server optimisers, scenarios or rows, and of the suite."""
    from leaderboards.papers import bibliography

    if not words:
        raise ConfigError(f"usage: python -m benchmark cite {CITE}; got no name")
    entries, without, texts = bibliography.read(), list[str](), list[str]()
    known = [name for group in ("method", "objective", "scenario") for name in available(group)]
    known += [*SERVER_OPTIMIZERS, bibliography.SUITE]
    for word in words:
        names = [word]
        if word not in known:  # a row, whose method and objective are cited
            method, *overrides = row_line("", word)
            if method not in known:
                remedy = "give a method, an objective, a scenario or a row, see `list`"
                raise ConfigError(f"unknown name {word!r}{nearest(word, known)}: {remedy}")
            names = [method, *(each.removeprefix("objective=") for each in overrides if each.startswith("objective="))]
        found = [entries[key].text for name in names for key in papers_of(name)]
        without += [] if found or word == bibliography.SUITE else [f"% {word}: no paper"]
        texts += found
    lines = dict.fromkeys([*without, *texts, entries[bibliography.SUITE].text])
    session.console.print(Text("\n".join(lines).rstrip("\n")), soft_wrap=True)


def papers_of(name: str) -> list[str]:
    """Keys of the papers of a name in the bibliography; of a scenario, such as `fedx/cifar10`, whose setting it is."""
    name = name.partition("/")[0]
    if name in SERVER_OPTIMIZERS:
        return [SERVER_OPTIMIZERS[name]]
    heads = [facts(group, name) for group in ("method", "objective") if name in available(group)]
    return list(dict.fromkeys(key for head in heads for key in papers(head)))


def privacy(words: list[str], session: Session) -> None:
    """Record what leaves a client under some methods; without a name under all, for the board and the sheet's page."""
    folder, guide = Path("leaderboards"), Path("docs", "reference", "privacy-sheet.md")
    names, overrides = _of_sheet(words, "privacy", guide)
    from benchmark.audit import privacy_sheet  # after what a misspelt word needs
    from benchmark.runtime import enable_garbage_collection
    from leaderboards import generate, store
    from leaderboards.pages import privacy

    if scenarios := [name for name in names if name in available("scenario")]:
        settings = f"{privacy_sheet.ENCODER} and {privacy_sheet.IMAGES:,} images a client"
        raise ConfigError(
            f"{scenarios[0]} is a scenario, and a sheet is of a method alone, with {settings}: leave it out"
        )
    enable_garbage_collection()
    with session.display() as display:
        methods = privacy_sheet.record(names or available("method"), display, overrides)
    if names:
        for method in methods:
            session.console.print(privacy.table(method))
        return
    privacy_sheet.write(methods)
    generate.write(store.collect(folder / "results"), folder, Path("docs"))
    pages = f"{folder / privacy.SHEET}, {folder / 'README.md'} and {guide}"
    session.console.print(f"{count(len(methods), 'method')} in {pages}", highlight=False)


def costs(words: list[str], session: Session) -> None:
    """Count what a client pays under some methods; without a name under all, and in all rows of the boards."""
    folder, page = Path("leaderboards"), Path("docs", "reference", "cost-sheet.md")
    names, overrides = _of_sheet(words, "costs", page)
    from benchmark.audit import cost_sheet, row_costs  # after what a misspelt word needs
    from benchmark.runtime import enable_garbage_collection
    from leaderboards import generate, store
    from leaderboards.pages.costs import table

    enable_garbage_collection()
    with session.display() as display:
        lines = cost_sheet.record(names or available("method"), display, overrides)
    if names:
        session.console.print(table(lines))
        return
    cost_sheet.write(lines)
    records = store.collect(folder / "results")
    with session.display() as display:
        rows = row_costs.update(records, display, anew=True)
    generate.write(records, folder, Path("docs"))
    done = f"{count(len(lines), 'line')} in {folder / cost_sheet.SHEET} and {page}, {count(rows, 'row')} in "
    session.console.print(f"{done}{row_costs.FILE}", highlight=False)


def _of_sheet(words: list[str], command: str, page: Path) -> tuple[list[str], list[str]]:
    """Names and overrides of a sheet's command; ConfigError: overrides of no method, no such method, or no page."""
    names, overrides = split(words)
    if overrides and not names:
        raise ConfigError(f"of which method? usage: python -m benchmark {command} METHOD {' '.join(overrides)}")
    if not names and not page.is_file():
        raise ConfigError(f"no {page} to write the sheet into: run this from a checkout, or name a method")
    for name in names:
        if not (is_import_path(name) or name in available("scenario")):
            read("method", name)
    return names, overrides


def publish(words: list[str], session: Session) -> None:
    """Make a dashboard of the records for Weights & Biases, offline first; upload it if a user is logged in."""
    from benchmark.tracking import wandb_dashboard
    from leaderboards import generate, store

    keys = ("project", "entity", "output", "folder")
    options = only_keys(words, f"publish takes {', '.join(f'{key}=' for key in keys)}", *keys)
    options = {key: str(value) for key, value in options.items()}
    folder, output = _board_folder(options), Path(options.get("output", "runs-wandb"))
    records = store.committed() if folder == HERE else store.collect(folder / "results")
    with session.display() as display:
        display.begin("publish")
        runs = wandb_dashboard.write(records, generate.judged(records, folder), output, display)
        display.print(
            f"{count(runs, 'run')} and the leaderboard are in {output}; look at them by: wandb leet {output}/wandb"
        )
        project = options.get("project", "fulcrum")
        display.print(wandb_dashboard.upload(records, output, project, options.get("entity")))


def regress(words: list[str], session: Session) -> None:
    """Fail if a number moved: golden runs, verdicts, committed tables; capture=true measures the golden ones again."""
    from benchmark.audit import regression

    takes = "regress takes capture=true or table=FILE"
    options = only_keys(words, takes, "capture", "table")
    if options.get("capture", True) is not True or len(options) > 1:
        raise ConfigError(f"{takes}, not {' '.join(f'{key}={value}' for key, value in options.items())}")
    if not (REPOSITORY / "results").is_dir():
        raise ConfigError(
            f"regress compares with a checkout's committed files, and there is no {REPOSITORY}/results here"
        )
    with session.display() as display:
        display.begin("regress")
        if "capture" in options:
            regression.capture(display)
            return
        lines = regression.regress(display)
    session.console.print(regression.shown(lines))
    if "table" in options:
        Path(str(options["table"])).write_text(regression.table(lines), encoding="utf-8")
    if lines:
        raise ConfigError(
            f"{count(len(lines), 'number')} moved, the first {lines[0].what}: {lines[0].old}, now {lines[0].new}"
        )


def parity(words: list[str], session: Session) -> None:
    """Compare the suite with runs of authors' codes, in files or by name; with all for docs/reference/parity.md."""
    names, overrides = split(words)
    options = only_keys(overrides, "parity takes FILE... and accelerator=cpu|cuda", "accelerator")
    folder, page = Path("leaderboards"), Path("docs", "reference", "parity.md")
    shipped = {file.stem: file for file in sorted(PARITY.glob("*.json"))}
    files = [shipped.get(name, Path(name)) for name in names] or list(shipped.values())
    for path in files:
        path.stat()  # the error of one that is not there, before the imports
    from benchmark.parity.codes import case
    from benchmark.parity.compare import compare, needed
    from benchmark.parity.files import read as read_file
    from benchmark.parity.replay import replay
    from benchmark.parity.report import effects, lines, result
    from leaderboards import generate, store
    from leaderboards.pages import parity

    writes = not names and page.is_file()  # elsewhere there is no page to write into
    cases = [case(read_file(file)) for file in files]
    accelerator, results = str(options.get("accelerator", "auto")), []
    with session.display(len(cases)) as display:
        for each in cases:
            file = each.file
            display.begin(file.path.stem)
            ours = {precision: replay(each, precision, accelerator) for precision in needed(file)}
            compared = compare(each, ours)
            precision = next(iter(ours))
            settings = effects(each, ours[precision], precision, accelerator) if writes else []
            results.append(result(each, compared, settings))
            for line in lines(each, compared):
                display.print(line)
    if writes:
        store.write_table(folder / parity.FILE, parity.Parity(tuple(results)))
        generate.write(store.collect(folder / "results"), folder, Path("docs"))
    if departed := [each.file for each in results if not each.met]:
        raise DepartureError(f"the suite departs from {len(departed)} of {len(cases)} files: {', '.join(departed)}")
    session.console.print(f"{count(len(cases), 'file')}, none of which the suite departs from", highlight=False)


def show(results: list[dict[str, Any]], console: Console) -> None:
    """Print the board of each scenario of the records."""
    for table in boards(results):
        console.print(table)


def boards(results: list[dict[str, Any]]) -> list[Table]:
    """The board of each scenario of the records."""
    from leaderboards import rank
    from leaderboards.pages import board

    return [board.table(rank.board(results, scenario), scenario) for scenario in board.scenarios(results)]
