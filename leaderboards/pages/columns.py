"""The columns of a board's tables, and its tables as lines of Markdown."""

import re
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_CEILING, Decimal
from functools import partial

from leaderboards.encoders import WORST
from leaderboards.markdown import MISSING, in_bytes, rank_of, table_lines, three_digits, with_spread
from leaderboards.rank import HEADLINE, Row
from leaderboards.sources import row_name
from leaderboards.store import load_yaml

SCORES: dict[str, dict[str, tuple[str, int]]] = load_yaml("scores.yaml")
SCORE_COLUMNS: dict[str, tuple[str, int]] = {key: column for group in SCORES.values() for key, column in group.items()}
"""Score ("protocol metric") -> heading, decimals; the site shows the first of them at once."""
OWN = re.compile(r"(?:\w+\.)+\w+(?::[^/]*)?/[0-9a-f]{8} .+")
"""A score of somebody's own protocol, whose id is an import path, its settings and digits of its code."""
BELOW = "↓"
"""Marks an accuracy below that of the untrained encoder."""
BELOW_WORDS = (
    f"{BELOW} is below the untrained encoder, of the row's architecture where the board has one, "
    "by means over the seeds that both have and without a test."
)
MEAN_ENCODER, WORST_ENCODER = "mean ", ", worst "
"""Before the mean accuracy of a row with several encoders, and before that of the worst of them."""
ENCODERS_WORDS = "*mean* and *worst* are over the encoders that a run leaves, one a client or one an architecture."
EPSILON, IMAGES, ACTIVITY = "epsilon", "images: clients + server", "activity"
IDLE = "∅"
"""Marks a row whose own idea hardly acts."""


def _score(row: Row, key: str, decimals: int, spread: bool = True) -> str:
    """A row's score; of several encoders `mean 52.3 ± 0.4, worst 48.2`, the latter a mean over seeds too."""
    text = with_spread(row.cells.get(key), decimals)
    text = f"{text if spread else text.partition(' ± ')[0]}{f' {BELOW}' if key in row.below else ''}"
    worst = row.cells.get(f"{key}{WORST}")
    return text if worst is None else f"{MEAN_ENCODER}{text}{WORST_ENCODER}{worst.mean:.{decimals}f}"


def narrow(text: str) -> str:
    """A cell's text for the terminal: a score of several encoders in three lines, so that the column stays narrow.

    >>> narrow("mean 52.3 ± 0.4, worst 48.2")
    'mean 52.3\\n± 0.4\\nworst 48.2'
    """
    if WORST_ENCODER not in text:
        return text
    return text.replace(" ± ", "\n± ").replace(WORST_ENCODER, f"\n{WORST_ENCODER.removeprefix(', ')}")


def of_encoders(rows: Iterable[Row]) -> str:
    """What the scores of the rows with several encoders are, in a sentence; empty without such rows."""
    several = ", ".join(f"{row.row}: {row.encoders}" for row in rows if row.encoders > 1)
    return several and f"Of rows with several encoders ({several}), mean is over them, and worst is the worst of them."


def _up(number: float) -> str:
    """A number above 0 rounded up to two digits.

    >>> _up(1.249), _up(2.0)
    ('1.3', '2')
    """
    step = Decimal(1).scaleb(Decimal(f"{number:.9g}").adjusted() - 1)
    return f"{float(Decimal(f'{number:.9g}').quantize(step, ROUND_CEILING)):g}"


def of_submissions(rows: Iterable[Row]) -> str:
    """What rows claim and their verifiers measured, in a sentence; empty where no verifier has measured scores."""
    told = []
    for row in rows:
        if row.difference is not None:
            claimed, again = row.cells.get(HEADLINE), row.recomputed
            both = "" if claimed is None or again is None else f"{claimed.mean:.1f} claimed, {again:.1f} measured; "
            far = (
                f"no score differs by more than {_up(100 * row.difference)} %" if row.difference else "no score differs"
            )
            told.append(f"{row.row} ({both}{far})")
    return f"Measured again, from the encoders of submitted rows: {', '.join(told)}." if told else ""


def _images(row: Row) -> str:
    if row.server_images is None:
        return f"{row.images:,.0f} + ?"
    server = f" + {row.server_images:,.0f}" if row.server_images else ""
    return f"{row.images:,.0f}{server}"


def activity_words(name: str, mean: float) -> str:
    """A number of how much an idea acts, by its name in a round's notes.

    >>> activity_words("gradient_share", 0.1234)
    'gradient share 0.12'
    """
    return f"{name.replace('_', ' ')} {mean:.2g}"


