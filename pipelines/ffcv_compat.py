"""The import of ffcv, without what it does on the side."""

import warnings


def import_ffcv() -> None:
    """Import ffcv, and put back the number of threads of torch, which it sets to 1.

    From then on the number of decoding threads is the decoder's alone: FFCV would give the same
    number to the model with every epoch. Its compiled code runs on OpenMP, where numba would take
    a TBB that it finds: on one core a process that used TBB in a thread never ends.
    """
    import numba
    import torch

    numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]
    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports distutils
        from ffcv.pipeline.compiler import Compiler
    torch.set_num_threads(threads)

    def set_num_threads(number: int) -> None:
        Compiler.num_threads = number
        numba.set_num_threads(number)

    Compiler.set_num_threads = set_num_threads
