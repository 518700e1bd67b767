"""Which methods are reconstructed, as the heads of the methods' configs have it (`source`), and how pages name them."""

from functools import cache

from leaderboards.rank import Row
from leaderboards.store import load_yaml

RECONSTRUCTED = "reconstructed"
MEANING = (
    "neither the paper's formulas nor the authors' own code could be read, so that the code here follows an abstract, "
    "or copies of the code that other people have changed. Numbers are the reconstruction's, not the paper's method's"
)


@cache
def reconstructed() -> dict[str, str]:
    """Method -> its title, of the methods that are reconstructed; `make pages` writes the file."""
    return {
        name: facts["title"] or name
        for name, facts in load_yaml("methods.json").items()
        if facts["source"] == RECONSTRUCTED
    }


def labelled(name: str, method: str) -> str:
    """A name, such as a row's, that says so where its method is reconstructed.

    >>> labelled("fedca", "fedca"), labelled("fedavg-byol", "fedavg")
    ('fedca (reconstructed)', 'fedavg-byol')
    """
    return f"{name} ({RECONSTRUCTED})" if method in reconstructed() else name


def row_name(row: Row) -> str:
    """The name of a board's row, with its mark where somebody else has submitted it."""
    name = labelled(row.row, row.method)
    return f"{name} ({row.submission})" if row.submission else name


def note(method: str) -> str:
    """What a method's page says of it; empty where it is not reconstructed."""
    return f"*{RECONSTRUCTED.capitalize()}*: {MEANING}." if method in reconstructed() else ""


def sentence() -> str:
    """Which methods are reconstructed, and what that means."""
    *others, last = sorted(reconstructed().values(), key=str.casefold)
    return f"{', '.join(others)} and {last} are *{RECONSTRUCTED}*: {MEANING}."