def _activity(row: Row) -> str:
    words = ", ".join(activity_words(name, each.mean) for name, each in row.activity.items())
    return f"{words} {IDLE}" if row.idle else words or MISSING


COLUMNS: dict[str, Callable[[Row], str]] = {
    "rank": rank_of,
    "row": row_name,
    **{
        heading: partial(_score, key=key, decimals=decimals)
        for group in ("board", "clients")
        for key, (heading, decimals) in SCORES[group].items()
    },
    "bytes up": lambda row: in_bytes(row.bytes_up),
    "bytes down": lambda row: in_bytes(row.bytes_down),
    "client seconds": lambda row: three_digits(row.client_seconds),
    IMAGES: _images,
    "seeds": lambda row: str(len(row.seeds)),
    EPSILON: lambda row: MISSING if row.epsilon is None else f"{three_digits(row.epsilon)} ({', '.join(row.covers)})",
    ACTIVITY: _activity,
}
"""Heading -> a row's text; epsilon, activity and scores by client only where a row has any, images only
where a server trains too."""
_TERMINAL = ("rank", "row", "linear (%)", "kNN (%)", "bytes up", "bytes down", "client seconds", "seeds", EPSILON)
"""The columns that fit into 80 characters."""
_PAGE = (
    *("rank", "row", "linear (%)", "kNN (%)", "by client (%)", "worst tenth (%)", "unseen clients (%)"),
    *("bytes up", IMAGES, "seeds", EPSILON, ACTIVITY),
)
"""Those of the page; the site has all columns, and the page's figures show GFLOP and memory."""
_PROBES, _LABEL_FREE = ("linear/v1 accuracy", "knn/v1 accuracy"), ("geometry/v1 effective_rank", "label-free/v1 score")
"""Scores with labels, and the ones that stand in their places where no row has any of them."""


def _columns_of(rows: Iterable[Row]) -> list[str]:
    """The headings of a board."""
    rows = list(rows)
    shown = {EPSILON: any(row.epsilon is not None for row in rows), IMAGES: any(row.server_images != 0 for row in rows)}
    shown |= {heading: any(key in row.cells for row in rows) for key, (heading, _) in SCORES["clients"].items()}
    shown[ACTIVITY] = any(row.activity for row in rows)
    return [column for column in COLUMNS if shown.get(column, True)]


def board_lines(rows: Sequence[Row]) -> list[str]:
    """The board's first columns as a table of Markdown, with the headline's spread alone; the site has all."""
    columns = {column: COLUMNS[column] for column in _columns_of(rows) if column in _PAGE}
    for key, (heading, decimals) in (SCORES["board"] | SCORES["clients"]).items():
        if heading in columns and key != HEADLINE:
            columns[heading] = partial(_score, key=key, decimals=decimals, spread=False)
    return table_lines([*columns], [[text(row) for text in columns.values()] for row in rows], "rlr")


def terminal_columns(rows: Sequence[Row]) -> dict[str, Callable[[Row], str]]:
    """Heading -> a row's text, for the columns that fit into 80 characters."""
    shown = {column: COLUMNS[column] for column in _columns_of(rows) if column in _TERMINAL}
    if any(key in row.cells for row in rows for key in _PROBES):
        return shown
    probes = [SCORE_COLUMNS[key][0] for key in _PROBES]
    names = {column: shown[column] for column in ("rank", "row")}
    others = {column: text for column, text in shown.items() if column not in (*names, *probes)}
    free = {SCORE_COLUMNS[key][0]: partial(_score, key=key, decimals=SCORE_COLUMNS[key][1]) for key in _LABEL_FREE}
    return names | free | others


def own_columns(rows: Iterable[Row]) -> dict[str, tuple[str, int]]:
    """Columns of protocols of somebody's own, headed by their ids: score -> heading, decimals."""
    keys = dict.fromkeys(key for row in rows for key in row.cells)
    main = [key for key in keys if key.removesuffix(WORST) == key or key.removesuffix(WORST) not in keys]
    return {key: (key, 3) for key in main if OWN.fullmatch(key)}


def all_columns(rows: Sequence[Row]) -> dict[str, tuple[str, int | None]]:
    """Columns of every score of any row: heading, decimals. One that nobody gave a heading has its key, and None."""
    worst = {f"{key}{WORST}" for row in rows for key in row.cells}  # shown beside the mean that it belongs to
    keys = {key for row in rows for key in row.cells} - worst - SCORE_COLUMNS.keys()
    return {**SCORE_COLUMNS, **{key: (key, None) for key in sorted(keys)}, **own_columns(rows)}
