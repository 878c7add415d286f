import os
import subprocess
import sys

import pytest

CODE = """
import torch
torch.set_num_threads(2)
from {module} import {name}
{name}()
assert torch.get_num_threads() == 2
from ffcv.pipeline.compiler import Compiler
Compiler.set_num_threads(1)
assert torch.get_num_threads() == 2
"""


@pytest.mark.parametrize(
    ("module", "name"),
    [("pipelines.ffcv_compat", "import_ffcv"), ("pipelines.convert.ffcv", "load")],
)
def test_the_import_of_ffcv_leaves_the_model_s_threads_alone(module, name):
    code = CODE.format(module=module, name=name)
    subprocess.run([sys.executable, "-W", "error::FutureWarning", "-c", code], check=True)


ONE_CORE = """
import os
import threading
import numba
import numpy as np
from pipelines.ffcv_compat import import_ffcv

import_ffcv()
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])


@numba.njit(parallel=True, nogil=True)
def count(numbers):
    for i in numba.prange(len(numbers)):
        numbers[i] += 1


numbers = np.zeros(100)
thread = threading.Thread(target=count, args=(numbers,))
thread.start()
thread.join()
assert numbers.all()
print(numba.threading_layer())
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores can't be chosen here")
def test_a_process_that_decoded_on_one_core_ends():
    done = subprocess.run(
        [sys.executable, "-c", ONE_CORE], check=True, timeout=120, capture_output=True, text=True
    )
    assert done.stdout.split() == ["omp"]
