"""Errors a user can fix: one line each, and the exit code a command ends with.

An error without an `exit_code` is a bug. `UserError` is the root class within `benchmark`. The other packages do not
import this one, so each has its own root class with that attribute: MethodError, EvalError, DataError and RecordError.
"""

EX_TEMPFAIL = 75
"""Exit code where the same command may succeed later (folder in use, time is up); the name is from sysexits.h."""
DEADLINE_PREFIX = "time is up: "
"""Prefix of the out-of-time message, which `campaign.scheduler` looks for in a run's output."""


class UserError(ValueError):
    """An error a user can fix; the message is one line that says what is possible and what to do."""

    exit_code = 2


class ConfigError(UserError):
    """A config or command that cannot be run."""


class BusyError(UserError):
    """A run folder that another process is using."""

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


def exit_code(error: BaseException) -> int | None:
    """Exit code of an error a user can fix, None for a bug; an OSError that names a file counts as the user's."""
    if isinstance(error, OSError):
        return None if error.filename is None else UserError.exit_code
    return getattr(error, "exit_code", None)


def message(error: BaseException) -> str:
    """The one line that is printed for an error a user can fix."""
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
