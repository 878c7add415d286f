"""Pickles of bytes, text, numbers and NumPy arrays, read without running any code."""

import io
import pickle
import warnings
from typing import Any

import numpy as np

from pipelines.errors import DataError

_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in {encoding}")
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    """Builds arrays and refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        if module in _MULTIARRAY and name == "_reconstruct":
            return np._core.multiarray._reconstruct  # type: ignore[attr-defined]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if module == "_codecs" and name == "encode":  # how Python 3 writes bytes for Python 2
            return _latin1
        raise pickle.UnpicklingError(f"it needs {module}.{name}, which is not data")


def unpickle(data: bytes, name: str) -> dict[bytes, Any]:
    """Return the dictionary in a pickle, its keys as bytes."""
    try:
        with warnings.catch_warnings():  # NumPy warns about how old arrays were pickled
            warnings.simplefilter("ignore")
            content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # damaged pickles raise nearly anything
        raise DataError(f"{name} cannot be unpickled: {error}", "get the file again") from None
    if not isinstance(content, dict):
        raise DataError(f"{name} holds no dictionary", "get the file again")
    return {key.encode() if isinstance(key, str) else key: value for key, value in content.items()}
