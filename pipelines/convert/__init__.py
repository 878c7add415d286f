"""Conversion of raw data into stores, once and offline.

`Options` holds every choice of a user, `open_source` finds the raw data, `convert` writes it in
one pass, and `ensure_store` opens a store that may have to be converted first. How raw data is
read belongs to `pipelines.sources`, how a store is read to `pipelines.store`.
"""

from pipelines.convert.driver import convert
from pipelines.convert.ensure import ensure_store
from pipelines.convert.open import open_source
from pipelines.convert.options import Options

__all__ = ["Options", "convert", "ensure_store", "open_source"]
