"""The errors of both packages under one name."""

from pipelines.errors import ConfigError, DataError, DivergedError, ResourceError, UserError

__all__ = ["ConfigError", "DataError", "DivergedError", "ResourceError", "UserError"]
