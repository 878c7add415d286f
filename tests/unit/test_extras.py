import os
import subprocess
import sys

import pytest

from tests.installed import needs
from tests.process_output import PATIENCE
from tests.small_stores import make_store

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


@needs("ffcv")
@pytest.mark.parametrize(
    ("module", "name"),
    [("pipelines.extras", "import_ffcv"), ("pipelines.convert.ffcv", "load")],
)
def test_the_import_of_ffcv_leaves_the_model_s_threads_alone(module, name):
    code = CODE.format(module=module, name=name)
    subprocess.run([sys.executable, "-W", "error::FutureWarning", "-c", code], check=True)


ONE_CORE = """
import os
import threading
import numba
import numpy as np
from pipelines.extras import import_ffcv

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


@needs("ffcv")
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores can't be chosen here")
def test_a_process_that_decoded_on_one_core_ends():
    command = [sys.executable, "-c", ONE_CORE]
    done = subprocess.run(command, check=True, timeout=PATIENCE, capture_output=True, text=True)
    assert done.stdout.split() == ["omp"]


BROKEN = """
import numpy as np
from pipelines.convert import Options
from pipelines.errors import ConfigError
from pipelines.extras import import_problem, install_line
from pipelines.readers import READERS, choose
from pipelines.store.store import open_store
import sys

assert import_problem("ffcv") == "cannot be imported: libopencv_core.so.406: cannot open it"
assert import_problem("no_such_package") == "is not installed"
assert import_problem("nvidia.no_such_package") == "is not installed"
store = open_store(sys.argv[1])
assert choose(store, "train").name == "resident"
reader = READERS["resident"].open(store, "train")  # decodes JPEG without ffcv
reader.read(np.arange(2), np.empty((2, *reader.shape), np.uint8))
for action in (
    lambda: READERS["ffcv"].open(store, "train"),
    lambda: Options(formats=("ffcv",)),
):
    try:
        action()
    except ConfigError as error:
        assert "libopencv" in error.what and install_line("ffcv", "broken") in error.fix
    else:
        raise AssertionError("a broken ffcv was used")
"""


def test_a_package_that_is_installed_and_broken_counts_as_absent(tmp_path):
    store = make_store(tmp_path / "store", count=24, quality=90)
    (tmp_path / "ffcv").mkdir()
    code = "raise OSError('libopencv_core.so.406: cannot open it')"
    (tmp_path / "ffcv" / "__init__.py").write_text(code)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    subprocess.run(
        [sys.executable, "-c", BROKEN, str(store.path)],
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
