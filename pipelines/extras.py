"""Optional packages: whether they can be used, how to install them, and a clean import of ffcv."""

import importlib
import warnings
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, requires


@cache
def import_problem(package: str) -> str | None:
    """Return why an optional package cannot be used, as "is not installed"; None if it can.

    The package is imported, because an installed one may be broken: a shared library is missing,
    or it was built for another numpy.
    """
    try:
        if package == "ffcv":
            import_ffcv()
        else:
            importlib.import_module(package)
    except Exception as error:  # whatever a broken package raises
        if isinstance(error, ModuleNotFoundError) and f"{package}.".startswith(f"{error.name}."):
            return "is not installed"
        return f"cannot be imported: {' '.join(str(error).split())[:200]}"
    return None


def install_line(extra: str, problem: str = "is not installed") -> str:
    """Return the line that installs an extra of fastssl, or its packages again if they are broken.

    Markers in setup.py leave an extra empty on a system for which it has no packages.
    """
    from packaging.requirements import Requirement

    line = f'pip install "fastssl[{extra}]"'
    with suppress(PackageNotFoundError):  # a checkout that is not installed
        listed = map(Requirement, requires("fastssl") or ())
        names = [r.name for r in listed if r.marker and r.marker.evaluate({"extra": extra})]
        if not names:
            return f"nothing: {extra} has no packages for this system and version of Python"
        if problem != "is not installed":  # pip would find nothing to do
            line = f"pip install --force-reinstall --no-deps {' '.join(names)}"
    return f"{line}, which needs a compiler, OpenCV and libturbojpeg" if extra == "ffcv" else line


def import_ffcv() -> None:
    """Import ffcv and undo what it does to the settings of the process.

    - The import sets torch's number of threads to 1: the old number is restored.
    - Every epoch of FFCV sets torch's number of threads to that of its decoder. Its setter is
      replaced by one that sets the decoder's threads alone.
    - FFCV's compiled code runs on numba's threading layer. Numba prefers TBB where it finds it,
      but on one core a process that used TBB in a thread never exits: OpenMP comes first.
    """
    import numba
    import torch

    numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]
    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ffcv imports distutils
        from ffcv.pipeline.compiler import Compiler
    torch.set_num_threads(threads)

    def set_num_threads(number: int) -> None:
        Compiler.num_threads = number
        numba.set_num_threads(number)

    Compiler.set_num_threads = set_num_threads
