"""What follows from the shipped methods, objectives and data sets, written into pages and data: `make pages`.

A method's and an objective's facts are its class's and those of its config's head (`files.facts`). Lists of them are
written anew; golden numbers, lines of the privacy and the cost sheet and rows' costs are measured where they are
missing, and left as they are where not (`regress capture=true`, `make privacy`, `make costs` measure all).
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmark.audit import cost_sheet, golden, privacy_sheet, row_costs
from benchmark.configuration.files import RECONSTRUCTED, available, facts, papers, read, source
from benchmark.configuration.instantiate import locate
from benchmark.configuration.suites import rows_of
from benchmark.runtime import enable_garbage_collection
from benchmark.tracking.progress import Display
from datamodules import rebuilt
from datamodules.order import SHIPPED
from leaderboards import generate, store
from leaderboards.markdown import replace_between
from leaderboards.pages import costs, privacy
from leaderboards.schema import Record, RecordError

COMMAND = "make pages"
REFERENCE = "docs/reference"
HEADINGS = "| name | loss of a batch | networks that travel | stays with the client | further inputs and state |"


def pages() -> dict[Path, str]:
    """File -> what it has to hold. Raises RecordError: a page or the place of a list in it is missing."""
    readme = Path("README.md")
    objectives, data, federations = (Path(f"{REFERENCE}/{name}.md") for name in ("objectives", "data", "federations"))
    return {
        readme: _readme(readme.read_text(encoding="utf-8")),
        objectives: replace_between(objectives.read_text(encoding="utf-8"), "objectives", _objectives()),
        data: replace_between(data.read_text(encoding="utf-8"), "hashes", _hashes()),
        federations: replace_between(federations.read_text(encoding="utf-8"), "counts", rebuilt.counts_table()),
        Path("leaderboards/methods.json"): methods(),
    }


def methods() -> str:
    """What `leaderboards` reads of the methods, as JSON with a line for each."""
    heads = {name: facts("method", name) for name in available("method")}
    known = {
        name: {
            "over": head["over"].split(", ") if "over" in head else [],
            "paper": papers(head),
            "source": source(name),
            "title": head.get("title"),
        }
        for name, head in heads.items()
    }
    return "{\n" + ",\n".join(f" {json.dumps(name)}: {json.dumps(each)}" for name, each in known.items()) + "\n}\n"


def missing() -> list[str]:
    """What `write` would change, each in a line."""
    lines = [
        f"{file} is not as the configs' heads have it"
        for file, text in pages().items()
        if file.read_text(encoding="utf-8") != text
    ]
    lines += [f"{golden.FILE} has no row {row}" for row in _unmeasured()]
    lines += [f"{privacy_sheet.FILE} has no method {name}" for name in _unrecorded()]
    lines += [f"{cost_sheet.FILE} has no method {name}" for name in _uncounted()]
    return lines + [f"{row_costs.FILE} has no row {name} as it is" for name in row_costs.missing(_records())]


def write(display: Display) -> None:
    """Measure what is missing, then write all pages."""
    for file, text in pages().items():
        file.write_text(text, encoding="utf-8")
    if rows := _unmeasured():
        known, measured = golden.read(), golden.measure(display, ",".join(rows))
        golden.write({row: known.get(row) or measured[row] for row in rows_of(golden.SUITE)}, display)
    if names := _unrecorded():
        sheet = {each.name: each for each in (*_sheet(), *privacy_sheet.record(names, display))}
        privacy_sheet.write([sheet[name] for name in available("method")])
    if names := _uncounted():
        counted = [*costs.read(cost_sheet.FILE).lines, *cost_sheet.record(names, display)]
        cost_sheet.write(sorted(counted, key=lambda each: available("method").index(each.name)))
    row_costs.update(_records(), display)
    with display.during("board and pages"):
        generate.write(_records(), Path("leaderboards"), Path("docs"))


def _records() -> list[Record]:
    return store.collect(Path("leaderboards") / "results")


def _unmeasured() -> list[str]:
    known = golden.read()
    return [row for row in rows_of(golden.SUITE) if row not in known]


def _sheet() -> tuple[privacy.Method, ...]:
    return privacy.read(privacy_sheet.FILE).methods


def _unrecorded() -> list[str]:
    return sorted(set(available("method")) - {each.name for each in _sheet()})


def _uncounted() -> list[str]:
    counted = {each.name for each in costs.read(cost_sheet.FILE).lines}
    return sorted(set(available("method")) - counted - cost_sheet.IDLE)


def _titled(group: str) -> list[tuple[str, str, bool]]:
    """(title, name, whether it is of a paper) of a group's configs that have a title, by title."""
    heads = ((name, facts(group, name)) for name in available(group))
    found = [(head["title"], name, "paper" in head) for name, head in heads if "title" in head]
    return sorted(found, key=lambda each: each[0].casefold())


def _readme(page: str) -> str:
    """Its lists of methods, baselines and objectives."""
    named, groups = _titled("method"), dict[str, list[tuple[str, str, bool]]]()
    for row, published in (("methods", True), ("baselines", False)):
        groups[row] = [each for each in named if each[2] == published]
    groups["objectives"] = _titled("objective")
    for row, titled in groups.items():
        marked = row == "methods"
        names = ", ".join(
            f"{title} (*{RECONSTRUCTED}*)" if marked and source(name) == RECONSTRUCTED else title
            for title, name, _ in titled
        )
        page, found = re.subn(rf"^\| {row} \| .*? \|", f"| {row} | {names} |", page, count=1, flags=re.MULTILINE)
        if not found:
            raise RecordError(f"README.md: no row {row!r} in the table of what is included")
    again = sum(source(name) == RECONSTRUCTED for _, name, _ in groups["methods"])
    page = re.sub(rf"\(\d+ of them \*{RECONSTRUCTED}\*\)", f"({again} of them *{RECONSTRUCTED}*)", page)
    return re.sub(r"\b\d+ published(?=\smethods)", f"{len(groups['methods'])} published", page)


def _objectives() -> str:
    """The table of the objectives."""
    lines = [HEADINGS, "|---" * (HEADINGS.count("|") - 1) + "|"]
    for _, name, _ in _titled("objective"):
        head, travels = facts("objective", name), locate(read("objective", name)["objective"], "objective").travels
        loss, keeps, further = (head.get(key, "-") for key in ("loss", "keeps", "further"))
        cells = [f"`{name}`", loss, ", ".join(travels), keeps, further]
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines)


def _hashes() -> str:
    """The table of the shipped data sets."""
    lines = ["| data set | hash |", "|---|---|"]
    known = {name: sha256 for name, (sha256, _) in SHIPPED.items()}
    known |= {name: rebuilt.listed(name)["sha256"] for name in rebuilt.FEDERATIONS}
    return "\n".join([*lines, *(f"| `{name}` | `{sha256}` |" for name, sha256 in sorted(known.items()))])


def main(words: Sequence[str]) -> int:
    """Prints what is missing, and writes it unless a word is `check=true`."""
    enable_garbage_collection()
    with Display(Console()) as display:
        if lines := missing():
            lines.append(f"write it: {COMMAND}")
        for line in lines or ["nothing is missing"]:
            display.print(line)
        if "check=true" not in words:
            write(display)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
