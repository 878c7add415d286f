"""The command: every verb parses its options, calls the library and prints.

No module outside this package imports it, except `__main__`.
"""

from fastssl.cli.app import app
from fastssl.cli.command import main

__all__ = ["app", "main"]
