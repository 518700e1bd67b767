"""Errors a user can mend: one line each, and the exit code a command ends with.

An error with an `exit_code` is the user's to mend; any other is a bug. `UserError` is the root within `benchmark`. The
other packages do not import this one, so each has a root of its own with that attribute: MethodError, EvalError,
DataError and RecordError.
"""

EX_TEMPFAIL = 75
"""Exit code where the same command may succeed later, as in sysexits.h: the folder is in use, or time is up."""
DEADLINE_PREFIX = "time is up: "
"""Prefix of the out-of-time message; the campaign parses it."""


class UserError(ValueError):
    """An error a user can mend; the message is one line that says what is possible."""

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
    """A checkpoint that cannot be resumed from."""


class DivergedError(UserError):
    """A loss, a reply or a client's state that is not finite."""


class RankError(UserError):
    """Ranks that cannot connect to each other."""


def exit_code(error: BaseException) -> int | None:
    """Exit code of an error a user can mend, None for a bug; an OSError about a file is the user's."""
    if isinstance(error, OSError):
        return None if error.filename is None else UserError.exit_code
    return getattr(error, "exit_code", None)


def message(error: BaseException) -> str:
    """The one line that is printed for an error a user can mend."""
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
