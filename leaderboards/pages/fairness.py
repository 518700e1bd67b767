"""The settings that were chosen without a label, as the page on fairness shows them between its marks."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from leaderboards.choices import Choice, agreement, by_scenario
from leaderboards.markdown import MISSING, replace_between, table_lines
from leaderboards.sources import labelled

HEADINGS = ("scenario", "row", "chosen", "tried", "under", "regret", "rank correlation")


def filled(page: str, choices: Sequence[Choice], mark: str = "tuned") -> str:
    """docs/explanation/fairness.md with a table between its marks: one of `choices.FOLDERS`."""
    lines = table_lines(HEADINGS, map(_cells, choices), "lllllr")
    return replace_between(page, mark, "\n".join([*lines, *_summaries(choices)]))


def _cells(choice: Choice) -> tuple[str, ...]:
    seeds = choice.seeds or (choice.seed,)
    notes = ["by labels"] * (choice.chosen_by != "score") + ["edge"] * choice.at_the_edge
    marks = f" ({', '.join(notes)})" if notes else ""
    chosen = f"{', '.join(map(_short, choice.best))}{marks}"
    regret = MISSING if choice.regret is None else f"{choice.regret:.1f}"
    words = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    return (
        choice.scenario,
        labelled(choice.row, choice.row),
        chosen,
        _tried(choice),
        words,
        regret,
        _rounded(agreement(choice.scored)),
    )


def _tried(choice: Choice) -> str:
    """Of the rule the number of trials, of another grid its values; how many diverged, or which."""
    lost = [trial for trial in choice.tried if trial.score is None]
    if choice.seeds:
        return f"{len(choice.tried)} trials{f', {len(lost)} diverged' if lost else ''}"
    values = [
        ", ".join(sorted((trial.point[0].partition("=")[2] for trial in trials), key=float))
        for trials in ([trial for trial in choice.tried if trial.score is not None], lost)
    ]
    return values[0] + (f"; diverged: {values[1]}" if lost else "")


def _summaries(choices: Sequence[Choice]) -> Iterator[str]:
    """For each scenario that was searched by the rule, how far the two criteria agree over all rows."""
    for scenario, rows in by_scenario(choices).items():
        regrets = {row.row: row.regret for row in rows if row.regret is not None}
        if not regrets:
            continue
        free = _rounded(agreement(row.label_free for row in rows))
        worst = max(regrets, key=lambda row: regrets[row])
        trials = [trial for row in rows for trial in row.scored]
        yield ""
        yield (
            f"On `{scenario}` the rank correlation of the two criteria is {_rounded(agreement(trials))} over the "
            f"{len(trials)} trials of all {len(rows)} rows, and {free} over "
            f"the label-free choices; their regret is {fmean(regrets.values()):.1f} points in the mean and "
            f"{regrets[worst]:.1f} at most (`{worst}`)."
        )


def _short(word: str) -> str:
    """`optimizer.lr=0.1` as `lr=0.1`."""
    key, _, value = word.partition("=")
    return f"{key.rpartition('.')[2]}={value}"


def _rounded(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"
