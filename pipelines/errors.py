"""Errors that a user can fix: what is wrong, what to type, and the exit code."""

import os
from pathlib import Path

AGAIN = "free space or permissions there, then type the same line again"
MISSING = "check that the path exists, then type the same line again"


class UserError(Exception):
    """An error printed in two lines: what is wrong, and what to type."""

    exit_code = 1

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what, fix)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.what}\n  fix: {self.fix}"


class ConfigError(UserError):
    """A mistake in the command line or the configuration."""

    exit_code = 2


class DataError(UserError):
    """Missing or damaged data."""

    exit_code = 3


class DivergedError(UserError):
    """A loss or gradient that is not finite."""

    exit_code = 4


class ResourceError(UserError):
    """Not enough memory or disk space, or a device or file that cannot be used."""

    exit_code = 5


def system_error(error: OSError, path: Path | None = None) -> ResourceError:
    """Return the user error for a refused system call; `path` if the error names no file."""
    where = os.fsdecode(error.filename) if error.filename is not None else path
    fix = MISSING if isinstance(error, FileNotFoundError) else AGAIN
    return ResourceError(f"{where or 'a file'} can't be used: {error.strerror or error}", fix)
