"""How pixels get from disk to views."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import the names that others call when they are first asked for."""
    if name == "open_store":
        from pipelines.store.store import open_store

        return open_store
    if name == "open_loader":
        from pipelines.loader.open import open_loader

        return open_loader
    raise AttributeError(f"module 'pipelines' has no attribute {name!r}")
