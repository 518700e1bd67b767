"""The error of scores that cannot be had; its module imports nothing."""


class EvalError(ValueError):
    """Features or settings that a protocol cannot work with: what was given and what is possible, in one line."""

    exit_code = 2
