"""What a campaign consists of: runs in order of worth, each with the published numbers it settles, and how far it is.

How far a run is, its folder tells, and nothing else: its record, its rounds, who holds it, and `sessions.jsonl`, a line
for each time a campaign has worked on it.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from benchmark.configuration.compose import compose, parse
from benchmark.configuration.files import read
from benchmark.configuration.identity import RUNTIME, differences
from benchmark.configuration.naming import folder, title
from benchmark.configuration.suites import joined, listed
from benchmark.configuration.typecheck import nearest
from benchmark.errors import ConfigError
from benchmark.evaluation.protocols import expanded
from benchmark.experiment.lock import locked, locks
from leaderboards import schema, store
from leaderboards.papers import tables
from leaderboards.papers.tables import Published
from leaderboards.papers.verdicts import ALLOWED

DONE, HALF, OPEN, BUSY, FAILED = "done", "half done", "open", "busy", "failed"
"""Of a piece: nothing is left to do; some of it; all of it; another process is at it; it ended with an error."""

PAUSED, STOPPED = "paused", "stopped"
"""Ends of a session, beside DONE and FAILED: it ran out of time by itself, or it was told to end."""

SESSIONS = "sessions.jsonl"
CLAIM = "claim"
"""Locked by the campaign that works on a run folder, as `lock` is by the run itself."""

WORDS = ("minutes", "devices", "plan", "retry", "speed", "cluster", "jobs")
"""What the command itself takes."""

KEYS = ("parts", "unknown")
PART = ("scenarios", "methods", "seeds")


class State(NamedTuple):
    """How far a piece is. rounds: played. missing: protocols its record lacks. why: of a failure."""

    kind: str
    rounds: int
    missing: tuple[str, ...] = ()
    why: str = ""

    def unless(self, why: str | None) -> "State":
        """This, or a failure for a reason, where there is one and something is left to do."""
        return State(FAILED, self.rounds, why=why) if why is not None and self.kind in (HALF, OPEN) else self


@dataclass(frozen=True)
class Job:
    """One run of a campaign.

    Args:
        words: what `run` is told. config: what they come to, with the protocols its cells ask for.
        cells: the published numbers beside it that a rule can settle.
    """

    words: tuple[str, ...]
    config: DictConfig
    cells: tuple[Published, ...] = field(repr=False)

    @property
    def folder(self) -> Path:
        """Where it is played."""
        return folder(self.config)

    @property
    def name(self) -> str:
        """Scenario, row and seed."""
        return title(self.config)

    @property
    def rounds(self) -> int:
        """Planned."""
        return int(self.config.federation.rounds)

    @property
    def protocols(self) -> list[str]:
        """Ids of those that score it."""
        return expanded(self.config.evaluation.protocols, self.config.data.name, drifts=False)


def jobs(names: Iterable[str], overrides: Sequence[str]) -> list[Job]:
    """The runs of some campaigns, one after the other; each run once, where it first stands.

    Args:
        names: of shipped campaigns, or paths of files.
        overrides: for every run, of keys that say where and how it happens.

    Raises:
        ConfigError: a file that is not as docs/campaigns.md says, or an override that would change what a run is.
    """
    if changing := [word for word in overrides if word.partition("=")[0] not in RUNTIME]:
        close = nearest(changing[0].partition("=")[0], (*RUNTIME, *WORDS))
        raise ConfigError(
            f"{changing[0]}: a campaign plays what its file says{close}; on the command line only how: "
            + ", ".join(dict.fromkeys((*WORDS, *RUNTIME)))
        )
    parse(overrides)
    beside: dict[tuple[str, str], list[Published]] = {}
    for cell in tables.collect():
        if cell.ours is not None:
            beside.setdefault(cell.ours[:2], []).append(cell)
    found: dict[Path, Job] = {}
    for name in names:
        for words in lines(name):
            try:
                piece = _piece(words, overrides, beside)
            except ConfigError as error:
                raise ConfigError(f"campaign {name}, {' '.join(words)}: {error}") from error
            if unlike := differences(found.setdefault(piece.folder, piece).config, piece.config):
                raise ConfigError(f"campaign {name}: {piece.name} is two runs ({'; '.join(unlike)}): give each a row=")
    return list(found.values())


def lines(name: str) -> Iterator[list[str]]:
    """The words of each run of a campaign, in its order: part by part, seed by seed."""
    content = read("campaign", name)
    if wrong := [str(key) for key in content if key not in KEYS]:
        raise ConfigError(f"campaign {name}: {wrong[0]} is unknown; a campaign has {' and '.join(KEYS)}")
    if not isinstance(content.get("parts"), list) or not content["parts"]:
        raise ConfigError(f"campaign {name}: parts is a list; each part has {', '.join(PART)}")
    for number, part in enumerate(content["parts"], 1):
        if (why := _wrong(part)) is not None:
            raise ConfigError(f"campaign {name}, part {number}: {why}; a part has {', '.join(PART)}")
        for seed, setting, line in itertools.product(*(listed(part[key]) for key in ("seeds", "scenarios", "methods"))):
            yield [*joined(str(setting), str(line)), f"seed={seed}"]


def _wrong(part: Any) -> str | None:
    """What keeps a part from being one."""
    if not isinstance(part, Mapping):
        return f"{part!r} is not one"
    if strange := [key for key in part if key not in PART]:
        return f"{strange[0]} is unknown"
    given = {key: [] if part.get(key) is None else listed(part[key]) for key in PART}
    empty = [key for key, lines in given.items() if not lines or not all(str(line).strip() for line in lines)]
    return f"{empty[0]} are missing, or a line of them is empty" if empty else None


def unknown(name: str) -> list[str]:
    """What the papers leave open of a campaign's settings, in words."""
    given = read("campaign", name).get("unknown") or []
    return [str(one) for one in (given if isinstance(given, list) else [given])]


