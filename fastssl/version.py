"""The version of fastssl, alone in its file so that packaging reads it without an import."""

__version__ = "0.2.0"
