"""`python -m benchmark.parity.libraries.measure FILE`: measures all cases by the libraries that this Python has."""

import sys
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path

from rich.console import Console

from benchmark.parity.libraries.registry import Case, cases, difference, planted
from benchmark.parity.libraries.results import Result, Table, line, save

distributions = cache(metadata.packages_distributions)
"""Package -> its distributions; it reads every installed file's name, which takes seconds."""


def measure(case: Case) -> Result:
    """The result of a case; a library that cannot be imported or called is an error of the result."""
    function, old, new = case.fault
    result = Result(
        title=case.title,
        ours=case.ours,
        theirs=case.theirs,
        library=distribution(case.package),
        tolerance=_short(case.tolerance),
        fault=f"{function.__qualname__}: {' '.join(old.split())} → {' '.join(new.split()) or 'nothing'}",
        note=case.note,
    )
    try:
        found = difference(case)
        with planted(*case.fault):
            seen = difference(case)
    except Exception as error:  # the newest version of a library may raise anything
        return replace(result, error=" ".join(f"{type(error).__name__}: {error}".split())[:300])
    return replace(result, difference=_short(found), seen=_short(seen))


def distribution(package: str) -> str:
    """The name under which pip knows a package; the package itself where it is not installed."""
    return distributions().get(package, [package])[0]


def table_of(results: list[Result]) -> Table:
    """The results, with the versions of torch and of the libraries that are installed."""
    names = sorted({"torch", *(result.library for result in results if not result.error)}, key=str.casefold)
    return Table({name: metadata.version(name) for name in names}, tuple(results))


def _short(number: float) -> float:
    """Two digits."""
    return float(f"{number:.1e}")


def main(file: Path, console: Console) -> None:
    """Measures and prints every case, and saves the table."""
    results = []
    for case in cases():
        results.append(measure(case))
        console.print(line(results[-1]))
    save(table_of(results), file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Console(highlight=False, markup=False, soft_wrap=True))
