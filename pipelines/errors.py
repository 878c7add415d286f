"""Mistakes that a user can mend: what is wrong, what to type, and the exit code."""


class UserError(Exception):
    """An error told in two lines: what is wrong and what to do about it."""

    exit_code = 1

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what, fix)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.what}\n  fix: {self.fix}"


class ConfigError(UserError):
    """Usage or configuration."""

    exit_code = 2


class DataError(UserError):
    """Data that is missing or damaged."""

    exit_code = 3


class DivergedError(UserError):
    """Training that left the finite numbers."""

    exit_code = 4


class ResourceError(UserError):
    """Memory, disk or device."""

    exit_code = 5
