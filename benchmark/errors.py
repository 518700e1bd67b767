"""Errors a user can fix: one line each, and the exit code a command ends with.

An error without an `exit_code` is a bug. `UserError` is the root class within `benchmark`. The other packages do not
import this one, so each has its own root class with that attribute: MethodError, EvalError, DataError and RecordError.
"""

import contextlib
import errno
import re
from collections.abc import Iterator
from pathlib import Path

EX_TEMPFAIL = 75
"""Exit code where the same command may succeed later (folder in use, time is up); the name is from sysexits.h."""
DEADLINE_PREFIX = "time is up: "
"""Prefix of the out-of-time message, which `campaign.scheduler` looks for in a run's output."""


class UserError(ValueError):
    """An error a user can fix; the message is one line that says what is possible and what to do."""

    exit_code = 2


class ConfigError(UserError):
    """A config or command that cannot be run."""


class UnusedKeyError(ConfigError):
    """A key of the command line that would change nothing but the run's name. key: dotted."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}, so it would change nothing: leave it out")
        self.key = key


class BusyError(UserError):
    """A folder that another process is using."""

    exit_code = EX_TEMPFAIL


class OutOfTimeError(UserError):
    """The next round would end after the deadline; all rounds before it are saved."""

    exit_code = EX_TEMPFAIL


class CheckpointError(UserError):
    """A checkpoint from which a run cannot be resumed."""


class DivergedError(UserError):
    """A loss, a reply or a client's state that is not finite."""


class DepartureError(UserError):
    """Numbers that depart from those of an authors' code."""

    exit_code = 1


class RankError(UserError):
    """Ranks that cannot connect to each other."""


def one_line(said: object) -> str:
    """What an error, or another program, says, as one line; the kind of an error that says nothing."""
    return " ".join(str(said).split()) or type(said).__name__


def first_line(error: Exception) -> str:
    """The first line of what an error says, or its kind where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def count(number: int, noun: str) -> str:
    """A number and its noun, which has an s but after 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a write where there is no room; Python does not name the file in them."""


@contextlib.contextmanager
def names_full_disk(folder: Path) -> Iterator[None]:
    """Names the folder in an error of a full disk, however deep in a library the write was."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            error.filename = str(folder)
        raise


def out_of_memory(error: BaseException) -> bool:
    """Whether memory was refused, by Python, numpy, torch's CPU allocator or CUDA; torch is not imported for it."""
    if isinstance(error, RuntimeError):
        return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    return isinstance(error, MemoryError)


def exit_code(error: BaseException) -> int | None:
    """Exit code of an error a user can fix, None for a bug.

    An OSError that names a file counts as the user's, and so do a full disk and too little memory.
    """
    if out_of_memory(error):
        return UserError.exit_code
    if isinstance(error, OSError):
        return None if error.filename is None and error.errno not in FULL else UserError.exit_code
    return getattr(error, "exit_code", None)


def message(error: BaseException) -> str:
    """The one line that is printed for an error a user can fix."""
    if out_of_memory(error):
        asked = re.search(r"[\d.]+ ?(bytes|[KMGTP]i?B)", str(error))
        size = f" ({asked[0]} were asked for)" if asked else ""
        return f"out of memory{size}: lower training.batch_size, evaluation.batch_size, the images or the networks"
    if not isinstance(error, OSError):
        return str(error)
    line = f"{error.filename}: {error.strerror}" if error.filename is not None else str(error.strerror)
    return f"{line}: free some space and run the same command again" if error.errno in FULL else line
