"""Machines behind records, by their text in `provenance.hardware`, and records that several commits have made."""

from collections.abc import Iterable, Mapping, Sequence

from leaderboards.rank import Row
from leaderboards.schema import Record

SEVERAL = "rounds were played by several"
"""How a deviation begins that says that a run went on with another commit, kind of device or number of ranks."""
COMMITS = f"{SEVERAL} commits"


def kinds(texts: Iterable[str]) -> list[str]:
    """The kinds of machine, in order; a text that another one begins with, of an older record, is no kind of its own.

    >>> kinds(["AMD EPYC, 1 threads; family 25 model 17", "AMD EPYC, 1 threads", "Intel, 1 threads"])
    ['AMD EPYC, 1 threads; family 25 model 17', 'Intel, 1 threads']
    """
    texts = dict.fromkeys(texts)
    return [text for text in texts if not any(other.startswith(f"{text};") for other in texts)]


def rows_by_kind(rows: Iterable[Row]) -> dict[str, list[str]]:
    """Kind of machine -> the rows all of whose runs are of it; "" -> those of several. Empty of one kind alone."""
    rows = list(rows)
    known = kinds(text for row in rows for text in row.hardware)
    if len(known) < 2:
        return {}
    found: dict[str, list[str]] = {kind: [] for kind in (*known, "")}
    for row in rows:
        own = [kind for kind in known if any(kind == text or kind.startswith(f"{text};") for text in row.hardware)]
        found[own[0] if len(own) == 1 else ""].append(row.row)
    return {kind: names for kind, names in found.items() if names}


def confounded(by_kind: Mapping[str, Sequence[str]]) -> bool:
    """Whether some rows have run on one kind of machine alone and others on another: then kind and row go together."""
    return len(by_kind.keys() - {""}) > 1


def by_several_commits(records: Iterable[Record]) -> list[str]:
    """The runs whose rounds several commits have made, or one with and without changes (+), in words."""
    lines = [(record, line) for record in records for line in record["deviations"] if line.startswith(COMMITS)]
    return [f"{record['row']}, seed {record['seed']} ({_short(line.partition(': ')[2])})" for record, line in lines]


def _short(commits: str) -> str:
    return ", ".join(f"{commit[:7]}{'+' * commit.endswith('+')}" for commit in commits.split(", "))
