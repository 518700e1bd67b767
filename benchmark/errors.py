"""The errors a user can mend, and the exit codes they end a command with."""


class ConfigError(ValueError):
    """What was asked for cannot be run; one line that says what is possible."""


EX_TEMPFAIL = 75
"""Exit code where the same command may do later, as in sysexits.h: somebody else is at it, or out of time."""


DEADLINE_PREFIX = "time is up: "
"""Beginning of what a command says that ends for the latter."""


class BusyError(ConfigError):
    """Somebody else is at it now; the same command may do later."""


class OutOfTimeError(Exception):
    """The next round would not end within `minutes`; one line for the user. The rounds before it are safe."""