def _piece(words: list[str], overrides: Sequence[str], beside: Mapping[tuple[str, str], list[Published]]) -> Job:
    scenario, method, *own = words
    if how := [word for word in own if word.partition("=")[0] in RUNTIME]:
        raise ConfigError(f"{how[0]}: a campaign's file says what is played; give this on the command line")
    config = compose(scenario, method, [*own, *overrides])
    cells = beside.get((config.scenario, config.row), [])
    asked = [cell.ours.score.partition(" ")[0] for cell in cells if cell.ours is not None]
    protocols = list(dict.fromkeys([*config.evaluation.protocols, *asked]))
    config.evaluation.protocols = protocols
    settled = tuple(cell for cell in cells if cell.unit in ALLOWED)
    kept = [word for word in words if not word.startswith("evaluation.protocols=")]
    return Job((*kept, f"evaluation.protocols=[{','.join(protocols)}]"), config, settled)


def look(piece: Job, retry: bool = False, own: bool = False) -> State:
    """How far a piece is; retry: a failure is forgotten; own: whoever holds it is asking."""
    place, rounds = piece.folder, played(piece.folder)
    missing: tuple[str, ...] = ()
    if (place / "result.json").exists():
        try:
            record = store.read(place / "result.json")
        except schema.RecordError as error:
            return State(FAILED, rounds, why=str(error))
        rounds, missing = record["rounds"]["done"], tuple(set(piece.protocols) - set(record["scores"]))
        if not missing:
            return State(DONE, rounds)
    if not own and any(locked(place / name) for name in (CLAIM, "lock")):
        return State(BUSY, rounds)
    last = (sessions(place) or [{}])[-1]
    if last.get("end") == FAILED and not retry:
        return State(FAILED, rounds, missing, last["why"])
    return State(HALF if rounds else OPEN, rounds, missing)


def played(place: Path) -> int:
    """Rounds that a run folder has whole."""
    return len(rows(place))


def rows(place: Path) -> list[dict[str, Any]]:
    """A run folder's lines of rounds; one that was being written when the machine went is passed over."""
    return _lines(place / "rounds.jsonl")


def sessions(place: Path) -> list[dict[str, Any]]:
    """What campaigns did in a run folder: began, seconds, rounds before and after, ranks, end and why."""
    return _lines(place / SESSIONS)


def note(place: Path, session: Mapping[str, Any]) -> None:
    """Adds a line to a run folder's sessions."""
    with (place / SESSIONS).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(session) + "\n")


def _lines(file: Path) -> list[dict[str, Any]]:
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


@contextmanager
def claimed(piece: Job) -> Iterator[bool]:
    """Keeps a piece to this campaign for as long as the context is open; False where another was faster."""
    piece.folder.mkdir(parents=True, exist_ok=True)
    with (piece.folder / CLAIM).open("a") as file:
        yield locks(file)
