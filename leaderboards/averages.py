"""Ranks over several scenarios, among the rows that all of them rank (Demsar 2006)."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

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


class Average(NamedTuple):
    """Boards whose rows are compared as one (Demsar 2006), each row's place by score among the rows of all boards.

    ranks: row -> scenario -> rank, an interval, of these rows alone; in order of the mean place. mean_place: row ->
    the mean of its places. p: of Friedman's test that all rows are alike, in Iman and Davenport's form. critical: by
    Nemenyi's test at 5 % two rows differ whose mean places are further apart. Both None of fewer than two boards or
    three rows.
    """

    ranks: dict[str, dict[str, tuple[int, int]]]
    mean_place: dict[str, float]
    p: float | None
    critical: float | None

    @property
    def tests(self) -> str:
        """What the tests say, in a sentence; "" without them."""
        if self.p is None or self.critical is None:
            return ""
        count, verdict = len(next(iter(self.ranks.values()))), "tells" if self.p < 0.05 else "does not tell"
        return (
            f"Friedman's test over these {count} boards {verdict} the rows apart (p = {self.p:.2g}, in Iman and "
            "Davenport's form); by Nemenyi's at 5 % two rows differ whose mean places are "
            f"over {self.critical:.1f} apart."
        )


def average(boards: Mapping[str, Sequence[Row]]) -> Average:
    """Rows that all these boards rank, whose names full_names makes one; boards without any rank are left out."""
    names = full_names(boards)

    def called(board: str, row: str) -> str:
        return names.get(board, {}).get(row, row)

    ranking = {
        name: {called(name, row.row): row for row in rows if row.rank is not None} for name, rows in boards.items()
    }
    ranking = {name: rows for name, rows in ranking.items() if rows}
    shared = set.intersection(*map(set, ranking.values())) if ranking else set()
    places = {name: [row for row in rows if row in shared] for name, rows in ranking.items()}
    mean_place = {row: 1 + fmean(places[name].index(row) for name in places) for row in sorted(shared)}

    def among_shared(board: str, row: Row) -> tuple[int, int]:
        better, worse = ({called(board, other) for other in others} for others in (row.better, row.worse))
        return 1 + len(shared & better), len(shared) - len(shared & worse)

    order = sorted(mean_place, key=mean_place.__getitem__)
    ranks = {row: {name: among_shared(name, rows[row]) for name, rows in ranking.items()} for row in order}
    p, critical = friedman(list(mean_place.values()), len(ranking))
    return Average(ranks, {row: mean_place[row] for row in order}, p, critical)


def friedman(mean_places: Sequence[float], boards: int) -> tuple[float | None, float | None]:
    """Of k rows on N boards: p of Friedman's test (Iman and Davenport's F) and Nemenyi's critical difference at 5 %.

    None of fewer than two boards or three rows.
    """
    from scipy.stats import f, studentized_range

    k = len(mean_places)
    if boards < 2 or k < 3:
        return None, None
    most = boards * (k - 1)
    chi = 12 * boards / (k * (k + 1)) * sum((place - (k + 1) / 2) ** 2 for place in mean_places)
    p = float(f.sf((boards - 1) * chi / (most - chi), k - 1, most - k + 1)) if chi < most else 0.0
    return p, float(studentized_range.ppf(0.95, k, float("inf"))) * (k * (k + 1) / (12 * boards)) ** 0.5
