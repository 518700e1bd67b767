"""Ranks over several scenarios, among the rows that all of them rank."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from leaderboards.rank import Row


def full_names(boards: Mapping[str, Sequence[Row]]) -> dict[str, dict[str, str]]:
    """Board -> row -> METHOD-OBJECTIVE, for rows called by their method alone that another board calls so.

    A row is called by its method alone where its objective is the one that the method or the scenario gives.
    """
    known = {(row.row, row.method, row.objective) for rows in boards.values() for row in rows}
    names: dict[str, dict[str, str]] = {}
    for board, rows in boards.items():
        here = {row.row for row in rows}
        for row in rows:
            full = f"{row.method}-{row.objective}"
            if row.row == row.method and full not in here and (full, row.method, row.objective) in known:
                names.setdefault(board, {})[row.row] = full
    return names


def ranks_by_scenario(boards: Mapping[str, Sequence[Row]]) -> dict[str, dict[str, tuple[int, int]]]:
    """Row -> scenario -> rank, of the rows that all these boards rank.

    They are in order of the mean of their places by score (Demsar 2006). A row that boards call differently has its
    full name. A rank counts those rows alone. Boards without any rank are left out.
    """
    names = full_names(boards)

    def called(board: str, row: str) -> str:
        return names.get(board, {}).get(row, row)

    ranking = {
        name: {called(name, row.row): row for row in rows if row.rank is not None} for name, rows in boards.items()
    }
    ranking = {name: rows for name, rows in ranking.items() if rows}
    shared = set.intersection(*map(set, ranking.values())) if ranking else set()
    places = {name: [row for row in rows if row in shared] for name, rows in ranking.items()}
    order = sorted(sorted(shared), key=lambda row: fmean(places[name].index(row) for name in places))

    def among_shared(board: str, row: Row) -> tuple[int, int]:
        better, worse = ({called(board, other) for other in others} for others in (row.better, row.worse))
        return 1 + len(shared & better), len(shared) - len(shared & worse)

    return {row: {name: among_shared(name, rows[row]) for name, rows in ranking.items()} for row in order}


def mean_rank(ranks: Iterable[tuple[int, int]]) -> tuple[float, float]:
    """The means of the best and of the worst places."""
    best, worst = zip(*ranks, strict=True)
    return fmean(best), fmean(worst)
